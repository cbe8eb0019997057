"""Jobs over HTTP: starting, the list, a job's page, cancel, run again, failures; who may do what."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import uuid
from typing import Any

import psycopg
import pytest

from hub.db import Database
from hub.web import create_app
from tests import factories
from tests.factories import Team
from tests.factories_jobs import STORED, change_job, make_job, sign_in

JSON = {"Accept": "application/json"}


@pytest.fixture
def team(database: Database) -> Team:
    return factories.make_team(database)


@pytest.fixture
def course(database: Database, team: Team) -> uuid.UUID:
    return factories.make_course(database, team, pages=3)


class Caller:
    """A signed-in client that speaks JSON, or sends forms, in one workspace."""

    def __init__(self, app: Any, database: Database, team: Team, person: Any) -> None:
        self.client = app.test_client()
        self.token = sign_in(self.client, database, person)
        self.base = f"/w/{team.workspace.slug}"

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(self.base + path, headers=JSON | headers)

    def page(self, path: str) -> Any:
        return self.client.get(self.base + path, headers={"Accept": "text/html"})

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        headers = JSON | {"X-CSRFToken": self.token} | headers
        return self.client.post(self.base + path, json={} if body is None else body, headers=headers)

    def send(self, path: str, **fields: Any) -> Any:
        return self.client.post(self.base + path, data=fields | {"csrf_token": self.token})

    def start(self, course: uuid.UUID, key: str = "key-1", **changes: Any) -> Any:
        args = factories.tag_command(course, "biology") | changes
        return self.post("/jobs", {"kind": "course.tag", "args": args, "idempotency_key": key})


@pytest.fixture
def admin(app: Any, database: Database, team: Team) -> Caller:
    return Caller(app, database, team, team.admin)


def jobs_made(database: Database) -> int:
    count: int = factories.row(database, "select count(*) as n from queue.job").n
    return count


# Starting


def test_a_job_is_created_with_its_address_and_snapshot(admin: Caller, course: uuid.UUID) -> None:
    answer = admin.start(course)
    assert answer.status_code == 201
    assert answer.headers["Location"].endswith(f"/jobs/{answer.json['id']}")
    assert answer.json["state"] == "queued" and answer.json["label"] == "Waiting"
    assert answer.json["progress"]["total"] == 3
    assert answer.json["subject"] == f"course:{course}"


def test_the_same_creation_again_is_the_same_job(admin: Caller, database: Database, course: uuid.UUID) -> None:
    first, second = admin.start(course), admin.start(course)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json["id"] == second.json["id"] and jobs_made(database) == 1


def test_the_key_may_come_in_a_header(admin: Caller, course: uuid.UUID) -> None:
    body = {"kind": "course.tag", "args": factories.tag_command(course, "biology")}
    first = admin.post("/jobs", body, **{"Idempotency-Key": "from-header"})
    second = admin.start(course, "from-header")
    assert (first.status_code, second.status_code) == (201, 200)


def test_two_keys_that_differ_are_refused(admin: Caller, database: Database, course: uuid.UUID) -> None:
    body = {"kind": "course.tag", "args": factories.tag_command(course), "idempotency_key": "one"}
    answer = admin.post("/jobs", body, **{"Idempotency-Key": "two"})
    assert answer.status_code == 422 and "idempotency_key" in answer.json["error"]["fields"]
    assert jobs_made(database) == 0


def test_the_key_of_another_command_is_a_conflict(admin: Caller, database: Database, course: uuid.UUID) -> None:
    admin.start(course)
    answer = admin.start(course, tags=["other"])
    assert answer.status_code == 409 and answer.json["error"]["code"] == "idempotency_mismatch"
    assert jobs_made(database) == 1


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "kind"),
        ({"kind": "no.such", "args": {}, "idempotency_key": "k"}, 422, "kind"),
        ({"kind": ["course.tag"], "args": {}, "idempotency_key": "k"}, 422, "kind"),
        ({"kind": "course.tag", "args": [], "idempotency_key": "k"}, 422, "args"),
        ({"kind": "course.tag", "args": None, "idempotency_key": "k"}, 422, "args"),
        ({"kind": "course.tag", "args": {}, "idempotency_key": "k"}, 422, "course_id"),
        ({"kind": "course.tag", "args": {"course_id": 1, "tags": "x", "pages": 2}, "idempotency_key": 5}, 422, "tags"),
        ([], 400, None),
        ("text", 400, None),
    ],
)
def test_a_shapeless_creation_names_what_is_wrong(
    admin: Caller, database: Database, body: Any, status: int, field: str | None
) -> None:
    answer = admin.post("/jobs", body)
    assert answer.status_code == status, answer.text
    if field:
        assert field in answer.json["error"]["fields"]
    assert jobs_made(database) == 0


@pytest.mark.parametrize(
    "args",
    [
        {"tags": []},
        {"tags": ["t"] * 1 + [f"t{n}" for n in range(20)]},
        {"tags": ["x" * 81]},
        {"tags": [""]},
        {"tags": [5]},
        {"pages": "some"},
        {"course_id": "no-uuid"},
        {"course_id": str(uuid.uuid4())},
        {"more": 1},
    ],
)
def test_wrong_arguments_are_field_errors(
    admin: Caller, database: Database, course: uuid.UUID, args: dict[str, Any]
) -> None:
    answer = admin.start(course, **args)
    assert answer.status_code == 422 and set(answer.json["error"]["fields"]) == set(args)
    assert jobs_made(database) == 0


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_text_that_cannot_be_stored_is_malformed(admin: Caller, course: uuid.UUID, text: str) -> None:
    assert admin.start(course, tags=[text]).status_code == 400


def test_a_foreign_course_is_no_course_here(admin: Caller, database: Database) -> None:
    foreign = factories.make_course(database, factories.make_team(database))
    assert admin.start(foreign).status_code == 422
    assert admin.page(f"/courses/{foreign}/tag").status_code == 404


def test_an_address_has_a_budget_that_replays_use_up(
    settings: Any, database: Database, team: Team, course: uuid.UUID
) -> None:
    app = create_app(dataclasses.replace(settings, jobs_create_per_minute=2))
    caller = Caller(app, database, team, team.admin)
    assert [caller.start(course).status_code for _ in range(3)] == [201, 200, 429]
    refused = caller.start(course)
    assert refused.json["error"]["code"] == "rate_limited"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert jobs_made(database) == 1
    form = caller.send(
        "/jobs", **{"kind": "course.tag", "args.course_id": course, "args.tags[]": "kept words", "idempotency_key": "x"}
    )
    assert form.status_code == 429 and "kept words" in form.text and form.headers["Retry-After"]
    app.extensions["hub"].db.close()


def test_a_full_capacity_tells_when_to_come_back(
    settings: Any, database: Database, team: Team, course: uuid.UUID
) -> None:
    app = create_app(dataclasses.replace(settings, jobs_max_pending_per_actor=1))
    caller = Caller(app, database, team, team.admin)
    assert caller.start(course, "one").status_code == 201
    refused = caller.start(course, "two")
    assert refused.status_code == 429 and refused.json["error"]["code"] == "actor_pending_limit"
    assert int(refused.headers["Retry-After"]) == refused.json["error"]["retry_after"] > 0
    assert caller.start(course, "one").status_code == 200
    app.extensions["hub"].db.close()


def form_of(page: str) -> dict[str, str]:
    """The hidden fields of the page's start form."""
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page)
    return {name: value for name, value in fields if name != "csrf_token"}


