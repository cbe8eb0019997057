"""The transitions of a job, one statement each: enqueue, claim, step, retry, release, finish, cancel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hub.db import driver
from hub.queue import EXCLUSIVE, store
from hub.queue.job import Claimed
from tests.factories import row, rows, run
from tests.invariants import Watch
from tests.processes import until
from tests.queue.conftest import Bench

FIRST, SECOND = UUID(int=1), UUID(int=2)
STEP = store.compose_step(
    "outcome as materialized (select 1 as changed, 0 as skipped, null::text as problem, '' as title from fence)"
)


def count(bench: Bench, table: str) -> int:
    (answer,) = rows(bench.database, f"select count(*) from {table}")
    return int(answer.count)


class Heard:
    """What is notified on a channel."""

    def __init__(self, url: str, channel: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(f"listen {channel}".encode())

    def so_far(self) -> list[str]:
        """The payloads that were sent until now: what a later message of our own follows."""
        self.connection.execute("select pg_notify('hub_queue', 'the end'), pg_notify('hub_job', 'the end')")
        heard = []
        for note in self.connection.notifies(timeout=10):
            if note.payload == "the end":
                break
            heard.append(note.payload)
        return heard


# Enqueue


def test_a_job_and_its_cause_commit_together(bench: Bench) -> None:
    kind = bench.kind()
    heard = Heard(bench.database.url, "hub_queue")
    with pytest.raises(RuntimeError), bench.database.transaction() as session:
        store.enqueue(driver(session), kind, {}, ceiling=5)
        raise RuntimeError("the cause failed")
    assert count(bench, "queue.job") == count(bench, "queue.detail") == 0
    assert heard.so_far() == []


def test_a_queue_is_notified_once_in_a_transaction(bench: Bench) -> None:
    one, other = bench.kind(), bench.kind()
    heard = Heard(bench.database.url, "hub_queue")
    with bench.connection() as connection, connection.transaction():
        for kind in (one, one, other, one):
            store.enqueue(connection, kind, {}, ceiling=5)
    assert sorted(heard.so_far()) == sorted([one.line, other.line])


def test_the_deployments_ceiling_bounds_the_attempts_of_a_kind(bench: Bench) -> None:
    kind = bench.kind(attempts=4)
    with bench.connection() as connection:
        first = store.enqueue(connection, kind, {}, ceiling=3).id
        second = store.enqueue(connection, kind, {}, ceiling=9).id
    assert (bench.job(first).max_attempts, bench.job(second).max_attempts) == (3, 4)


def test_a_delayed_job_waits_for_its_time(bench: Bench) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind, delay=60.0)
    assert bench.claim(kind) == []
    assert bench.job(job_id).due_in == pytest.approx(60, abs=30)
    bench.make_due(job_id)
    assert bench.claim_one(kind).id == job_id


@pytest.mark.parametrize("off", [-86400, 86400])
def test_every_wait_goes_by_the_databases_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch, off: int) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=off)

    wrong = time.time() + off
    monkeypatch.setattr(time, "time", lambda: wrong)
    monkeypatch.setattr(store, "datetime", Wrong)
    kind, keyed = bench.kind(), bench.kind(policy=EXCLUSIVE)
    bench.enqueue(kind, delay=60.0)
    with bench.connection() as connection:
        store.enqueue_many(connection, kind, [store.Item({})], ceiling=5, delay=60.0)
        store.enqueue_many(connection, keyed, [store.Item({}, key="k")], ceiling=5, delay=60.0)
        for put_off in (
            partial(store.retry, code="handler_failed", error=""),
            partial(store.snooze, code="throttled"),
        ):
            bench.enqueue(kind)
            assert put_off(connection, bench.claim_one(kind), wait=60.0)
    waits = rows(bench.database, "select extract(epoch from again_at - statement_timestamp())::float8 from queue.job")
    assert [wait for (wait,) in waits] == [pytest.approx(60, abs=30)] * 5


def test_a_second_exclusive_job_is_answered_with_the_live_one(bench: Bench) -> None:
    kind = bench.kind(policy=EXCLUSIVE)

    def again(key: str = "source 1") -> store.Enqueued:
        with bench.connection() as connection:
            return store.enqueue(connection, kind, {}, ceiling=5, key=key)

    first = again()
    assert first.created
    twin = store.Enqueued(first.id, created=False)
    assert again() == twin
    assert again("source 2").created

    job = bench.claim_one(kind)
    assert again() == twin
    with bench.connection() as connection:
        assert store.retry(connection, job, wait=0.0, code="handler_failed", error="")
    assert again() == twin
    (job,) = [job for job in bench.claim(kind, lanes=2) if job.id == first.id]
    with bench.connection() as connection:
        store.finish(connection, job, state="succeeded")
    assert again().created


def test_an_exclusive_enqueue_waits_for_its_uncommitted_twin(bench: Bench) -> None:
    kind = bench.kind(policy=EXCLUSIVE)
    answers: list[store.Enqueued] = []

    def enqueue() -> None:
        with bench.connection() as connection:
            answers.append(store.enqueue(connection, kind, {}, ceiling=5, key="k"))

    with bench.connection() as connection, connection.transaction():
        first = store.enqueue(connection, kind, {}, ceiling=5, key="k")
        other = threading.Thread(target=enqueue)
        other.start()
    other.join(30)
    assert answers == [store.Enqueued(first.id, created=False)]


def test_an_exclusive_enqueue_is_made_if_its_twin_is_undone(bench: Bench, admin_url: str) -> None:
    kind = bench.kind(policy=EXCLUSIVE)
    answers: list[store.Enqueued] = []

    def enqueue() -> None:
        with bench.connection() as connection:
            answers.append(store.enqueue(connection, kind, {}, ceiling=5, key="k"))

    with bench.connection() as connection, connection.transaction(force_rollback=True):
        store.enqueue(connection, kind, {}, ceiling=5, key="k")
        other = threading.Thread(target=enqueue)
        other.start()
        waiting = "select from pg_stat_activity where datname = current_database() and wait_event = 'transactionid'"
        with psycopg.connect(admin_url, autocommit=True) as watcher:
            until(lambda: watcher.execute(waiting).fetchall())
    other.join(30)
    assert [answer.created for answer in answers] == [True]
    assert [job.id for job in bench.claim(kind, lanes=2)] == [answers[0].id]


@pytest.mark.parametrize("declared", [{"policy": EXCLUSIVE}, {"key": "k"}])
def test_a_key_goes_with_exclusive_kinds_and_only_with_them(bench: Bench, declared: dict[str, Any]) -> None:
    values = {"key": declared.pop("key")} if "key" in declared else {}
    with pytest.raises(ValueError, match="singleton key"):
        bench.enqueue(bench.kind(**declared), **values)


@pytest.mark.parametrize("name", ["key", "subject"])
@pytest.mark.parametrize("text", ["", "x" * 501, "x" * 100_000])
def test_a_key_or_subject_that_no_index_would_take_is_refused(bench: Bench, name: str, text: str) -> None:
    kind = bench.kind(policy=EXCLUSIVE)
    values = {"key": "k", name: text}
    with pytest.raises(ValueError, match=name):
        bench.enqueue(kind, **values)
    with bench.connection() as connection, pytest.raises(ValueError, match=name):
        store.enqueue_many(connection, kind, [store.Item({}, key="a"), store.Item({}, **values)], ceiling=5)
    assert rows(bench.database, "select from queue.job") == []
    bench.enqueue(kind, **values | {name: "\N{GRINNING FACE}" * 500})


# Claim


def test_what_is_due_again_comes_before_fresh_jobs_then_priority_then_age(bench: Bench) -> None:
    urgent, late = bench.kind(priority=0), None
    normal = bench.kind(queue=urgent.line, priority=1)
    late = bench.kind(queue=urgent.line, priority=2)
    again = bench.enqueue(late)
    bench.claim_one(late)
    expected = [again]
    sweep, old, young, upload = (bench.enqueue(kind) for kind in (late, normal, normal, urgent))
    bench.make_due(again)
    expected += [upload, old, young, sweep]
    taken = [bench.claim(urgent, normal, late)[0].id for _ in expected]
    assert taken == expected


def test_a_claim_of_many_answers_in_the_order_of_urgency(bench: Bench) -> None:
    urgent = bench.kind(priority=0)
    normal = bench.kind(queue=urgent.line)
    second, third = bench.enqueue(normal), bench.enqueue(normal)
    first = bench.enqueue(urgent)
    assert [job.id for job in bench.claim(urgent, normal, lanes=5)] == [first, second, third]


def test_the_workspace_with_the_fewest_running_jobs_comes_first(bench: Bench) -> None:
    kind = bench.kind()
    crowd = [bench.enqueue(kind, workspace_id=FIRST) for _ in range(4)]
    lone = [bench.enqueue(kind, workspace_id=SECOND) for _ in range(2)]
    taken = [bench.claim_one(kind).id for _ in range(6)]
    assert taken == [crowd[0], lone[0], crowd[1], lone[1], crowd[2], crowd[3]]


def test_one_claim_of_many_lanes_is_shared_by_the_workspaces(bench: Bench) -> None:
    kind = bench.kind()
    crowd = [bench.enqueue(kind, workspace_id=FIRST) for _ in range(5)]
    lone = [bench.enqueue(kind, workspace_id=SECOND) for _ in range(2)]
    assert {job.id for job in bench.claim(kind, lanes=4)} == {*crowd[:2], *lone}


def test_a_claim_takes_no_more_than_the_free_lanes_due_jobs_included(bench: Bench) -> None:
    kind = bench.kind()
    due = [bench.enqueue(kind) for _ in range(3)]
    assert len(bench.claim(kind, lanes=3)) == 3
    for job_id in due:
        bench.make_due(job_id)
    for _ in range(3):
        bench.enqueue(kind)
    assert len(bench.claim(kind, lanes=2)) == 2
    assert row(bench.database, "select count(*) from queue.job where state = 'queued'").count == 3


def test_beside_due_jobs_a_claim_takes_the_most_urgent_of_the_fresh_ones(bench: Bench) -> None:
    urgent = bench.kind(priority=0)
    normal = bench.kind(queue=urgent.line, priority=1)
    due, older = bench.enqueue(normal), bench.enqueue(normal)
    bench.make_due(due)
    newer = bench.enqueue(urgent)
    assert {job.id for job in bench.claim(urgent, normal, lanes=2)} == {due, newer}
    assert [job.id for job in bench.claim(urgent, normal, lanes=2)] == [older]


def test_notifications_hold_however_many_jobs_move_and_however_large_their_numbers(
    bench: Bench, admin_url: str
) -> None:
    kind = bench.kind()
    with psycopg.connect(admin_url, autocommit=True) as connection, bench.connection() as ours:
        (last,) = connection.execute("select last_value from queue.job_id_seq").fetchone() or ()
        connection.execute("select setval('queue.job_id_seq', 1000000000000000000)")
        store.enqueue_many(ours, kind, [store.Item({})] * 999, ceiling=5)
        connection.execute("select setval('queue.job_id_seq', %s)", [last])
        connection.execute("listen hub_job")
        claimed = [job.id for job in bench.claim_on(ours, kind, lanes=999)]
        store.announce_progress(ours, claimed)
        told = ",".join(note.payload for note in connection.notifies(timeout=30, stop_after=8)).split(",")
    assert len(claimed) == 999
    assert sorted(map(int, told)) == sorted(claimed * 2)


def test_no_job_is_claimed_twice_by_threads_at_once(bench: Bench, watch: Watch) -> None:
    kind = bench.kind()
    expected = {bench.enqueue(kind) for _ in range(120)}
    taken: list[int] = []
    barrier = threading.Barrier(4)

    def take() -> None:
        barrier.wait()
        while row(bench.database, "select count(*) from queue.job where state = 'queued'").count:
            taken.extend(job.id for job in bench.claim(kind, lanes=5))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == sorted(expected)


def test_a_job_that_another_claimer_holds_is_passed_over(bench: Bench) -> None:
    kind = bench.kind()
    held, free = bench.enqueue(kind), bench.enqueue(kind)
    with bench.connection() as connection, connection.transaction():
        connection.execute("select from queue.job where id = %s for update", [held])
        assert [job.id for job in bench.claim(kind, lanes=2)] == [free]


def test_a_lapsed_lease_is_claimed_again_and_its_attempt_recorded_as_lost(bench: Bench) -> None:
    kind = bench.kind(steps=True)
    job_id = bench.enqueue(kind, items=3)
    first = bench.claim_one(kind)
    with bench.connection() as connection:
        store.step(connection, STEP, {"id": job_id, "claim": first.claim, "position": 0})
    assert bench.claim(kind) == []
    bench.make_due(job_id)
    second = bench.claim_one(kind)
    assert (second.id, second.attempt, second.position, second.cause) == (job_id, 2, 1, "worker_lost")
    assert second.claim != first.claim
    assert bench.attempts(job_id) == [(1, "lost", "worker_lost")]
    assert row(bench.database, "select done from queue.attempt").done == 1


def test_due_jobs_that_cannot_be_taken_hide_no_other(bench: Bench) -> None:
    kind = bench.kind()
    unknown = bench.kind(queue=kind.line)
    held = [bench.enqueue(kind) for _ in range(5)]
    left = [bench.enqueue(unknown) for _ in range(5)]
    dead = bench.enqueue(kind)
    assert len(bench.claim(kind, unknown, lanes=11)) == 11
    for job_id in (*held, *left, dead):
        bench.make_due(job_id)
    with bench.connection() as connection, connection.transaction():
        connection.execute("select from queue.job where id = any(%s) for update", [held])
        assert [job.id for job in bench.claim(kind, lanes=1)] == [dead]


def test_lapsed_exclusive_jobs_are_all_taken_again_though_their_keys_are_asked_for(bench: Bench) -> None:
    kind = bench.kind(policy=EXCLUSIVE)
    ids = [bench.enqueue(kind, key=str(n)) for n in range(10)]
    bench.claim(kind, lanes=10)
    with bench.connection() as connection:
        asked = [store.enqueue(connection, kind, {}, ceiling=5, key=str(n)) for n in range(10)]
    assert asked == [store.Enqueued(job_id, created=False) for job_id in ids]
    for job_id in ids:
        bench.make_due(job_id)
    assert sorted(job.id for job in bench.claim(kind, lanes=20)) == ids
    assert all(bench.attempts(job_id) == [(1, "lost", "worker_lost")] for job_id in ids)


def test_a_passed_deadline_is_recorded_as_such(bench: Bench) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind)
    bench.claim_one(kind)
    bench.pass_deadline(job_id)
    assert bench.claim_one(kind).cause == "deadline_passed"
    assert bench.attempts(job_id) == [(1, "lost", "deadline_passed")]


def test_a_worker_that_died_long_ago_is_not_blamed_on_the_deadline(bench: Bench) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind)
    bench.claim_one(kind)
    past = "update queue.job set again_at = now() - interval '1 hour', deadline_at = now() - interval '5 min'"
    run(bench.database, past)
    assert bench.claim_one(kind).cause == "worker_lost"
    assert bench.attempts(job_id) == [(1, "lost", "worker_lost")]


def test_a_retry_that_is_due_has_lost_no_attempt(bench: Bench) -> None:
    kind = bench.kind()
    bench.enqueue(kind)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        store.retry(connection, job, wait=0.0, code="handler_failed", error="boom")
    again = bench.claim_one(kind)
    assert (again.attempt, again.cause) == (2, None)
    assert bench.attempts(job.id) == [(1, "retry", "handler_failed")]


def test_a_lease_never_outlasts_the_deadline(bench: Bench) -> None:
    kind = bench.kind(deadline=5.0)
    bench.enqueue(kind)
    job = bench.claim_one(kind, lease=60.0)
    assert job.good_for == pytest.approx(5.0)
    with bench.connection() as connection:
        good_for = store.renew(connection, job.id, job.claim, 60.0)
        assert good_for is not None and good_for <= 5.0
        bench.pass_deadline(job.id)
        assert store.renew(connection, job.id, job.claim, 60.0) is None


def test_an_item_done_moves_the_deadline(bench: Bench) -> None:
    kind = bench.kind(deadline=300.0, steps=True)
    bench.enqueue(kind, items=2)
    job = bench.claim_one(kind)
    run(bench.database, "update queue.job set deadline_at = statement_timestamp() + interval '1 second'")
    with bench.connection() as connection:
        store.step(connection, STEP, {"id": job.id, "claim": job.claim, "position": 0})
        assert store.renew(connection, job.id, job.claim, 60.0) == pytest.approx(60.0)


def test_a_kind_that_is_not_known_here_is_left_alone(bench: Bench) -> None:
    known = bench.kind()
    unknown = bench.kind(queue=known.line)
    left = bench.enqueue(unknown)
    lapsed = bench.enqueue(unknown)
    bench.claim(unknown, lanes=2)
    bench.make_due(lapsed)
    with bench.connection() as connection:
        store.release(connection, next(iter([claimed_of(bench, left)])))
    wanted = bench.enqueue(known)
    before = [(j.state, j.claim, j.version) for j in map(bench.job, (left, lapsed))]
    assert [job.id for job in bench.claim(known, lanes=9)] == [wanted]
    assert [(j.state, j.claim, j.version) for j in map(bench.job, (left, lapsed))] == before
    with bench.connection() as connection:
        assert store.look(connection, [known.line], [known.name])[0]["fresh"] is False


def claimed_of(bench: Bench, job_id: int) -> Claimed:
    """A running job as its worker holds it."""
    stored = bench.job(job_id)
    names = {name: getattr(stored, name, None) for name in Claimed.__dataclass_fields__}
    return Claimed(**names)


def test_what_is_due_next_and_whether_fresh_jobs_wait_is_told_by_queue(bench: Bench) -> None:
    busy, idle = bench.kind(), bench.kind()
    bench.enqueue(busy, delay=100.0)
    bench.enqueue(busy)
    with bench.connection() as connection:
        told = store.look(connection, [busy.line, idle.line], [busy.name, idle.name])
    by_queue = {line["queue"]: line for line in told}
    assert by_queue[idle.line] == {"queue": idle.line, "due_in": None, "fresh": False}
    assert by_queue[busy.line]["fresh"] is True
    assert by_queue[busy.line]["due_in"] == pytest.approx(100, abs=30)


# The fence


def step(connection: store.Connection, job: Claimed) -> object:
    return store.step(connection, STEP, {"id": job.id, "claim": job.claim, "position": 0})


def fail_item(connection: store.Connection, job: Claimed) -> object:
    item = {"item_id": UUID(int=9), "title": "Page", "code": "page_missing"}
    return store.fail_item(connection, id=job.id, claim=job.claim, position=0, **item) or None


WRITES: dict[str, Callable[[store.Connection, Claimed], object]] = {
    "step": step,
    "fail_item": fail_item,
    "renew": lambda connection, job: store.renew(connection, job.id, job.claim, 60.0),
    "retry": lambda connection, job: store.retry(connection, job, wait=1.0, code="handler_failed", error="x") or None,
    "release": lambda connection, job: store.release(connection, job) or None,
    "succeed": lambda connection, job: store.finish(connection, job, state="succeeded"),
    "fail": lambda connection, job: store.finish(connection, job, state="failed", code="worker_lost", dead=True),
    "cancel": lambda connection, job: store.finish(connection, job, state="cancelled"),
    "held": lambda connection, job: store.held(connection, job.id, job.claim),
}
SITUATIONS = ["claimed again", "given back", "ended", "waiting for a retry"]


def image(bench: Bench) -> list[Any]:
    """Everything that the queue's tables hold."""
    tables = ("job", "detail", "request", "worklist", "attempt", "dead_letter")
    return [rows(bench.database, f"select t::text from queue.{table} t order by 1") for table in tables]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("write", WRITES)
