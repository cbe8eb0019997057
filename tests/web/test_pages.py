"""Pages over HTTP: reading, editing under an ETag, conflicts that lose nothing, deletion."""

from __future__ import annotations

import html
import re
import threading
import uuid
from typing import Any

import httpx
import pytest

from hub.db import Database, count_statements
from tests.factories import Team, add_member, make_course, make_person, make_team, row, rows, run
from tests.factories_jobs import make_job, sign_in
from tests.web.acting import Acting

BODY = "# Cells\n\nSmall, with *tabs*\there and é.\n"


@pytest.fixture
def team(database: Database) -> Team:
    return make_team(database)


@pytest.fixture
def admin(app: Any, database: Database, team: Team) -> Acting:
    return Acting(app, database, team.admin, f"/w/{team.workspace.slug}")


@pytest.fixture
def course_id(database: Database, team: Team) -> uuid.UUID:
    return make_course(database, team, pages=0, title="Biology")


@pytest.fixture
def made(admin: Acting, course_id: uuid.UUID) -> dict[str, Any]:
    """A page, as its creation answered."""
    fields = {"title": "Cells", "body": BODY, "tags": ["Life", "Biology"]}
    page: dict[str, Any] = admin.send("POST", f"/courses/{course_id}/pages", fields, status=201).get_json()
    return page


def at(page: dict[str, Any], rest: str = "") -> str:
    return f"/courses/{page['course_id']}/pages/{page['id']}{rest}"


def hidden_etag(page: str) -> str:
    found = re.search(r'name="etag" value="([^"]*)"', page)
    assert found
    return html.unescape(found[1])


def field(page: str, name: str) -> str:
    """What a text area of a page holds, as a browser would show it."""
    found = re.search(rf'<textarea id="{name}"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL)
    assert found
    return html.unescape(found[1])


def test_a_page_is_made_read_edited_and_deleted(admin: Acting, made: dict[str, Any]) -> None:
    read = admin.send("GET", at(made), status=200)
    assert read.get_json() == made
    assert read.headers["ETag"] == made["etag"]
    assert (made["title"], made["body"], made["tags"]) == ("Cells", BODY, ["Biology", "Life"])
    edited = admin.send("PATCH", at(made), {"title": "The cell"}, status=200, If_Match=made["etag"]).get_json()
    assert (edited["title"], edited["body"], edited["tags"]) == ("The cell", BODY, ["Biology", "Life"])
    assert edited["etag"] != made["etag"]
    admin.send("DELETE", at(made), status=412, If_Match=made["etag"])
    admin.send("DELETE", at(made), status=200, If_Match=edited["etag"])
    admin.json(at(made), 404)


def test_an_edit_of_the_tags_changes_nothing_else(admin: Acting, database: Database, made: dict[str, Any]) -> None:
    edited = admin.send("PATCH", at(made), {"tags": ["life", "New"]}, status=200, If_Match=made["etag"]).get_json()
    assert edited["tags"] == ["Life", "New"]
    assert (edited["title"], edited["body"]) == (made["title"], made["body"])
    assert row(database, "select body from hub.page").body == BODY


def test_an_edit_without_a_difference_keeps_the_etag(admin: Acting, database: Database, made: dict[str, Any]) -> None:
    events = row(database, "select count(*) as n from audit.event").n
    for fields in ({}, {"title": "Cells"}, {"body": BODY, "tags": ["LIFE", "biology"]}):
        same = admin.send("PATCH", at(made), fields, status=200, If_Match=made["etag"]).get_json()
        assert same == made
    assert row(database, "select count(*) as n from audit.event").n == events


def test_without_if_match_nothing_is_edited_or_deleted(admin: Acting, made: dict[str, Any]) -> None:
    for method in ("PATCH", "DELETE"):
        error = admin.send(method, at(made), {"title": "x"}, status=428).get_json()["error"]
        assert error["code"] == "precondition_required"
    assert admin.json(at(made)) == made


@pytest.mark.parametrize("if_match", ['"other"', "nonsense", "W/{etag}", '"é"', "x" * 5000])
def test_a_stale_edit_tells_the_present_etag(admin: Acting, made: dict[str, Any], if_match: str) -> None:
    answer = admin.send("PATCH", at(made), {"title": "x"}, status=412, If_Match=if_match.format(etag=made["etag"]))
    assert answer.get_json()["error"]["code"] == "stale"
    assert answer.headers["ETag"] == made["etag"]


def test_a_star_edits_whatever_is_there(admin: Acting, made: dict[str, Any]) -> None:
    assert admin.send("PATCH", at(made), {"title": "x"}, status=200, If_Match="*").get_json()["title"] == "x"


def test_what_was_read_before_need_not_be_sent_again(admin: Acting, made: dict[str, Any]) -> None:
    assert admin.send("GET", at(made), status=304, If_None_Match=made["etag"]).data == b""
    admin.send("GET", at(made), status=200, If_None_Match='"other"')


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"title": "", "body": 1, "tags": "x"}, {"title", "body", "tags"}),
        ({"title": ["x"]}, {"title"}),
        ({"title": "x" * 301}, {"title"}),
        ({"body": "é" * 500_001}, {"body"}),
        ({"body": None}, {"body"}),
        ({"tags": ["x" * 81]}, {"tags"}),
        ({"tags": [str(number) for number in range(101)]}, {"tags"}),
        ({"tags": [{"name": "x"}]}, {"tags"}),
        ({"tags": ["a\nb"]}, {"tags"}),
    ],
)
def test_wrong_fields_are_named_and_nothing_is_changed(
    admin: Acting, made: dict[str, Any], fields: dict[str, Any], wrong: set[str]
) -> None:
    answer = admin.send("PATCH", at(made), fields, status=422, If_Match=made["etag"])
    assert set(answer.get_json()["error"]["fields"]) == wrong
    assert admin.json(at(made)) == made


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b'"x"', b'{"title": "\\ud800"}', b'{"body": "\\u0000"}', b"\xff", b'{"title": NaN}']
)
def test_what_cannot_be_read_is_malformed(admin: Acting, made: dict[str, Any], body: bytes) -> None:
    headers = admin._token | {"If-Match": made["etag"], "Accept": "application/json"}
    answer = admin.client.patch(admin.at + at(made), data=body, headers=headers, content_type="application/json")
    assert answer.status_code in (400, 422)
    assert admin.json(at(made)) == made