def test_the_start_page_starts_a_job_once(admin: Caller, database: Database, course: uuid.UUID) -> None:
    page = admin.page(f"/courses/{course}/tag")
    assert "All pages (3)" in page.text
    fields = form_of(page.text) | {"args.tags[]": "biology, cells\r\nbiology", "args.pages": "untagged"}
    first, second = admin.send("/jobs", **fields), admin.send("/jobs", **fields)
    assert first.status_code == second.status_code == 303
    assert first.headers["Location"] == second.headers["Location"]
    assert "You already started this job." in admin.client.get(second.headers["Location"]).text
    args = factories.row(database, "select args from queue.detail").args
    assert args["asked"]["tags"] == ["biology", "cells"] and args["asked"]["pages"] == "untagged"


def test_a_wrong_form_keeps_what_was_typed(admin: Caller, database: Database, course: uuid.UUID) -> None:
    fields = form_of(admin.page(f"/courses/{course}/tag").text)
    too_long = "x" * 100
    answer = admin.send("/jobs", **fields, **{"args.tags[]": too_long, "args.pages": "untagged"})
    assert answer.status_code == 422 and too_long in answer.text
    assert 'href="#field-tags"' in answer.text and 'aria-invalid="true"' in answer.text
    assert 'value="untagged" checked' in answer.text
    assert fields["idempotency_key"] in answer.text and jobs_made(database) == 0


