"""Whatever goes wrong has an answer that says so, as page, fragment or JSON, and shows nothing of the inside."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from hub import errors, words
from hub.web import auth
from tests import factories
from tests.web.visitor import HTML, JSON, Visitor, events


def failed(cause: Exception, **options: Any) -> OperationalError:
    """What SQLAlchemy raises for an error of the driver."""
    return OperationalError("select secret", {}, cause, **options)


RAISED = [
    (errors.Malformed(), 400, "malformed"),
    (errors.Unauthenticated(), 401, "unauthenticated"),
    (errors.Forbidden(), 403, "forbidden"),
    (errors.NotFound(), 404, "not_found"),
    (errors.Conflict("no_words_for_this_one"), 409, "no_words_for_this_one"),
    (errors.Stale(), 412, "stale"),
    (errors.TooLarge(), 413, "too_large"),
    (errors.WrongType(), 415, "wrong_type"),
    (errors.Invalid({"title": "Enter a title."}), 422, "invalid"),
    (errors.PreconditionRequired(), 428, "precondition_required"),
    (errors.TooMany(retry_after=4.2), 429, "rate_limited"),
    (errors.Unavailable(), 503, "unavailable"),
    (PoolTimeout("all connections are taken"), 503, "unavailable"),
    (failed(psycopg.OperationalError("gone"), connection_invalidated=True), 503, "unavailable"),
    (failed(psycopg.errors.ReadOnlySqlTransaction("demoted")), 503, "unavailable"),
    (failed(psycopg.errors.QueryCanceled("too long")), 503, "unavailable"),
    (failed(psycopg.errors.DeadlockDetected("ring")), 503, "unavailable"),
    (psycopg.OperationalError("the connection is lost"), 503, "unavailable"),
    (RuntimeError("secret inside /usr/lib/python3"), 500, "unexpected"),
    (RecursionError("secret"), 500, "unexpected"),
]


@pytest.fixture
def raising(app: Any) -> Any:
    """A client, and a list whose first member its view raises."""
    planned: list[Exception] = []

    @app.route("/raise", methods=["GET", "POST"])
    @auth.public
    def raise_it() -> None:
        raise planned[0]

    return app.test_client(), planned


@pytest.mark.parametrize(("error", "status", "code"), RAISED)
def test_each_error_as_json(raising: Any, error: Exception, status: int, code: str) -> None:
    client, planned = raising
    planned.append(error)
    answer = client.get("/raise", headers=JSON)
    assert answer.status_code == status
    told = answer.json["error"]
    assert told["code"] == code
    assert told["message"] and told["request_id"] == answer.headers["X-Request-ID"]
    assert "secret" not in answer.text
    if "retry_after" in told:
        assert answer.headers["Retry-After"] == str(told["retry_after"])


@pytest.mark.parametrize(("error", "status", "code"), [entry for entry in RAISED if entry[1] != 401])
def test_each_error_as_page_and_fragment(raising: Any, error: Exception, status: int, code: str) -> None:
    client, planned = raising
    planned.append(error)
    page = client.get("/raise", headers=HTML)
    fragment = client.get("/raise", headers=HTML | {"HX-Request": "true"})
    assert page.status_code == fragment.status_code == status
    assert page.headers["X-Request-ID"] in page.text
    assert "<html" in page.text and "<html" not in fragment.text
    assert f'data-error="{code}"' in fragment.text
    for text in (page.text, fragment.text):
        visible = re.sub(r"<[^>]*>|<code>.*?</code>", " ", text)
        assert str(status) not in visible.replace(page.headers["X-Request-ID"], "")
        assert "secret" not in text and "Traceback" not in text and "/usr/lib" not in text


def test_a_wait_is_never_told_shorter_than_it_is() -> None:
    assert errors.TooMany(retry_after=4.2).retry_after == 5
    assert errors.TooMany(retry_after=0).retry_after == 1


def test_every_status_has_its_words() -> None:
    for status in (400, 401, 403, 404, 405, 409, 412, 413, 415, 422, 428, 429, 500, 503):
        assert words.has(f"error.status.{status}") and words.has(f"error.status.{status}.title")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/w/", 404),
        ("/w/Bad_Slug/", 404),
        ("/w/%2e%2e/", 404),
        ("/w/demo/members/not-an-id", 404),
        ("/w/demo/members/" + "9" * 40, 404),
        ("/w/demo/jobs/99999999999999999999", 404),
        ("/w/demo/jobs/%D9%A1", 404),
        ("/w/%00/", 400),
        ("/workspaces?cursor=%00", 400),
    ],
)
def test_odd_addresses_are_no_faults(app: Any, database: Any, path: str, status: int) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    assert visitor.json("GET", path).status_code == status


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=1e3",
        "limit=" + "9" * 100,
        "limit=%D9%A3",
        "cursor=x",
        "cursor=" + "A" * 3000,
        "cursor=WzFd",
        "cursor=bnVsbA",
        "cursor=WyJhIl0",
        "cursor=WyJcdTAwMDAiLCAiYiJd",
        "cursor=WyJcdWQ4MDAiLCAiYiJd",
    ],
)
def test_bad_paging_is_a_bad_request(app: Any, database: Any, query: str) -> None:
    team = factories.make_team(database)
    visitor = Visitor(app, database, team.admin)
    answer = visitor.json("GET", f"/w/{team.workspace.slug}/members?{query}")
    assert answer.status_code == 400, query
    assert answer.json["error"]["code"] in ("bad_limit", "bad_cursor", "bad_characters")


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'"text"', "application/json", 400),
        (b"null", "application/json", 400),
        (b'{"a": NaN}', "application/json", 400),
        (b'{"a": 1, "a": 2}', "application/json", 400),
        (b'{"a": "\\u0000"}', "application/json", 400),
        (b'{"a": "\\ud800"}', "application/json", 400),
        (b'{"\\ud800": 1}', "application/json", 400),
        (b'{"a": "\xff"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"a": ' * 100 + b"1" + b"}" * 100, "application/json", 400),
        (b'{"a": ' + b"9" * 5000 + b"}", "application/json", 400),
        (b"time_zone=%00", "application/x-www-form-urlencoded", 400),
        (b"time_zone=UTC", "text/plain", 415),
        (b"<a/>", "application/xml", 415),
        (b"x" * (4 * 1024 * 1024 + 1), "application/json", 413),
        (b"a=" + b"x" * (4 * 1024 * 1024), "application/x-www-form-urlencoded", 413),
    ],
)
def test_bodies_that_cannot_be_read(app: Any, database: Any, content: bytes, content_type: str, status: int) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    headers = JSON | {"X-CSRFToken": visitor.token}
    answer = visitor.client.post("/account/time-zone", data=content, content_type=content_type, headers=headers)
    assert answer.status_code == status
    assert answer.json["error"]["code"]


def test_a_wrong_method_names_the_right_ones(app: Any, database: Any) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    answer = visitor.json("DELETE", "/account")
    assert answer.status_code == 405
    assert "GET" in answer.headers["Allow"]


def test_an_override_of_the_method_is_ignored(app: Any, database: Any) -> None:
    team = factories.make_team(database)
    visitor = Visitor(app, database, team.admin)
    path = f"/w/{team.workspace.slug}/members"
    answer = visitor.json("POST", path, {"_method": "GET"}, **{"X-HTTP-Method-Override": "GET"})
    assert answer.status_code == 405


def test_a_refusal_is_recorded_once_a_minute_for_each_reason(app: Any, database: Any) -> None:
    team = factories.make_team(database)
    viewer = Visitor(app, database, factories.add_member(database, team, "viewer"))
    path = f"/w/{team.workspace.slug}/members"
    assert [viewer.get(path).status_code for _ in range(3)] == [403] * 3
    recorded = events(database, "request.refused")
    assert len(recorded) == 1
    assert recorded[0].workspace_id == team.workspace.id
    assert recorded[0].outcome == "refused"
    assert recorded[0].changes == {"code": "forbidden", "attempted": "GET /w/<slug>/members"}


def test_what_is_not_found_is_not_recorded(app: Any, database: Any) -> None:
    team = factories.make_team(database)
    stranger = Visitor(app, database, factories.make_person(database))
    assert stranger.get(f"/w/{team.workspace.slug}/members").status_code == 404
    assert events(database, "request.refused") == []


def test_a_missing_right_names_the_act_and_who_could_help(app: Any, database: Any) -> None:
    team = factories.make_team(database, name="Biology")
    viewer = Visitor(app, database, factories.add_member(database, team, "viewer"))
    page = viewer.get(f"/w/{team.workspace.slug}/members").text
    assert "You cannot manage members in Biology" in page
    assert team.admin.name in page


def test_another_workspace_and_no_workspace_look_the_same(app: Any, database: Any) -> None:
    team = factories.make_team(database)
    stranger = Visitor(app, database, factories.make_person(database))

    def seen(path: str) -> str:
        text = stranger.get(path).text
        return re.sub(r'[0-9a-f]{16}|\d\d:\d\d:\d\d|content="[^"]*"|value="[^"]*"|datetime="[^"]*"', "", text)

    assert seen(f"/w/{team.workspace.slug}/") == seen("/w/there-is-none/")
