"""`hub schedules`, and what other commands say of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from hub.db import Database
from hub.queue import EXCLUSIVE, Kind, kind, register
from hub.queue.schedule import Schedule
from tests import factories
from tests.factories import row, run
from tests.queue.conftest import AnyArgs

NIGHTLY = "test.nightly.sweep"
OFTEN = "test.often.sweep"


@pytest.fixture(autouse=True)
def sweeps() -> Iterator[None]:
    """Two kinds with schedules."""
    declared = {"run": lambda context, args: None, "args": AnyArgs, "policy": EXCLUSIVE}
    register(Kind(name=NIGHTLY, schedule=Schedule("30 2 * * *", "Europe/Berlin"), **declared))
    register(Kind(name=OFTEN, schedule=Schedule("*/5 * * * *"), queue="test.sweeps", **declared))
    yield
    for name in (NIGHTLY, OFTEN):
        kind._kinds.pop(name)


def known(database: Database, name: str, cron: str, zone: str = "UTC", **columns: str) -> None:
    """A schedule's row as a worker has left it; further columns as SQL."""
    listed = {"ticked_at": "statement_timestamp()"} | columns
    run(
        database,
        f"insert into queue.schedule (name, cron, time_zone, {', '.join(listed)})"
        f" values (:name, :cron, :zone, {', '.join(listed.values())})",
        name=name,
        cron=cron,
        zone=zone,
    )


def listed(hub: Any) -> dict[str, Any]:
    """What `hub schedules list --json` says, by name."""
    outcome = hub("schedules", "list", "--json")
    assert outcome.code == 0, outcome.err
    return {line["name"]: line for line in outcome.data}


def test_the_list_shows_when_each_schedule_comes_next(hub: Any, database: Database) -> None:
    lines = listed(hub)
    assert list(lines) == sorted(lines) and {NIGHTLY, OFTEN} <= set(lines)
    nightly = lines[NIGHTLY]
    assert len(nightly["next"]) == 5
    assert all("T02:30:00+0" in due["local"] or due["note"] == "moved" for due in nightly["next"])
    assert nightly["next"][0]["at"] > f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert {name: value for name, value in nightly.items() if name != "next"} == {
        "name": NIGHTLY,
        "queue": NIGHTLY,
        "setting": "HUB_CRON_TEST_NIGHTLY_SWEEP",
        "cron": "30 2 * * *",
        "time_zone": "Europe/Berlin",
        "off": False,
        "overlap": "skip",
        "missed": "once",
        "paused": None,
        "last": None,
        "due_since": None,
        "error": None,
        "differs": False,
    }
    assert lines[OFTEN]["queue"] == "test.sweeps"
    text = hub("schedules", "list").out
    assert "test.nightly.sweep  30 2 * * *  Europe/Berlin  (queue test.nightly.sweep)" in text
    assert text.count("    next    ") == 10


def test_the_list_says_what_a_change_of_clocks_does(hub: Any, database: Database) -> None:
    """The next change is found whatever the date: all days of a year of nights are 366."""
    from hub.queue import timetable

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(timetable, "NEXT", 366)
        notes = {due["note"]: due["local"] for due in listed(hub)[NIGHTLY]["next"]}
        text = hub("schedules", "list").out
    assert set(notes) == {None, "moved", "once"}
    assert notes["moved"].endswith("T03:00:00+02:00")
    assert notes["once"].endswith("T02:30:00+02:00")
    assert "is left out that day" in text and "comes twice that day" in text


def test_a_schedule_is_run_paused_and_resumed_in_somebodys_name(hub: Any, database: Database) -> None:
    factories.make_person(database, staff="operator", name="Olga", email="olga@hub.example")
    paused = hub("schedules", "pause", OFTEN, "--reason", "upstream is down", "--as", "olga@hub.example", "--json")
    assert paused.data == {"name": OFTEN, "paused": True}
    ran = hub("schedules", "run", OFTEN, "--as", "olga@hub.example", "--json")
    job_id = ran.data["job_id"]
    line = listed(hub)[OFTEN]
    assert (line["paused"]["by"], line["paused"]["reason"]) == ("Olga", "upstream is down")
    last = {name: line["last"][name] for name in ("outcome", "job_id", "job_state", "by")}
    assert last == {"outcome": "manual", "job_id": job_id, "job_state": "queued", "by": "Olga"}
    text = hub("schedules", "list").out
    assert "by Olga: upstream is down" in text
    assert f"manual by Olga, job {job_id} queued" in text
    again = hub("schedules", "run", OFTEN)
    assert (again.code, again.err.strip()) == (
        1,
        f"hub: Job {job_id} of {OFTEN} has not ended, and may not overlap. Nothing was started.",
    )
    assert hub("schedules", "resume", OFTEN, "--as", "olga@hub.example").out == f"The schedule {OFTEN} runs again.\n"
    assert listed(hub)[OFTEN]["paused"] is None
    actions = [event.action for event in factories.rows(database, "select action from audit.event order by id")]
    assert actions == ["schedule.paused", "schedule.run", "schedule.resumed"]
    channels = factories.rows(database, "select distinct channel, actor_name from audit.event")
    assert [tuple(channel) for channel in channels] == [("cli", "Olga")]


