"""How an attempt runs and how its outcome is recorded, whatever the handler does."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pydantic
import pytest
from sqlalchemy.orm import Session

from hub import db
from hub.config import Settings
from hub.db import Database
from hub.queue import Context, Ended, Fail, closing, store
from hub.queue.execute import Execution
from hub.queue.job import Claimed, Interrupted, LeaseLost
from hub.queue.lease import Held, LeaseKeeper
from tests import factories
from tests.factories import row, run
from tests.invariants import Watch
from tests.queue.conftest import Bench

ITEM = "outcome as materialized (select 1 as changed, 0 as skipped, null::text as problem, '' as title from fence)"
Handler = Callable[[Context, Any], Any]


def raising(error: BaseException) -> Handler:
    """A handler that raises."""

    def handler(context: Context, args: Any) -> None:
        raise error

    return handler


def through_items(context: Context, args: Any) -> None:
    """A handler that goes through the items."""
    for _ in context.items():
        context.step(ITEM)


def after_items(count: int, act: Callable[[Context], Any]) -> Handler:
    """A handler that does something after so many items, and goes on."""

    def handler(context: Context, args: Any) -> None:
        for number, _ in enumerate(context.items()):
            if number == count:
                act(context)
            context.step(ITEM)

    return handler


# Outcomes


def test_a_handler_that_returns_has_succeeded_and_its_result_is_kept(bench: Bench) -> None:
    kind = bench.kind(lambda context, args: {"bytes": 12})
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.result, job.code, job.attempt) == ("succeeded", {"bytes": 12}, None, 1)
    assert bench.attempts(job_id) == []


def test_arguments_reach_the_handler_as_their_model(bench: Bench) -> None:
    class Args(pydantic.BaseModel):
        course: UUID

    seen: list[Any] = []
    kind = bench.kind(lambda context, args: seen.append(args), args=Args)
    with bench.connection() as connection:
        store.enqueue(connection, kind, {"course": str(UUID(int=5))}, ceiling=5)
    bench.work(kind)
    assert seen == [Args(course=UUID(int=5))]


def test_a_failed_attempt_waits_for_its_next(bench: Bench) -> None:
    kind = bench.kind(raising(ValueError("no such thing")))
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.code) == ("queued", 1, None)
    base = bench.settings.queue_retry_base
    assert base / 2 < job.due_in <= base * 1.2
    assert bench.attempts(job_id) == [(1, "retry", "handler_failed")]
    assert row(bench.database, "select error from queue.attempt").error == "ValueError: no such thing"


def test_the_last_failed_attempt_ends_the_job_with_a_dead_letter(bench: Bench) -> None:
    kind = bench.kind(raising(ValueError("never")), attempts=3)
    job_id = bench.enqueue(kind)
    for _ in range(3):
        bench.make_due(job_id)
        bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.code, job.error) == ("failed", 3, "handler_failed", "ValueError: never")
    assert bench.dead_letters() == [(job_id, "handler_failed")]
    assert bench.attempts(job_id) == [(1, "retry", "handler_failed"), (2, "retry", "handler_failed")]


@pytest.mark.parametrize("attempts", [20, 40, 2_000_000])
def test_however_many_attempts_there_were_failing_goes_on_as_ever(bench: Bench, attempts: int) -> None:
    kind = bench.kind(raising(ValueError("again")))
    job_id = bench.enqueue(kind)
    many = "update queue.job set attempt = :attempts - 2, max_attempts = :attempts, version = version + 1"
    run(bench.database, many, attempts=attempts)
    bench.work(kind)
    assert 0 < bench.job(job_id).due_in <= bench.settings.queue_retry_max
    bench.make_due(job_id)
    bench.work(kind)
    assert (bench.job(job_id).state, bench.job(job_id).attempt) == ("failed", attempts)


def test_a_handler_may_fail_for_good_at_once(bench: Bench) -> None:
    kind = bench.kind(raising(Fail("actor_not_authorized")))
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.code) == ("failed", 1, "actor_not_authorized")
    assert bench.dead_letters() == []


def test_a_job_past_its_last_attempt_is_closed_and_never_handled(bench: Bench) -> None:
    handled: list[int] = []
    kind = bench.kind(lambda context, args: handled.append(context.job.id), attempts=2)
    job_id = bench.enqueue(kind)
    for _ in range(2):
        bench.claim_one(kind)
        bench.make_due(job_id)
    bench.work(kind)
    job = bench.job(job_id)
    assert handled == []
    assert (job.state, job.attempt, job.code) == ("failed", 2, "worker_lost")
    assert bench.dead_letters() == [(job_id, "worker_lost")]
    assert bench.attempts(job_id) == [(1, "lost", "worker_lost"), (2, "lost", "worker_lost")]


def test_a_waiting_job_without_attempts_left_is_closed_and_never_handled(bench: Bench) -> None:
    handled: list[int] = []
    kind = bench.kind(lambda context, args: handled.append(context.job.id), attempts=3)
    job_id = bench.enqueue(kind)
    with bench.connection() as connection:
        store.retry(connection, bench.claim_one(kind), wait=0.0, code="handler_failed", error="x")
    run(bench.database, "update queue.job set max_attempts = 1")
    bench.work(kind)
    assert handled == []
    assert bench.dead_letters() == [(job_id, "handler_failed")]


def test_a_job_whose_last_attempt_hung_says_so(bench: Bench) -> None:
    kind = bench.kind(attempts=1)
    job_id = bench.enqueue(kind)
    bench.claim_one(kind)
    bench.pass_deadline(job_id)
    bench.work(kind)
    assert bench.dead_letters() == [(job_id, "deadline_passed")]


class Whimsical(Exception):
    """An error whose text is trouble."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self.told = told

    def __str__(self) -> str:
        return self.told