def test_an_old_claim_writes_nothing(bench: Bench, watch: Watch, write: str, situation: str) -> None:
    kind = bench.kind(steps=True)
    job_id = bench.enqueue(kind, items=2)
    old = bench.claim_one(kind)
    with bench.connection() as connection:
        if situation == "claimed again":
            bench.make_due(job_id)
            bench.claim_one(kind)
        elif situation == "given back":
            assert store.release(connection, old)
        elif situation == "ended":
            assert store.finish(connection, old, state="cancelled")
        else:
            assert store.retry(connection, old, wait=60.0, code="handler_failed", error="x")
        before = image(bench)
        assert WRITES[write](connection, old) is None
    assert image(bench) == before


@pytest.mark.parametrize("write", [name for name in WRITES if name != "held"])
def test_the_claim_itself_may_write(bench: Bench, write: str) -> None:
    kind = bench.kind(steps=True, attempts=1)
    job_id = bench.enqueue(kind, items=1)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        if write == "succeed":
            step(connection, job)
        assert WRITES[write](connection, job) is not None
        if (left := bench.job(job_id)).state == "running":
            store.finish(connection, job, state="cancelled")
        assert left.version >= 2


@pytest.mark.parametrize("write", ["step", "fail_item", "retry", "release"])
def test_a_cancel_request_keeps_a_job_from_going_on(bench: Bench, write: str) -> None:
    kind = bench.kind(steps=True)
    bench.enqueue(kind, items=2)
    job = bench.claim_one(kind)
    run(bench.database, "update queue.job set cancel_requested_at = now(), version = version + 1")
    with bench.connection() as connection:
        before = image(bench)
        assert WRITES[write](connection, job) is None
    assert image(bench) == before


