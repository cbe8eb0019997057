"""What the queue owes to kinds and workspaces: one job a key, fair turns, snoozes, bulk answers, mirrors, pauses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hub.queue import EXCLUSIVE, Item, Kind, Snooze, enqueue_many, store, testing
from hub.queue.mirror import Mirror
from tests.factories import row, rows, run
from tests.processes import until
from tests.queue.conftest import Bench

FIRST, SECOND, THIRD = UUID(int=1), UUID(int=2), UUID(int=3)


# One job for each key


def ten_at_once(bench: Bench, kind: Kind) -> list[store.Enqueued]:
    """The answers of ten connections that enqueue the same key at the same moment."""
    ready = threading.Barrier(10)

    def one(_: int) -> store.Enqueued:
        with bench.connection() as connection:
            ready.wait(30)
            return store.enqueue(connection, kind, {}, ceiling=5, key="k")

    with ThreadPoolExecutor(10) as pool:
        return list(pool.map(one, range(10)))


def test_ten_enqueues_of_one_key_at_once_give_one_job_whatever_it_is_doing(bench: Bench) -> None:
    kind = bench.kind(policy=EXCLUSIVE)
    waiting = ten_at_once(bench, kind)
    assert len({answer.id for answer in waiting}) == 1
    assert sum(answer.created for answer in waiting) == 1
    twin = store.Enqueued(waiting[0].id, created=False)
    job = bench.claim_one(kind)
    assert ten_at_once(bench, kind) == [twin] * 10
    with bench.connection() as connection:
        assert store.retry(connection, job, wait=3600.0, code="handler_failed", error="")
    assert ten_at_once(bench, kind) == [twin] * 10
    assert row(bench.database, "select count(*) from queue.job").count == 1


# Many at once


def test_many_are_answered_item_by_item_in_their_order(bench: Bench) -> None:
    kind = bench.kind(policy=EXCLUSIVE)
    live = bench.enqueue(kind, key="b")
    with bench.connection() as connection:
        answers = enqueue_many(connection, kind, [Item({}, key=key) for key in "abca"], ceiling=5)
    assert [answer.created for answer in answers] == [True, False, True, False]
    assert answers[1].id == live
    assert answers[3].id == answers[0].id


# The last one is so large that it is kept apart from its job.
@pytest.mark.parametrize("args", [{"text": "\x00"}, {"text": "\ud800"}, {"thing": object()}, {"text": "\x00" * 300}])
@pytest.mark.parametrize("policy", ["standard", EXCLUSIVE])
def test_one_item_that_cannot_be_stored_leaves_nothing_of_all(bench: Bench, policy: str, args: dict[str, Any]) -> None:
    kind = bench.kind(policy=policy)
    items = [Item(args if n == 7 else {"n": n}, key=str(n) if policy == EXCLUSIVE else None) for n in range(10)]
    with bench.connection() as connection, pytest.raises((psycopg.DataError, ValueError)):
        enqueue_many(connection, kind, items, ceiling=5)
    assert rows(bench.database, "select from queue.job") == []


ARGS: list[Any] = [
    {},
    {"text": "\\ \" ' \t \n \u2028 é e\u0301 \N{GRINNING FACE} $1 %s %(queue)s :queue \\N"},
    {"a": [1, -1, 0.1, -2.5, 2**53 + 1, True, None, [], {"b": {}}]},
    {"long": '\\"\N{GRINNING FACE}' * 1000},
]


@pytest.mark.parametrize("args", ARGS, ids=["none", "odd text", "all types", "large"])
@pytest.mark.parametrize("way", ["alone", "many", "many with keys"])
def test_arguments_come_out_as_they_went_in(bench: Bench, way: str, args: dict[str, Any]) -> None:
    kind = bench.kind(policy=EXCLUSIVE if way == "many with keys" else "standard")
    key = "k" if way == "many with keys" else None
    with bench.connection() as connection:
        if way == "alone":
            store.enqueue(connection, kind, args, ceiling=5)
        else:
            enqueue_many(connection, kind, [Item(args, key=key)], ceiling=5)
        job = bench.claim_one(kind)
        assert job.args == args
        assert store.release(connection, job)
        assert run_args(bench, kind) == args


def run_args(bench: Bench, kind: Kind) -> Any:
    """The arguments of the one job to be had, as it is claimed ahead."""
    run(bench.database, "update queue.job set again_at = null where state = 'queued'")
    with bench.connection() as connection:
        claim = next(bench.claims)
        (job,) = store.claim_ahead(connection, kind.line, [kind.name], claim=claim, most=1, lease=60.0)
    return job.args


# Fair turns


def test_fifty_long_jobs_of_a_workspace_keep_anothers_first_waiting_for_one_end_only(bench: Bench) -> None:
    kind = bench.kind()
    for _ in range(50):
        bench.enqueue(kind, workspace_id=FIRST)
    first, _ = bench.claim(kind, lanes=2)
    lone = bench.enqueue(kind, workspace_id=SECOND)
    assert bench.claim(kind, lanes=0) == []
    bench.execute(first)
    assert [job.id for job in bench.claim(kind)] == [lone]


def test_a_single_lane_goes_round_the_workspaces(bench: Bench) -> None:
    kind = bench.kind()
    crowd = [bench.enqueue(kind, workspace_id=FIRST) for _ in range(50)]
    second = [bench.enqueue(kind, workspace_id=SECOND) for _ in range(2)]
    third = bench.enqueue(kind, workspace_id=THIRD)
    taken: list[int] = []
    served: UUID | None = None
    for _ in range(6):
        (job,) = bench.claim(kind, after=served)
        served = job.workspace_id
        taken.append(job.id)
        bench.execute(job)
    assert taken == [crowd[0], second[0], third, crowd[1], second[1], crowd[2]]


def test_a_workspace_that_never_runs_dry_does_not_keep_anothers_jobs_from_being_claimed_ahead(bench: Bench) -> None:
    kind = bench.kind(prefetch=True)
    lone = bench.enqueue(kind, workspace_id=SECOND)
    taken: set[int] = set()
    # Whose turn it is is drawn by lot: that one of two loses sixty times in a row does not happen.
    for _ in range(60):
        for _ in range(2):
            bench.enqueue(kind, workspace_id=FIRST)
        with bench.connection() as connection:
            values = {"claim": next(bench.claims), "most": 2, "lease": 60.0}
            taken |= {job.id for job in store.claim_ahead(connection, kind.line, [kind.name], **values)}
    assert lone in taken


# Snoozes


def test_a_snooze_costs_no_attempt_however_often(bench: Bench) -> None:
    throttled = iter(range(6))

    def run_later(context: Any, args: Any) -> None:
        if next(throttled, None) is not None:
            raise Snooze(3600, "throttled")

    kind = bench.kind(run_later, attempts=2)
    job_id = bench.enqueue(kind)
    for _ in range(6):
        bench.work(kind)
        waiting = bench.job(job_id)
        assert (waiting.state, waiting.attempt) == ("queued", 0)
        assert waiting.due_in > 3000
        bench.make_due(job_id)
    bench.work(kind)
    ended = bench.job(job_id)
    assert (ended.state, ended.attempt) == ("succeeded", 1)
    assert bench.attempts(job_id) == [(1, "snoozed", "throttled")] * 6


# Mirrors

TABLE = """
create schema outside;
create table outside.thing (
    id uuid primary key, desired_version bigint not null default 1, synced_version bigint not null default 0
);
grant usage on schema outside to hub_app;
grant all on outside.thing to hub_app
"""


class Mirrored:
    """One row that is mirrored by an exclusive kind.

    `meanwhile` is called while the handler is at work, `before_commit` when the job's end is written but not committed.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.subject = f"thing:{uuid4()}"
        self.mirror = Mirror("outside", "thing")
        self.meanwhile: list[Any] = []
        self.before_commit: list[Any] = []
        self.synced: list[int | None] = []
        self.kind = bench.kind(
            self.sync,
            policy=EXCLUSIVE,
            locks=self.mirror.lock,
            recorded=self.record,
            follow_up=self.mirror.follow_up,
        )
        run(bench.database, "insert into outside.thing (id) values (:id)", id=self.subject[6:])

    def sync(self, context: Any, args: Any) -> dict[str, Any]:
        version = self.mirror.desired(context.connection, self.subject)
        self.synced.append(version)
        if self.meanwhile:
            self.meanwhile.pop()()
        return {"synced_version": version}

    def record(self, session: Any, ended: Any) -> None:
        if self.before_commit:
            self.before_commit.pop()()

    def edit(self) -> store.Enqueued:
        """Change the row and ask for it to be mirrored, in one transaction."""
        with self.bench.connection() as connection, connection.transaction():
            raised = "update outside.thing set desired_version = desired_version + 1 where id = %s"
            connection.execute(raised, [self.subject[6:]])
            return store.enqueue(connection, self.kind, {}, ceiling=5, key=self.subject, subject=self.subject)

    def versions(self) -> tuple[int, int]:
        """The desired and the mirrored one."""
        return tuple(row(self.bench.database, "select desired_version, synced_version from outside.thing"))

    def live(self) -> list[int]:
        """The jobs that have not ended."""
        return [job.id for job in rows(self.bench.database, "select id from queue.job where finished_at is null")]


