"""What the queue's tests share: kinds made for one test, and a bench to take their jobs through their lives."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pydantic
import pytest

from hub.config import Settings
from hub.db import Database
from hub.queue import Context, Kind, kind, store
from hub.queue.execute import Execution
from hub.queue.job import Claimed
from hub.queue.lease import LeaseKeeper
from tests.factories import row, rows, run
from tests.invariants import invariants, watch

__all__ = ["invariants", "watch"]

_numbers = itertools.count(1)


class AnyArgs(pydantic.BaseModel):
    """Arguments that say nothing."""

    model_config = pydantic.ConfigDict(extra="allow")


class Bench:
    """Takes jobs through their lives by hand. Each test's kinds have queues of their own."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.claims = itertools.count(1)
        self._made: list[str] = []

    def kind(self, run: Callable[[Context, Any], Any] | None = None, **declared: Any) -> Kind:
        """A kind of a queue of its own, whose handler does nothing by default."""
        name = f"test.kind{next(_numbers)}"
        made = Kind(**{"name": name, "run": run or (lambda context, args: None), "args": AnyArgs} | declared)
        self._made.append(made.name)
        return kind.register(made)

    def forget_kinds(self) -> None:
        """Take the test's kinds out of the register."""
        for name in self._made:
            kind._kinds.pop(name, None)

    def enqueue(self, of: Kind, *, items: int = 0, **values: Any) -> int:
        """A committed job; with `items`, one that goes through so many."""
        with self.connection() as connection, connection.transaction():
            job_id = store.enqueue(connection, of, {}, ceiling=self.settings.queue_max_attempts, **values).id
            if items:
                listed = "select gen_random_uuid() as item, n as place from generate_series(1, %(count)s) n"
                store.make_worklist(connection, job_id, listed, {"count": items})
        return job_id

    def claim(self, *of: Kind, lanes: int = 1, **values: Any) -> list[Claimed]:
        """Claim jobs of the kinds' one queue under a new claim number."""
        with self.connection() as connection:
            return self.claim_on(connection, *of, lanes=lanes, **values)

    def claim_on(
        self, connection: store.Connection, *of: Kind, lanes: int = 1, lease: float = 60.0, **values: Any
    ) -> list[Claimed]:
        """The same on a given connection."""
        names = [one.name for one in of]
        return store.claim(connection, of[0].line, names, claim=next(self.claims), lanes=lanes, lease=lease, **values)

    def claim_one(self, of: Kind, lease: float = 60.0) -> Claimed:
        """The one job to be had."""
        (job,) = self.claim(of, lease=lease)
        return job

    def execute(self, job: Claimed) -> None:
        """Run a claimed job to its recorded end, as a worker's lane does."""
        keeper = LeaseKeeper(self.settings.database_url, lease=self.settings.queue_lease, renew=60.0)
        declared = kind.find(job.kind)
        assert declared is not None
        Execution(job, keeper.hold([job], time.monotonic()), declared, self.database, keeper, self.settings).run()

    def work(self, of: Kind) -> None:
        """Claim the one job to be had and run it."""
        self.execute(self.claim_one(of))

    def make_due(self, job_id: int) -> None:
        """Let the job's wait or lease end now."""
        run(self.database, "update queue.job set again_at = statement_timestamp() where id = :id", id=job_id)

    def pass_deadline(self, job_id: int) -> None:
        """Let the attempt's time be up now, with a lease that was kept to its end."""
        run(
            self.database,
            "update queue.job set deadline_at = statement_timestamp(), again_at = statement_timestamp() where id = :id",
            id=job_id,
        )

    def job(self, job_id: int) -> Any:
        """The job's row with its detail."""
        return row(
            self.database,
            """
            select j.*, j.state::text as state, d.code, d.error, d.result, d.failures, coalesce(j.args, d.args) as args,
                   extract(epoch from j.again_at - statement_timestamp())::float8 as due_in
            from queue.job j left join queue.detail d on d.job_id = j.id where j.id = :id
            """,
            id=job_id,
        )

    def attempts(self, job_id: int) -> list[tuple[int, str, str]]:
        """(number, outcome, code) of the attempts that ended without ending the job, in order."""
        query = "select number, outcome::text, code from queue.attempt where job_id = :id order by ended_at, claim"
        return [tuple(attempt) for attempt in rows(self.database, query, id=job_id)]

    def dead_letters(self) -> list[tuple[int, str]]:
        """(job, code) of every dead letter."""
        return [tuple(letter) for letter in rows(self.database, "select job_id, code from queue.dead_letter")]

    def cancel(self, job_id: int) -> None:
        """Ask for the job's end."""
        with self.connection() as connection:
            store.cancel(connection, job_id, UUID(int=1), "Maria")

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """An autocommit connection."""
        with self.database.autocommit() as connection:
            yield connection


@pytest.fixture
def bench(database: Database, settings: Settings, invariants: None) -> Iterator[Bench]:
    """A bench on the wiped database, whose tables are checked when the test is over."""
    bench = Bench(database, settings)
    yield bench
    bench.forget_kinds()
