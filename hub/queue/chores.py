"""What a worker does beside its jobs, each at its time: one thread, one connection.

Whatever a chore raises is logged, noted where people look for it, and tried again after a wait that doubles up to a
minute; it stops neither the others nor the worker.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from hub import db
from hub.db import is_conflict, is_connection_loss
from hub.queue import backoff

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0


class Chore(Protocol):
    """Something to be done again and again."""

    name: str

    def act(self, connection: psycopg.Connection[Any]) -> float:
        """Do what is due; answers in how many seconds to do so again."""

    def note(self, connection: psycopg.Connection[Any], error: str) -> None:
        """Note that the chore cannot be done, and why."""


@dataclass
class _Turn:
    chore: Chore
    at: float
    failures: int = 0


class Chores:
    """Does what was added to it, from its start until it is stopped."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._turns: list[_Turn] = []
        self._stopping = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="chores", daemon=True)

    def add(self, chore: Chore, wait: float) -> None:
        """A chore, to be done the first time after so many seconds."""
        self._turns.append(_Turn(chore, time.monotonic() + wait))

    def start(self) -> None:
        """Begin, with at least one chore."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is being done is done first, within seconds."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            turn = min(self._turns, key=lambda turn: turn.at)
            if not self._stopping.wait(max(0.0, turn.at - time.monotonic())):
                turn.at = time.monotonic() + self._take(turn)
        self._close()

    def _take(self, turn: _Turn) -> float:
        try:
            wait = turn.chore.act(self._open())
        except Exception as error:
            self._close()
            turn.failures += 1
            wait = backoff.wait(turn.failures, base=FIRST_WAIT, ceiling=LONGEST_WAIT)
            self._tell(turn.chore, error, wait)
            return wait
        if turn.failures:
            log.info("%s works again", turn.chore.name)
            turn.failures = 0
        return wait

    def _tell(self, chore: Chore, error: Exception, wait: float) -> None:
        told = (chore.name, type(error).__name__, wait)
        if is_connection_loss(error) or is_conflict(error):
            log.warning("%s: %s; tried again in %.1f s", *told)
            return
        log.error("%s failed: %s; tried again in %.1f s", *told, exc_info=error)
        try:
            chore.note(self._open(), type(error).__name__)
        except Exception as another:
            self._close()
            log.warning("that could not be noted: %s", type(another).__name__)

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = db.connect(
                self._url,
                application_name="hub worker chores",
                statement_timeout=10.0,
                lock_timeout=2.0,
                idle_timeout=10.0,
                autocommit=True,
                options="-c enable_seqscan=off",
            )
        return self._connection

    def _close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None