def test_a_form_sent_again_with_other_choices_says_so(admin: Caller, course: uuid.UUID) -> None:
    fields = form_of(admin.page(f"/courses/{course}/tag").text)
    started = admin.send("/jobs", **fields, **{"args.tags[]": "one", "args.pages": "all"})
    answer = admin.send("/jobs", **fields, **{"args.tags[]": "two", "args.pages": "all"})
    assert answer.status_code == 409 and "Your earlier request was different" in answer.text
    assert f'href="{started.headers["Location"]}"' in answer.text


def test_the_start_page_tells_of_another_job_on_the_course(admin: Caller, course: uuid.UUID) -> None:
    job_id = admin.start(course).json["id"]
    page = admin.page(f"/courses/{course}/tag").text
    assert "This course is being tagged now" in page and f"/jobs/{job_id}" in page
    assert admin.start(course, "another").status_code == 201


def test_a_course_without_pages_offers_no_start(admin: Caller, database: Database, team: Team) -> None:
    empty = factories.make_course(database, team, pages=0)
    assert "nothing to tag" in admin.page(f"/courses/{empty}/tag").text
    assert admin.start(empty).status_code == 422


def test_a_form_that_nobody_of_ours_sent_is_refused_in_words(admin: Caller, course: uuid.UUID) -> None:
    good = {"kind": "course.tag", "args.course_id": str(course), "args.tags[]": "a", "idempotency_key": "k"}
    doubled = {
        "kind": ["course.tag", "course.tag"],
        "args.course_id": [str(course), str(course)],
        "idempotency_key": [""],
    }
    for name, value in doubled.items():
        assert admin.send("/jobs", **(good | {name: value})).status_code == 422, name
    for kind in (["course.tag"], {}, 5, None):
        answer = admin.client.post(
            f"{admin.base}/jobs",
            json={"kind": kind, "args": {}},
            headers={"X-CSRFToken": admin.token, "Accept": "text/html"},
        )
        assert answer.status_code == 422, kind


# Who may do what

READS = ["/jobs", "/jobs/{job}", "/jobs/{job}/live", "/jobs/{job}/failures.csv", "/jobs/rows?ids={job}"]
STARTS = ["/jobs/{job}/cancel", "/courses/{course}/tag"]
POSTS = ["/jobs", "/jobs/{job}/cancel", "/jobs/{job}/run-again"]


@pytest.mark.parametrize(("role", "reads_status", "starts_status"), [("member", 200, 403), ("viewer", 200, 403)])
def test_members_and_viewers_look_but_start_nothing(
    app: Any,
    database: Database,
    team: Team,
    course: uuid.UUID,
    role: str,
    reads_status: int,
    starts_status: int,
) -> None:
    job_id = make_job(database, team, "running")
    caller = Caller(app, database, team, factories.add_member(database, team, role))
    for path in READS:
        assert caller.get(path.format(job=job_id)).status_code == reads_status, path
    for path in STARTS:
        assert caller.get(path.format(job=job_id, course=course)).status_code == starts_status, path
    for path in POSTS:
        assert caller.post(path.format(job=job_id)).status_code == 403, path
    page = caller.page(f"/jobs/{job_id}").text
    assert "Cancel job" not in page and 'action="/w/' not in page.split("<main")[1].split("</main>")[0]
    refused = factories.row(database, "select count(*) as n from audit.event where action = 'request.refused'")
    assert refused.n == 1


def test_a_stranger_finds_nothing(app: Any, database: Database, team: Team, course: uuid.UUID) -> None:
    job_id = make_job(database, team, "running")
    caller = Caller(app, database, team, factories.make_team(database).admin)
    for path in [*READS, *STARTS, "/jobs/{job}/events"]:
        assert caller.get(path.format(job=job_id, course=course)).status_code == 404, path
    for path in POSTS:
        assert caller.post(path.format(job=job_id)).status_code == 404, path


def test_nobody_gets_in_without_a_session(app: Any, database: Database, team: Team, course: uuid.UUID) -> None:
    job_id = make_job(database, team, "running")
    client = app.test_client()
    for path in [*READS, *STARTS, "/jobs/{job}/events"]:
        address = f"/w/{team.workspace.slug}" + path.format(job=job_id, course=course)
        assert client.get(address, headers=JSON).status_code == 401, path
    for path in ("live", "events"):
        assert client.get(f"/w/{team.workspace.slug}/jobs/{job_id}/{path}").status_code == 401
    for path in POSTS:
        answer = client.post(f"/w/{team.workspace.slug}" + path.format(job=job_id), json={}, headers=JSON)
        assert answer.status_code == 401, path