@pytest.mark.parametrize("position", [0, 2])
def test_an_item_counts_only_at_the_position_where_the_job_stands(bench: Bench, position: int) -> None:
    kind = bench.kind(steps=True)
    bench.enqueue(kind, items=3)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        assert step(connection, job)
        before = image(bench)
        values = {"id": job.id, "claim": job.claim, "position": position}
        assert store.step(connection, STEP, values) is None
        item = {"item_id": FIRST, "title": "", "code": "page_missing"}
        assert not store.fail_item(connection, **values, **item)
    assert image(bench) == before


# Giving back and failing


def test_giving_back_does_not_charge_the_attempt(bench: Bench) -> None:
    kind = bench.kind(attempts=2)
    job_id = bench.enqueue(kind)
    for _ in range(5):
        job = bench.claim_one(kind)
        assert job.attempt == 1
        with bench.connection() as connection:
            assert store.release(connection, job)
    assert bench.attempts(job_id) == [(1, "interrupted", "worker_stopped")] * 5
    assert bench.job(job_id).attempt == 0


def test_giving_back_and_putting_back_wake_a_worker_and_tell_watchers(bench: Bench) -> None:
    kind = bench.kind()
    bench.enqueue(kind)
    for act in (WRITES["release"], WRITES["retry"]):
        job = bench.claim_one(kind)
        queues, jobs = Heard(bench.database.url, "hub_queue"), Heard(bench.database.url, "hub_job")
        with bench.connection() as connection:
            act(connection, job)
        assert queues.so_far() == [kind.line]
        assert jobs.so_far() == [str(job.id)]
        bench.make_due(job.id)