def recurse(context: Context, args: Any) -> Any:
    return recurse(context, args)


TROUBLE: dict[str, Handler] = {
    "NUL": raising(Whimsical("a\x00b")),
    "lone surrogate": raising(Whimsical("a\ud800b")),
    "10 MB": raising(Whimsical("x" * 10_000_000)),
    "secret": raising(Whimsical("password=canary")),
    "endless recursion": recurse,
    "exit": lambda context, args: sys.exit(3),
    "out of memory": raising(MemoryError()),
    "database error": lambda context, args: context.connection.execute("select 1/0"),
    "no such table": lambda context, args: context.connection.execute("select from hub.nothing"),
    "limit of the database": lambda context, args: context.connection.execute(
        "select " + "(" * 100_000 + "1" + ")" * 100_000
    ),
    "NUL sent": lambda context, args: context.connection.execute("select %s::text", ["\x00"]),
    "surrogate sent": lambda context, args: context.connection.execute("select %s::text", ["\ud800"]),
    "result no JSON": lambda context, args: {"what": object()},
    "result not a number": lambda context, args: {"what": math.nan},
    "result with NUL": lambda context, args: {"what": "\x00"},
    "result with surrogate": lambda context, args: {"what": "\ud800"},
    "result too large a number": lambda context, args: {"what": int("9" * 4000) ** 50},
    "cancelled from inside": raising(asyncio.CancelledError()),
    "panic of a native library": raising(BaseException("panic")),
    "item left undone": lambda context, args: list(context.items()),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_recording_a_failure_never_fails_itself(
    bench: Bench, watch: Watch, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    # What is logged is not looked at here, and a test's report could not carry a lone surrogate.
    caplog.set_level(logging.CRITICAL, "hub.queue.execute")
    kind = bench.kind(TROUBLE[trouble], attempts=2)
    job_id = bench.enqueue(kind, items=2)
    bench.work(kind)
    assert bench.attempts(job_id) == [(1, "retry", "handler_failed")]
    bench.make_due(job_id)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.code) == ("failed", "handler_failed")
    assert "canary" not in job.error
    assert bench.dead_letters() == [(job_id, "handler_failed")]


def test_arguments_that_do_not_fit_fail_the_attempt(bench: Bench) -> None:
    class Args(pydantic.BaseModel):
        course: UUID

    kind = bench.kind(args=Args, attempts=1)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert bench.job(job_id).code == "handler_failed"


# Items


def test_items_go_on_where_the_job_stands(bench: Bench) -> None:
    kind = bench.kind(after_items(1100, lambda context: 1 / 0), steps=True)
    job_id = bench.enqueue(kind, items=2300)
    order = row(
        bench.database,
        "select array_agg(i order by chunk, n) as items from queue.worklist, unnest(items) with ordinality u(i, n)",
    ).items
    seen: list[UUID] = []

    def second(context: Context, args: Any) -> None:
        for item in context.items():
            seen.append(item)
            context.step(ITEM)

    bench.work(kind)
    assert bench.job(job_id).changed == 1100
    assert row(bench.database, "select done from queue.attempt").done == 1100
    bench.make_due(job_id)
    other = bench.kind(second, queue=kind.line)
    run(bench.database, "update queue.job set kind = :kind", kind=other.name)
    bench.execute(bench.claim(other)[0])
    assert seen == order[1100:]
    job = bench.job(job_id)
    assert (job.state, job.changed, job.done_before) == ("succeeded", 2300, 1100)


# Reports, of kinds that have no worklist


def reporting(*steps: tuple[int, int], then: Callable[[Context], Any] = lambda context: None) -> Handler:
    """A handler that reports each (done, total), with a byte for each that is done, and then does something."""

    def handler(context: Context, args: Any) -> None:
        for done, total in steps:
            context.report(done, total, done, now=True)
        then(context)

    return handler


def test_a_report_is_stored_with_its_bytes(bench: Bench, watch: Watch) -> None:
    seen: list[Any] = []
    look = reporting((0, 5), (3, 5), then=lambda context: seen.append(bench.job(context.job.id)))
    kind = bench.kind(lambda context, args: look(context, args) or context.report(5, 5, 9, now=True), steps=True)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert (seen[0].changed, seen[0].total, seen[0].bytes) == (3, 5, 3)
    job = bench.job(job_id)
    assert (job.state, job.changed, job.total, job.bytes) == ("succeeded", 5, 5, 9)


def test_reports_are_stored_at_most_once_a_second(bench: Bench) -> None:
    stored: list[bool] = []

    def handler(context: Context, args: Any) -> None:
        stored.extend(context.report(done, 1000) for done in range(1000))
        stored.append(context.report(1000, 1000, now=True))

    kind = bench.kind(handler, steps=True)
    bench.enqueue(kind)
    began = time.monotonic()
    bench.work(kind)
    assert sum(stored) <= 2 + time.monotonic() - began
    assert stored[0] and stored[-1]


def test_a_report_that_says_nothing_new_keeps_the_deadline_away_and_the_version_as_it_is(bench: Bench) -> None:
    rows_seen: list[Any] = []

    def handler(context: Context, args: Any) -> None:
        context.report(1, 2, now=True)
        rows_seen.append(bench.job(context.job.id))
        context.report(1, 2, now=True)
        rows_seen.append(bench.job(context.job.id))
        context.report(2, 2, now=True)

    kind = bench.kind(handler, steps=True)
    bench.enqueue(kind)
    bench.work(kind)
    before, after = rows_seen
    assert after.version == before.version
    assert after.deadline_at > before.deadline_at
    assert after.progressed_at > before.progressed_at


def test_a_later_attempt_begins_again_at_nothing(bench: Bench, watch: Watch) -> None:
    first = bench.kind(reporting((0, 5), (4, 5), then=lambda context: 1 / 0), steps=True)
    job_id = bench.enqueue(first)
    bench.work(first)
    assert (bench.job(job_id).changed, row(bench.database, "select done from queue.attempt").done) == (4, 4)
    bench.make_due(job_id)
    second = bench.kind(reporting((0, 7), (7, 7)), queue=first.line)
    run(bench.database, "update queue.job set kind = :kind", kind=second.name)
    bench.execute(bench.claim(second)[0])
    job = bench.job(job_id)
    assert (job.state, job.changed, job.total, job.done_before) == ("succeeded", 7, 7, 0)


def test_a_cancel_request_stops_a_handler_at_its_next_report(bench: Bench, watch: Watch) -> None:
    kind = bench.kind(reporting((1, 5), then=lambda c: (bench.cancel(c.job.id), c.report(2, 5, now=True))), steps=True)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert (bench.job(job_id).state, bench.job(job_id).changed) == ("cancelled", 1)


def test_a_report_stops_a_cancelled_job_also_if_an_attempt_before_had_done_everything(bench: Bench) -> None:
    first = bench.kind(reporting((5, 5)), steps=True)
    job_id = bench.enqueue(first)
    job = bench.claim_one(first)
    with bench.connection() as connection:
        assert store.report(connection, job, done=5, total=5, bytes_written=None)
    bench.cancel(job_id)
    bench.make_due(job_id)
    second = bench.kind(reporting((0, 5), (5, 5)), queue=first.line)
    run(bench.database, "update queue.job set kind = :kind", kind=second.name)
    bench.execute(bench.claim(second)[0])
    assert bench.job(job_id).state == "cancelled"


def test_a_report_under_a_lost_claim_writes_nothing(bench: Bench, watch: Watch) -> None:
    def lose(context: Context) -> None:
        bench.make_due(context.job.id)
        bench.claim_one(kind)
        context.report(4, 5, now=True)

    kind = bench.kind(reporting((1, 5), then=lose), steps=True)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.changed, job.attempt) == ("running", 1, 2)


