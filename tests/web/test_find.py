"""Find by reference: what somebody quotes leads to its page, and only to what the visitor may see."""

from __future__ import annotations

from typing import Any

import pytest

from hub.db import Database
from tests import factories
from tests.factories import Team
from tests.factories_jobs import make_job
from tests.web.visitor import Visitor


@pytest.fixture
def team(database: Database) -> Team:
    return factories.make_team(database)


def where(visitor: Visitor, team: Team, reference: str) -> str:
    """The address that the reference leads to, or the page that says what it may be."""
    answer = visitor.get(f"/w/{team.workspace.slug}/find?ref={reference}")
    return answer.headers["Location"] if answer.status_code == 303 else answer.text


def test_the_number_of_a_job_leads_to_it(app: Any, database: Database, team: Team) -> None:
    job = make_job(database, team, "finished")
    assert where(Visitor(app, database, team.admin), team, str(job)).endswith(f"/jobs/{job}")


def test_a_request_that_left_events_leads_to_them(app: Any, database: Database, team: Team) -> None:
    admin = Visitor(app, database, team.admin)
    admin.json("POST", f"/w/{team.workspace.slug}/courses", {"title": "Cells"})
    event = factories.row(database, "select request_id from audit.event where action = 'course.created'")
    assert where(admin, team, event.request_id).endswith(f"/audit?request={event.request_id}")
    viewer = Visitor(app, database, factories.add_member(database, team, "viewer"))
    assert "Nothing in this workspace" in where(viewer, team, event.request_id)


def test_a_course_is_found_by_its_id_and_a_person_by_the_address(app: Any, database: Database, team: Team) -> None:
    admin = Visitor(app, database, team.admin)
    course = factories.make_course(database, team)
    assert where(admin, team, str(course)).endswith(f"/courses/{course}")
    admin.json("POST", f"/w/{team.workspace.slug}/courses", {"title": "Cells"})
    assert "/audit?who=" in where(admin, team, team.admin.email)


@pytest.mark.parametrize("reference", ["", "999999999999999999999", "x" * 5000, "01890000-0000-7000-8000-000000000000"])
def test_what_is_nothing_says_so(app: Any, database: Database, team: Team, reference: str) -> None:
    answer = Visitor(app, database, team.admin).get(f"/w/{team.workspace.slug}/find?ref={reference}")
    assert answer.status_code == 200


def test_what_is_another_workspaces_is_nothing(app: Any, database: Database, team: Team) -> None:
    other = factories.make_team(database)
    job, course = make_job(database, other, "finished"), factories.make_course(database, other)
    admin = Visitor(app, database, team.admin)
    assert "Nothing in this workspace" in where(admin, team, str(job))
    assert "Nothing in this workspace" in where(admin, team, str(course))
