"""A workspace's first page."""

from __future__ import annotations

from typing import Any

import pytest

from hub import db
from tests import factories
from tests.factories import Team
from tests.factories_jobs import make_job
from tests.web.visitor import Visitor


@pytest.fixture
def team(database: Any) -> Team:
    return factories.make_team(database, slug="bio", name="Biology")


@pytest.fixture
def admin(app: Any, database: Any, team: Team) -> Visitor:
    return Visitor(app, database, team.admin)


def test_a_new_workspace_says_where_to_begin(app: Any, admin: Visitor, database: Any, team: Team) -> None:
    page = admin.get("/w/bio/").text
    for words in ("Nothing needs your attention", "No jobs are running", "Start by adding courses", "Add a course"):
        assert words in page
    viewer = Visitor(app, database, factories.add_member(database, team, "viewer"))
    assert "Add a course" not in viewer.get("/w/bio/").text


def test_each_job_stands_where_it_belongs(admin: Visitor, database: Any, team: Team) -> None:
    jobs = {label: make_job(database, team, label) for label in ("running", "waiting", "finished", "needs_attention")}
    shown = admin.json("GET", "/w/bio/").json
    assert [job["id"] for job in shown["running"]] == [jobs["waiting"], jobs["running"]]
    assert [job["id"] for job in shown["needs_attention"]] == [jobs["needs_attention"]]
    page = admin.get("/w/bio/").text
    needs, running = page.index("Needs you"), page.index("Running now")
    latest = page.index("Last jobs")
    assert needs < page.index(f"/jobs/{jobs['needs_attention']}") < running
    assert running < page.index(f"/jobs/{jobs['running']}") < latest < page.index(f"/jobs/{jobs['finished']}")


def test_jobs_of_other_workspaces_are_not_shown(admin: Visitor, database: Any) -> None:
    make_job(database, factories.make_team(database), "running")
    assert "No jobs are running" in admin.get("/w/bio/").text


def test_it_costs_a_fixed_number_of_statements(app: Any, admin: Visitor, database: Any, team: Team) -> None:
    for label in ("running", "waiting", "finished", "needs_attention"):
        for _ in range(3):
            make_job(database, team, label)
    factories.make_course(database, team)
    statements = db.count_statements(app.extensions["hub"].db)
    admin.get("/w/bio/")
    # The queue's own reads (two for each of three lists) go past this counter.
    assert len(statements) <= 3, statements


def test_the_switcher_and_the_account_cost_two_statements(app: Any, admin: Visitor) -> None:
    for path in ("/workspaces", "/account"):
        statements = db.count_statements(app.extensions["hub"].db)
        admin.get(path)
        assert len(statements) <= 2, statements


def test_the_switcher_lists_only_places_that_are_open(app: Any, database: Any, admin: Visitor, team: Team) -> None:
    closed = factories.make_team(database, slug="closed", enabled=False)
    left = factories.make_team(database, slug="left")
    for other, enabled in ((closed, True), (left, False)):
        factories.run(
            database,
            "insert into hub.membership (workspace_id, person_id, role, enabled)"
            " values (:workspace, :person, 'admin', :enabled)",
            workspace=other.workspace.id,
            person=team.admin.id,
            enabled=enabled,
        )
    assert [item["slug"] for item in admin.json("GET", "/workspaces").json["items"]] == ["bio"]
    assert admin.get("/w/closed/").status_code == admin.get("/w/left/").status_code == 404