def test_a_record_of_success_that_may_not_be_makes_the_job_fail_for_its_reason(bench: Bench) -> None:
    recorded: list[str] = []

    def record(session: Session, ended: Ended) -> None:
        recorded.append(ended.state)
        if ended.state == "succeeded":
            raise Fail("actor_not_authorized")

    kind = bench.kind(recorded=record)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.code, recorded) == ("failed", "actor_not_authorized", ["succeeded", "failed"])
    assert bench.dead_letters() == []


def test_what_tidies_up_comes_after_the_end_has_committed_and_may_fail(bench: Bench) -> None:
    seen: list[str] = []

    def tidy(database: Database, settings: Settings, ended: Ended) -> None:
        seen.extend((ended.state, bench.job(ended.id).state))
        raise ValueError("no matter")

    for handler, state in ((through_items, "succeeded"), (raising(Fail("x")), "failed")):
        seen.clear()
        kind = bench.kind(handler, tidy=tidy)
        job_id = bench.enqueue(kind)
        bench.work(kind)
        assert seen == [state, state] == [bench.job(job_id).state] * 2


def test_nobody_takes_a_job_while_its_fence_is_held(bench: Bench) -> None:
    taken: list[int] = []

    def handler(context: Context, args: Any) -> None:
        with context.database.transaction() as session:
            context.fence(db.driver(session))
            bench_url = bench.settings.database_url
            with psycopg.connect(bench_url, autocommit=True) as other:
                other.execute("set lock_timeout = '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute("update queue.job set again_at = statement_timestamp()")
            taken.extend(job.id for job in bench.claim(kind))

    kind = bench.kind(handler)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert (bench.job(job_id).state, taken) == ("succeeded", [])


@pytest.mark.parametrize(("meanwhile", "state"), [("cancel", "cancelled"), ("lose", "running")])
def test_a_fence_that_does_not_hold_stops_the_handler(bench: Bench, meanwhile: str, state: str) -> None:
    def handler(context: Context, args: Any) -> None:
        if meanwhile == "cancel":
            bench.cancel(context.job.id)
        else:
            bench.make_due(context.job.id)
            bench.claim_one(kind)
        with context.database.transaction() as session:
            context.fence(db.driver(session))
            raise AssertionError("it must not come to this")

    kind = bench.kind(handler)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert bench.job(job_id).state == state


# Cancel


def test_a_cancel_request_stops_a_handler_before_its_next_item(bench: Bench, watch: Watch) -> None:
    kind = bench.kind(after_items(2, lambda context: bench.cancel(context.job.id)), steps=True)
    job_id = bench.enqueue(kind, items=5)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.changed) == ("cancelled", 2)
    assert bench.dead_letters() == []


