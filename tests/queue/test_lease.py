"""Leases are kept alive, and their loss is known in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from hub.queue import store
from hub.queue.job import Claimed, LeaseLost
from hub.queue.lease import Held, LeaseKeeper
from tests.factories import run
from tests.processes import until
from tests.queue.conftest import Bench
from tests.queue.test_store import Heard

LONG = 3600.0


@pytest.fixture
def keeper(bench: Bench) -> Iterator[LeaseKeeper]:
    """A keeper that renews all the time."""
    keeper = LeaseKeeper(bench.settings.database_url, lease=LONG, renew=0.05)
    keeper.start()
    yield keeper
    keeper.stop()


def keep(bench: Bench, keeper: LeaseKeeper, lease: float = 30.0, **declared: float) -> tuple[Claimed, Held]:
    """A job claimed for `lease` seconds and held."""
    kind = bench.kind(**declared)
    bench.enqueue(kind)
    before = time.monotonic()
    job = bench.claim_one(kind, lease=lease)
    return job, keeper.hold([job], before)


def test_a_held_claim_is_renewed(bench: Bench, keeper: LeaseKeeper) -> None:
    job, held = keep(bench, keeper, deadline=2 * LONG)
    until(lambda: bench.job(job.id).due_in > LONG / 2)
    until(lambda: held.good_until > time.monotonic() + LONG / 2)
    held.check()


def test_renewal_is_not_seen_as_a_change(bench: Bench, keeper: LeaseKeeper) -> None:
    job, _ = keep(bench, keeper, deadline=2 * LONG)
    version = bench.job(job.id).version
    until(lambda: bench.job(job.id).due_in > LONG / 2)
    assert bench.job(job.id).version == version


def test_a_claim_that_is_somebody_elses_is_known_to_be_lost(bench: Bench, keeper: LeaseKeeper) -> None:
    job, held = keep(bench, keeper, deadline=2 * LONG)
    run(bench.database, "update queue.job set claim = 77, version = version + 1")
    until(held.is_lost)
    with pytest.raises(LeaseLost):
        held.check()


def test_a_claim_past_its_deadline_is_lost(bench: Bench, keeper: LeaseKeeper) -> None:
    job, held = keep(bench, keeper, deadline=LONG)
    bench.pass_deadline(job.id)
    until(held.is_lost)


def test_a_dropped_claim_is_renewed_no_more(bench: Bench, keeper: LeaseKeeper) -> None:
    job, held = keep(bench, keeper, deadline=2 * LONG)
    other, _ = keep(bench, keeper, deadline=2 * LONG)
    until(lambda: bench.job(other.id).due_in > LONG / 2)
    keeper.drop(held, [job.id])
    bench.make_due(job.id)
    run(bench.database, "update queue.job set again_at = statement_timestamp() where id = :id", id=other.id)
    until(lambda: bench.job(other.id).due_in > LONG / 2)
    assert bench.job(job.id).due_in <= 0


def test_renewal_goes_on_after_an_outage(bench: Bench, keeper: LeaseKeeper, admin_url: str) -> None:
    job, held = keep(bench, keeper, deadline=2 * LONG)
    for _ in range(3):
        until(lambda: bench.job(job.id).due_in > LONG / 2)
        with psycopg.connect(admin_url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                "and application_name = 'hub worker leases'"
            )
        run(bench.database, "update queue.job set again_at = statement_timestamp()")
    until(lambda: bench.job(job.id).due_in > LONG / 2)
    held.check()


@pytest.mark.parametrize("statement", ["renew", "announce_progress", "beat"])
def test_renewal_goes_on_whatever_is_raised(bench: Bench, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    raised = threading.Event()
    send = getattr(store, statement)

    def raise_once(*args: Any, **values: Any) -> Any:
        if not raised.is_set():
            raised.set()
            raise KeyError("as told")
        return send(*args, **values)

    monkeypatch.setattr(store, statement, raise_once)
    keeper = LeaseKeeper(bench.settings.database_url, lease=LONG, renew=0.05, worker=1)
    keeper.start()
    try:
        job, held = keep(bench, keeper, deadline=2 * LONG)
        keeper.moved(job.id)
        keeper.listens(True)
        assert raised.wait(30)
        run(bench.database, "update queue.job set again_at = statement_timestamp() where id = :id", id=job.id)
        until(lambda: bench.job(job.id).due_in > LONG / 2)
        held.check()
    finally:
        keeper.stop()


def test_a_row_locked_by_its_own_handler_does_not_cost_the_lease(bench: Bench, keeper: LeaseKeeper) -> None:
    job, held = keep(bench, keeper, deadline=2 * LONG)
    with bench.connection() as connection, connection.transaction():
        connection.execute("select from queue.job where id = %s for update", [job.id])
        connection.execute("update queue.job set again_at = statement_timestamp() where id = %s", [job.id])
        waiting = (
            "select pid from pg_stat_activity where datname = current_database() "
            "and application_name = 'hub worker leases' and wait_event_type = 'Lock'"
        )
        until(lambda: connection.execute("select pg_stat_clear_snapshot()") and connection.execute(waiting).fetchone())
    until(lambda: bench.job(job.id).due_in > LONG / 2)
    held.check()


def test_a_lock_held_past_the_lock_timeout_delays_only_that_renewal(bench: Bench) -> None:
    keeper = LeaseKeeper(bench.settings.database_url, lease=1.0, renew=0.05)
    keeper.start()
    try:
        locked, _ = keep(bench, keeper, deadline=LONG)
        free, held = keep(bench, keeper, deadline=LONG)
        with bench.connection() as connection, connection.transaction():
            connection.execute("select from queue.job where id = %s for update", [locked.id])
            for _ in range(3):
                run(bench.database, "update queue.job set again_at = 'epoch' where id = :id", id=free.id)
                until(lambda: bench.job(free.id).again_at.year > 2000)
        held.check()
        # A lock says nothing about the claim: it is kept as soon as it can be.
        run(bench.database, "update queue.job set again_at = 'epoch' where id = :id", id=locked.id)
        until(lambda: bench.job(locked.id).again_at.year > 2000)
    finally:
        keeper.stop()


def test_watchers_are_told_of_many_steps_once(bench: Bench, keeper: LeaseKeeper) -> None:
    heard = Heard(bench.database.url, "hub_job")
    job, held = keep(bench, keeper, deadline=LONG)
    for _ in range(50):
        keeper.moved(job.id)
    note = next(heard.connection.notifies(timeout=30, stop_after=1))
    while note.payload != str(job.id):
        note = next(heard.connection.notifies(timeout=30, stop_after=1))
    assert len([payload for payload in heard.so_far() if payload == str(job.id)]) <= 1
