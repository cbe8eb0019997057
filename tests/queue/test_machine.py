"""Random histories of the queue against a small model of it, over several connections of a real server.

Whatever is done in whatever order, also by holders of claims that were lost long ago: only legal transitions happen, a
lost claim writes nothing, one live job holds a key, attempts are counted and bounded, a cancel stays, a pause holds, a
dead letter exists exactly for what used up its attempts, one key of a person makes one job; and everything ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hub import db
from hub.db import Database
from hub.errors import Conflict
from hub.jobs.cancel import cancel
from hub.models import audit
from hub.queue import EXCLUSIVE, Kind, letters, store
from hub.queue.job import Claimed
from tests import cluster, factories
from tests.factories import rows
from tests.invariants import Watch
from tests.queue.conftest import Bench
from tests.queue.test_store import STEP

EXAMPLES, STEPS = 40, 50
MOST = 2
LATER = 3600.0

lines = strategies.sampled_from(range(4))
picks = strategies.integers(min_value=0, max_value=10**6)
few = strategies.integers(min_value=1, max_value=3)
keys = strategies.sampled_from(["a", "b", "c"])


@dataclass
class Modelled:
    """What the model knows of a job. `again`: fresh, due, later; of a running one, when its lease ends."""

    kind: Kind
    key: str | None = None
    state: str = "queued"
    again: str = "fresh"
    attempt: int = 0
    claim: int | None = None
    total: int | None = None
    done: int = 0
    asked: bool = False
    dead: bool = False

    @property
    def live(self) -> bool:
        return self.state in ("queued", "running")

    @property
    def used_up(self) -> bool:
        return self.attempt >= MOST

    @property
    def stops(self) -> bool:
        """Whether a cancel request came while something was left to do."""
        return self.asked and (self.total is None or self.done < self.total)

    def end(self, state: str) -> None:
        self.state, self.again, self.claim, self.key = state, "never", None, None

    def wait(self, again: str) -> None:
        self.state, self.again, self.claim = "queued", again, None


class Queue(RuleBasedStateMachine):
    """Works on the database of `bench` over `connections`; both are given by a subclass."""

    bench: ClassVar[Bench]
    connections: ClassVar[list[Any]]
    # Of all histories together.
    steps = 0

    @initialize()
    def start(self) -> None:
        self.plain = self.bench.kind(attempts=MOST)
        self.keyed = self.bench.kind(attempts=MOST, policy=EXCLUSIVE)
        self.stepping = self.bench.kind(attempts=MOST, steps=True)
        self.ahead = self.bench.kind(attempts=MOST, prefetch=True)
        self.kinds = [self.plain, self.keyed, self.stepping, self.ahead]
        self.jobs: dict[int, Modelled] = {}
        self.claims: list[Claimed] = []
        self.paused: set[str] = set()
        self.asked: dict[str, tuple[str, int]] = {}
        self.versions: dict[int, int] = {}
        self.turn = itertools.count()
        # A team of its own: its people may ask for so many jobs a day only.
        self.team = factories.make_team(self.bench.database)
        self.course = factories.make_course(self.bench.database, self.team, pages=1)

    @property
    def connection(self) -> Any:
        """One of three, by turns."""
        return self.connections[next(self.turn) % len(self.connections)]

    # Enqueue

    @rule(ahead=strategies.booleans())
    def enqueue(self, ahead: bool) -> None:
        kind = self.ahead if ahead else self.plain
        made = store.enqueue(self.connection, kind, {}, ceiling=5)
        assert made.created and made.id not in self.jobs
        self.jobs[made.id] = Modelled(kind)

    @rule(key=keys)
    def enqueue_with_a_key(self, key: str) -> None:
        made = store.enqueue(self.connection, self.keyed, {}, ceiling=5, key=key)
        self.note_keyed(key, made)

    @rule(wanted=strategies.lists(keys, min_size=1, max_size=4))
    def enqueue_many_with_keys(self, wanted: list[str]) -> None:
        items = [store.Item({}, key=key) for key in wanted]
        for key, made in zip(wanted, store.enqueue_many(self.connection, self.keyed, items, ceiling=5), strict=True):
            self.note_keyed(key, made)

    def note_keyed(self, key: str, made: store.Enqueued) -> None:
        twins = [number for number, job in self.jobs.items() if job.key == key and job.live]
        assert made.created == (not twins)
        if twins:
            assert [made.id] == twins
        else:
            self.jobs[made.id] = Modelled(self.keyed, key=key)

    @rule(count=few)
    def enqueue_many(self, count: int) -> None:
        made = store.enqueue_many(self.connection, self.ahead, [store.Item({})] * count, ceiling=5)
        assert len({one.id for one in made}) == count and all(one.created for one in made)
        self.jobs |= {one.id: Modelled(self.ahead) for one in made}

    @rule(count=few)
    def enqueue_with_items(self, count: int) -> None:
        number = self.bench.enqueue(self.stepping, items=count)
        self.jobs[number] = Modelled(self.stepping, total=count)

    @rule(key=keys, tag=strategies.sampled_from(["x", "y"]))
    def ask_as_a_person(self, key: str, tag: str) -> None:
        known = self.asked.get(key)
        try:
            made = factories.start_tagging(
                self.bench.database, self.bench.settings, self.team, self.course, tag, key=key
            )
        except Conflict:
            assert known is not None and known[0] != tag
            return
        assert made.created == (known is None)
        assert known is None or known == (tag, made.job_id)
        self.asked[key] = (tag, made.job_id)

    # Claim

    def takeable(self, kind: Kind, again: str) -> list[int]:
        held = kind.line in self.paused
        return [
            number
            for number, job in self.jobs.items()
            if job.kind is kind and job.live and job.again == again and (not held or (job.used_up or job.asked))
        ]

    @rule(line=lines, lanes=few)
    def claim(self, line: int, lanes: int) -> None:
        self.take(self.kinds[line], lanes)

    def take(self, kind: Kind, lanes: int) -> None:
        due, fresh = self.takeable(kind, "due"), self.takeable(kind, "fresh")
        taken = self.bench.claim_on(self.connection, kind, lanes=lanes)
        first = min(lanes, len(due))
        assert len(taken) == min(lanes, len(due) + len(fresh))
        came_due = {job.id for job in taken if self.jobs[job.id].again == "due"}
        assert len(came_due) == first and came_due <= set(due)
        assert sorted(job.id for job in taken if job.id not in came_due) == sorted(fresh)[: lanes - first]
        for job in taken:
            self.note_claim(job)

    @rule(most=few)
    def claim_ahead(self, most: int) -> None:
        self.take_ahead(most)

    def take_ahead(self, most: int) -> None:
        fresh = sorted(self.takeable(self.ahead, "fresh"))[:most]
        names, number = [self.ahead.name], next(self.bench.claims)
        taken = store.claim_ahead(self.connection, self.ahead.line, names, claim=number, most=most, lease=60)
        assert [job.id for job in taken] == fresh
        for job in taken:
            self.note_claim(job)

    def note_claim(self, job: Claimed) -> None:
        known = self.jobs[job.id]
        assert (job.used_up, job.cancelled) == (known.used_up and known.again == "due", known.stops)
        if not (job.used_up or job.cancelled):
            known.attempt += 1
        assert job.attempt == known.attempt <= MOST
        assert job.claim not in {claim.claim for claim in self.claims if claim.id == job.id}
        known.state, known.again, known.claim = "running", "later", job.claim
        self.claims.append(job)

    # What holders of claims do, those of lost ones too

    def pick(self, which: int) -> tuple[Claimed, Modelled, bool]:
        job = self.claims[which % len(self.claims)]
        known = self.jobs[job.id]
        return job, known, known.claim == job.claim

    @precondition(lambda self: self.claims)
    @rule(which=picks)
    def step(self, which: int) -> None:
        job, known, holds = self.pick(which)
        values = {"id": job.id, "claim": job.claim, "position": known.done}
        done = store.step(self.connection, STEP, values) if known.total and known.done < known.total else None
        goes = holds and not known.asked and known.total is not None and known.done < known.total
        assert (done is not None) == goes
        known.done += goes

    @precondition(lambda self: self.claims)
    @rule(which=picks, how=strategies.sampled_from(["retry", "snooze", "release"]), soon=strategies.booleans())
    def put_back(self, which: int, how: str, soon: bool) -> None:
        job, known, holds = self.pick(which)
        if job.used_up or (how == "retry" and known.used_up):
            return
        wait = 0.0 if soon else LATER
        if how == "retry":
            back = store.retry(self.connection, job, wait=wait, code="handler_failed", error="as told")
        elif how == "snooze":
            back = store.snooze(self.connection, job, wait=wait, code="throttled")
        else:
            back = store.release(self.connection, job)
        assert back == (holds and not known.asked)
        if back:
            known.attempt -= how != "retry"
            known.wait("due" if soon or how == "release" else "later")

    @precondition(lambda self: self.claims)
    @rule(which=picks)
    def finish(self, which: int) -> None:
        """As the engine would end it: cancelled, used up, done, or failed for good."""
        job, known, holds = self.pick(which)
        state, code, dead = "succeeded", None, False
        if known.stops:
            state = "cancelled"
        elif job.used_up:
            state, code, dead = "failed", job.cause or "handler_failed", True
        elif known.total is not None and known.done < known.total:
            state, code = "failed", "unsupported"
        ended = store.finish(self.connection, job, state=state, code=code, dead=dead)
        assert (ended is not None) == holds
        if holds:
            known.end(state)
            known.dead = dead

    @precondition(lambda self: self.claims)
    @rule(which=picks, give_back=strategies.booleans())
    def end_or_give_back_a_batch(self, which: int, give_back: bool) -> None:
        job, _, _ = self.pick(which)
        if job.kind != self.ahead.name or job.used_up:
            return
        batch = [claim.id for claim in self.claims if claim.claim == job.claim]
        held = {number for number in batch if self.jobs[number].claim == job.claim}
        if give_back:
            back = store.unclaim(self.connection, batch, job.claim)
            assert set(back) == {number for number in held if not self.jobs[number].asked}
            for number in back:
                self.jobs[number].attempt -= 1
                self.jobs[number].wait("fresh")
            return
        assert store.complete(self.connection, batch, job.claim) == len(held)
        for number in held:
            self.jobs[number].end("succeeded")

    @precondition(lambda self: self.claims)
    @rule(which=picks)
    def renew(self, which: int) -> None:
        job, known, holds = self.pick(which)
        kept = store.renew(self.connection, job.id, job.claim, 60.0)
        assert kept is None or holds
        if kept is not None:
            known.again = "later"

    # Time, people, operators

    @precondition(lambda self: self.jobs)
    @rule(which=picks, how_many=few)
    def let_time_pass(self, which: int, how_many: int) -> None:
        waiting = [number for number, job in self.jobs.items() if job.again in ("later", "due")]
        for number in (waiting * 2)[which % max(1, len(waiting)) :][: min(how_many, len(waiting))]:
            self.bench.make_due(number)
            self.jobs[number].again = "due"

    @precondition(lambda self: self.jobs)
    @rule(which=picks)
    def cancel(self, which: int) -> None:
        number = list(self.jobs)[which % len(self.jobs)]
        known = self.jobs[number]
        self.bench.cancel(number)
        if known.live:
            known.asked = True
            if known.state == "queued":
                known.end("cancelled")

    @rule(line=lines)
    def pause_or_resume(self, line: int) -> None:
        kind = self.kinds[line]
        if kind.line in self.paused:
            assert store.resume(self.connection, kind.line)
            self.paused.remove(kind.line)
            return
        assert store.pause(self.connection, kind.line, reason="as told", by_id=None, by_name="Olga")
        assert not store.pause(self.connection, kind.line, reason="again", by_id=None, by_name="Olga")
        self.paused.add(kind.line)
        self.take(kind, 3)
        self.take_ahead(3)

    @rule()
    def redrive(self) -> None:
        dead = [number for number, job in self.jobs.items() if job.dead]
        connection = self.connection
        with connection.transaction():
            outcomes = letters.redrive(connection, dead, ceiling=5, most=3, by_id=None, by_name="Olga")
        for outcome in outcomes:
            if outcome.made is None:
                assert outcome.problem in ("live_twin", "redrive_limit"), outcome
                continue
            self.jobs[outcome.job_id].dead = False
            key = rows(self.bench.database, "select live_key from queue.job where id = :id", id=outcome.made)[0][0]
            self.jobs[outcome.made] = Modelled(self.jobs[outcome.job_id].kind, key=key)

    # What must hold

    @invariant()
    def the_rows_are_as_the_model_says(self) -> None:
        type(self).steps += 1
        if not getattr(self, "jobs", None):
            return
        query = """
            select j.id, j.state::text, j.attempt, j.claim, j.changed, j.live_key, j.version,
                   j.cancel_requested_at is not null as asked, coalesce(l.state = 'open', false) as dead
            from queue.job j left join queue.dead_letter l on l.job_id = j.id where j.id = any(:ids)
        """
        found = rows(self.bench.database, query, ids=list(self.jobs))
        assert len(found) == len(self.jobs), "no job is ever lost"
        for row in found:
            known = self.jobs[row.id]
            assert (row.state, row.attempt, row.claim, row.changed, row.live_key, row.asked, row.dead) == (
                known.state, known.attempt, known.claim, known.done, known.key, known.asked, known.dead,
            ), row.id  # fmt: skip
            assert row.version >= self.versions.get(row.id, 1)
            self.versions[row.id] = row.version

    def teardown(self) -> None:
        """Once nothing gets in the way any more, a worker brings everything to its end."""
        if not hasattr(self, "jobs"):
            return
        for line in self.paused:
            store.resume(self.connection, line)
        for _, number in self.asked.values():
            with self.bench.database.transaction() as session:
                cancel(session, job_id=number, actor=audit.Actor(self.team.admin.id, self.team.admin.name))
        for _ in range(MOST + 2):
            for number, known in self.jobs.items():
                if known.again == "later":
                    self.bench.make_due(number)
                    known.again = "due"
            for kind in self.kinds:
                for job in self.bench.claim_on(self.connection, kind, lanes=200):
                    self.note_claim(job)
                    self.bench.execute(job)
                    self.jobs[job.id].end("ended")
        left = rows(
            self.bench.database,
            "select id from queue.job where id = any(:ids) and finished_at is null",
            ids=list(self.jobs),
        )
        assert left == []


def done_items(context: Any, args: Any) -> None:
    """Goes through the items that are left."""
    for _ in context.items():
        context.step(
            "outcome as materialized (select 1 as changed, 0 as skipped, null::text as problem, '' as title from fence)"
        )


@pytest.fixture
def play(
    bench: Bench, database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., int]]:
    """Plays random histories and answers with the number of steps; another `seed` is another history."""
    kind = bench.kind
    monkeypatch.setattr(
        bench, "kind", lambda **declared: kind(done_items if declared.get("steps") else None, **declared)
    )
    connections = [db.connect(database.url, application_name="tests", autocommit=True) for _ in range(3)]

    def play(seed: int, phases: Sequence[Phase] = tuple(Phase)) -> int:
        # Hypothesis derives a history from the name.
        made = type(f"Queue{seed}", (Queue,), {"bench": bench, "connections": connections, "steps": 0})
        profile = settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=True,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(made, settings=profile)
        return int(made.steps)

    yield play
    # It may hold a statement that was broken on purpose.
    store._claim_ahead.cache_clear()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_random_histories_agree_with_the_model(play: Callable[..., int], seed: int) -> None:
    assert play(seed) > 1000


@pytest.mark.parametrize(
    ("statement", "sound", "broken"),
    [
        ("complete", " and claim = %(claim)s", ""),
        ("unclaim", " and claim = %(claim)s", ""),
        ("snooze", "attempt = attempt - 1, ", ""),
        ("claim", "select from queue.pause where", "select from queue.pause where false and"),
        ("claim_ahead", "select from queue.pause where", "select from queue.pause where false and"),
        ("claim", "when c.used_up or c.cancelled then 0", "when false then 0"),
        ("cancel", "when j.state = 'queued' then 'cancelled'", "when j.state = 'running' then 'cancelled'"),
    ],
)
def test_the_model_notices_a_broken_statement(
    admin_url: str,
    watch: Watch,
    play: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    sound: str,
    broken: str,
) -> None:
    assert sound in store.SQL[statement]
    monkeypatch.setitem(store.SQL, statement, store.SQL[statement].replace(sound, broken))
    store._claim_ahead.cache_clear()
    # Either the model disagrees, or the table's own checks refuse.
    with pytest.raises((AssertionError, psycopg.errors.CheckViolation, psycopg.OperationalError)):
        for seed in range(1, 6):
            play(seed, phases=[Phase.generate])
    # What it left behind is not for the checkers.
    watch.remove()
    cluster.wipe(admin_url)
    watch.install()
