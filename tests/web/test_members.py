"""Members of a workspace: roles, access, and the last admin."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from hub import db
from tests import factories
from tests.factories import Team
from tests.web.visitor import Visitor, events, rows


@pytest.fixture
def team(database: Any) -> Team:
    return factories.make_team(database, slug="bio")


@pytest.fixture
def admin(app: Any, database: Any, team: Team) -> Visitor:
    return Visitor(app, database, team.admin)


def test_members_are_listed_by_name(admin: Visitor, database: Any, team: Team) -> None:
    factories.add_member(database, team, "viewer", name="Zoe")
    factories.add_member(database, team, "member", name="Aaron")
    names = [item["name"] for item in admin.json("GET", "/w/bio/members").json["items"]]
    assert names == ["Aaron", team.admin.name, "Zoe"]
    page = admin.get("/w/bio/members").text
    assert page.index("Aaron") < page.index("Zoe")


def test_pages_of_members_show_each_once_even_with_equal_names(admin: Visitor, database: Any, team: Team) -> None:
    for _ in range(7):
        factories.add_member(database, team, "viewer", name="Same")
    seen, cursor = [], ""
    while cursor is not None:
        answer = admin.json("GET", f"/w/bio/members?limit=3&cursor={cursor}").json
        seen += [item["id"] for item in answer["items"]]
        cursor = answer["next"]
    assert len(seen) == len(set(seen)) == 8


def test_a_role_is_changed_by_form_and_by_json(admin: Visitor, database: Any, team: Team) -> None:
    member = factories.add_member(database, team, "viewer", name="Vera")
    path = f"/w/bio/members/{member.id}"
    answer = admin.form(path, role="member")
    assert (answer.status_code, answer.location) == (303, "/w/bio/members")
    assert "Vera has access as Member." in admin.get("/w/bio/members").text
    answer = admin.json("PATCH", path, {"role": "admin"})
    assert (answer.status_code, answer.json["role"]) == (200, "admin")
    assert [event.changes for event in events(database, "member.role_changed")] == [
        {"role": ["viewer", "member"]},
        {"role": ["member", "admin"]},
    ]


def test_access_is_taken_and_given_back(app: Any, admin: Visitor, database: Any, team: Team) -> None:
    member = Visitor(app, database, factories.add_member(database, team, "member"))
    path = f"/w/bio/members/{member.person.id}"
    assert admin.form(path, enabled="false").status_code == 303
    assert member.get("/w/bio/").status_code == 404
    assert admin.json("PATCH", path, {"enabled": True}).json["enabled"] is True
    assert member.get("/w/bio/").status_code == 200
    actions = [event.action for event in events(database) if event.action.startswith("member.")]
    assert actions == ["member.disabled", "member.enabled"]


def test_a_change_to_what_stands_already_writes_nothing(admin: Visitor, database: Any, team: Team) -> None:
    member = factories.add_member(database, team, "viewer")
    version = rows(database, "select sum(version) from hub.membership")
    assert admin.json("PATCH", f"/w/bio/members/{member.id}", {"role": "viewer", "enabled": True}).status_code == 200
    assert rows(database, "select sum(version) from hub.membership") == version
    assert events(database, "member.role_changed") == []


@pytest.mark.parametrize("change", [{"role": "member"}, {"role": "viewer"}, {"enabled": False}])
def test_the_last_admin_stays(admin: Visitor, database: Any, team: Team, change: dict[str, Any]) -> None:
    answer = admin.json("PATCH", f"/w/bio/members/{team.admin.id}", change)
    assert answer.status_code == 409
    assert answer.json["error"]["code"] == "last_admin"
    assert rows(database, "select role, enabled from hub.membership") == [("admin", True)]
    assert len(events(database, "request.refused")) == 1


def test_a_disabled_admin_does_not_count_as_the_one_who_stays(admin: Visitor, database: Any, team: Team) -> None:
    other = factories.add_member(database, team, "admin")
    factories.run(database, "update hub.person set enabled = false where id = :id", id=other.id)
    assert admin.json("PATCH", f"/w/bio/members/{team.admin.id}", {"role": "viewer"}).status_code == 409


def test_lowering_oneself_is_asked_again(admin: Visitor, database: Any, team: Team) -> None:
    factories.add_member(database, team, "admin")
    path = f"/w/bio/members/{team.admin.id}"
    asked = admin.form(path, role="viewer")
    assert asked.status_code == 422
    assert "Change your own access?" in asked.text
    assert rows(database, "select role from hub.membership where person_id = :id", id=team.admin.id) == [("admin",)]
    assert admin.form(path, role="viewer", confirmed="yes").status_code == 303
    assert rows(database, "select role from hub.membership where person_id = :id", id=team.admin.id) == [("viewer",)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"role": "owner"}, "role"),
        ({"role": ""}, "role"),
        ({"role": ["admin"]}, "role"),
        ({"role": {"a": 1}}, "role"),
        ({"role": 5}, "role"),
        ({"enabled": "maybe"}, "enabled"),
        ({"enabled": 1}, "enabled"),
        ({"enabled": []}, "enabled"),
    ],
)
def test_nonsense_names_its_field(
    admin: Visitor, database: Any, team: Team, change: dict[str, Any], field: str
) -> None:
    member = factories.add_member(database, team, "viewer")
    answer = admin.json("PATCH", f"/w/bio/members/{member.id}", change)
    assert answer.status_code == 422
    assert list(answer.json["error"]["fields"]) == [field]


def test_fields_that_nobody_may_set_are_ignored(admin: Visitor, database: Any, team: Team) -> None:
    member = factories.add_member(database, team, "viewer")
    extra = {"id": str(uuid.uuid4()), "workspace_id": str(uuid.uuid4()), "version": 99, "name": "Mallory"}
    assert admin.json("PATCH", f"/w/bio/members/{member.id}", {"role": "member"} | extra).status_code == 200
    row = rows(database, "select role, version from hub.membership where person_id = :id", id=member.id)
    assert row == [("member", 2)]


def test_members_of_other_workspaces_are_not_found(admin: Visitor, database: Any) -> None:
    other = factories.make_team(database)
    path = f"/w/bio/members/{other.admin.id}"
    assert admin.json("GET", path).status_code == 404
    assert admin.json("PATCH", path, {"role": "viewer"}).status_code == 404


def test_markup_in_a_name_is_text(admin: Visitor, database: Any, team: Team) -> None:
    member = factories.add_member(database, team, "viewer", name="<img src=x onerror=alert(1)>")
    for path in ("/w/bio/members", f"/w/bio/members/{member.id}"):
        assert "<img" not in admin.get(path).text


def test_the_list_costs_a_fixed_number_of_statements(app: Any, admin: Visitor, database: Any, team: Team) -> None:
    for _ in range(30):
        factories.add_member(database, team, "viewer")
    seen = db.count_statements(app.extensions["hub"].db)
    admin.get("/w/bio/members")
    assert len(seen) <= 3, seen
