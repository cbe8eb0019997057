"""Signing in and out, and what a session lives through."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from argon2 import PasswordHasher

from hub.models.person import hash_password
from hub.web import create_app
from hub.web.signin import local_path
from tests import factories
from tests.factories_jobs import csrf_token, make_job
from tests.web.visitor import HTML, JSON, Visitor, events, rows

PASSWORD = "correct horse battery staple"


@pytest.fixture
def person(database: Any) -> Any:
    return factories.make_person(database, email="ann@hub.example", password_hash=hash_password(PASSWORD))


def attempt(client: Any, email: str = "ann@hub.example", password: str = PASSWORD, **fields: str) -> Any:
    token = csrf_token(client.get("/sign-in").text)
    sent = {"email": email, "password": password, "csrf_token": token} | fields
    return client.post("/sign-in", data=sent, headers=HTML)


def test_a_page_without_a_session_leads_to_the_form_and_back(client: Any, person: Any, database: Any) -> None:
    answer = client.get("/workspaces?limit=5", headers=HTML)
    assert answer.status_code == 303
    target = urlsplit(answer.location)
    assert target.path == "/sign-in"
    asked_for = parse_qs(target.query)["next"][0]
    assert asked_for == "/workspaces?limit=5"
    assert attempt(client, next=asked_for).location == asked_for


def test_json_without_a_session_is_401(client: Any, database: Any) -> None:
    answer = client.get("/workspaces", headers=JSON)
    assert answer.status_code == 401
    assert answer.json["error"]["code"] == "unauthenticated"


def test_the_address_is_compared_without_letter_case(client: Any, person: Any) -> None:
    assert attempt(client, email="  ANN@Hub.Example ").status_code == 303


def test_the_only_workspace_is_where_a_person_lands(client: Any, person: Any, database: Any) -> None:
    team = factories.make_team(database, slug="only")
    statement = "insert into hub.membership (workspace_id, person_id, role) values (:workspace, :person, 'viewer')"
    factories.run(database, statement, workspace=team.workspace.id, person=person.id)
    assert attempt(client).location == "/w/only/"


def test_wrong_password_unknown_account_and_disabled_person_look_the_same(
    client: Any, person: Any, database: Any
) -> None:
    factories.make_person(database, email="off@hub.example", password_hash=hash_password(PASSWORD))
    factories.run(database, "update hub.person set enabled = false where email = 'off@hub.example'")
    answers = [
        attempt(client, password="something else"),
        attempt(client, email="nobody@hub.example"),
        attempt(client, email="off@hub.example"),
        attempt(client, password="x" * 5000),
    ]
    assert [answer.status_code for answer in answers] == [422] * 4
    assert all("The e-mail or password is not right" in answer.text for answer in answers)
    assert [event.changes for event in events(database, "session.refused")] == [
        {"reason": "password"},
        {"reason": "unknown"},
        {"reason": "disabled"},
        {"reason": "password"},
    ]


def test_a_refused_try_keeps_the_address_in_the_form_but_never_the_password(client: Any, person: Any) -> None:
    page = attempt(client, password="a wrong secret").text
    assert 'value="ann@hub.example"' in page
    assert "a wrong secret" not in page


def test_what_was_typed_as_address_is_not_recorded(client: Any, database: Any) -> None:
    attempt(client, email="hunter2-typed-into-the-wrong-field")
    assert "hunter2" not in str(rows(database, "select e::text from audit.event e"))


def test_too_many_tries_for_an_account_are_refused_with_a_true_wait(settings: Any, database: Any, person: Any) -> None:
    app = create_app(dataclasses.replace(settings, signin_per_minute=3))
    client = app.test_client()
    assert [attempt(client, password="wrong").status_code for _ in range(3)] == [422] * 3
    refused = attempt(client)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    # Another account from the same address is refused too, for the address has its own window.
    assert attempt(client, email="other@hub.example").status_code == 429
    app.extensions["hub"].db.close()


def test_forwarding_headers_do_not_buy_more_tries(settings: Any, database: Any, person: Any) -> None:
    app = create_app(dataclasses.replace(settings, signin_per_minute=2))
    client = app.test_client()
    token = csrf_token(client.get("/sign-in").text)
    answers = [
        client.post(
            "/sign-in",
            data={"email": f"p{number}@hub.example", "password": "x", "csrf_token": token},
            headers={"X-Forwarded-For": f"198.51.100.{number}", "X-Real-IP": f"198.51.100.{number}"},
        ).status_code
        for number in range(4)
    ]
    assert answers == [422, 422, 429, 429]
    app.extensions["hub"].db.close()


def test_signing_in_changes_session_and_token(client: Any, person: Any) -> None:
    before = csrf_token(client.get("/sign-in").text)
    attempt(client)
    after = csrf_token(client.get("/account").text)
    assert after != before
    answer = client.post("/account/theme", data={"theme": "dark", "csrf_token": before}, headers=HTML)
    assert answer.status_code == 400


def test_signing_in_as_somebody_else_ends_the_session_it_replaces(app: Any, database: Any, person: Any) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    old = visitor.client.get_cookie("hub").value
    form = {"email": person.email, "password": PASSWORD, "csrf_token": visitor.token}
    assert visitor.client.post("/sign-in", data=form, headers=HTML).status_code == 303
    assert [event.action for event in events(database)][-2:] == ["session.ended", "session.signed_in"]
    visitor.client.set_cookie("hub", old)
    assert visitor.client.get("/account", headers=JSON).status_code == 401


def test_signing_in_and_out_is_audited(client: Any, person: Any, database: Any) -> None:
    attempt(client)
    token = csrf_token(client.get("/account").text)
    client.post("/sign-out", data={"csrf_token": token}, headers=HTML)
    assert [(event.action, event.actor_name) for event in events(database)] == [
        ("session.signed_in", person.name),
        ("session.ended", person.name),
    ]


def test_after_signing_out_the_old_cookie_is_worthless(client: Any, person: Any) -> None:
    attempt(client)
    cookie = client.get_cookie("hub").value
    token = csrf_token(client.get("/account").text)
    assert client.post("/sign-out", data={"csrf_token": token}, headers=HTML).status_code == 303
    client.set_cookie("hub", cookie)
    assert client.get("/account", headers=JSON).status_code == 401


def test_the_database_holds_no_token_only_its_hash(client: Any, person: Any, database: Any) -> None:
    attempt(client)
    with client.session_transaction() as session:
        token = session["_user_id"]
    assert token not in str(rows(database, "select s::text from hub.session s"))


def test_a_disabled_person_is_out_with_the_next_request(app: Any, database: Any) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    factories.run(database, "update hub.person set enabled = false")
    assert visitor.json("GET", "/account").status_code == 401


@pytest.mark.parametrize(
    "past",
    [
        "expires_at = statement_timestamp() - interval '1 second'",
        "seen_at = statement_timestamp() - make_interval(secs => idle_seconds + 1)",
    ],
)
def test_a_session_ends_by_age_and_by_idleness(app: Any, database: Any, past: str) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    factories.run(database, f"update hub.session set {past}")
    assert visitor.json("GET", "/account").status_code == 401


def test_a_visit_keeps_the_session_alive_but_is_noted_at_most_once_a_minute(app: Any, database: Any) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    seen = "select seen_at from hub.session"
    first = rows(database, seen)
    visitor.get("/account")
    assert rows(database, seen) == first
    factories.run(database, "update hub.session set seen_at = seen_at - interval '2 minutes'")
    visitor.get("/account")
    assert rows(database, seen)[0].seen_at >= first[0].seen_at


def test_what_a_page_fetches_by_itself_keeps_no_session_alive(app: Any, database: Any) -> None:
    team = factories.make_team(database)
    job_id = make_job(database, team, "finished")
    visitor = Visitor(app, database, team.admin)
    factories.run(database, "update hub.session set seen_at = seen_at - interval '2 minutes'")
    before = rows(database, "select seen_at from hub.session")
    visitor.get(f"/w/{team.workspace.slug}/jobs/{job_id}/live")
    answer = visitor.get(f"/w/{team.workspace.slug}/jobs/{job_id}/events")
    assert answer.status_code == 200
    answer.close()
    assert rows(database, "select seen_at from hub.session") == before


def test_sessions_that_ran_out_are_removed_by_the_next_who_signs_in(client: Any, person: Any, database: Any) -> None:
    attempt(client)
    factories.run(database, "update hub.session set expires_at = statement_timestamp() - interval '1 hour'")
    attempt(client)
    assert len(rows(database, "select from hub.session")) == 1


def test_a_hash_of_weaker_parameters_is_renewed(client: Any, person: Any, database: Any) -> None:
    weak = PasswordHasher(time_cost=1, memory_cost=1024, parallelism=1).hash(PASSWORD)
    factories.run(database, "update hub.person set password_hash = :weak", weak=weak)
    assert attempt(client).status_code == 303
    kept = rows(database, "select password_hash from hub.person")[0].password_hash
    assert "m=19456,t=2,p=1" in kept


def test_cookie_is_plain_on_http(client: Any, person: Any) -> None:
    cookie = attempt(client).headers["Set-Cookie"]
    assert cookie.startswith("hub=")
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Secure" not in cookie


def test_cookie_has_the_host_prefix_over_https(client: Any, database: Any) -> None:
    cookie = client.get("/sign-in", base_url="https://localhost").headers["Set-Cookie"]
    assert cookie.startswith("__Host-hub=")
    assert "Secure" in cookie and "Path=/" in cookie and "Domain" not in cookie


def test_cookie_is_secure_in_production_whatever_the_scheme(settings: Any, database: Any) -> None:
    app = create_app(dataclasses.replace(settings, env="production"))
    cookie = app.test_client().get("/sign-in").headers["Set-Cookie"]
    assert cookie.startswith("__Host-hub=") and "Secure" in cookie
    app.extensions["hub"].db.close()


@pytest.mark.parametrize(
    "elsewhere",
    [
        "//evil.example",
        "///evil.example",
        "////evil.example/x",
        "/\\evil.example",
        "\\\\evil.example",
        "https:evil.example",
        "https:\\evil.example",
        "https://evil.example/",
        "http://localhost/",
        "javascript:alert(1)",
        "/\tevil.example",
        "\t//evil.example",
        "/w/demo/\r\nSet-Cookie: a=b",
        "/w\n/demo",
        "/\x00",
        "evil",
        "@evil.example",
        "",
        " /w/demo/",
        "/" + "x" * 8192,
    ],
)
def test_next_never_leaves_the_site(client: Any, person: Any, elsewhere: str) -> None:
    assert local_path(elsewhere) is None


@pytest.mark.parametrize(
    "here",
    [
        "/",
        "/w/demo/courses?cursor=abc&limit=10",
        "/w/demo/search?q=ti%E1%BA%BFng%20Vi%E1%BB%87t",
        "/w/demo/jobs?range=7d#row-3",
        "/w/demo/search?q=a%2Fb%3Fc",
    ],
)
def test_a_good_next_is_kept_byte_for_byte(client: Any, person: Any, here: str) -> None:
    assert attempt(client, next=here).location == here


def test_a_dangerous_next_is_ignored_at_signing_in(client: Any, person: Any) -> None:
    assert attempt(client, next="//evil.example").location == "/workspaces"


def test_next_keeps_the_words_of_a_search(client: Any, person: Any) -> None:
    answer = client.get("/workspaces?q=ti%E1%BA%BFng%20Vi%E1%BB%87t", headers=HTML)
    asked_for = parse_qs(urlsplit(answer.location).query)["next"][0]
    assert attempt(client, next=asked_for).location == "/workspaces?q=ti%E1%BA%BFng%20Vi%E1%BB%87t"


def test_signing_in_by_json_names_the_person(client: Any, person: Any) -> None:
    token = csrf_token(client.get("/sign-in").text)
    answer = client.post(
        "/sign-in",
        json={"email": "ann@hub.example", "password": PASSWORD},
        headers=JSON | {"X-CSRFToken": token},
    )
    assert answer.status_code == 200
    assert answer.json["email"] == "ann@hub.example"


@pytest.mark.parametrize("value", [None, 5, ["a"], {"a": "b"}, True])
def test_odd_types_are_a_wrong_pair(client: Any, database: Any, value: Any) -> None:
    token = csrf_token(client.get("/sign-in").text)
    sent = {"email": value, "password": value, "next": value}
    answer = client.post("/sign-in", json=sent, headers=JSON | {"X-CSRFToken": token})
    assert answer.status_code == 422
