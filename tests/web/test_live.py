"""The poll behind the live panel: the fragment, when it is sent, and what its headers tell."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hub.db import Database
from tests import factories
from tests.factories import Team
from tests.factories_jobs import STORED, change_job, make_job, sign_in

SLOTS = ["state", "bar", "facts", "counts", "hint"]


@pytest.fixture
def team(database: Database) -> Team:
    return factories.make_team(database)


@pytest.fixture
def poll(client: Any, database: Database, team: Team) -> Any:
    sign_in(client, database, team.admin)
    return lambda job_id, query="": client.get(f"/w/{team.workspace.slug}/jobs/{job_id}/live{query}")


@pytest.mark.parametrize("label", list(STORED))
def test_the_page_is_first_shown_with_what_the_poll_tells(
    poll: Any, client: Any, database: Database, team: Team, label: str
) -> None:
    job_id = make_job(database, team, label)
    fragment = poll(job_id).text
    page = client.get(f"/w/{team.workspace.slug}/jobs/{job_id}").text
    told = dict(re.findall(r'<template data-slot="(\w+)">(.*?)</template>', fragment, re.DOTALL))
    shown = dict(re.findall(r'<div data-slot="(\w+)">(.*?)</div>\n', page, re.DOTALL))
    assert list(told) == SLOTS
    assert {name: text.strip() for name, text in shown.items()} == {name: text.strip() for name, text in told.items()}
    assert f'data-state="{label}"' in fragment


@pytest.mark.parametrize("label", list(STORED))
def test_slots_hold_nothing_that_takes_focus_or_speaks(poll: Any, database: Database, team: Team, label: str) -> None:
    fragment = poll(make_job(database, team, label)).text
    assert not re.search(r"<(a|button|input|select|form|details|iframe)\b|tabindex|aria-live|role=|csrf", fragment)


def test_an_unchanged_version_costs_no_body(poll: Any, database: Database, team: Team) -> None:
    job_id = make_job(database, team, "running")
    assert poll(job_id, "?v=1").status_code == 204
    change_job(database, job_id, "changed = changed + 1")
    answer = poll(job_id, "?v=1")
    assert answer.status_code == 200 and 'data-version="2"' in answer.text


@pytest.mark.parametrize("version", ["x", "-1", "1.5", "9" * 21, "%00", "%F0%9F%98%80"])
def test_a_version_that_is_none_is_malformed(poll: Any, database: Database, team: Team, version: str) -> None:
    assert poll(make_job(database, team), f"?v={version}").status_code == 400


def test_a_future_version_is_answered_with_the_present(poll: Any, database: Database, team: Team) -> None:
    assert poll(make_job(database, team), "?v=999").status_code == 200


def test_headers_tell_the_time_the_end_and_the_lease(poll: Any, database: Database, team: Team) -> None:
    running = poll(make_job(database, team, "running"), "?v=1").headers
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", running["Hub-Now"])
    assert running["Hub-Terminal"] == "false" and running["Hub-Lease-Until"] > running["Hub-Now"]
    assert int(running["Hub-Worker-Age"]) >= 5
    ended = poll(make_job(database, team, "finished")).headers
    assert ended["Hub-Terminal"] == "true" and "Hub-Lease-Until" not in ended


def test_a_renewed_lease_changes_no_byte(poll: Any, database: Database, team: Team) -> None:
    job_id = make_job(database, team, "running")
    before = poll(job_id).data
    factories.run(
        database,
        "update queue.job set again_at = again_at + interval '1 minute', deadline_at = deadline_at + interval '1 hour'",
    )
    assert poll(job_id).data == before


def test_a_waiting_pages_polls_do_not_keep_a_session_alive(poll: Any, database: Database, team: Team) -> None:
    job_id = make_job(database, team, "running")
    factories.run(database, "update hub.session set seen_at = statement_timestamp() - interval '10 minutes'")
    seen = factories.row(database, "select seen_at from hub.session").seen_at
    assert poll(job_id).status_code == 200
    assert factories.row(database, "select seen_at from hub.session").seen_at == seen


def test_support_looks_after_stating_a_reason(app: Any, database: Database, team: Team) -> None:
    client = app.test_client()
    sign_in(client, database, factories.make_person(database, staff="support"))
    job_id = make_job(database, team, "running")
    address = f"/w/{team.workspace.slug}/jobs/{job_id}/live"
    assert client.get(address).status_code == 403
    factories.run(
        database,
        "insert into hub.support_visit (session_id, workspace_id, reason) select s.id, :workspace, 'ticket 4411'"
        " from hub.session s join hub.person p on p.id = s.person_id where p.staff = 'support'",
        workspace=team.workspace.id,
    )
    assert client.get(address).status_code == 200