@pytest.mark.parametrize("path", POSTS)
def test_nothing_is_done_without_the_token(admin: Caller, database: Database, team: Team, path: str) -> None:
    job_id = make_job(database, team, "running")
    answer = admin.post(path.format(job=job_id), **{"X-CSRFToken": "wrong"})
    assert answer.status_code == 400 and answer.json["error"]["code"] == "csrf_failed"
    assert factories.row(database, "select cancel_requested_at as at from queue.job").at is None
    assert jobs_made(database) == 1


@pytest.mark.parametrize("number", ["0", "9223372036854775807", "9" * 30, "-1", "abc", "1.5"])
def test_an_impossible_number_is_not_found(admin: Caller, number: str) -> None:
    for path in ("", "/live", "/events", "/cancel", "/failures.csv"):
        assert admin.get(f"/jobs/{number}{path}").status_code == 404
    for path in ("/cancel", "/run-again"):
        assert admin.post(f"/jobs/{number}{path}").status_code == 404


# One job


@pytest.mark.parametrize("label", list(STORED))
def test_the_page_offers_what_the_state_allows(admin: Caller, database: Database, team: Team, label: str) -> None:
    job_id = make_job(database, team, label)
    page = admin.page(f"/jobs/{job_id}").text
    assert ("Cancel job…" in page) == (label in ("waiting", "scheduled", "running", "retrying"))
    again = label in ("finished_with_problems", "failed", "needs_attention", "cancelled")
    assert ("Run again" in page) == again
    assert f'data-state="{label}"' in page
    for banned in ("style=", "onclick", "hx-on", "<script>"):
        assert banned not in page


def test_a_page_reloads_by_itself_only_when_asked_and_only_while_it_can_change(
    admin: Caller, database: Database, team: Team
) -> None:
    running, ended = make_job(database, team, "running"), make_job(database, team, "finished")
    assert "Refresh" not in admin.page(f"/jobs/{running}").headers
    assert admin.page(f"/jobs/{running}?refresh=15").headers["Refresh"] == "15"
    assert "Refresh" not in admin.page(f"/jobs/{ended}?refresh=15").headers


def test_cancel_answers_with_the_job_in_every_state(admin: Caller, database: Database, team: Team) -> None:
    for label, stored in STORED.items():
        job_id = make_job(database, team, label)
        answer = admin.post(f"/jobs/{job_id}/cancel")
        assert answer.status_code == 200, label
        expected = "cancelled" if stored["state"] == "queued" else stored["state"]
        assert answer.json["state"] == expected, label
        again = admin.post(f"/jobs/{job_id}/cancel")
        assert again.json == answer.json, label


def test_cancel_asks_first_with_the_true_numbers(admin: Caller, database: Database, team: Team) -> None:
    job_id = make_job(database, team, "running")
    page = admin.page(f"/jobs/{job_id}/cancel").text
    assert "102 of 240 pages are already done" in page and "The other 138 will not be tagged" in page
    fragment = admin.client.get(f"{admin.base}/jobs/{job_id}/cancel", headers={"HX-Request": "true"}).text
    assert "<html" not in fragment and "102 of 240" in fragment
    answer = admin.send(f"/jobs/{job_id}/cancel")
    assert answer.status_code == 303
    assert "Stopping. What is being worked on will finish first." in admin.client.get(answer.headers["Location"]).text


def test_cancel_of_an_ended_job_says_so(admin: Caller, database: Database, team: Team) -> None:
    job_id = make_job(database, team, "finished")
    answer = admin.send(f"/jobs/{job_id}/cancel")
    assert "had ended before it could be cancelled" in admin.client.get(answer.headers["Location"]).text
    assert factories.rows(database, "select from audit.event where action = 'job.cancel_requested'") == []


def test_run_again_is_a_creation_of_its_own(admin: Caller, database: Database, course: uuid.UUID) -> None:
    first = admin.start(course).json["id"]
    assert admin.post(f"/jobs/{first}/run-again", {"idempotency_key": "again"}).status_code == 409
    admin.post(f"/jobs/{first}/cancel")
    assert admin.post(f"/jobs/{first}/run-again").status_code == 422
    second = admin.post(f"/jobs/{first}/run-again", {"idempotency_key": "again"})
    assert second.status_code == 201 and second.json["id"] != first
    assert second.json["subject"] == f"course:{course}"
    repeated = admin.post(f"/jobs/{first}/run-again", {"idempotency_key": "again"})
    assert repeated.status_code == 200 and repeated.json["id"] == second.json["id"]


