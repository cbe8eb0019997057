"""Support staff look into a workspace only after saying why."""

from __future__ import annotations

from typing import Any

import pytest

from tests import factories
from tests.factories import Team
from tests.web.visitor import Visitor, events


@pytest.fixture
def team(database: Any) -> Team:
    return factories.make_team(database, slug="bio", name="Biology")


@pytest.fixture
def support(app: Any, database: Any, team: Team) -> Visitor:
    return Visitor(app, database, factories.make_person(database, staff="support", name="Sam"))


def test_without_a_reason_every_page_leads_to_the_question(support: Visitor) -> None:
    answer = support.get("/w/bio/jobs?range=7d")
    assert (answer.status_code, answer.location) == (303, "/support/bio?next=/w/bio/jobs?range%3D7d")
    assert support.get(answer.location).status_code == 200
    refused = support.json("GET", "/w/bio/")
    assert (refused.status_code, refused.json["error"]["code"]) == (403, "support_reason_required")


def test_with_a_reason_the_visit_begins_and_is_recorded(support: Visitor, database: Any, team: Team) -> None:
    answer = support.form("/support/bio", reason="  Ticket   4711 ", next="/w/bio/jobs?range=7d")
    assert (answer.status_code, answer.location) == (303, "/w/bio/jobs?range=7d")
    page = support.get("/w/bio/").text
    assert "Support view of Biology" in page and "Ticket 4711" in page
    event = events(database, "support.visited")[0]
    assert (event.workspace_id, event.actor_name, event.actor_kind) == (team.workspace.id, "Sam", "support")
    assert event.changes == {"reason": "Ticket 4711"}


def test_the_visit_lasts_as_long_as_the_sign_in(app: Any, support: Visitor, database: Any) -> None:
    support.form("/support/bio", reason="Ticket 4711")
    again = Visitor(app, database, support.person)
    assert again.get("/w/bio/").status_code == 303
    assert support.get("/w/bio/").status_code == 200


@pytest.mark.parametrize("reason", ["", "ab", "  a  ", "x" * 201, 5, None, ["Ticket 1"]])
def test_a_reason_must_be_one(support: Visitor, database: Any, reason: Any) -> None:
    answer = support.json("POST", "/support/bio", {"reason": reason})
    assert answer.status_code == 422
    assert "reason" in answer.json["error"]["fields"]
    assert events(database, "support.visited") == []


def test_what_was_typed_stays_in_the_form(support: Visitor) -> None:
    answer = support.form("/support/bio", reason="ab")
    assert answer.status_code == 422
    assert 'value="ab"' in answer.text and "3 to 200 characters" in answer.text


def test_support_finds_every_workspace_on_one_page(support: Visitor, database: Any) -> None:
    factories.make_team(database, slug="closed", enabled=False)
    items = support.json("GET", "/workspaces").json["items"]
    assert [(item["slug"], item["role"]) for item in items] == [("bio", "support")]
    assert "/support/bio" in support.get("/workspaces").text


def test_pages_of_other_workspaces_show_each_once(support: Visitor, database: Any) -> None:
    for _ in range(6):
        factories.make_team(database, name="Same")
    seen, cursor = [], ""
    while cursor is not None:
        answer = support.json("GET", f"/workspaces?limit=2&cursor={cursor}").json
        seen += [item["slug"] for item in answer["items"]]
        cursor = answer["next"]
    assert len(seen) == len(set(seen)) == 7


def test_support_who_is_a_member_is_a_member(support: Visitor, database: Any, team: Team) -> None:
    statement = "insert into hub.membership (workspace_id, person_id, role) values (:workspace, :person, 'member')"
    factories.run(database, statement, workspace=team.workspace.id, person=support.person.id)
    page = support.get("/w/bio/")
    assert page.status_code == 200 and "Support view" not in page.text


@pytest.mark.parametrize("staff", [None, "operator"])
def test_the_question_does_not_exist_for_others(app: Any, database: Any, team: Team, staff: str | None) -> None:
    visitor = Visitor(app, database, factories.make_person(database, staff=staff))
    assert visitor.get("/support/bio").status_code == 404
    assert visitor.form("/support/bio", reason="curious").status_code == 404


def test_a_workspace_that_is_closed_or_absent_has_no_visits(support: Visitor, database: Any) -> None:
    factories.run(database, "update hub.workspace set enabled = false")
    assert support.form("/support/bio", reason="Ticket 4711").status_code == 404
    assert support.get("/support/nowhere").status_code == 404


def test_next_never_leaves_the_site(support: Visitor) -> None:
    answer = support.form("/support/bio", reason="Ticket 4711", next="//evil.example")
    assert answer.location == "/w/bio/"
