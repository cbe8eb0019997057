"""Removes what need not be kept: ended jobs that no person asked for, old ticks, worker processes long gone.

A chore of every worker (`chores`): now and then, in small batches, passing over what somebody has locked. What people
asked for is kept for ever, and so is a job whose dead letter is open. How it finds its rows: retention.sql.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from hub.config import Settings
from hub.queue import sql
from hub.queue.store import Connection

log = logging.getLogger(__name__)

SQL = sql.load(Path(__file__).with_name("retention.sql"))
# Between two batches the database and the worker's other chores have their turn, in seconds.
BREATH = 0.05
# A tick's batch is a thousand of each schedule; a worker's batch is a thousand.
TICKS = WORKERS = 1000


@dataclass(frozen=True)
class Removed:
    """What a batch removed. `more`: whether there is more to look at now."""

    jobs: int
    ticks: int
    workers: int
    more: bool


class Retention:
    """The chore: a batch at a time until there is no more, then not before `queue_prune` seconds."""

    name = "retention"

    def __init__(self, settings: Settings) -> None:
        self._days = settings.queue_keep_days
        self._every = settings.queue_prune

    def act(self, connection: Connection) -> float:
        """Remove a batch; answers in how many seconds to remove another."""
        removed = prune(connection, self._days)
        if removed.jobs or removed.ticks or removed.workers:
            gone = {"jobs": removed.jobs, "ticks": removed.ticks, "workers": removed.workers}
            log.info("removed what was old", extra=gone)
        # Workers that started together do not stay together.
        return BREATH if removed.more else self._every * random.uniform(0.8, 1.2)

    def note(self, connection: Connection, error: str) -> None:
        """Note that nothing can be removed, and why."""
        connection.execute(SQL["fail"].encode(), {"error": error})


def trouble(connection: Connection) -> str | None:
    """Why nothing can be removed, in a sentence for whoever runs Hub; None if nothing is wrong."""
    row = connection.execute(SQL["state"].encode()).fetchone()
    if row is None or row[0] is None:
        return None
    return f"old rows cannot be removed: {row[0]}, since {row[1]:%Y-%m-%d %H:%M UTC}"


def prune(connection: Connection, days: int) -> Removed:
    """Remove one batch of what is older than `days`."""
    _run(connection, "begin")
    row = _run(connection, "prune_jobs", days=days).fetchone()
    _, jobs, more = row or (0, 0, False)
    ticks = _run(connection, "prune_ticks", days=days).rowcount
    workers = _run(connection, "prune_workers").rowcount
    return Removed(jobs, ticks, workers, bool(more) or ticks >= TICKS or workers >= WORKERS)


def _run(connection: Connection, name: str, **values: int) -> psycopg.Cursor[tuple[Any, ...]]:
    # Planned anew each time, by what the tables are like then: that costs nothing beside the work itself.
    return connection.execute(SQL[name].encode(), values, prepare=False)
