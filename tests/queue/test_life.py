"""Jobs through arbitrary lives, against a small model of what each act must do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as budget
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from hub.config import Settings
from hub.db import Database, driver
from hub.queue import EXCLUSIVE, Kind, kind, store
from hub.queue.job import Claimed
from tests import cluster
from tests.factories import rows, run
from tests.invariants import Watch, assert_holds, check
from tests.queue.conftest import AnyArgs

STEP = store.compose_step(
    "outcome as materialized (select 1 as changed, 0 as skipped, null::text as problem, '' as title from fence)"
)
PLAIN = Kind(name="test.plain", queue="test.life", run=lambda context, args: None, args=AnyArgs, attempts=3, steps=True)
ALONE = Kind(
    name="test.life.alone",
    queue="test.life",
    run=lambda context, args: None,
    args=AnyArgs,
    attempts=2,
    policy=EXCLUSIVE,
)
NAMES = [PLAIN.name, ALONE.name]
ENDED = ("succeeded", "failed", "cancelled")


@dataclass
class Model:
    """What a job must be like."""

    state: str = "queued"
    key: str | None = None
    total: int = 0
    done: int = 0
    attempt: int = 0
    most: int = 3
    version: int = 1
    claim: int | None = None
    cancel: bool = False
    # Whether it may be claimed: fresh, or its wait or lease has ended.
    due: bool = True
    outcomes: list[str] = field(default_factory=list)

    def change(self, **values: Any) -> None:
        """What people can see changes."""
        self.version += 1
        for name, value in values.items():
            setattr(self, name, value)

    def end(self, state: str) -> None:
        """It has ended."""
        self.change(state=state, claim=None, key=None, due=False)


class Life(RuleBasedStateMachine):
    """Two workers and an impatient person at one queue."""

    database: Database
    limits: Settings
    watch: Watch
    wipe: Any
    ids = Bundle("ids")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.wipe()
        self.watch.install()
        self.jobs: dict[int, Model] = {}
        self.numbers = itertools.count(1)

    def teardown(self) -> None:
        assert_holds(check(self.database, self.limits) + self.watch.check())

    def held_by(self, job: Claimed) -> Model | None:
        """The job's model if this claim still holds."""
        model = self.jobs[job.id]
        return model if model.claim == job.claim else None

    @rule(target=ids, items=st.integers(0, 3))
    def enqueue(self, items: int) -> int:
        with self.database.transaction() as session:
            connection = driver(session)
            job_id = store.enqueue(connection, PLAIN, {}, ceiling=5).id
            if items:
                listed = "select gen_random_uuid() as item, n as place from generate_series(1, %(count)s) n"
                store.make_worklist(connection, job_id, listed, {"count": items})
        self.jobs[job_id] = Model(total=items)
        return job_id

    @rule(target=ids, key=st.sampled_from("ab"))
    def enqueue_alone(self, key: str) -> Any:
        twin = next((job_id for job_id, model in self.jobs.items() if model.key == key), None)
        with self.database.autocommit() as connection:
            answer = store.enqueue(connection, ALONE, {}, ceiling=5, key=key)
        if twin is not None:
            assert answer == store.Enqueued(twin, created=False)
            return multiple()
        assert answer.created
        self.jobs[answer.id] = Model(key=key, most=2)
        return answer.id

    @rule(target=claims, worker=st.sampled_from([1, 2]), lanes=st.integers(1, 3))
    def claim(self, worker: int, lanes: int) -> Any:
        number = (worker << 32) | next(self.numbers)
        with self.database.autocommit() as connection:
            taken = store.claim(connection, "test.life", NAMES, claim=number, lanes=lanes, lease=600.0)
        due = {job_id for job_id, model in self.jobs.items() if model.due}
        assert len(taken) == min(lanes, len(due))
        for job in taken:
            assert job.id in due
            model = self.jobs[job.id]
            stopping = model.state == "running" and model.cancel and model.done < (model.total or 1)
            closing = stopping or model.attempt >= model.most
            if model.state == "running":
                model.outcomes.append("lost")
            model.change(state="running", claim=number, due=False, attempt=model.attempt + (not closing))
            assert (job.attempt, job.position, job.used_up or job.cancelled) == (model.attempt, model.done, closing)
        return multiple(*taken)

    @rule(job=claims)
    def step(self, job: Claimed) -> None:
        model = self.held_by(job)
        position = self.jobs[job.id].done
        with self.database.autocommit() as connection:
            done = (
                store.step(connection, STEP, {"id": job.id, "claim": job.claim, "position": position})
                if position < self.jobs[job.id].total
                else None
            )
        allowed = model is not None and not model.cancel and position < model.total
        assert (done is not None) == allowed
        if model and allowed:
            model.change(done=model.done + 1)

    @rule(job=claims)
    def fail_item(self, job: Claimed) -> None:
        model = self.held_by(job)
        position = self.jobs[job.id].done
        if position >= self.jobs[job.id].total:
            return
        with self.database.autocommit() as connection:
            done = store.fail_item(
                connection,
                id=job.id,
                claim=job.claim,
                position=position,
                item_id=UUID(int=1),
                title="",
                code="page_missing",
            )
        assert done == (model is not None and not model.cancel)
        if model and done:
            model.change(done=model.done + 1)

    @rule(job=claims)
    def renew(self, job: Claimed) -> None:
        with self.database.autocommit() as connection:
            good_for = store.renew(connection, job.id, job.claim, 600.0)
        model = self.held_by(job)
        assert (good_for is not None) == (model is not None)
        if model:
            model.due = False

    @rule(job=claims, now=st.booleans())
    def retry(self, job: Claimed, now: bool) -> None:
        model = self.held_by(job)
        with self.database.autocommit() as connection:
            done = store.retry(connection, job, wait=0.0 if now else 600.0, code="handler_failed", error="x")
        assert done == (model is not None and not model.cancel)
        if model and done:
            model.outcomes.append("retry")
            model.change(state="queued", claim=None, due=now)

    @rule(job=claims)
    def release(self, job: Claimed) -> None:
        model = self.held_by(job)
        with self.database.autocommit() as connection:
            done = store.release(connection, job)
        assert done == (model is not None and not model.cancel)
        if model and done:
            model.outcomes.append("interrupted")
            model.change(state="queued", claim=None, due=True, attempt=model.attempt - 1)

    @rule(job=claims, state=st.sampled_from(ENDED))
    def finish(self, job: Claimed, state: str) -> None:
        model = self.held_by(job)
        if model and state == "succeeded" and model.done < model.total:
            return
        dead = bool(state == "failed" and model and model.attempt >= model.most)
        code = {True: "worker_lost", False: "not_there"}[dead] if state == "failed" else None
        with self.database.autocommit() as connection:
            ended = store.finish(connection, job, state=state, code=code, dead=dead)
        assert (ended is not None) == (model is not None)
        if model:
            model.end(state)

    @rule(job_id=ids)
    def cancel(self, job_id: int) -> None:
        model = self.jobs[job_id]
        with self.database.autocommit() as connection:
            asked = store.cancel(connection, job_id, UUID(int=1), "Maria")
        assert (asked is not None) == (model.state not in ENDED and not model.cancel)
        if asked:
            model.cancel = True
            if model.state == "queued":
                model.end("cancelled")
            else:
                model.change()

    @rule(job_id=ids)
    def time_passes(self, job_id: int) -> None:
        model = self.jobs[job_id]
        if model.state in ENDED:
            return
        run(
            self.database,
            "update queue.job set again_at = statement_timestamp() where id = :id and again_at is not null",
            id=job_id,
        )
        model.due = True

    @rule(job=consumes(claims))
    def forget(self, job: Claimed) -> None:
        """The worker dies with what it holds."""

    @invariant()
    def the_tables_are_as_the_model(self) -> None:
        query = """
            select j.id, j.state::text as state, j.live_key as key, coalesce(j.total, 0) as total,
                   j.changed + j.skipped + j.failed as done, j.attempt, j.max_attempts as most, j.version, j.claim,
                   j.cancel_requested_at is not null as cancel,
                   array(select outcome::text from queue.attempt where job_id = j.id) as outcomes
            from queue.job j
        """
        stored = {row.id: row._asdict() for row in rows(self.database, query)}
        assert stored.keys() == self.jobs.keys()
        for job_id, model in self.jobs.items():
            told = {name: stored[job_id][name] for name in vars(model) if name not in ("due", "outcomes")}
            assert told == {name: getattr(model, name) for name in told}
            assert sorted(stored[job_id]["outcomes"]) == sorted(model.outcomes)


@pytest.fixture
def life(database: Database, settings: Settings, admin_url: str) -> Iterator[type[Life]]:
    """The machine on this test's database."""
    for declared in (PLAIN, ALONE):
        kind.register(declared)
    watch = Watch(admin_url)
    bound = {"database": database, "limits": settings, "watch": watch, "wipe": lambda self: cluster.wipe(admin_url)}
    yield type("LifeHere", (Life,), bound)
    watch.remove()
    for declared in (PLAIN, ALONE):
        kind._kinds.pop(declared.name)


def test_any_life_of_jobs_is_as_the_model_says(life: type[Life]) -> None:
    # Not shrunk: with a database beneath, that would take many minutes.
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    bounds = budget(
        max_examples=15,
        stateful_step_count=40,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(life, settings=bounds)
