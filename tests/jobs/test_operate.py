"""What operators may do to queues, dead letters and machines' jobs, and the trail they leave."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from hub.errors import Conflict, Forbidden, Invalid, NotFound, Refusal
from hub.jobs import operate
from hub.models import audit
from hub.queue import EXCLUSIVE, Kind
from tests import factories
from tests.factories import row, rows, run
from tests.queue.conftest import Bench, bench, invariants
from tests.queue.test_letters import die, fail

__all__ = ["bench", "invariants"]
WORKSPACE = UUID(int=3)


@pytest.fixture
def operator(bench: Bench) -> audit.Actor:
    person = factories.make_person(bench.database, name="Olaf", staff="operator")
    return audit.Actor(person.id, person.name)


def act(bench: Bench, do: Callable[..., Any], **values: Any) -> Any:
    """An act in a transaction of its own."""
    with bench.database.transaction() as session:
        return do(session, **values)


def events(bench: Bench) -> list[tuple[Any, ...]]:
    query = """
        select action, actor_name, channel, workspace_id, target_kind, target_id, target_name, job_id, changes
        from audit.event order by id
    """
    return [tuple(event) for event in rows(bench.database, query)]


# Queues


def test_pausing_and_resuming_are_recorded_with_their_reason(bench: Bench, operator: audit.Actor) -> None:
    kind = bench.kind()
    until = datetime.now(UTC) + timedelta(hours=1)
    act(bench, operate.pause, queue=kind.line, reason="  The source\n is down ", actor=operator, until=until)
    bench.enqueue(kind)
    assert bench.claim(kind) == []
    stored = row(bench.database, "select reason, by_id, by_name, until from queue.pause")
    assert tuple(stored) == ("The source is down", operator.id, "Olaf", until)
    act(bench, operate.resume, queue=kind.line, actor=operator)
    assert len(bench.claim(kind)) == 1
    about = ("Olaf", "web", None, "queue", kind.line, kind.line, None)
    assert events(bench) == [
        ("queue.paused", *about, {"reason": "The source is down", "until": until.isoformat()}),
        ("queue.resumed", *about, {}),
    ]


def test_a_pause_in_the_way_and_one_that_is_not_there_are_conflicts(bench: Bench, operator: audit.Actor) -> None:
    kind = bench.kind()
    with pytest.raises(Conflict, match="queue_not_paused"):
        act(bench, operate.resume, queue=kind.line, actor=operator)
    act(bench, operate.pause, queue=kind.line, reason="first", actor=operator)
    with pytest.raises(Conflict, match="queue_paused"):
        act(bench, operate.pause, queue=kind.line, reason="second", actor=operator)
    assert row(bench.database, "select reason from queue.pause").reason == "first"
    assert len(events(bench)) == 1


@pytest.mark.parametrize("queue", ["no.such.queue", "", "a\x00b", "x" * 100_000, "Test.Kind1'; --"])
def test_a_queue_that_does_not_exist_is_not_paused(bench: Bench, operator: audit.Actor, queue: str) -> None:
    for do, values in ((operate.pause, {"reason": "why"}), (operate.resume, {})):
        with pytest.raises(NotFound, match="no_queue"):
            act(bench, do, queue=queue, actor=operator, **values)
    assert rows(bench.database, "select from queue.pause") == []


def test_a_queue_whose_kind_is_not_known_here_can_be_paused_while_it_has_jobs(
    bench: Bench, operator: audit.Actor
) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind)
    bench.forget_kinds()
    act(bench, operate.pause, queue=kind.line, reason="rolling upgrade", actor=operator)
    bench.cancel(job_id)
    act(bench, operate.resume, queue=kind.line, actor=operator)


BAD_REASONS = ["", "  \n ", "x" * 501, "a\x00b", "a\ud800b", "\u200b\u2060", "a\x1bb", None, 5, ["why"]]


@pytest.mark.parametrize("reason", BAD_REASONS)
def test_a_reason_that_says_nothing_is_refused_by_name(bench: Bench, operator: audit.Actor, reason: object) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    for do, values in ((operate.pause, {"queue": kind.line}), (operate.discard, {"job_ids": [dead]})):
        with pytest.raises(Invalid) as refused:
            act(bench, do, reason=reason, actor=operator, **values)
        assert set(refused.value.fields) == {"reason"}
    assert (rows(bench.database, "select from queue.pause"), events(bench)) == ([], [])


@pytest.mark.parametrize("until", [datetime(2020, 1, 1, tzinfo=UTC), datetime(2999, 1, 1)], ids=["past", "no zone"])
def test_a_pause_ends_at_a_time_to_come_with_its_zone(bench: Bench, operator: audit.Actor, until: datetime) -> None:
    kind = bench.kind()
    with pytest.raises(Invalid) as refused:
        act(bench, operate.pause, queue=kind.line, reason="why", actor=operator, until=until)
    assert set(refused.value.fields) == {"until"}
    assert rows(bench.database, "select from queue.pause") == []


# Dead letters


def test_redriving_and_discarding_write_an_event_for_each_letter_decided(bench: Bench, operator: audit.Actor) -> None:
    kind = bench.kind(fail, attempts=1, policy=EXCLUSIVE)
    first, second = die(bench, kind, key="a", workspace_id=WORKSPACE), die(bench, kind, key="b")
    third = die(bench, kind, key="a")
    outcomes = act(bench, operate.redrive, settings=bench.settings, job_ids=[first, third], actor=operator)
    assert [(outcome.problem, outcome.twin) for outcome in outcomes] == [(None, None), ("live_twin", outcomes[0].made)]
    act(bench, operate.discard, job_ids=[second, first], reason="gone", actor=operator)

    def about(job_id: int, workspace: UUID | None) -> tuple[Any, ...]:
        return ("Olaf", "web", workspace, "dead_letter", str(job_id), f"{kind.name}, job {job_id}", job_id)

    assert events(bench) == [
        ("dead_letter.redriven", *about(first, WORKSPACE), {"kind": kind.name, "redriven_as": outcomes[0].made}),
        ("dead_letter.discarded", *about(second, None), {"kind": kind.name, "reason": "gone"}),
    ]


def test_an_act_that_does_not_commit_leaves_neither_job_nor_event(bench: Bench, operator: audit.Actor) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    with pytest.raises(RuntimeError), bench.database.transaction() as session:
        assert operate.redrive(session, bench.settings, job_ids=[dead], actor=operator)[0].made
        raise RuntimeError
    assert events(bench) == []
    assert row(bench.database, "select count(*) as jobs from queue.job").jobs == 1
    assert row(bench.database, "select state::text as state from queue.dead_letter").state == "open"


@pytest.mark.parametrize(
    ("problem", "refused"),
    [
        ("no_dead_letter", NotFound),
        ("people_job", Forbidden),
        ("letter_decided", Conflict),
        ("unknown_kind", Conflict),
        ("kind_changed", Conflict),
        ("redrive_limit", Conflict),
        ("live_twin", Conflict),
    ],
)
def test_each_problem_of_a_letter_is_a_refusal_with_its_own_words(
    bench: Bench, problem: str, refused: type[Refusal]
) -> None:
    error = operate.refusal(operate.Outcome(12345, "some.kind", problem=problem, twin=54321), bench.settings)
    assert type(error) is refused
    sentence = operate.words.refusal(error.code, error.status, error.data)
    assert "12345" in sentence
    assert sentence != operate.words.say(f"error.status.{error.status}")
    assert operate.refusal(operate.Outcome(1, "some.kind", made=2), bench.settings) is None


# Jobs


def test_a_machines_waiting_job_is_cancelled_with_its_hooks_and_one_event(bench: Bench, operator: audit.Actor) -> None:
    told: list[str] = []
    kind = bench.kind(closing=lambda session, ended: told.append(ended.state))
    job_id = bench.enqueue(kind, workspace_id=WORKSPACE)
    for _ in range(2):
        act(bench, operate.cancel, job_id=job_id, actor=operator)
    assert (bench.job(job_id).state, told) == ("cancelled", ["cancelled"])
    about = ("Olaf", "web", WORKSPACE, "job", str(job_id), f"{kind.name}, job {job_id}", job_id)
    assert events(bench) == [("job.cancel_requested", *about, {"changed": 0})]


def test_a_dead_job_is_not_cancelled_any_more(bench: Bench, operator: audit.Actor) -> None:
    dead = die(bench, bench.kind(fail, attempts=1))
    before = tuple(bench.job(dead))[:-1]
    act(bench, operate.cancel, job_id=dead, actor=operator)
    assert (tuple(bench.job(dead))[:-1], events(bench)) == (before, [])


@pytest.mark.parametrize("job_id", [0, 999_999, 10**30])
def test_cancelling_a_job_that_is_not_there_says_so(bench: Bench, operator: audit.Actor, job_id: int) -> None:
    with pytest.raises(NotFound, match="no_job"):
        act(bench, operate.cancel, job_id=job_id, actor=operator)


def test_an_operator_leaves_jobs_of_people_alone(bench: Bench, operator: audit.Actor) -> None:
    team = factories.make_team(bench.database)
    course = factories.make_course(bench.database, team)
    job_id = factories.start_tagging(bench.database, bench.settings, team, course).job_id
    with pytest.raises(Forbidden, match="people_job"):
        act(bench, operate.cancel, job_id=job_id, actor=operator)
    assert bench.job(job_id).state == "queued"


# Who


def everything(bench: Bench, kind: Kind, dead: int) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    return [
        (operate.pause, {"queue": kind.line, "reason": "why"}),
        (operate.resume, {"queue": kind.line}),
        (operate.redrive, {"settings": bench.settings, "job_ids": [dead]}),
        (operate.discard, {"job_ids": [dead], "reason": "why"}),
        (operate.cancel, {"job_id": bench.enqueue(kind)}),
    ]


@pytest.mark.parametrize("who", ["admin", "support", "disabled operator", "nobody", "gone"])
def test_only_operators_may_do_anything_of_this(bench: Bench, who: str) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    if who == "admin":
        actor = factories.make_team(bench.database).actor
    elif who == "support":
        person = factories.make_person(bench.database, staff="support")
        actor = audit.Actor(person.id, person.name)
    elif who == "disabled operator":
        person = factories.make_person(bench.database, staff="operator")
        run(bench.database, "update hub.person set enabled = false where id = :id", id=person.id)
        actor = audit.Actor(person.id, person.name)
    else:
        actor = audit.Actor(None if who == "nobody" else UUID(int=99), "Somebody")
    for do, values in everything(bench, kind, dead):
        with pytest.raises(Forbidden, match="not_operator"):
            act(bench, do, actor=actor, **values)
    assert events(bench) == []
    assert row(bench.database, "select state::text as state from queue.dead_letter").state == "open"


def test_whoever_runs_the_command_line_acts_in_hubs_name(bench: Bench) -> None:
    kind = bench.kind(fail, attempts=1)
    dead = die(bench, kind)
    actor = audit.Actor(None, "Command line", kind="hub", channel="cli")
    for do, values in everything(bench, kind, dead):
        act(bench, do, actor=actor, **values)
    assert [(event[0], event[1], event[2]) for event in events(bench)] == [
        ("queue.paused", "Command line", "cli"),
        ("queue.resumed", "Command line", "cli"),
        ("dead_letter.redriven", "Command line", "cli"),
        ("job.cancel_requested", "Command line", "cli"),
    ]