def test_a_page_is_shown_with_its_text_tags_and_neighbours(
    admin: Acting, course_id: uuid.UUID, made: dict[str, Any]
) -> None:
    after = admin.send("POST", f"/courses/{course_id}/pages", {"title": "Tissue", "body": BODY}).get_json()
    page = admin.page(at(made))
    assert "<h1>Cells</h1>" in page
    assert "<em>tabs</em>" in page
    assert page.count("Cells</h") == 1
    assert "Next: Tissue" in page
    assert "Previous: Cells" in admin.page(at(after))
    assert "Created the page" in page


def test_a_tag_tells_which_job_put_it_there(
    admin: Acting, database: Database, team: Team, made: dict[str, Any]
) -> None:
    job_id = make_job(database, team, "finished")
    run(
        database,
        "update hub.page_tag set job_id = :job, added_by = 'Maria' where page_id = :id",
        job=job_id,
        id=made["id"],
    )
    page = admin.page(at(made))
    assert f"Hub, job {job_id}</a> for Maria" in page
    assert f"/jobs/{job_id}" in page
    assert f"Hub, job {job_id}</a>" in admin.page(f"/courses/{made['course_id']}")


def test_a_form_edits_a_page(admin: Acting, made: dict[str, Any]) -> None:
    form = admin.page(at(made, "/edit"))
    assert field(form, "field-body") == BODY
    assert field(form, "field-tags") == "Biology\nLife"
    fields = {
        "title": "Cells",
        "body": field(form, "field-body").replace("\n", "\r\n"),
        "tags": "Biology\r\n\r\nwith, comma",
    }
    saved = admin.form(at(made, "/edit"), etag=hidden_etag(form), **fields)
    assert saved.headers["Location"].endswith(at(made))
    after = admin.json(at(made))
    assert (after["body"], after["tags"]) == (BODY, ["Biology", "with, comma"])
    assert "Saved." in admin.page(at(made))


def test_a_body_that_begins_with_line_ends_survives_the_form(admin: Acting, course_id: uuid.UUID) -> None:
    body = "\n\n  text\n\n"
    page = admin.send("POST", f"/courses/{course_id}/pages", {"title": "x", "body": body}, status=201).get_json()
    assert field(admin.page(at(page, "/edit")), "field-body") == body


