"""Writes the successes of jobs that were claimed ahead, many in one statement, on a thread and a connection of its own.

A job counts as done only when that statement commits: until then its lease is kept, and if this process dies it runs
again. Jobs are paired with the claim they ran under, so a job that somebody else has by now is not touched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

import psycopg

from hub import db
from hub.queue import store
from hub.queue.lease import Held, LeaseKeeper

log = logging.getLogger(__name__)

# Successes are written when so many have come together, or so many seconds after the first.
FULL = 500
LINGER = 0.005


class Completer:
    """Takes successes from the lanes (`done`) and writes them."""

    def __init__(self, url: str, keeper: LeaseKeeper) -> None:
        self._url = url
        self._keeper = keeper
        self._done: deque[tuple[Held, int]] = deque()
        self._news = threading.Event()
        self._asleep = False
        self._stopping = False
        self._connection: psycopg.Connection[object] | None = None
        self._thread = threading.Thread(target=self._run, name="completions", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Write what is left, for at most so many seconds; what cannot be written lapses and runs again."""
        self._stopping = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(timeout=seconds)

    def done(self, held: Held, job_id: int) -> None:
        """The job's handler returned without a result."""
        self._done.append((held, job_id))
        if self._asleep or len(self._done) == FULL:
            self._news.set()

    def _run(self) -> None:
        while self._done or not self._stopping:
            self._await_done()
            try:
                self._write([self._done.popleft() for _ in range(len(self._done))])
            except Exception as error:
                # Whatever it is: without this thread the worker would look well while what it did runs again and again.
                self._recover(error)
        self._close()

    def _recover(self, error: Exception) -> None:
        if isinstance(error, psycopg.Error):
            log.warning("successes cannot be written: %s", type(error).__name__)
        else:
            log.exception("writing successes failed")
        self._close()
        time.sleep(0.5)

    def _await_done(self) -> None:
        if not self._done:
            self._asleep = True
            # Looked at again after the flag was raised: whoever came before it did not ring.
            if not self._done and not self._stopping:
                self._news.wait()
            self._asleep = False
            self._news.clear()
        if len(self._done) < FULL and not self._stopping:
            self._news.wait(LINGER)
            self._news.clear()

    def _write(self, done: list[tuple[Held, int]]) -> None:
        """Each claim's jobs in a statement of its own, for the claim is what fences them."""
        claims: dict[Held, list[int]] = {}
        for held, job_id in done:
            claims.setdefault(held, []).append(job_id)
        left = {held: ids for held, ids in claims.items() if not held.is_lost()}
        try:
            written = {held: store.complete(self._open(), ids, held.claim) for held, ids in left.items()}
        except Exception:
            self._done.extend((held, job_id) for held, ids in left.items() for job_id in ids)
            raise
        for held, ids in claims.items():
            if lost := len(ids) - written.get(held, 0):
                log.warning("lease lost: jobs ended elsewhere or run again", extra={"jobs": lost, "claim": held.claim})
            self._keeper.drop(held, ids)

    def _open(self) -> psycopg.Connection[object]:
        if self._connection is None or self._connection.closed:
            self._connection = db.connect(
                self._url,
                application_name="hub worker completions",
                statement_timeout=max(1.0, self._keeper.lease / 2),
                lock_timeout=min(5.0, self._keeper.lease / 4),
                autocommit=True,
                options=db.KEYED_PLANS,
            )
        return self._connection

    def _close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None
