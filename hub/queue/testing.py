"""For tests of kinds: what was enqueued, run it now through a worker's own steps, stop a worker between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock
from uuid import UUID

from hub.config import Settings
from hub.db import Database
from hub.queue import kind, store
from hub.queue.execute import Execution
from hub.queue.lease import LeaseKeeper

# Where a worker can be stopped: before it sends one of these statements.
POINTS = frozenset({
    "claim", "claim_ahead", "look", "renew", "renew_many", "held", "step", "fail_item", "report", "retry", "snooze",
    "release", "unclaim", "complete", "finish", "beat",
})  # fmt: skip


@dataclass(frozen=True)
class Waiting:
    """A queued job as it stands in its line."""

    id: int
    kind: str
    args: dict[str, Any]
    key: str | None
    subject: str | None
    workspace_id: UUID
    priority: int


def enqueued(database: Database, kind_name: str | None = None) -> list[Waiting]:
    """The jobs that wait, oldest first; of one kind if it is named."""
    query = """
        select j.id, j.kind, coalesce(j.args, d.args), j.live_key, j.subject, j.workspace_id, j.priority
        from queue.job j left join queue.detail d on d.job_id = j.id
        where j.state = 'queued' and (%(kind)s::text is null or j.kind = %(kind)s) order by j.id
    """
    with database.autocommit() as connection:
        return [Waiting(*row) for row in connection.execute(query, {"kind": kind_name})]


def drain(database: Database, settings: Settings, queue: str, most: int = 100) -> int:
    """Claim and run due jobs of `queue` one after the other until none is due; returns how many attempts ran."""
    with _lane(database, settings, queue) as run_next:
        return next((done for done in range(most) if not run_next()), most)


def run_now(database: Database, settings: Settings, job_id: int) -> str:
    """Run one attempt at a queued job, before all others of its queue and without its wait; returns its state then.

    Raises LookupError if it is not queued.
    """
    hurry = "update queue.job set again_at = '-infinity' where id = %s and state = 'queued' returning queue"
    with database.autocommit() as connection:
        row = connection.execute(hurry, [job_id]).fetchone()
    if row is None:
        raise LookupError(f"job {job_id} is not queued")
    with _lane(database, settings, row[0]) as run_next:
        run_next()
    with database.autocommit() as connection:
        found = connection.execute("select state::text from queue.job where id = %s", [job_id]).fetchone()
    assert found is not None
    state: str = found[0]
    return state


@contextmanager
def _lane(database: Database, settings: Settings, queue: str) -> Iterator[Any]:
    """A function that claims and runs one job and says whether there was one."""
    keeper = LeaseKeeper(settings.database_url, lease=settings.queue_lease, renew=settings.queue_renew)
    keeper.start()
    kinds = kind.of_queue(queue)
    with database.autocommit() as connection:
        claim = store.start_worker(connection, "tests", {queue: 1}) << 32

    def run_next() -> bool:
        nonlocal claim
        claim += 1
        claimed_at = time.monotonic()
        with database.autocommit() as connection:
            jobs = store.claim(connection, queue, list(kinds), claim=claim, lanes=1, lease=settings.queue_lease)
        for job in jobs:
            held = keeper.hold([job], claimed_at)
            Execution(job, held, kinds[job.kind], database, keeper, settings).run()
        return bool(jobs)

    try:
        yield run_next
    finally:
        keeper.stop()


@dataclass
class Frozen:
    """Threads of this process that stand still before a statement."""

    _arrived: threading.Event = field(default_factory=threading.Event)
    _free: threading.Event = field(default_factory=threading.Event)

    def await_arrival(self, seconds: float = 60.0) -> None:
        """Wait until a thread stands there. Raises TimeoutError."""
        if not self._arrived.wait(seconds):
            raise TimeoutError("no thread came to that point")

    def release(self) -> None:
        """Let them go on, and all that come later pass."""
        self._free.set()

    def stand(self) -> None:
        """What a thread does there."""
        self._arrived.set()
        self._free.wait()


@contextmanager
def freeze(point: str) -> Iterator[Frozen]:
    """Stop every thread of this process before the statement `point` (one of POINTS); released at the block's end.

    A frozen worker is one whose process was stopped or starved: its leases run out while it stands.
    Raises ValueError for another point.
    """
    if point not in POINTS:
        raise ValueError(f"no such point: {point}")
    frozen = Frozen()
    statement = getattr(store, point)

    def stand_then_send(*args: Any, **values: Any) -> Any:
        frozen.stand()
        return statement(*args, **values)

    with mock.patch.object(store, point, stand_then_send):
        try:
            yield frozen
        finally:
            frozen.release()