def test_a_stale_form_shows_both_versions_and_loses_nothing(
    app: Any, admin: Acting, database: Database, team: Team, made: dict[str, Any]
) -> None:
    etag = hidden_etag(admin.page(at(made, "/edit")))
    other = Acting(app, database, add_member(database, team, "member", name="Maria"), admin.at)
    other.send("PATCH", at(made), {"body": "theirs <b>\n", "tags": ["theirs"]}, status=200, If_Match=made["etag"])
    typed = {"title": "My title", "body": "mine\r\n  <i>\r\n", "tags": "mine\r\nLife"}
    conflict = admin.form(at(made, "/edit"), 412, etag=etag, **typed).text
    assert "Maria changed this page while you were writing" in conflict
    assert field(conflict, "theirs-body") == "theirs <b>\n"
    assert field(conflict, "field-body") == "mine\n  <i>\n"
    assert field(conflict, "field-tags") == "mine\nLife"
    assert 'value="My title"' in conflict
    assert admin.json(at(made))["body"] == "theirs <b>\n"
    admin.form(at(made, "/edit"), etag=hidden_etag(conflict), **typed)
    final = admin.json(at(made))
    assert (final["title"], final["body"], final["tags"]) == ("My title", "mine\n  <i>\n", ["Life", "mine"])


def test_a_form_for_a_page_that_is_gone_keeps_what_was_typed(admin: Acting, made: dict[str, Any]) -> None:
    etag = hidden_etag(admin.page(at(made, "/edit")))
    admin.send("DELETE", at(made), status=200, If_Match=made["etag"])
    gone = admin.form(at(made, "/edit"), 404, etag=etag, title="Mine", body="typed", tags="t").text
    assert "deleted while you were writing" in gone
    assert field(gone, "field-body") == "typed"
    again = admin.form(f"/courses/{made['course_id']}/pages", title="Mine", body="typed", tags="t")
    assert admin.json(again.headers["Location"].removeprefix(admin.at))["body"] == "typed"


def test_a_form_with_a_mistake_keeps_what_was_typed_and_its_etag(admin: Acting, made: dict[str, Any]) -> None:
    page = admin.form(at(made, "/edit"), 422, etag=made["etag"], title="", body="typed", tags="x" * 81).text
    assert "There is a problem" in page
    assert field(page, "field-body") == "typed"
    assert field(page, "field-tags") == "x" * 81
    assert hidden_etag(page) == made["etag"]


def test_a_form_without_its_etag_saves_nothing(admin: Acting, made: dict[str, Any]) -> None:
    admin.form(at(made, "/edit"), 428, title="x", body="", tags="")
    assert admin.json(at(made)) == made


def test_deleting_by_form_asks_and_asks_again_after_a_change(admin: Acting, made: dict[str, Any]) -> None:
    etag = hidden_etag(admin.page(at(made, "/delete")))
    admin.send("PATCH", at(made), {"title": "Changed"}, status=200, If_Match=made["etag"])
    again = admin.form(at(made, "/delete"), 412, etag=etag).text
    assert "changed meanwhile" in again
    assert admin.form(at(made, "/delete"), etag=hidden_etag(again)).headers["Location"].endswith(made["course_id"])
    admin.page(at(made), 404)


def test_viewers_read_and_change_nothing(
    app: Any, admin: Acting, database: Database, team: Team, made: dict[str, Any]
) -> None:
    viewer = Acting(app, database, add_member(database, team, "viewer"), admin.at)
    page = viewer.page(at(made))
    assert "<em>tabs</em>" in page
    assert "/edit" not in page
    assert "History" not in page
    for method, rest in (
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/edit"),
        ("POST", "/delete"),
        ("GET", "/edit"),
        ("GET", "/delete"),
    ):
        viewer.send(method, at(made, rest), {} if method != "GET" else None, status=403, If_Match=made["etag"])


def test_support_sees_a_page_but_not_its_text(
    app: Any, database: Database, team: Team, admin: Acting, course_id: uuid.UUID
) -> None:
    canary = "canary-7d2e"
    page = admin.send("POST", f"/courses/{course_id}/pages", {"title": "Cells", "body": canary}).get_json()
    support = Acting(app, database, make_person(database, staff="support"), admin.at)
    assert support.send("GET", at(page)).status_code == 403
    support.at = ""
    support.form(f"/support/{team.workspace.slug}", reason="ticket 4411")
    support.at = admin.at
    shown = support.page(at(page))
    assert "Cells" in shown
    assert "not shown to support" in shown
    assert canary not in shown + support.send("GET", at(page), status=200).text + support.page(f"/courses/{course_id}")
    assert '<form method="post"' not in shown.replace(_sign_out(shown), "")
    support.send("GET", at(page, "/edit"), status=403)
    support.send("PATCH", at(page), {"title": "x"}, status=403, If_Match=page["etag"])


