"""What a first start brings along."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hub import demo
from hub.models.person import check_password
from tests import factories
from tests.web.visitor import events, rows


@pytest.fixture
def first(database: Any, settings: Any) -> dict[str, str]:
    made = demo.ensure(database.url, settings)
    assert made is not None
    return made


def test_a_fresh_database_gets_a_person_of_each_kind(first: dict[str, str], database: Any) -> None:
    assert list(first) == [f"{who}@hub.example" for who in ("admin", "member", "viewer", "support", "operator")]
    people = rows(database, "select email, staff, password_hash from hub.person")
    assert all(check_password(person, first[person.email]) for person in people)
    assert {person.staff for person in people} == {None, "support", "operator"}
    assert sorted(row.role for row in rows(database, "select role from hub.membership")) == [
        "admin",
        "member",
        "viewer",
    ]


def test_the_demo_course_has_pages_in_our_own_words(first: dict[str, str], database: Any) -> None:
    pages = rows(database, "select title, body from hub.page order by position")
    assert 8 <= len(pages) <= 12
    assert all(len(page.body) > 200 for page in pages)


def test_what_was_made_is_audited_as_hubs_own_act(first: dict[str, str], database: Any) -> None:
    made = events(database)
    assert {event.channel for event in made} == {"hub"}
    assert [event.action for event in made].count("person.added") == 5


def test_later_starts_tell_the_same_and_make_nothing(first: dict[str, str], database: Any, settings: Any) -> None:
    before = rows(database, "select count(*) from audit.event")
    assert demo.ensure(database.url, settings) == first
    assert rows(database, "select count(*) from audit.event") == before


def test_a_password_of_ones_own_choice_is_taken_however_short(database: Any, settings: Any) -> None:
    made = demo.ensure(database.url, dataclasses.replace(settings, demo_password="demo"))
    assert made is not None and set(made.values()) == {"demo"}


def test_a_random_password_is_kept_for_this_user_alone(first: dict[str, str], settings: Any) -> None:
    kept = settings.data_dir / "demo.password"
    assert kept.read_text().strip() == first["admin@hub.example"]
    assert kept.stat().st_mode & 0o777 == 0o600


def test_production_has_no_demo_people(database: Any, settings: Any) -> None:
    assert demo.ensure(database.url, dataclasses.replace(settings, env="production")) is None
    assert rows(database, "select from hub.person") == []


def test_a_database_with_people_is_left_alone(database: Any, settings: Any) -> None:
    factories.make_person(database)
    assert demo.ensure(database.url, settings) is None
    assert len(rows(database, "select from hub.person")) == 1


def test_a_password_that_was_changed_is_not_told(first: dict[str, str], database: Any, settings: Any) -> None:
    factories.run(database, "update hub.person set password_hash = 'another'")
    assert demo.ensure(database.url, settings) is None
