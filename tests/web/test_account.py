"""A person's own things: time zone, colours, password, sessions."""

from __future__ import annotations

from typing import Any

import pytest

from hub.models.person import check_password
from tests import factories
from tests.factories_jobs import PASSWORD
from tests.web.visitor import Visitor, events, rows

NEW = "a new and longer password"


@pytest.fixture
def visitor(app: Any, database: Any) -> Visitor:
    return Visitor(app, database, factories.make_person(database, name="Ann"))


def test_the_page_shows_who_and_where(visitor: Visitor) -> None:
    shown = visitor.json("GET", "/account").json
    assert shown["name"] == "Ann"
    assert [session["current"] for session in shown["sessions"]] == [True]
    assert "this one" in visitor.get("/account").text


def test_the_time_zone_is_that_of_all_times_shown(visitor: Visitor, database: Any) -> None:
    assert visitor.form("/account/time-zone", time_zone="Asia/Ho_Chi_Minh").status_code == 303
    page = visitor.get("/account").text
    assert "Times are in Asia/Ho_Chi_Minh (UTC+07:00)." in page
    assert events(database, "person.time_zone_changed")[0].changes == {"time_zone": [None, "Asia/Ho_Chi_Minh"]}
    visitor.form("/account/time-zone", time_zone="")
    assert "Times are in UTC." in visitor.get("/account").text


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "utc", 5, ["UTC"], "Etc/GMT+5"])
def test_a_zone_that_is_none_is_refused(visitor: Visitor, zone: Any) -> None:
    answer = visitor.json("POST", "/account/time-zone", {"time_zone": zone})
    assert answer.status_code == 422
    assert "time_zone" in answer.json["error"]["fields"]


def test_colours_are_set_by_the_server(visitor: Visitor) -> None:
    assert "data-theme" not in visitor.get("/account").text
    visitor.form("/account/theme", theme="dark")
    assert '<html lang="en" data-theme="dark">' in visitor.get("/account").text
    visitor.form("/account/theme", theme="")
    assert "data-theme" not in visitor.get("/account").text
    assert visitor.json("POST", "/account/theme", {"theme": '"><script>'}).status_code == 422
    visitor.client.set_cookie("hub_theme", '"><script>')
    assert "<script>" not in visitor.get("/account").text


def test_a_new_password_ends_every_other_session_and_renews_this_one(app: Any, visitor: Visitor, database: Any) -> None:
    other = Visitor(app, database, visitor.person)
    before = visitor.client.get_cookie("hub").value
    answer = visitor.form("/account/password", password=PASSWORD, new_password=NEW)
    assert answer.status_code == 303
    assert other.json("GET", "/account").status_code == 401
    assert visitor.json("GET", "/account").status_code == 200
    visitor.client.set_cookie("hub", before)
    assert visitor.json("GET", "/account").status_code == 401
    kept = rows(database, "select * from hub.person")[0]
    assert check_password(kept, NEW) and not check_password(kept, PASSWORD)
    assert len(events(database, "person.password_changed")) == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"password": "wrong", "new_password": NEW}, "password"),
        ({"new_password": NEW}, "password"),
        ({"password": PASSWORD, "new_password": "short"}, "new_password"),
        ({"password": PASSWORD, "new_password": "x" * 201}, "new_password"),
        ({"password": PASSWORD}, "new_password"),
        ({"password": PASSWORD, "new_password": 123456789012}, "new_password"),
    ],
)
def test_a_password_change_that_is_wrong_changes_nothing(
    visitor: Visitor, database: Any, given: dict[str, Any], field: str
) -> None:
    answer = visitor.json("POST", "/account/password", given)
    assert answer.status_code == 422
    assert list(answer.json["error"]["fields"]) == [field]
    assert check_password(rows(database, "select * from hub.person")[0], PASSWORD)
    assert visitor.json("GET", "/account").status_code == 200


def test_passwords_may_hold_any_letters_and_spaces(visitor: Visitor, database: Any) -> None:
    assert visitor.form("/account/password", password=PASSWORD, new_password="mật khẩu 🐘 của tôi").status_code == 303
    assert check_password(rows(database, "select * from hub.person")[0], "mật khẩu 🐘 của tôi")


def test_other_sessions_are_ended_one_by_one_or_all(app: Any, visitor: Visitor, database: Any) -> None:
    others = [Visitor(app, database, visitor.person) for _ in range(3)]
    sessions = visitor.json("GET", "/account").json["sessions"]
    one = next(session["id"] for session in sessions if not session["current"])
    assert visitor.form(f"/account/sessions/{one}/end").status_code == 303
    assert sorted(other.json("GET", "/account").status_code for other in others) == [200, 200, 401]
    assert visitor.form("/account/sessions/end-others").status_code == 303
    assert [other.json("GET", "/account").status_code for other in others] == [401] * 3
    assert visitor.json("GET", "/account").status_code == 200
    assert [event.changes for event in events(database, "session.ended")] == [{"sessions": 1}, {"sessions": 2}]


def test_nobody_ends_the_sessions_of_others(app: Any, visitor: Visitor, database: Any) -> None:
    other = Visitor(app, database, factories.make_person(database))
    theirs = other.json("GET", "/account").json["sessions"][0]["id"]
    assert visitor.form(f"/account/sessions/{theirs}/end").status_code == 404
    visitor.form("/account/sessions/end-others")
    assert other.json("GET", "/account").status_code == 200
