"""What the running app holds: settings, database, and the listener that feeds open streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flask import current_app

from hub.config import Settings
from hub.db import Database


@dataclass
class State:
    """`listener` is started by the first open stream of the process."""

    settings: Settings
    db: Database
    listener: Any = None


def state() -> State:
    """The current app's state."""
    held: State = current_app.extensions["hub"]
    return held


def settings() -> Settings:
    """The current app's settings."""
    return state().settings


def database() -> Database:
    """The current app's database."""
    return state().db