@pytest.mark.parametrize("attempts", [5, 1])
def test_a_job_cancelled_while_its_handler_raises_is_cancelled(bench: Bench, attempts: int) -> None:
    def handler(context: Context, args: Any) -> None:
        bench.cancel(context.job.id)
        raise ValueError("on the way out")

    kind = bench.kind(handler, attempts=attempts)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert bench.job(job_id).state == "cancelled"
    assert bench.attempts(job_id) == bench.dead_letters() == []


def test_a_cancel_request_that_comes_when_all_is_done_is_too_late(bench: Bench) -> None:
    def handler(context: Context, args: Any) -> None:
        through_items(context, args)
        bench.cancel(context.job.id)

    kind = bench.kind(handler, steps=True)
    job_id = bench.enqueue(kind, items=3)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.changed) == ("succeeded", 3)
    assert job.cancel_requested_at is not None


def test_it_is_too_late_as_well_if_the_worker_dies_before_it_tells_the_end(bench: Bench) -> None:
    kind = bench.kind(through_items, steps=True)
    job_id = bench.enqueue(kind, items=1)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        store.step(connection, store.compose_step(ITEM), {"id": job_id, "claim": job.claim, "position": 0})
    bench.cancel(job_id)
    bench.make_due(job_id)
    bench.work(kind)
    assert bench.job(job_id).state == "succeeded"