@pytest.fixture
def mirrored(bench: Bench, admin_url: str) -> Iterator[Mirrored]:
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(TABLE)
        yield Mirrored(bench)
        connection.execute("drop schema outside cascade")


def test_an_edit_while_its_row_is_mirrored_makes_one_job_more(mirrored: Mirrored) -> None:
    first = mirrored.edit()
    answers: list[store.Enqueued] = []
    mirrored.meanwhile = [lambda: answers.extend(mirrored.edit() for _ in range(3))]
    mirrored.bench.work(mirrored.kind)
    # While it runs, its own key is taken: only its end can see that there is more to do.
    assert answers == [store.Enqueued(first.id, created=False)] * 3
    assert mirrored.versions() == (5, 2)
    assert len(mirrored.live()) == 1
    # The end, what is mirrored by now, and the next job became known in one transaction.
    written = "select xmin::text from queue.job union all select xmin::text from outside.thing"
    assert len(rows(mirrored.bench.database, written)) == 3
    assert len({line.xmin for line in rows(mirrored.bench.database, written)}) == 1
    mirrored.bench.work(mirrored.kind)
    assert mirrored.versions() == (5, 5)
    assert mirrored.live() == []


def test_an_edit_at_the_moment_of_the_end_is_not_forgotten(mirrored: Mirrored) -> None:
    first = mirrored.edit()
    answers: list[store.Enqueued] = []
    with testing.freeze("finish") as frozen:
        worker = threading.Thread(target=mirrored.bench.work, args=[mirrored.kind])
        worker.start()
        frozen.await_arrival()
        # The row is locked by the ending transaction, so this edit comes after it.
        editor = threading.Thread(target=lambda: answers.append(mirrored.edit()))
        editor.start()
        frozen.release()
        worker.join()
        editor.join()
    assert answers[0].created
    assert mirrored.live() == [answers[0].id] != [first.id]
    mirrored.bench.work(mirrored.kind)
    assert mirrored.versions() == (3, 3)


def test_an_edit_before_the_end_has_committed_waits_for_it_and_neither_fails(
    mirrored: Mirrored, admin_url: str
) -> None:
    """Without one order of locks, each would wait for the other: for the row, and for the key."""
    first = mirrored.edit()
    answers: list[store.Enqueued] = []
    editor = threading.Thread(target=lambda: answers.append(mirrored.edit()))
    waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

    def edit() -> None:
        editor.start()
        with psycopg.connect(admin_url, autocommit=True) as watcher:
            until(lambda: watcher.execute(waiting).fetchall())

    mirrored.before_commit = [edit]
    mirrored.bench.work(mirrored.kind)
    editor.join(30)
    assert mirrored.synced == [2]
    assert mirrored.live() == [answers[0].id] != [first.id]
    assert answers[0].created
    mirrored.bench.work(mirrored.kind)
    assert mirrored.versions() == (3, 3)