def test_failures_as_csv_run_nothing_in_a_spreadsheet(admin: Caller, database: Database, team: Team) -> None:
    titles = ["=1+1", "+1", "-1", "@x", "\tx", "＝1+1", "\u200b=1+1", 'quoted "x", too', "Größe"]
    items = [
        {"id": f"p{n}", "title": title, "code": "edit_conflict", "attempt": 1, "at": "2026-11-30T12:00:00Z"}
        for n, title in enumerate(titles)
    ]
    failures = {"counts": {"edit_conflict": 120}, "items": items}
    job_id = make_job(database, team, "running", failed=120, changed=0, skipped=0, failures=failures)
    answer = admin.get(f"/jobs/{job_id}/failures.csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["Content-Disposition"] and answer.data.startswith(b"\xef\xbb\xbf")
    table = list(csv.reader(io.StringIO(answer.data.decode("utf-8-sig"))))
    assert [row[1] for row in table[1:10]] == [f"'{title}" for title in titles[:7]] + titles[7:]
    assert "9 of 120" in table[-1][0]


# The list


def test_the_list_gives_each_job_once_by_cursor(admin: Caller, database: Database, team: Team) -> None:
    made = [make_job(database, team) for _ in range(5)]
    seen: list[int] = []
    cursor = ""
    while True:
        answer = admin.get(f"/jobs?limit=2&cursor={cursor}").json
        seen += [item["id"] for item in answer["items"]]
        if answer["next"] is None:
            break
        cursor = answer["next"]
    assert seen == sorted(made, reverse=True)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("cursor=nonsense", 400),
        ("cursor=WyIxIiwiMiJd", 400),
        ("limit=0", 400),
        ("limit=x", 400),
        ("state=nonsense", 422),
        ("range=century", 422),
        ("by=nobody", 422),
        ("q=" + "x" * 300, 422),
        ("q=%00", 400),
        ("kind=%ff", 200),
        ("limit=100000", 200),
    ],
)
def test_bad_parameters_of_the_list_are_told(admin: Caller, query: str, status: int) -> None:
    assert admin.get(f"/jobs?{query}").status_code == status
    assert admin.page(f"/jobs?{query}").status_code == status


def test_filters_stand_in_the_address_and_can_be_removed(admin: Caller, database: Database, team: Team) -> None:
    make_job(database, team, "finished_with_problems")
    make_job(database, team, "running", subject_name="Rust")
    page = admin.page("/jobs?state=finished&q=bio&by=me&range=24h&problems=1").text
    assert "1 job matches" in page and "Rust" not in page.split("<tbody>")[1]
    assert f'href="/w/{team.workspace.slug}/jobs?state=finished&amp;by=me' in page
    assert "Clear all filters" in page
    assert "No jobs match these filters." in admin.page("/jobs?q=nothing").text


def test_a_fresh_workspace_says_how_to_begin(admin: Caller) -> None:
    assert "No jobs yet." in admin.page("/jobs").text


@pytest.mark.parametrize("ids", ["x", "1,,2", "1;2", "-1", ",".join(["1"] * 201)])
def test_rows_of_nonsense_are_malformed(admin: Caller, ids: str) -> None:
    assert admin.get(f"/jobs/rows?ids={ids}").status_code == 400


def test_rows_tell_the_changing_cells_of_this_workspaces_jobs(admin: Caller, database: Database, team: Team) -> None:
    mine = make_job(database, team, "running")
    foreign = make_job(database, factories.make_team(database), "running")
    change_job(database, mine, "changed = changed + 1")
    text = admin.get(f"/jobs/rows?ids={mine},{foreign},99999&newest={mine - 1}").text
    assert f'data-row="{mine}" data-version="2"' in text and f'data-row="{foreign}"' not in text
    assert "103 of 240 pages" in text and 'data-newer="1"' in text


# Budgets of statements: a page costs the same however much it shows.


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/jobs", 6),
        ("/jobs/{job}", 6),
        ("/jobs/{job}/live", 3),
        ("/jobs/rows?ids={job}", 3),
        ("/courses/{course}/tag", 7),
    ],
)
def test_a_page_keeps_to_its_budget_of_statements(
    admin: Caller,
    database: Database,
    team: Team,
    course: uuid.UUID,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    most: int,
) -> None:
    job_id = [make_job(database, team, "running", subject=f"course:{course}") for _ in range(5)][-1]
    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def count(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        # The pool's own test of a connection is no statement of the page.
        if query != ";":
            sent.append(str(query))
        return execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Cursor, "execute", count)
    assert admin.page(path.format(job=job_id, course=course)).status_code == 200
    assert len(sent) <= most, sent