def test_a_cancelled_job_of_a_dead_worker_ends_cancelled_at_the_next_claim(bench: Bench) -> None:
    handled: list[int] = []
    kind = bench.kind(lambda context, args: handled.append(1), attempts=1, steps=True)
    job_id = bench.enqueue(kind, items=2)
    bench.claim_one(kind)
    bench.cancel(job_id)
    bench.make_due(job_id)
    bench.work(kind)
    assert bench.job(job_id).state == "cancelled"
    assert handled == bench.dead_letters() == []


def test_a_cancel_committed_between_a_workers_read_and_its_save_is_kept(bench: Bench, watch: Watch) -> None:
    """The save is composed of what was read before; its fence is judged by the row as it is when it is written."""
    kind = bench.kind(through_items, steps=True)
    job_id = bench.enqueue(kind, items=3)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        assert store.held(connection, job_id, job.claim) is not None
        bench.cancel(job_id)
        saved = store.step(connection, store.compose_step(ITEM), {"id": job_id, "claim": job.claim, "position": 0})
    assert saved is None
    bench.execute(job)
    assert (bench.job(job_id).state, bench.job(job_id).changed) == ("cancelled", 0)


# The lease


def test_a_handler_whose_claim_was_taken_stops_and_writes_nothing(bench: Bench, watch: Watch) -> None:
    def lose(context: Context) -> None:
        bench.make_due(context.job.id)
        bench.claim_one(kind)

    kind = bench.kind(after_items(1, lose), steps=True)
    job_id = bench.enqueue(kind, items=4)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.changed, job.attempt) == ("running", 1, 2)


def held(bench: Bench, job: Claimed, good_for: float = 60.0) -> tuple[LeaseKeeper, Held]:
    """A claim under a keeper that does not renew."""
    keeper = LeaseKeeper(bench.settings.database_url, lease=60.0, renew=60.0)
    job.good_for = good_for
    return keeper, keeper.hold([job], time.monotonic())


def test_a_lease_that_ran_out_by_our_own_clock_stops_the_handler(bench: Bench) -> None:
    kind = bench.kind(through_items, steps=True)
    job_id = bench.enqueue(kind, items=3)
    job = bench.claim_one(kind)
    keeper, lease = held(bench, job, good_for=0.0)
    with pytest.raises(LeaseLost):
        lease.check()
    Execution(job, lease, kind, bench.database, keeper, bench.settings).run()
    assert (bench.job(job_id).state, bench.job(job_id).changed) == ("running", 0)


def test_a_stopping_worker_gives_its_job_back_after_the_item_in_hand(bench: Bench, watch: Watch) -> None:
    leases: list[Held] = []
    kind = bench.kind(after_items(1, lambda context: leases[0].stop.set()), steps=True)
    job_id = bench.enqueue(kind, items=4)
    job = bench.claim_one(kind)
    keeper, lease = held(bench, job)
    leases.append(lease)
    Execution(job, lease, kind, bench.database, keeper, bench.settings).run()
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.changed) == ("queued", 0, 1)
    assert bench.attempts(job_id) == [(1, "interrupted", "worker_stopped")]
    with pytest.raises(Interrupted):
        lease.check()


