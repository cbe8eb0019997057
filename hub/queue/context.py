"""What a running handler may do: go through its items, one transaction each, under the fence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from typing import Any
from uuid import UUID

import psycopg

from hub.config import Settings
from hub.db import CONFLICTS, Database
from hub.queue import store
from hub.queue.job import Cancelled, Claimed, LeaseLost, Stopped
from hub.queue.lease import Held, LeaseKeeper

CHUNK = 1000
# A handler may tell of its progress as often as it likes; it is stored so often, in seconds.
REPORT_EVERY = 1.0

_composed = lru_cache(maxsize=None)(store.compose_step)


class Context:
    """Given to a kind's `run`. Every write it makes is fenced; it raises what stops the handler, which lets it pass."""

    def __init__(self, job: Claimed, database: Database, held: Held, keeper: LeaseKeeper, settings: Settings) -> None:
        self.job = job
        self.database = database
        self.settings = settings
        self._held = held
        self._keeper = keeper
        self._connection: psycopg.Connection[Any] | None = None
        self._reported_at = float("-inf")
        self._stack: ExitStack | None = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._stack:
            self._connection = None
            self._stack.__exit__(*error)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The handler's autocommit connection: each statement is a transaction of its own."""
        if self._connection is None:
            self._stack = ExitStack()
            self._connection = self._stack.enter_context(self.database.autocommit())
        return self._connection

    def check(self) -> None:
        """Raise if the handler may not go on: call it before each write outside the database."""
        self._held.check()

    def remaining(self) -> float:
        """Seconds until the deadline, which every finished item moves on; 0 if the claim is lost.

        Give it as its timeout to whatever the handler waits for outside.
        """
        return self._held.remaining()

    def items(self) -> Iterator[UUID]:
        """The items not yet done, from where the job stands; each must end in `step` or `fail_item`."""
        while True:
            position = self.job.position
            chunk = store.worklist_chunk(self.connection, self.job.id, position // CHUNK)
            if position % CHUNK >= len(chunk):
                return
            for item in chunk[position % CHUNK :]:
                before = self.job.position
                yield item
                if self.job.position == before:
                    raise RuntimeError("the handler left an item undone")

    def step(self, item_sql: str, **values: Any) -> tuple[str | None, str]:
        """Do the item at hand in one transaction: the fence, the kind's CTEs `item_sql`, the counters.

        Returns (None, title) when it is done, changed or found right; else (problem, title) and nothing was counted or
        written. A lock that cannot be had in time is the problem ``edit_conflict``. Raises LeaseLost, Cancelled or
        Interrupted.
        """
        self._held.check()
        job = self.job
        try:
            row = store.step(
                self.connection,
                _composed(item_sql),
                values | {"id": job.id, "claim": job.claim, "position": job.position},
            )
        except CONFLICTS:
            return "edit_conflict", ""
        if row is None:
            raise self._reason_to_stop()
        changed, skipped, problem, title = row
        if problem is None:
            job.changed += changed
            job.skipped += skipped
            self._progressed()
        return problem, title

    def fail_item(self, item_id: UUID, title: str, code: str) -> None:
        """Record the item at hand as failed, by the key of its reason. Raises as `step` does."""
        self._held.check()
        job = self.job
        if not store.fail_item(
            self.connection,
            id=job.id,
            claim=job.claim,
            position=job.position,
            item_id=item_id,
            title=title,
            code=code,
        ):
            raise self._reason_to_stop()
        job.failed += 1
        self._progressed()

    def _progressed(self) -> None:
        self._held.deadline = time.monotonic() + self.job.attempt_seconds
        self._keeper.moved(self.job.id)

    def report(self, done: int, total: int | None, bytes_written: int | None = None, *, now: bool = False) -> bool:
        """Tell how far a job without a worklist has come; True if that was stored: at most once a second, or `now`.

        It also shows that the attempt moves on, so it is to be called all along. `done` falls only at an attempt's
        start. While it is below `total` a cancel request stops the job. Raises LeaseLost, Cancelled or Interrupted.
        """
        self._held.check()
        moment = time.monotonic()
        if not now and moment < self._reported_at + REPORT_EVERY:
            return False
        job = self.job
        if not store.report(self.connection, job, done=done, total=total, bytes_written=bytes_written):
            raise self._lost_or_cancelled()
        self._reported_at = moment
        job.changed, job.total = done, total
        self._progressed()
        return True

    def fence(self, connection: psycopg.Connection[Any]) -> None:
        """Hold the claim until a transaction on `connection` ends, so that it commits only what is ours to write.

        Call it late: nobody can renew or cancel the job until that transaction has ended. Raises LeaseLost, Cancelled
        or Interrupted.
        """
        self._held.check()
        if not store.fence(connection, self.job):
            raise self._lost_or_cancelled()

    def _lost_or_cancelled(self) -> Stopped:
        """If the claim is still ours, it is a cancel request that is in the way, whatever is done."""
        return LeaseLost() if store.held(self.connection, self.job.id, self.job.claim) is None else Cancelled()

    def _reason_to_stop(self) -> Stopped:
        """Why the fence did not hold: a cancel request, or a claim that is somebody else's."""
        now = store.held(self.connection, self.job.id, self.job.claim)
        return Cancelled() if now is not None and now["cancelled"] else LeaseLost()
