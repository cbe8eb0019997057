"""Jobs claimed ahead of their lanes, by real workers that are stopped, killed, or run a job that kills them."""

from __future__ import annotations

import pytest

from hub.db import Database
from hub.queue import Item, enqueue_many, store
from tests.factories import row, rows
from tests.processes import until
from tests.queue import entry
from tests.queue.test_worker_processes import BRIEFLY, Start, attempts, invariants, job, start, until_state, watch

__all__ = ["invariants", "start", "watch"]
pytestmark = pytest.mark.usefixtures("invariants")

MANY = 300


def enqueue_acts(database: Database, *acts: str) -> list[int]:
    """Jobs of the kind that is claimed ahead, in one go."""
    with database.autocommit() as connection:
        return [
            made.id for made in enqueue_many(connection, entry.AHEAD, [Item({"act": act}) for act in acts], ceiling=5)
        ]


def count(database: Database, condition: str) -> int:
    """How many jobs are so."""
    return int(row(database, f"select count(*) from queue.job where {condition}").count)


def until_stalled(database: Database) -> None:
    """Wait until the jobs before the one that stalls have ended, so that it is in hand and others wait behind it."""
    until(lambda: count(database, "state = 'succeeded'") == MANY)


def test_a_stopped_worker_gives_back_what_it_claimed_ahead_uncharged(database: Database, start: Start) -> None:
    ids = enqueue_acts(database, *["return"] * MANY, "stall", *["return"] * MANY)
    worker = start("test.ahead=1", HUB_QUEUE_GRACE="0.2")
    until_stalled(database)
    assert worker.terminate() == 0
    assert count(database, "state = 'queued' and attempt = 0") == MANY + 1
    assert count(database, "state = 'queued' and attempt = 0 and version > 1") > 1
    assert attempts(database, ids[MANY]) == [(1, "interrupted", "worker_stopped")]
    assert count(database, "true") - MANY == MANY + 1
    assert rows(database, "select from queue.attempt where job_id <> :id", id=ids[MANY]) == []


def test_jobs_that_slow_ones_keep_waiting_are_given_back_for_others(database: Database, start: Start) -> None:
    ids = enqueue_acts(database, *["return"] * MANY, "stall", *["return"] * MANY)
    start("test.ahead=1", HUB_QUEUE_GRACE="0.2")
    until_stalled(database)
    start("test.ahead=1", HUB_QUEUE_GRACE="0.2")
    until(lambda: count(database, "state = 'succeeded'") == 2 * MANY)
    assert job(database, ids[MANY]).state == "running"


def test_all_that_a_killed_worker_claimed_ahead_runs_elsewhere(database: Database, start: Start) -> None:
    ids = enqueue_acts(database, *["return"] * MANY, "stall", *["return"] * MANY)
    worker = start("test.ahead=1", **BRIEFLY)
    until_stalled(database)
    worker.kill()
    start("test.ahead=1", **BRIEFLY)
    until(lambda: count(database, "state = 'succeeded'") == 2 * MANY + 1)
    assert attempts(database, ids[MANY]) == [(1, "lost", "worker_lost")]
    assert count(database, "attempt > 2") == 0


def test_a_job_that_kills_its_workers_costs_those_claimed_with_it_an_attempt_at_most(
    database: Database, start: Start
) -> None:
    ids = enqueue_acts(database, *["return"] * MANY, "exit", *["return"] * MANY)
    poison = ids[MANY]
    for _ in range(3):
        assert start("test.ahead=1", **BRIEFLY).wait() == entry.EXIT
    start("test.ahead=1", **BRIEFLY)
    ended = until_state(database, poison, "failed")
    assert (ended.attempt, ended.code) == (3, "worker_lost")
    until(lambda: count(database, "state = 'succeeded'") == 2 * MANY)
    assert count(database, f"attempt > 2 and id <> {poison}") == 0
    assert [letter.job_id for letter in rows(database, "select job_id from queue.dead_letter")] == [poison]


def test_a_pause_holds_through_restarts_until_it_is_lifted(database: Database, start: Start) -> None:
    with database.autocommit() as connection:
        assert store.pause(connection, "test.ahead", reason="as told", by_id=None, by_name="Olga")
    (held,) = enqueue_acts(database, "return")
    for _ in range(2):
        worker = start("test.ahead=1,test.act=1")
        with database.autocommit() as connection:
            (other,) = enqueue_many(connection, entry.ACT, [Item({})], ceiling=5)
        until_state(database, other.id, "succeeded")
        assert worker.terminate() == 0
        assert job(database, held).state == "queued"
    start("test.ahead=1")
    with database.autocommit() as connection:
        assert store.resume(connection, "test.ahead")
    until_state(database, held, "succeeded")
