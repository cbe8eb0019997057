"""Changes of people, memberships and workspaces, and the last admin under concurrency."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hub.errors import Conflict, HubError, Invalid
from hub.models import people
from tests import factories
from tests.factories import Team
from tests.web.visitor import events, rows

ADMINS = "select count(*) from hub.membership m join hub.person p on p.id = m.person_id where {}"
LEFT = ADMINS.format("m.role = 'admin' and m.enabled and p.enabled")


@pytest.fixture
def team(database: Any) -> Team:
    return factories.make_team(database)


def at_once(*acts: Any) -> list[Any]:
    """What each act returned or raised, all begun together."""
    results: list[Any] = [None] * len(acts)
    start = threading.Barrier(len(acts))

    def run(number: int, act: Any) -> None:
        start.wait()
        try:
            results[number] = act()
        except HubError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_two_admins_who_lower_each_other_at_once_leave_one(database: Any, team: Team) -> None:
    other = factories.add_member(database, team, "admin")

    def lower(person: Any) -> Any:
        with database.transaction() as session:
            return people.change_member(session, team.workspace.id, person.id, team.actor, role="viewer")

    for _ in range(5):
        results = at_once(lambda: lower(team.admin), lambda: lower(other))
        assert [isinstance(result, Conflict) for result in results].count(True) == 1
        assert rows(database, LEFT) == [(1,)]
        factories.run(database, "update hub.membership set role = 'admin'")


def test_disabling_two_people_in_two_workspaces_at_once_neither_deadlocks_nor_empties_one(
    database: Any, team: Team
) -> None:
    second = factories.make_team(database)
    for workspace, person in ((second.workspace, team.admin), (team.workspace, second.admin)):
        factories.run(
            database,
            "insert into hub.membership (workspace_id, person_id, role) values (:workspace, :person, 'admin')",
            workspace=workspace.id,
            person=person.id,
        )

    def disable(person: Any) -> Any:
        with database.transaction() as session:
            return people.set_person_enabled(session, person, False, team.actor)

    for _ in range(5):
        results = at_once(lambda: disable(team.admin), lambda: disable(second.admin))
        assert sorted(str(result) for result in results) == ["True", "last_admin"]
        assert rows(database, LEFT) == [(2,)]
        factories.run(database, "update hub.person set enabled = true")


def test_a_refused_change_leaves_no_event(database: Any, team: Team) -> None:
    with pytest.raises(Conflict), database.transaction() as session:
        people.set_person_enabled(session, team.admin, False, team.actor)
    assert events(database) == []
    assert rows(database, "select enabled from hub.person") == [(True,)]


def test_a_second_disabling_changes_nothing(database: Any, team: Team) -> None:
    viewer = factories.add_member(database, team, "viewer")
    changed = []
    for _ in range(2):
        with database.transaction() as session:
            changed.append(people.set_person_enabled(session, viewer, False, team.actor))
    assert changed == [True, False]
    assert [event.action for event in events(database)] == ["person.disabled"]


def test_one_address_and_one_slug_are_taken_once(database: Any, team: Team) -> None:
    def add_person() -> Any:
        with database.transaction() as session:
            return people.add_person(session, "Ann@hub.example", "a hash", actor=team.actor).email

    def add_workspace() -> Any:
        with database.transaction() as session:
            return people.add_workspace(session, "biology", "", team.actor).slug

    for act, code in ((add_person, "email_taken"), (add_workspace, "slug_taken")):
        results = at_once(act, act)
        assert [str(result) for result in results].count(code) == 1
    assert [event.action for event in events(database)] == ["person.added", "workspace.created"]


def test_a_member_is_added_once(database: Any, team: Team) -> None:
    person = factories.make_person(database)
    with database.transaction() as session:
        people.add_member(session, team.workspace, person, "viewer", team.actor)
    with pytest.raises(Conflict, match="already_member"), database.transaction() as session:
        people.add_member(session, team.workspace, person, "admin", team.actor)
    assert len(events(database, "member.added")) == 1


@pytest.mark.parametrize(
    "email", ["", "a", "@", "a@", "@b", "a b@c", "a@b@c", "a\n@b", "a\x00@b", None, 5, "x" * 300 + "@b"]
)
def test_addresses_that_are_none(email: object) -> None:
    with pytest.raises(Invalid) as refused:
        people.valid_email(email)
    assert list(refused.value.fields) == ["email"]


@pytest.mark.parametrize("name", ["x" * 121, "a\x00b", "a\ud800b", "\t\n", "\u200b", "\u3164 \u2060", 5])
def test_names_that_are_none(database: Any, team: Team, name: object) -> None:
    with pytest.raises(Invalid) as refused, database.transaction() as session:
        people.add_person(session, "ann@hub.example", "a hash", actor=team.actor, name=name)
    assert list(refused.value.fields) == ["name"]


def test_every_zone_on_offer_can_be_chosen() -> None:
    zones = people.time_zones()
    assert {"UTC", "Europe/Oslo", "Asia/Ho_Chi_Minh", "America/Argentina/Ushuaia"} <= set(zones)
    assert all(people.valid_time_zone(zone) == zone for zone in zones)