def test_a_cancelled_job_is_not_given_back(bench: Bench) -> None:
    leases: list[Held] = []

    def stop_and_cancel(context: Context) -> None:
        leases[0].stop.set()
        bench.cancel(context.job.id)

    kind = bench.kind(after_items(1, stop_and_cancel), steps=True)
    job_id = bench.enqueue(kind, items=4)
    job = bench.claim_one(kind)
    keeper, lease = held(bench, job)
    leases.append(lease)
    Execution(job, lease, kind, bench.database, keeper, bench.settings).run()
    assert (bench.job(job_id).state, bench.job(job_id).changed) == ("cancelled", 1)


# The database away


def cut_off(bench: Bench, admin_url: str, application: str = "tests") -> None:
    """End every connection of the pool at the server."""
    with psycopg.connect(admin_url) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = %s and datname = current_database() and pid <> pg_backend_pid()",
            [application],
        )


def test_an_outage_costs_no_attempt_and_no_item_twice(bench: Bench, watch: Watch, admin_url: str) -> None:
    outages: list[int] = []

    def handler(context: Context, args: Any) -> None:
        for _ in context.items():
            context.step(ITEM)
            if context.job.position in (2, 4) and context.job.position not in outages:
                outages.append(context.job.position)
                cut_off(bench, admin_url)

    kind = bench.kind(handler, steps=True)
    job_id = bench.enqueue(kind, items=6)
    bench.work(kind)
    job = bench.job(job_id)
    assert outages == [2, 4]
    assert (job.state, job.attempt, job.changed) == ("succeeded", 1, 6)
    assert bench.attempts(job_id) == []


def test_an_outage_longer_than_the_lease_ends_the_handler(bench: Bench, admin_url: str) -> None:
    leases: list[Held] = []

    def handler(context: Context, args: Any) -> None:
        context.connection.execute("select 1")
        leases[0].good_until = 0.0
        cut_off(bench, admin_url)
        context.connection.execute("select 1")

    kind = bench.kind(handler)
    job_id = bench.enqueue(kind)
    job = bench.claim_one(kind)
    keeper, lease = held(bench, job)
    leases.append(lease)
    Execution(job, lease, kind, bench.database, keeper, bench.settings).run()
    assert bench.job(job_id).state == "running"


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.InterfaceError("the connection is closed"), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.CrashShutdown(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.errors.ConnectionFailure(), True),
        (psycopg.errors.ReadOnlySqlTransaction(), True),
        (psycopg.errors.IdleInTransactionSessionTimeout(), True),
        (psycopg.errors.QueryCanceled(), False),
        (psycopg.errors.LockNotAvailable(), False),
        (psycopg.errors.DeadlockDetected(), False),
        (psycopg.errors.ProgramLimitExceeded(), False),
        (psycopg.errors.StatementTooComplex(), False),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.DataError(), False),
        (ValueError(), False),
    ],
)
def test_what_counts_as_an_outage(error: Exception, is_outage: bool) -> None:
    assert db.is_connection_loss(error) is is_outage


# Hooks


def hooks(bench: Bench, failures: int, handler: Handler | None = None, **declared: Any) -> tuple[Any, list[Ended]]:
    """A kind whose closing hook raises so many times, after writing a row; and the ends that the hook was told."""
    told: list[Ended] = []

    def closing(session: Session, ended: Ended) -> None:
        told.append(ended)
        db.driver(session).execute("insert into hub.rate_window values (%s, '{}', now(), true)", [f"hook {ended.id}"])
        if len(told) <= failures:
            raise ValueError("the hook failed")

    return bench.kind(handler, closing=closing, **declared), told


def marks(bench: Bench) -> list[Any]:
    """What hooks wrote."""
    return [mark.key for mark in factories.rows(bench.database, "select key from hub.rate_window")]


@pytest.mark.parametrize("handler", [None, raising(Fail("not_there")), raising(ValueError("x"))])
def test_the_closing_hook_learns_how_the_job_ended_in_the_ending_transaction(
    bench: Bench, handler: Handler | None
) -> None:
    kind, told = hooks(bench, 0, handler, attempts=1)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert [(ended.id, ended.state, ended.code) for ended in told] == [(job_id, job.state, job.code)]
    assert marks(bench) == [f"hook {job_id}"]
    assert not job.closing_failed


