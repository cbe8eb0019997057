"""Dead letters: written once with the job's end, redriven as the same job again, discarded, decided only once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pydantic
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from hub.jobs import kinds
from hub.queue import EXCLUSIVE, STANDARD, Context, Ended, Kind, letters, store
from hub.queue.letters import Outcome
from tests.factories import make_course, make_team, row, rows, run, start_tagging
from tests.queue.conftest import Bench

Act = Callable[..., list[Outcome]]
MARIA = UUID(int=7)
WORKSPACE = UUID(int=3)


def fail(context: Context, args: Any) -> None:
    raise ValueError("as ever")


def die(bench: Bench, kind: Kind, **values: Any) -> int:
    """A job of the kind that used up its one attempt."""
    job_id = bench.enqueue(kind, **values)
    bench.work(kind)
    assert bench.job(job_id).state == "failed"
    return job_id


def redrive(bench: Bench, *job_ids: int, most: int = 10) -> list[Outcome]:
    with bench.connection() as connection, connection.transaction():
        return letters.redrive(connection, job_ids, ceiling=5, most=most, by_id=MARIA, by_name="Maria")


def discard(bench: Bench, *job_ids: int, reason: str = "No longer needed") -> list[Outcome]:
    with bench.connection() as connection, connection.transaction():
        return letters.discard(connection, job_ids, reason=reason, by_id=MARIA, by_name="Maria")


def letter(bench: Bench, job_id: int) -> Any:
    return row(bench.database, "select *, state::text as state from queue.dead_letter where job_id = :id", id=job_id)


def kept(bench: Bench, job_id: int) -> tuple[Any, ...]:
    """What a redriven job has in common with the dead one."""
    query = """
        select j.queue, j.kind, j.priority, j.workspace_id, j.subject, j.max_attempts, j.attempt_seconds,
               coalesce(j.args, d.args) as args
        from queue.job j left join queue.detail d on d.job_id = j.id where j.id = :id
    """
    return tuple(row(bench.database, query, id=job_id))


# Written


def test_the_last_end_writes_one_letter_and_marks_the_subject_in_one_transaction(bench: Bench) -> None:
    def mark(session: Session, ended: Ended) -> None:
        session.execute(text("update hub.workspace set name = pg_current_xact_id()::text"))

    team = make_team(bench.database)
    kind = bench.kind(fail, attempts=2, closing=mark)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert bench.dead_letters() == []
    assert row(bench.database, "select name from hub.workspace").name == team.workspace.name
    bench.make_due(job_id)
    bench.work(kind)
    assert bench.dead_letters() == [(job_id, "handler_failed")]
    written = row(
        bench.database,
        """
        select j.state::text as state, array[j.xmin::text, l.xmin::text, w.name] as transactions
        from queue.job j join queue.dead_letter l on l.job_id = j.id, hub.workspace w
        """,
    )
    assert (written.state, len(set(written.transactions))) == ("failed", 1)


def test_an_end_whose_transaction_fails_leaves_no_letter(bench: Bench) -> None:
    def refuse(session: Session, ended: Ended) -> None:
        raise RuntimeError("its record cannot be written")

    kind = bench.kind(fail, attempts=1, recorded=refuse)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    assert (bench.job(job_id).state, bench.dead_letters()) == ("running", [])
    run(bench.database, "update queue.job set kind = :kind", kind=bench.kind(queue=kind.line).name)


def test_a_letter_keeps_the_key_that_the_jobs_end_frees(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1, policy=EXCLUSIVE)
    dead = die(bench, kind, key="source:1")
    assert (letter(bench, dead).live_key, bench.job(dead).live_key) == ("source:1", None)


# Redriven


@pytest.mark.parametrize("args", [{"page": 1}, {"text": "x" * 100_000}], ids=["small", "large"])
@pytest.mark.parametrize("policy", [STANDARD, EXCLUSIVE])
def test_a_redriven_job_is_the_same_job_again_until_the_limit(bench: Bench, policy: str, args: dict[str, Any]) -> None:
    kind = bench.kind(fail, attempts=1, policy=policy)
    key = "source:1" if policy == EXCLUSIVE else None
    with bench.connection() as connection:
        place = {"workspace_id": WORKSPACE, "subject": "source:1", "priority": 2}
        first = store.enqueue(connection, kind, args, ceiling=5, key=key, **place).id
    bench.work(kind)
    chain = [first]
    for number in (1, 2):
        (outcome,) = redrive(bench, chain[-1], most=2)
        assert outcome.made is not None
        made = bench.job(outcome.made)
        assert (made.state, made.live_key) == ("queued", key)
        assert kept(bench, made.id) == kept(bench, first)
        origin = row(bench.database, "select origin_id, redrives from queue.detail where job_id = :id", id=made.id)
        assert tuple(origin) == (chain[-1], number)
        bench.work(kind)
        assert letter(bench, made.id).live_key == key
        chain.append(made.id)
    assert redrive(bench, chain[-1], most=2) == [Outcome(chain[-1], kind.name, WORKSPACE, problem="redrive_limit")]
    told = [(decided := letter(bench, job_id)).state and (decided.state, decided.redriven_as) for job_id in chain]
    assert told == [("redriven", chain[1]), ("redriven", chain[2]), ("open", None)]


def test_a_redrive_says_who_decided_and_leaves_the_dead_job_and_its_attempts_as_they_are(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=2)
    job_id = bench.enqueue(kind)
    bench.work(kind)
    bench.make_due(job_id)
    bench.work(kind)
    before = (tuple(bench.job(job_id))[:-1], bench.attempts(job_id))
    (outcome,) = redrive(bench, job_id)
    assert (tuple(bench.job(job_id))[:-1], bench.attempts(job_id)) == before
    decided = letter(bench, job_id)
    assert (decided.decided_by_id, decided.decided_by_name, decided.redriven_as) == (MARIA, "Maria", outcome.made)
    assert decided.decided_at is not None and decided.reason is None


def test_a_live_twin_is_named_and_the_letter_stays_open(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1, policy=EXCLUSIVE)
    dead = die(bench, kind, key="k")
    other = die(bench, kind, key="l")
    twin = bench.enqueue(kind, key="k")
    before = tuple(letter(bench, dead))
    outcomes = redrive(bench, dead, other)
    assert (outcomes[0].problem, outcomes[0].twin, outcomes[0].made) == ("live_twin", twin, None)
    assert (outcomes[1].problem, bench.job(outcomes[1].made or 0).live_key) == (None, "l")
    assert tuple(letter(bench, dead)) == before


def test_two_letters_of_one_key_make_one_job(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1, policy=EXCLUSIVE)
    first, second = die(bench, kind, key="k"), die(bench, kind, key="k")
    outcomes = redrive(bench, first, second)
    assert outcomes[1] == Outcome(second, kind.name, store.NO_WORKSPACE, problem="live_twin", twin=outcomes[0].made)


def test_ten_redrives_of_one_letter_at_once_make_one_job(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    ready = threading.Barrier(10)

    def at_once(_number: int) -> Outcome:
        ready.wait()
        return redrive(bench, dead)[0]

    with ThreadPoolExecutor(10) as pool:
        outcomes = list(pool.map(at_once, range(10)))
    assert sorted(outcome.problem or "" for outcome in outcomes) == [""] + ["letter_decided"] * 9
    assert row(bench.database, "select count(*) as jobs from queue.job").jobs == 2


def test_acts_on_the_same_letters_in_any_order_never_deadlock(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1, policy=EXCLUSIVE)
    dead = [die(bench, kind, key=f"k{number % 7}") for number in range(40)]
    ready = threading.Barrier(4)

    def act(seed: int) -> list[Outcome]:
        luck = random.Random(seed)
        ready.wait()
        chosen: list[Sequence[int]] = [luck.sample(dead, 15) for _ in range(6)]
        return [outcome for ids in chosen for outcome in (redrive if seed % 2 else discard)(bench, *ids)]

    with ThreadPoolExecutor(4) as pool:
        outcomes = [outcome for found in pool.map(act, range(4)) for outcome in found]
    made = [outcome.made for outcome in outcomes if outcome.made]
    decided = [outcome.job_id for outcome in outcomes if outcome.problem is None]
    assert len(set(made)) == len(made) and len(set(decided)) == len(decided)
    assert row(bench.database, "select count(*) as jobs from queue.job").jobs == len(dead) + len(made)


def test_a_letter_of_a_kind_that_is_not_known_here_can_only_be_discarded(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    bench.forget_kinds()
    assert redrive(bench, dead)[0].problem == "unknown_kind"
    assert letter(bench, dead).state == "open"
    assert discard(bench, dead)[0].problem is None


def test_a_kind_that_needs_a_key_by_now_says_so(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    bench.forget_kinds()
    bench.kind(name=kind.name, policy=EXCLUSIVE)
    assert redrive(bench, dead)[0].problem == "kind_changed"


def test_arguments_that_are_garbage_end_in_a_letter_that_can_be_discarded(bench: Bench) -> None:
    class Args(pydantic.BaseModel):
        course: UUID

    kind = bench.kind(args=Args, attempts=1)
    with bench.connection() as connection:
        dead = store.enqueue(connection, kind, {"course": ["\u2028", None]}, ceiling=5).id
    bench.work(kind)
    assert bench.dead_letters() == [(dead, "handler_failed")]
    assert discard(bench, dead)[0].problem is None


def test_nobody_decides_about_jobs_of_people(bench: Bench) -> None:
    team = make_team(bench.database)
    dead = start_tagging(bench.database, bench.settings, team, make_course(bench.database, team)).job_id
    run(bench.database, "update queue.job set attempt = max_attempts, version = version + 1")
    bench.make_due(dead)
    bench.work(kinds()["course.tag"])
    assert letter(bench, dead).of_people
    for act in (redrive, discard):
        assert [outcome.problem for outcome in act(bench, dead)] == ["people_job"]


@pytest.mark.parametrize("job_id", [0, -1, 999_999, 2**63, 10**30])
def test_a_number_without_a_letter_is_told(bench: Bench, job_id: int) -> None:
    assert redrive(bench, job_id) == discard(bench, job_id) == [Outcome(job_id, problem="no_dead_letter")]


# Decided


def test_a_discarded_letter_keeps_its_reason_and_makes_no_job(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    assert discard(bench, dead, reason="The source is gone") == [Outcome(dead, kind.name, store.NO_WORKSPACE)]
    decided = letter(bench, dead)
    assert (decided.state, decided.reason, decided.decided_by_name) == ("discarded", "The source is gone", "Maria")
    assert row(bench.database, "select count(*) as jobs from queue.job").jobs == 1


@pytest.mark.parametrize("first", [redrive, discard])
def test_a_decided_letter_never_changes_again(bench: Bench, first: Act) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    first(bench, dead)
    before = tuple(letter(bench, dead))
    for act in (redrive, discard):
        assert [outcome.problem for outcome in act(bench, dead)] == ["letter_decided"]
    for change in ("state = 'open', decided_at = null, decided_by_name = null", "reason = 'other'", "at = now()"):
        with pytest.raises(Exception, match="is decided and never changes again"):
            run(bench.database, f"update queue.dead_letter set {change}")
    assert tuple(letter(bench, dead)) == before


def test_more_letters_than_a_batch_are_refused_before_anything_is_written(bench: Bench) -> None:
    with pytest.raises(ValueError, match="at most 100"):
        redrive(bench, *range(1, 102))


# Read


def fill(bench: Bench, kind: Kind, count: int, code: str = "handler_failed") -> None:
    """So many open letters, of which always three came at one moment."""
    run(
        bench.database,
        """
        with job as (
            insert into queue.job (
                queue, kind, state, attempt, max_attempts, attempt_seconds, started_at, finished_at, args
            )
            select :kind, :kind, 'failed', 1, 1, 300, now(), now(), '{}' from generate_series(1, :count) returning id
        ), detail as (
            insert into queue.detail (job_id, code) select id, :code from job
        )
        insert into queue.dead_letter (job_id, queue, kind, code, at)
        select id, :kind, :kind, :code, now() - make_interval(mins => (id / 3)::integer) from job
        """,
        kind=kind.name,
        count=count,
        code=code,
    )


def test_letters_are_grouped_by_kind_and_reason_with_counts_and_times(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(letters, "MAX_COUNT", 5)
    few, many = bench.kind(fail, attempts=1), bench.kind(fail, attempts=1)
    fill(bench, many, 9)
    fill(bench, few, 2, "worker_lost")
    fill(bench, few, 1)
    discard(bench, row(bench.database, "select min(job_id) as id from queue.dead_letter where code = 'worker_lost'").id)
    with bench.connection() as connection:
        found = {(group.kind, group.code): group for group in letters.groups(connection)}
        assert [group.last_at for group in found.values()] == sorted((g.last_at for g in found.values()), reverse=True)
    counts = {key: group.count for key, group in found.items()}
    # Above what is counted exactly, one more.
    assert counts == {(many.name, "handler_failed"): 6, (few.name, "handler_failed"): 1, (few.name, "worker_lost"): 1}
    times = row(
        bench.database,
        "select min(at) as first, max(at) as last from queue.dead_letter where kind = :kind",
        kind=many.name,
    )
    group = found[many.name, "handler_failed"]
    assert (group.first_at, group.last_at, group.of_people) == (times.first, times.last, False)


def test_pages_of_a_group_lose_and_double_nothing_though_times_are_equal(bench: Bench) -> None:
    kind = bench.kind(fail)
    fill(bench, kind, 23)
    fill(bench, kind, 5, "worker_lost")
    seen: list[letters.Letter] = []
    more = True
    while more:
        before = (seen[-1].at, seen[-1].job_id) if seen else None
        with bench.connection() as connection:
            found, more = letters.page(connection, kind.name, "handler_failed", before, limit=5)
        seen += found
    assert len({one.job_id for one in seen}) == len(seen) == 23
    assert [(one.at, one.job_id) for one in seen] == sorted(((one.at, one.job_id) for one in seen), reverse=True)


def test_all_letters_of_a_group_come_in_batches_without_those_that_come_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "BATCH", 4)
    kind = bench.kind(fail, attempts=1)
    fill(bench, kind, 10)
    fill(bench, kind, 5, "worker_lost")
    ids = {found.job_id for found in rows(bench.database, "select job_id from queue.dead_letter")}
    sizes: list[int] = []
    for batch in letters.batches(bench.database, kind.name, "handler_failed"):
        assert [outcome.problem for outcome in redrive(bench, *batch)] == [None] * len(batch)
        # What was redriven fails again at once.
        for _ in batch:
            bench.work(kind)
        sizes.append(len(batch))
        ids -= set(batch)
    assert (sizes, len(ids)) == ([4, 4, 2], 5)
    assert row(bench.database, "select count(*) as open from queue.dead_letter where state = 'open'").open == 15
