"""Every change carries a token of its session and comes from our own pages."""

from __future__ import annotations

from typing import Any

import pytest
from itsdangerous import URLSafeTimedSerializer

from tests import factories
from tests.web.visitor import HTML, JSON, Visitor, rows

ZONE = "/account/time-zone"


@pytest.fixture
def visitor(app: Any, database: Any) -> Visitor:
    return Visitor(app, database, factories.make_person(database))


def zone(database: Any, visitor: Visitor) -> Any:
    return rows(database, "select time_zone from hub.person where id = :id", id=visitor.person.id)[0].time_zone


def test_a_form_and_a_header_carry_the_token(visitor: Visitor, database: Any) -> None:
    assert visitor.form(ZONE, time_zone="Europe/Oslo").status_code == 303
    assert zone(database, visitor) == "Europe/Oslo"
    assert visitor.json("POST", ZONE, {"time_zone": "Asia/Ho_Chi_Minh"}).status_code == 200
    assert zone(database, visitor) == "Asia/Ho_Chi_Minh"


@pytest.mark.parametrize("token", ["", "random", "a.b.c", "x" * 5000, "ünïcode"])
def test_no_empty_or_made_up_token_changes_anything(visitor: Visitor, database: Any, token: str) -> None:
    answer = visitor.client.post(ZONE, data={"time_zone": "Europe/Oslo", "csrf_token": token}, headers=JSON)
    assert answer.status_code == 400
    assert answer.json["error"]["code"] == "csrf_failed"
    assert zone(database, visitor) is None


def test_a_token_of_another_session_is_refused(app: Any, visitor: Visitor, database: Any) -> None:
    other = Visitor(app, database, factories.make_person(database))
    answer = visitor.client.post(ZONE, data={"time_zone": "Europe/Oslo", "csrf_token": other.token}, headers=HTML)
    assert answer.status_code == 400
    assert "open for too long" in answer.text


def test_a_token_signed_for_another_purpose_is_refused(app: Any, visitor: Visitor, database: Any) -> None:
    with visitor.client.session_transaction() as session:
        raw = session["csrf_token"]
    forged = URLSafeTimedSerializer(app.secret_key, salt="another").dumps(raw)
    assert visitor.client.post(ZONE, data={"csrf_token": forged}, headers=HTML).status_code == 400


def test_a_token_in_the_address_does_not_count(visitor: Visitor) -> None:
    answer = visitor.client.post(f"{ZONE}?csrf_token={visitor.token}", data={"time_zone": ""}, headers=HTML)
    assert answer.status_code == 400


def test_a_page_that_was_open_for_days_still_works(app: Any, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    with visitor.client.session_transaction() as session:
        raw = session["csrf_token"]
    with monkeypatch.context() as long_ago:
        long_ago.setattr("itsdangerous.timed.time.time", lambda: 0)
        token = URLSafeTimedSerializer(app.secret_key, salt="wtf-csrf-token").dumps(raw)
    answer = visitor.client.post(ZONE, data={"time_zone": "", "csrf_token": token}, headers=HTML)
    assert answer.status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:8080"},
        {"Origin": "https://localhost"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://[bad"},
        {"Origin": ""},
    ],
)
def test_a_valid_token_from_another_site_is_refused(visitor: Visitor, database: Any, headers: dict[str, str]) -> None:
    answer = visitor.json("POST", ZONE, {"time_zone": "Europe/Oslo"}, **headers)
    assert answer.status_code == 400
    assert answer.json["error"]["code"] == "cross_site"
    assert zone(database, visitor) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost:80"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://proxy.example"},
    ],
)
def test_our_own_pages_and_callers_without_these_headers_pass(visitor: Visitor, headers: dict[str, str]) -> None:
    assert visitor.json("POST", ZONE, {"time_zone": ""}, **headers).status_code == 200


def test_without_a_session_the_answer_is_to_sign_in_not_a_token_error(client: Any, database: Any) -> None:
    assert client.post(ZONE, json={}, headers=JSON).status_code == 401
    answer = client.post(ZONE, data={}, headers=HTML)
    assert answer.status_code == 303 and answer.location == "/sign-in"


def test_a_failed_token_leaves_no_audit_event(visitor: Visitor, database: Any) -> None:
    before = rows(database, "select count(*) from audit.event")
    visitor.client.post(ZONE, data={}, headers=HTML)
    assert rows(database, "select count(*) from audit.event") == before


def test_every_changing_route_refuses_without_a_token(app: Any, visitor: Visitor) -> None:
    for rule in app.url_map.iter_rules():
        for method in rule.methods - {"GET", "HEAD", "OPTIONS"}:
            address = visitor.client.application.url_map.bind("localhost").build(
                rule.endpoint, {name: sample(name) for name in rule.arguments}, method=method
            )
            answer = visitor.client.open(address, method=method, headers=JSON)
            assert answer.status_code == 400, (method, address)
            assert answer.json["error"]["code"] == "csrf_failed", (method, address)


def test_every_page_with_a_form_carries_the_token(visitor: Visitor) -> None:
    page = visitor.get("/account").text
    assert page.count("<form") - page.count('<form method="get"') == page.count('name="csrf_token"')


def sample(name: str) -> Any:
    """A value for a part of an address that leads nowhere."""
    if name == "slug":
        return "nowhere"
    return "01890000-0000-7000-8000-000000000000" if name != "job_id" else 1