def test_failures_are_counted_by_code_and_the_first_hundred_are_told(bench: Bench) -> None:
    kind = bench.kind(steps=True)
    job_id = bench.enqueue(kind, items=130)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        for position in range(130):
            code = "page_missing" if position % 3 else "edit_conflict"
            item = {"item_id": UUID(int=position), "title": f"Page {position}", "code": code}
            assert store.fail_item(connection, id=job_id, claim=job.claim, position=position, **item)
        store.finish(connection, job, state="succeeded")
    failures = bench.job(job_id).failures
    assert failures["counts"] == {"edit_conflict": 44, "page_missing": 86}
    assert [item["title"] for item in failures["items"]] == [f"Page {n}" for n in range(100)]
    assert set(failures["items"][0]) == {"id", "title", "code", "attempt", "at"}


# Ends


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_an_ended_job_refuses_every_change(bench: Bench, state: str) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind)
    job = bench.claim_one(kind)
    with bench.connection() as connection:
        code = "not_there" if state == "failed" else None
        assert store.finish(connection, job, state=state, code=code)
    before = image(bench)
    for change in ("version = version + 1", "state = 'queued', finished_at = null", "closing_failed = true"):
        with pytest.raises(Exception, match="has ended and never changes again"):
            run(bench.database, f"update queue.job set {change} where id = :id", id=job_id)
    with bench.connection() as connection:
        assert store.cancel(connection, job_id, FIRST, "Maria") is None
    assert image(bench) == before


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "cancelled while waiting", "dead"])
def test_every_end_takes_the_worklist_and_frees_the_key(bench: Bench, end: str) -> None:
    kind = bench.kind(policy=EXCLUSIVE, steps=True, attempts=1 if end == "dead" else 5)
    job_id = bench.enqueue(kind, items=1500, key="k")
    assert count(bench, "queue.worklist") == 2
    if end == "succeeded":
        run(bench.database, "update queue.job set changed = total, version = version + 1")
    if end == "cancelled while waiting":
        bench.cancel(job_id)
    else:
        job = bench.claim_one(kind)
        with bench.connection() as connection:
            if end == "dead":
                store.finish(connection, job, state="failed", code="handler_failed", dead=True)
            else:
                store.finish(connection, job, state=end, code="x")
    assert count(bench, "queue.worklist") == 0
    assert bench.job(job_id).live_key is None
    assert bench.enqueue(kind, key="k") != job_id