def test_the_closing_hook_runs_for_a_cancelled_job_too(bench: Bench) -> None:
    kind, told = hooks(bench, 0, after_items(1, lambda context: bench.cancel(context.job.id)))
    bench.enqueue(kind, items=2)
    bench.work(kind)
    assert [ended.state for ended in told] == ["cancelled"]


@pytest.mark.parametrize(("failures", "tries", "left_out"), [(0, 1, False), (2, 3, False), (9, 3, True)])
def test_a_waiting_job_that_is_cancelled_ends_at_once_with_its_closing_hook(
    bench: Bench, failures: int, tries: int, left_out: bool
) -> None:
    kind, told = hooks(bench, failures)
    job_id = bench.enqueue(kind)
    with bench.database.transaction() as session:
        row = closing.cancel(session, job_id, UUID(int=1), "Ada")
    assert row is not None and row.state == "cancelled"
    assert ([ended.state for ended in told], bench.job(job_id).closing_failed) == (["cancelled"] * tries, left_out)
    assert marks(bench) == ([] if left_out else [f"hook {job_id}"])


@pytest.mark.parametrize("failures", [1, 2])
def test_a_closing_hook_that_raises_is_tried_again(bench: Bench, failures: int) -> None:
    kind, told = hooks(bench, failures)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.closing_failed, len(told)) == ("succeeded", False, failures + 1)
    assert marks(bench) == [f"hook {job_id}"]


def test_a_closing_hook_that_raises_three_times_is_left_out_and_the_job_says_so(bench: Bench) -> None:
    kind, told = hooks(bench, 9)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.closing_failed, len(told)) == ("succeeded", True, 3)
    assert marks(bench) == []


def test_a_closing_hook_that_kills_its_worker_three_times_is_left_out(bench: Bench) -> None:
    kind, told = hooks(bench, 0, attempts=1)
    job_id = bench.enqueue(kind)
    for _ in range(4):
        bench.claim_one(kind)
        bench.make_due(job_id)
    bench.work(kind)
    job = bench.job(job_id)
    assert (job.state, job.code, job.closing_failed, told) == ("failed", "worker_lost", True, [])
    assert bench.dead_letters() == [(job_id, "worker_lost")]


def test_closing_again_for_ever_does_not_stop_the_queue(bench: Bench) -> None:
    kind = bench.kind(attempts=1)
    job_id = bench.enqueue(kind)
    bench.claim_one(kind)
    bench.make_due(job_id)
    run(bench.database, "update queue.job set closing_tries = 32767, version = version + 1")
    bench.work(kind)
    assert bench.job(job_id).state == "failed"


def test_an_end_whose_record_cannot_be_written_is_no_end(bench: Bench) -> None:
    failing = True

    def recorded(session: Session, ended: Ended) -> None:
        if failing:
            raise psycopg.errors.InsufficientPrivilege("no right to write the trail")

    kind = bench.kind(raising(Fail("not_there")), recorded=recorded)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert bench.job(job_id).state == "running"
    failing = False
    bench.make_due(job_id)
    bench.work(kind)
    assert bench.job(job_id).state == "failed"


def test_a_success_whose_record_cannot_be_written_is_no_success(bench: Bench) -> None:
    def recorded(session: Session, ended: Ended) -> None:
        raise psycopg.errors.InsufficientPrivilege("no right to write the trail")

    kind = bench.kind(recorded=recorded)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert bench.job(job_id).state == "running"


def test_an_in_doubt_end_is_not_repeated(bench: Bench, watch: Watch, admin_url: str) -> None:
    """The commit came through but its answer was lost: read again, the job is no longer ours."""
    ends: list[str] = []

    def recorded(session: Session, ended: Ended) -> None:
        ends.append(ended.state)

    kind = bench.kind(recorded=recorded)
    job_id = bench.enqueue(kind)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        assert store.finish(connection, job, state="succeeded")
    bench.execute(job)
    assert bench.job(job_id).state == "succeeded"
    assert ends == []


def test_results_are_stored_as_they_are(bench: Bench) -> None:
    result = {"text": "Phòng Kỹ thuật 🚰", "list": [1, 2.5, None, True], "back\\slash": "\\u0000"}
    kind = bench.kind(lambda context, args: result)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert bench.job(job_id).result == json.loads(json.dumps(result))
