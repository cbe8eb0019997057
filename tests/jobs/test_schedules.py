"""What operators do with schedules: by right, once, with an event."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from hub.config import Settings
from hub.db import Database
from hub.errors import Conflict, Forbidden, Invalid, NotFound
from hub.jobs import schedules
from hub.models import audit
from hub.queue import EXCLUSIVE, Kind, kind, register
from hub.queue.schedule import Schedule
from tests import factories
from tests.factories import row, rows, run
from tests.queue.conftest import AnyArgs

NAME = "test.nightly.sweep"


@pytest.fixture(autouse=True)
def sweep() -> Iterator[Kind]:
    """A kind with a schedule."""
    yield register(
        Kind(name=NAME, run=lambda context, args: None, args=AnyArgs, policy=EXCLUSIVE, schedule=Schedule("0 3 * * *"))
    )
    kind._kinds.pop(NAME)


@pytest.fixture
def operator(database: Database) -> audit.Actor:
    """An operator."""
    person = factories.make_person(database, staff="operator", name="Olga")
    return audit.Actor(person.id, person.name)


def act(database: Database, what: Any, settings: Settings, *rest: Any) -> Any:
    """One act in a transaction of its own."""
    with database.transaction() as session:
        return what(session, settings, *rest)


def events(database: Database) -> list[tuple[str, str, str, str | None, dict[str, Any]]]:
    """(action, actor, target, job, changes) of every event of a schedule, in order."""
    query = """
        select action, actor_name, target_name, job_id, changes from audit.event
        where target_kind = 'schedule' order by id
    """
    return [tuple(event) for event in rows(database, query)]


def test_an_operator_runs_a_schedule_now(database: Database, settings: Settings, operator: audit.Actor) -> None:
    job_id = act(database, schedules.run, settings, NAME, operator)
    job = row(database, "select * from queue.job where id = :id", id=job_id)
    assert (job.kind, job.live_key) == (NAME, NAME)
    ticks = rows(database, "select schedule, outcome::text, job_id, by_name from queue.tick")
    assert [tuple(tick) for tick in ticks] == [(NAME, "manual", job_id, "Olga")]
    assert events(database) == [("schedule.run", "Olga", NAME, job_id, {})]


def test_a_job_that_has_not_ended_is_in_the_way_and_named(
    database: Database, settings: Settings, operator: audit.Actor
) -> None:
    job_id = act(database, schedules.run, settings, NAME, operator)
    with pytest.raises(Conflict) as refused:
        act(database, schedules.run, settings, NAME, operator)
    assert (refused.value.code, refused.value.data["job"]) == ("schedule_running", str(job_id))
    assert row(database, "select count(*) as count from queue.tick").count == 1
    assert len(events(database)) == 1


def test_a_schedule_is_paused_with_a_reason_and_resumed(
    database: Database, settings: Settings, operator: audit.Actor
) -> None:
    act(database, schedules.pause, settings, NAME, "  the gateway is down ", operator)
    paused = row(database, "select * from queue.schedule")
    assert (paused.paused_reason, paused.paused_by_name, paused.paused_by_id) == (
        *("the gateway is down", "Olga"),
        operator.id,
    )
    with pytest.raises(Conflict, match="schedule_paused"):
        act(database, schedules.pause, settings, NAME, "again", operator)
    act(database, schedules.resume, settings, NAME, operator)
    with pytest.raises(Conflict, match="schedule_not_paused"):
        act(database, schedules.resume, settings, NAME, operator)
    assert row(database, "select paused_at from queue.schedule").paused_at is None
    assert [(action, changes) for action, _, _, _, changes in events(database)] == [
        ("schedule.paused", {"reason": "the gateway is down"}),
        ("schedule.resumed", {}),
    ]


@pytest.mark.parametrize("staff", [None, "support", "an operator who was disabled", "nobody"])
def test_nobody_but_an_operator_may(database: Database, settings: Settings, staff: str | None) -> None:
    disabled = staff == "an operator who was disabled"
    person = factories.make_person(database, staff="operator" if disabled else staff if staff == "support" else None)
    if disabled:
        run(database, "update hub.person set enabled = false")
    actor = audit.Actor(None if staff == "nobody" else person.id, person.name)
    for what, rest in ((schedules.run, ()), (schedules.pause, ("why",)), (schedules.resume, ())):
        with pytest.raises(Forbidden, match="operators_only"):
            act(database, what, settings, NAME, *rest, actor)
    assert rows(database, "select from queue.schedule") == rows(database, "select from queue.job") == []
    assert events(database) == []


def test_a_workspaces_admin_is_no_operator(database: Database, settings: Settings) -> None:
    with pytest.raises(Forbidden):
        act(database, schedules.run, settings, NAME, factories.make_team(database).actor)


def test_whoever_runs_hub_is_one(database: Database, settings: Settings) -> None:
    hub = audit.Actor(None, "Command line", kind="hub", channel="cli")
    assert act(database, schedules.run, settings, NAME, hub)
    assert [event[1] for event in events(database)] == ["Command line"]


@pytest.mark.parametrize("name", ["test.unknown", "workspace.jobs", "course.tag", ""])
def test_an_unknown_schedule_is_not_found(
    database: Database, settings: Settings, operator: audit.Actor, name: str
) -> None:
    for what, rest in ((schedules.run, ()), (schedules.pause, ("why",)), (schedules.resume, ())):
        with pytest.raises(NotFound, match="no_schedule"):
            act(database, what, settings, name, *rest, operator)


@pytest.mark.parametrize("reason", ["", " \n ", "\u200b", "a\x00b", "x" * 201])
def test_a_reason_that_nobody_could_read_is_refused_by_its_field(
    database: Database, settings: Settings, operator: audit.Actor, reason: str
) -> None:
    with pytest.raises(Invalid) as refused:
        act(database, schedules.pause, settings, NAME, reason, operator)
    assert list(refused.value.fields) == ["reason"]
    assert rows(database, "select from queue.schedule where paused_at is not null") == []


def test_what_is_undone_leaves_nothing_behind(database: Database, settings: Settings, operator: audit.Actor) -> None:
    with pytest.raises(RuntimeError), database.transaction() as session:
        schedules.run(session, settings, NAME, operator)
        raise RuntimeError
    for table in ("queue.job", "queue.tick", "queue.schedule", "audit.event"):
        assert rows(database, f"select from {table}") == []


def test_resuming_goes_by_the_expression_that_the_workers_know(
    database: Database, settings: Settings, operator: audit.Actor
) -> None:
    """The command may run where the deployment's settings are not set."""
    act(database, schedules.pause, settings, NAME, "for now", operator)
    run(
        database,
        "update queue.schedule set cron = '* * * * *', paused_at = statement_timestamp() - interval '1 hour',"
        " ticked_at = date_trunc('minute', statement_timestamp()) - interval '3 minutes'",
    )
    elsewhere = dataclasses.replace(settings, cron={"HUB_CRON_TEST_NIGHTLY_SWEEP": ""})
    act(database, schedules.resume, elsewhere, NAME, operator)
    ticks = rows(database, "select outcome::text, reason from queue.tick")
    assert len(ticks) in (3, 4) and {tuple(tick) for tick in ticks} == {("skipped", "paused")}
    assert row(database, "select cron from queue.schedule").cron == "* * * * *"