# Cancel


def test_cancelling_a_waiting_job_ends_it_at_once(bench: Bench) -> None:
    kind = bench.kind(steps=True)
    job_id = bench.enqueue(kind, items=2)
    heard = Heard(bench.database.url, "hub_job")
    bench.cancel(job_id)
    job = bench.job(job_id)
    assert (job.state, job.version) == ("cancelled", 2)
    assert job.finished_at == job.cancel_requested_at
    assert heard.so_far() == [str(job_id)]
    assert bench.claim(kind) == []


def test_cancelling_a_job_that_waits_for_a_retry_ends_it_at_once(bench: Bench) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind)
    with bench.connection() as connection:
        store.retry(connection, bench.claim_one(kind), wait=60.0, code="handler_failed", error="")
    bench.cancel(job_id)
    assert bench.job(job_id).state == "cancelled"


def test_only_the_first_cancel_request_counts(bench: Bench) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind)
    bench.claim_one(kind)
    bench.cancel(job_id)
    first = image(bench)
    bench.cancel(job_id)
    assert image(bench) == first


def test_a_cancel_and_a_claim_at_once_give_one_of_both_orders(bench: Bench, watch: Watch) -> None:
    kind = bench.kind()
    ids = [bench.enqueue(kind) for _ in range(100)]
    claimed: list[Claimed] = []
    barrier = threading.Barrier(2)

    def take() -> None:
        barrier.wait()
        while jobs := bench.claim(kind, lanes=3):
            claimed.extend(jobs)

    taker = threading.Thread(target=take)
    taker.start()
    barrier.wait()
    for job_id in reversed(ids):
        bench.cancel(job_id)
    taker.join(60)
    states = {job_id: bench.job(job_id) for job_id in ids}
    for job in claimed:
        assert states[job.id].state == "running"
        assert states[job.id].cancel_requested_at is not None
    assert {job_id for job_id, job in states.items() if job.state == "cancelled"} == set(ids) - {j.id for j in claimed}