def _sign_out(page: str) -> str:
    found = re.search(r'<form method="post" action="/sign-out">', page)
    assert found
    return found[0]


def test_other_workspaces_find_no_page(app: Any, database: Database, made: dict[str, Any]) -> None:
    other = make_team(database)
    elsewhere = Acting(app, database, other.admin, f"/w/{other.workspace.slug}")
    own = make_course(database, other, pages=1)
    for path in (at(made), f"/courses/{own}/pages/{made['id']}"):
        for method in ("GET", "PATCH", "DELETE"):
            elsewhere.send(method, path, {"title": "x"} if method == "PATCH" else None, status=404, If_Match="*")


def test_concurrent_editors_over_http_lose_no_acknowledged_line(
    app: Any, admin: Acting, database: Database, team: Team, course_id: uuid.UUID
) -> None:
    page = admin.send("POST", f"/courses/{course_id}/pages", {"title": "Log"}, status=201).get_json()
    acknowledged: list[str] = []
    editors = [Acting(app, database, team.admin, admin.at) for _ in range(3)]

    def append(number: int) -> None:
        for count in range(10):
            line = f"{number}.{count}\n"
            while True:
                seen = editors[number].json(at(page))
                fields = {"body": seen["body"] + line, "tags": [*seen["tags"], line.strip()]}
                answer = editors[number].send("PATCH", at(page), fields, If_Match=seen["etag"])
                if answer.status_code == 200:
                    acknowledged.append(line)
                    break
                assert answer.status_code == 412

    threads = [threading.Thread(target=append, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    final = admin.json(at(page))
    assert len(acknowledged) == 30
    assert sorted(final["body"].splitlines(keepends=True)) == sorted(acknowledged)
    assert sorted(final["tags"]) == sorted(line.strip() for line in acknowledged)


def test_each_change_is_told_once_with_its_request(admin: Acting, database: Database, made: dict[str, Any]) -> None:
    edited = admin.send("PATCH", at(made), {"title": "New"}, If_Match=made["etag"])
    admin.send("PATCH", at(made), {"title": "Lost"}, status=412, If_Match=made["etag"])
    admin.send("DELETE", at(made), status=200, If_Match=edited.get_json()["etag"])
    events = rows(
        database,
        "select action, actor_name, request_id, channel from audit.event where action like 'page.%' order by id",
    )
    assert [event.action for event in events] == ["page.created", "page.edited", "page.deleted"]
    assert events[1].request_id == edited.headers["X-Request-ID"]
    assert {event.channel for event in events} == {"web"}


def test_a_page_costs_few_statements(app: Any, admin: Acting, made: dict[str, Any]) -> None:
    statements = count_statements(app.extensions["hub"].db)
    admin.page(at(made))
    assert len(statements) <= 6
    statements.clear()
    admin.json(at(made))
    assert len(statements) <= 3


def test_markup_in_a_body_is_inert_in_a_browser(
    live_server: Any, page: Any, database: Database, team: Team, course_id: uuid.UUID
) -> None:
    evil = (
        "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
        "<a href=\"javascript:document.title='owned'\">click</a> ![x](http://there.invalid/x.png)"
        "<div hx-get='/sign-out' hx-trigger='load'>x</div><form action='/sign-out' method='post'>"
        "<button>go</button></form>"
    )
    base = f"{live_server.url}/w/{team.workspace.slug}"
    with httpx.Client(base_url=live_server.url) as client:
        token = sign_in(client, database, team.admin)
        made = client.post(
            f"{base}/courses/{course_id}/pages",
            json={"title": evil, "body": evil, "tags": [evil[:80]]},
            headers={"X-CSRFToken": token, "Accept": "application/json"},
        ).json()
        page.context.add_cookies(
            [{"name": name, "value": value, "url": live_server.url} for name, value in client.cookies.items()]
        )
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    outside: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(live_server.url) else outside.append(request.url))
    page.goto(base + at(made), wait_until="networkidle")
    page.get_by_text("click").first.click(timeout=2000)
    assert page.title() != "owned"
    assert trouble == outside == []
