"""Schedules in real workers: whose clocks are wrong, which are killed, cut off, started without lanes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hub.db import Database
from hub.queue import Kind, store
from tests.factories import row, rows, run
from tests.invariants import invariants
from tests.processes import Program, until
from tests.queue import entry

__all__ = ["invariants"]
pytestmark = pytest.mark.usefixtures("invariants")

LANES = "test.ticked=4"
Start = Callable[..., Program]


@pytest.fixture
def start(environ: dict[str, str], database: Database) -> Iterator[Start]:
    """Starts worker processes whose kinds have schedules: ``start(LANES, TEST_CLOCK_OFF="90")``."""
    with ExitStack() as stack:

        def start(lanes: str = LANES, **settings: str) -> Program:
            worker = Program([sys.executable, "-m", "tests.queue.clock_entry", lanes], environ | settings)
            stack.callback(worker.close)
            worker.await_line(r"worker ready|no lanes")
            return worker

        yield start


def ticks(database: Database, outcome: str = "fired", schedule: str = "test.ticked") -> list[Any]:
    """The ticks of that outcome, in order."""
    query = "select * from queue.tick where schedule = :s and outcome = cast(:o as queue.tick_outcome) order by due_at"
    return rows(database, query, s=schedule, o=outcome)


def until_ticks(database: Database, count: int, **which: Any) -> None:
    """Wait for so many more ticks than there are."""
    seen = len(ticks(database, **which))
    until(lambda: len(ticks(database, **which)) >= seen + count)


def assert_every_second_fired_once(database: Database) -> None:
    """The ledger has every second from the first to the last, each with a job of its own, and there are no others."""
    fired = ticks(database)
    first = fired[0].due_at
    assert [tick.due_at for tick in fired] == [first + timedelta(seconds=n) for n in range(len(fired))]
    started = [found.id for found in rows(database, "select id from queue.job where kind = 'test.ticked' order by id")]
    assert sorted(tick.job_id for tick in fired) == started
    assert {tick.outcome for tick in rows(database, "select outcome::text from queue.tick")} == {"fired"}


def test_two_workers_with_clocks_that_are_wrong_fire_each_tick_once(database: Database, start: Start) -> None:
    """Ninety seconds apart, and one of them five minutes off: the database's time decides."""
    workers = [start(TEST_CLOCK_OFF="-300"), start(TEST_CLOCK_OFF="-210")]
    until_ticks(database, 5)
    for worker in workers:
        assert worker.terminate() == 0
    assert_every_second_fired_once(database)
    # Judged by the database: nothing was due when it fired that was not.
    early = row(database, "select count(*) as count from queue.tick where due_at > at")
    assert early.count == 0


def test_a_worker_whose_clock_is_wrong_takes_a_delayed_job_when_the_database_says_so(
    database: Database, start: Start
) -> None:
    start("test.act=1", TEST_CLOCK_OFF="300")
    with database.autocommit() as connection:
        later = store.enqueue(connection, entry.ACT, {}, ceiling=5, delay=2.0).id
        never = store.enqueue(connection, entry.ACT, {}, ceiling=5, delay=120.0).id
    (ended,) = until(lambda: rows(database, "select * from queue.job where id = :id and state = 'succeeded'", id=later))
    assert ended.started_at >= ended.created_at + timedelta(seconds=2)
    assert row(database, "select state::text from queue.job where id = :id", id=never).state == "queued"


@pytest.mark.parametrize("off", ["-86400", "86400"])
def test_a_worker_whose_clock_is_wrong_puts_off_a_retry_by_the_databases(
    database: Database, start: Start, off: str
) -> None:
    start("test.act=1", TEST_CLOCK_OFF=off, HUB_QUEUE_RETRY_BASE="600")
    with database.autocommit() as connection:
        store.enqueue(connection, entry.ACT, {"act": "raise"}, ceiling=5)
    (attempt,) = until(lambda: rows(database, "select ended_at from queue.attempt"))
    wait = row(database, "select again_at from queue.job").again_at - attempt.ended_at
    assert timedelta(seconds=590) < wait < timedelta(seconds=910)


def test_ticks_go_on_when_a_worker_is_killed_and_none_is_lost(database: Database, start: Start) -> None:
    first, _ = start(), start()
    until_ticks(database, 1)
    first.kill()
    until_ticks(database, 2)
    fired = ticks(database)
    assert [tick.due_at for tick in fired] == [fired[0].due_at + timedelta(seconds=n) for n in range(len(fired))]


def test_ticks_go_on_when_their_connection_is_cut(database: Database, start: Start, admin_url: str) -> None:
    worker = start()
    until_ticks(database, 1)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'hub worker chores'"
        assert admin.execute(f"{cut} and datname = current_database()").fetchall() == [(True,)]
    until_ticks(database, 2)
    worker.await_line("clock: .* tried again in")
    worker.await_line("clock works again")
    assert worker.terminate() == 0
    assert_every_second_fired_once(database)


def test_a_frozen_workers_ticks_are_fired_by_the_other_and_not_again(database: Database, start: Start) -> None:
    frozen, other = start(), start()
    until_ticks(database, 1)
    frozen.send(signal.SIGSTOP)
    until_ticks(database, 2)
    frozen.send(signal.SIGCONT)
    until_ticks(database, 1)
    for worker in (frozen, other):
        assert worker.terminate() == 0
    assert_every_second_fired_once(database)


def test_a_sweep_in_work_is_not_started_again(database: Database, start: Start) -> None:
    worker = start("test.swept=2")
    with database.autocommit() as connection:
        held = until(lambda: hung(connection))
    until_ticks(database, 2, schedule="test.swept", outcome="skipped")
    skipped = ticks(database, "skipped", "test.swept")
    assert {(tick.reason, tick.job_id) for tick in skipped if tick.job_id == held} == {("overlap", held)}
    worker.kill()


def hung(connection: store.Connection) -> int | None:
    """A job of the sweep that hangs, in the place of one that the clock starts."""
    kind = Kind(name="test.swept", run=entry.act, args=entry.Act, policy="exclusive")
    made = store.enqueue(connection, kind, {"act": "hang"}, ceiling=5, key="test.swept")
    return made.id if made.created else None


def test_a_worker_without_lanes_ticks_nothing(database: Database, start: Start) -> None:
    idle, elsewhere = start(""), start("test.act=1")
    run(
        database,
        "insert into queue.schedule (name, cron, time_zone, ticked_at)"
        " values ('test.ticked', '* * * * * *', 'UTC', statement_timestamp() - interval '1 minute')",
    )
    start("test.swept=1")
    until_ticks(database, 2, schedule="test.swept")
    assert ticks(database) == []
    for worker in (idle, elsewhere):
        assert worker.terminate() == 0


def test_old_rows_are_removed_by_workers_without_being_asked(database: Database, start: Start) -> None:
    run(
        database,
        "insert into queue.job (queue, kind, state, max_attempts, attempt_seconds, args, created_at, finished_at)"
        " select 'gone', 'gone', 'succeeded', 1, 1, '{}', statement_timestamp() - interval '40 days',"
        " statement_timestamp() - interval '40 days' from generate_series(1, 1500)",
    )
    workers = [start("test.act=1", HUB_QUEUE_PRUNE="1"), start("test.act=1", HUB_QUEUE_PRUNE="1")]
    until(lambda: row(database, "select count(*) as count from queue.job").count == 0)
    for worker in workers:
        assert worker.terminate() == 0