def test_who_is_no_operator_is_refused_in_a_sentence(hub: Any, database: Database) -> None:
    team = factories.make_team(database)
    refused = hub("schedules", "run", OFTEN, "--as", team.admin.email)
    assert (refused.code, refused.err) == (1, "hub: Only operators may do this. Nothing was changed.\n")
    unknown = hub("schedules", "pause", "test.nothing", "--reason", "why")
    assert (unknown.code, unknown.err) == (1, "hub: There is no schedule “test.nothing”.\n")
    unreadable = hub("schedules", "pause", OFTEN, "--reason", " ")
    assert unreadable.code == 1 and unreadable.err.startswith("hub: reason: ")


def test_the_list_goes_by_what_the_workers_know(hub: Any, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    known(database, OFTEN, "*/7 * * * *")
    known(database, NIGHTLY, "")
    lines = listed(hub)
    assert (lines[OFTEN]["cron"], lines[OFTEN]["differs"]) == ("*/7 * * * *", True)
    assert (lines[NIGHTLY]["off"], lines[NIGHTLY]["next"]) == (True, [])
    assert "The settings here say */5 * * * *, the workers go by what stands above." in hub("schedules", "list").out
    monkeypatch.setenv("HUB_CRON_TEST_NIGHTLY_SWEEP", "")
    assert not listed(hub)[NIGHTLY]["differs"]
    run(database, "update queue.schedule set cron = 'every blue moon' where name = :name", name=OFTEN)
    assert listed(hub)[OFTEN]["next"] == []
    assert "an expression that this version of Hub cannot read" in hub("schedules", "list").out


def findings(hub: Any) -> dict[str, tuple[bool, str]]:
    """What `hub check --json` finds."""
    return {finding["name"]: (finding["ok"], finding["text"]) for finding in hub("check", "--json").data}


def test_the_check_tells_of_schedules_that_nobody_ticks(hub: Any, database: Database) -> None:
    assert findings(hub)["schedules"] == (True, "2 are on, and none is late")
    known(database, OFTEN, "*/5 * * * *", ticked_at="statement_timestamp() - interval '1 hour'")
    ok, text = findings(hub)["schedules"]
    assert not ok and text.startswith(f"{OFTEN} is due since ") and text.endswith("no worker ticks it")
    assert listed(hub)[OFTEN]["due_since"] is not None
    assert hub("check").code == 1
    # Off, it is due no more.
    run(database, "update queue.schedule set cron = ''")
    assert findings(hub)["schedules"][0]


def test_the_check_tells_of_what_cannot_be_done(hub: Any, database: Database) -> None:
    known(database, NIGHTLY, "30 2 * * *", "Europe/Berlin", error="'RuntimeError'", failed_at="statement_timestamp()")
    run(database, "insert into queue.retention (error, failed_at) values ('QueryCanceled', statement_timestamp())")
    found = findings(hub)
    assert not found["schedules"][0] and "cannot be decided: RuntimeError" in found["schedules"][1]
    assert not found["retention"][0] and "QueryCanceled" in found["retention"][1]
    assert "FAILS   since" in hub("schedules", "list").out


def test_settings_of_schedules_are_listed_and_misspelt_ones_told(
    hub: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_CRON_TEST_OFTEN_SWEEP", "*/10 * * * *")
    rows = {setting["name"]: setting for setting in hub("settings", "--json").data}
    assert rows["HUB_CRON_TEST_OFTEN_SWEEP"] == {
        "name": "HUB_CRON_TEST_OFTEN_SWEEP",
        "value": "*/10 * * * *",
        "default": "*/5 * * * *",
        "unit": "cron, UTC",
        "why": "when test.often.sweep runs; empty: never",
    }
    assert rows["HUB_QUEUE_KEEP_DAYS"]["value"] == "14" and "HUB_CRON" not in rows
    monkeypatch.setenv("HUB_CRON_TEST_OFTN_SWEEP", "* * * * *")
    ok, text = findings(hub)["schedules"]
    assert not ok and text == "no schedule has the setting HUB_CRON_TEST_OFTN_SWEEP"


@pytest.mark.parametrize("command", [["worker", "--lanes", "test.sweeps=1"], ["web"], ["up"], ["settings"], ["check"]])
def test_every_command_refuses_an_expression_that_makes_no_sense(
    hub: Any, database: Database, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("HUB_CRON_TEST_NIGHTLY_SWEEP", "0 0 31 2 *")
    refused = hub(*command)
    assert refused.code == 1
    assert refused.err.startswith("hub: HUB_CRON_TEST_NIGHTLY_SWEEP: must be a cron expression")
    assert row(database, "select count(*) as count from queue.worker").count == 0


def test_a_prefix_alone_is_no_setting(hub: Any, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_CRON", "* * * * *")
    refused = hub("settings")
    assert (refused.code, refused.err.startswith("hub: HUB_CRON: must be followed by")) == (1, True)
