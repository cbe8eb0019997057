"""The audit trail over HTTP: who may read it, filters, days, walking, and what it never shows."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from hub.db import Database, count_statements
from hub.models import audit
from hub.models.audit import Actor
from tests.factories import Team, add_member, make_course, make_person, make_team, rows, run
from tests.web.acting import Acting


@pytest.fixture
def team(database: Database) -> Team:
    return make_team(database)


@pytest.fixture
def admin(app: Any, database: Database, team: Team) -> Acting:
    return Acting(app, database, team.admin, f"/w/{team.workspace.slug}")


@pytest.fixture
def support(app: Any, database: Database) -> Acting:
    return Acting(app, database, make_person(database, staff="support", name="Sam"))


def record(database: Database, team: Team | None, action: str = "course.renamed", **fields: Any) -> int:
    values: dict[str, Any] = {
        "actor": team.actor if team else Actor(None, "Hub", "hub", "hub"),
        "workspace_id": team.workspace.id if team else None,
    }
    with database.transaction() as session:
        return audit.record(session, action, **values | fields)


def plant(admin_url: str, team: Team, at: str, name: str = "") -> None:
    """An event of a chosen time, as only a superuser can write it."""
    with psycopg.connect(admin_url) as connection:
        connection.execute(
            """
            insert into audit.event (id, xid, at, workspace_id, actor_name, actor_kind, channel, action, outcome,
                target_kind, target_name)
            values (nextval('audit.event_id_seq'), pg_current_xact_id(), %s, %s, '', 'hub', 'hub', 'course.renamed',
                'done', 'course', %s)
            """,
            [at, team.workspace.id, name or at],
        )


def team_in(database: Database, zone: str) -> Team:
    """A team whose members see times in `zone`."""
    team = make_team(database)
    run(database, "update hub.workspace set time_zone = :zone where id = :id", zone=zone, id=team.workspace.id)
    return team


def names(acting: Acting, **query: Any) -> list[str]:
    return [event["target"]["name"] for event in acting.json(f"/audit?{urlencode(query)}")["items"]]


def test_an_event_has_the_promised_shape(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team)
    renamed = admin.send("PATCH", f"/courses/{course_id}", {"title": "Life"}, status=200)
    event = admin.json("/audit")["items"][0]
    assert event["action"] == "course.renamed"
    assert event["actor"] == team.admin.name
    assert event["target"] == {"kind": "course", "id": str(course_id), "name": "Life"}
    assert event["outcome"] == "done"
    assert event["request_id"] == renamed.headers["X-Request-ID"]
    assert event["changes"] == {"title": ["Introduction to Biology", "Life"]}
    assert event["job_id"] is None
    assert event["sentence"] == "Renamed a course to Life"
    assert event["at"].endswith("Z")
    assert admin.json(f"/audit/{event['id']}") == event


def test_the_page_tells_each_event_in_a_sentence_with_links(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team)
    page_id = admin.send("POST", f"/courses/{course_id}/pages", {"title": "Cells"}).get_json()["id"]
    gone = admin.send("POST", "/courses", {"title": "Gone"}).get_json()["id"]
    admin.send("DELETE", f"/courses/{gone}", status=200)
    page = admin.page("/audit")
    assert "Events in the last 7 days" in page
    assert f'Created the page <a href="/w/{team.workspace.slug}/courses/{course_id}/pages/{page_id}">Cells</a>' in page
    assert "Deleted the course <strong>Gone</strong>" in page
    assert "Events are kept." in page


@pytest.mark.parametrize(("role", "status"), [("admin", 200), ("member", 403), ("viewer", 403)])
def test_only_admins_read_the_trail(app: Any, database: Database, team: Team, role: str, status: int) -> None:
    event_id = record(database, team)
    somebody = Acting(app, database, add_member(database, team, role), f"/w/{team.workspace.slug}")
    for path in ("/audit", f"/audit/{event_id}"):
        somebody.json(path, status)
        somebody.page(path, status)


def test_an_event_of_another_workspace_is_not_found(app: Any, admin: Acting, database: Database) -> None:
    other = make_team(database)
    foreign, homeless = record(database, other), record(database, None, "session.refused")
    for event_id in (foreign, homeless, 10**15):
        admin.json(f"/audit/{event_id}", 404)
    for bad in ("0x1", "-1", "9" * 30, "1.5", "%00"):
        assert admin.send("GET", f"/audit/{bad}").status_code in (400, 404)
    stranger = Acting(app, database, make_person(database), admin.at)
    stranger.json("/audit", 404)


def test_filters_narrow_and_combine(admin: Acting, database: Database, team: Team) -> None:
    course_id = str(uuid.uuid4())
    maria = Actor(uuid.uuid4(), "Maria", request_id="r-1")
    record(database, team, target_name="one", actor=maria, target_id=course_id, job_id=7, outcome="failed")
    record(database, team, "page.created", target_name="two")
    for query in (
        {"who": "mari"},
        {"who": str(maria.id)},
        {"action": "course"},
        {"action": "course.renamed"},
        {"outcome": "failed"},
        {"target_kind": "course", "target_id": course_id},
        {"job": "7"},
        {"request": "r-1"},
        {"who": "Maria", "action": "course", "outcome": "failed", "job": "7", "range": "1h"},
    ):
        assert names(admin, **query) == ["one"], query
    assert names(admin, who="Maria", action="page") == []
    assert {"one", "two"} <= set(names(admin))


def test_active_filters_are_shown_and_each_can_be_removed(admin: Acting, database: Database, team: Team) -> None:
    record(database, team)
    page = admin.page("/audit?who=Person&action=course&range=24h")
    assert "Filters (3 on)" in page
    assert "Who: Person" in page
    assert "Action: Courses" in page
    assert "When: Last 24 hours" in page
    assert "/audit?action=course&amp;range=24h" in page
    assert "Events in the last 24 hours" in page
    assert "Clear all filters" in page


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ({"outcome": "perhaps"}, "outcome"),
        ({"range": "2y"}, "range"),
        ({"job": "x"}, "job"),
        ({"job": "9" * 19}, "job"),
        ({"who": "x" * 201}, "who"),
        ({"from": "2026-13-01"}, "from"),
        ({"from": "0001-01-01"}, "from"),
        ({"to": "9999-12-31"}, "to"),
        ({"to": "20261130"}, "to"),
        ({"from": "2026-11-30", "to": "2026-11-29"}, "to"),
    ],
)
def test_a_filter_that_cannot_be_is_named(admin: Acting, query: dict[str, str], wrong: str) -> None:
    path = f"/audit?{urlencode(query)}"
    assert list(admin.json(path, 422)["error"]["fields"]) == [wrong]
    page = admin.page(path, 422)
    assert "There is a problem" in page
    assert 'aria-invalid="true"' in page


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "cursor=x", "cursor=WyJhIiwgIjEiXQ", "cursor=WyIyMDI2LTExLTMwIiwiMSJd"]
)
def test_bad_list_parameters_are_malformed(admin: Acting, query: str) -> None:
    admin.json(f"/audit?{query}", 400)
    admin.page(f"/audit?{query}", 400)


def test_an_unknown_action_or_target_matches_nothing(admin: Acting) -> None:
    assert names(admin, action="course.exploded") == names(admin, target_kind="x", target_id="y") == []
    assert "No events match." in admin.page("/audit?action=course.exploded")


def test_a_day_is_the_whole_local_day_and_no_more(app: Any, database: Database, admin_url: str) -> None:
    team = team_in(database, "Asia/Ho_Chi_Minh")
    admin = Acting(app, database, team.admin, f"/w/{team.workspace.slug}")
    inside = ["2026-03-09T17:00:00Z", "2026-03-10T00:00:00Z", "2026-03-10T16:59:59.999999Z"]
    outside = ["2026-03-09T16:59:59.999999Z", "2026-03-10T17:00:00Z", "2026-03-10T23:59:59.999999Z"]
    for at in inside + outside:
        plant(admin_url, team, at)
    query = {"from": "2026-03-10", "to": "2026-03-10"}
    assert names(admin, **query) == inside[::-1]
    page = admin.page(f"/audit?{urlencode(query)}")
    assert "Days are in Asia/Ho_Chi_Minh" in page
    assert "Tuesday 10 March 2026" in page
    assert "Monday 9 March" not in page
    assert names(admin, **query, range="1h") == inside[::-1]


def test_days_are_right_where_the_clock_is_changed(app: Any, database: Database, admin_url: str) -> None:
    team = team_in(database, "Europe/Oslo")
    admin = Acting(app, database, team.admin, f"/w/{team.workspace.slug}")
    for at in ("2026-10-24T21:59:59Z", "2026-10-24T22:00:00Z", "2026-10-25T22:59:59Z", "2026-10-25T23:00:00Z"):
        plant(admin_url, team, at)
    assert names(admin, **{"from": "2026-10-25", "to": "2026-10-25"}) == [
        "2026-10-25T22:59:59Z",
        "2026-10-24T22:00:00Z",
    ]


def test_the_default_is_a_week_and_a_reference_finds_older_events(
    admin: Acting, database: Database, admin_url: str, team: Team
) -> None:
    old = (datetime.now(UTC) - timedelta(days=8)).isoformat()
    plant(admin_url, team, old, "old")
    assert "old" not in names(admin)
    assert "old" in names(admin, range="all")
    assert "old" in names(admin, range="30d")
    assert "All events" in admin.page(f"/audit?target_kind=course&target_id={uuid.uuid4()}")


def test_a_walk_sees_each_old_event_once_while_new_ones_arrive(admin: Acting, database: Database, team: Team) -> None:
    for number in range(25):
        record(database, team, target_name=str(number))
    seen: list[str] = []
    path = "/audit?limit=4&action=course"
    while path:
        answer = admin.json(path)
        seen += [event["target"]["name"] for event in answer["items"]]
        record(database, team, target_name="new")
        path = f"/audit?limit=4&action=course&cursor={answer['next']}" if answer["next"] else ""
    assert seen == [str(number) for number in reversed(range(25))]
    page = admin.page("/audit?limit=4")
    assert "Older" in page
    assert "Newer" not in page


def test_an_event_page_has_facts_changes_and_ways_on(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team)
    made = admin.send("POST", f"/courses/{course_id}/pages", {"title": "Old", "tags": ["a", "b"]}).get_json()
    admin.send(
        "PATCH",
        f"/courses/{course_id}/pages/{made['id']}",
        {"title": "New", "tags": ["b", "c"], "body": "text"},
        status=200,
        If_Match=made["etag"],
    )
    edited, created = admin.json("/audit?action=page")["items"]
    page = admin.page(f"/audit/{edited['id']}")
    assert "What changed" in page
    assert '<del><span class="hidden">removed: </span>a</del>' in page
    assert '<ins><span class="hidden">added: </span>c</ins>' in page
    assert "Old" in page
    assert " UTC</time>" in page
    assert f"/audit/{created['id']}" in page
    assert f"request={edited['request_id']}" in page
    assert f"target_kind=page&amp;target_id={made['id']}" in page
    assert "Request: " + edited["request_id"] in page
    before = admin.page(f"/audit/{created['id']}")
    assert f"/audit/{edited['id']}" in before
    assert "Details" in before


def test_same_request_lists_its_siblings(admin: Acting, database: Database, team: Team) -> None:
    actor = Actor(None, "x", request_id="shared")
    for name in ("a", "b"):
        record(database, team, target_name=name, actor=actor)
    assert names(admin, request="shared") == ["b", "a"]


def test_support_reads_one_workspace_after_saying_why(support: Acting, database: Database, team: Team) -> None:
    event_id = record(database, team, target_name="seen")
    assert support.send("GET", f"/w/{team.workspace.slug}/audit").status_code == 403
    support.form(f"/support/{team.workspace.slug}", reason="ticket 4411")
    events = support.json(f"/w/{team.workspace.slug}/audit")["items"]
    assert [event["action"] for event in events] == ["support.visited", "course.renamed"]
    assert events[0]["changes"] == {"reason": "ticket 4411"}
    assert "Support: Sam" in support.page(f"/w/{team.workspace.slug}/audit")
    support.page(f"/w/{team.workspace.slug}/audit/{event_id}")


def test_support_reads_all_workspaces_and_what_happened_in_none(
    support: Acting, database: Database, team: Team
) -> None:
    other = make_team(database)
    ids = [record(database, team), record(database, other), record(database, None, "session.refused")]
    items = support.json("/audit")["items"]
    assert {str(number) for number in ids} <= {event["id"] for event in items}
    assert {event["workspace"] for event in items} == {team.workspace.slug, other.workspace.slug, None}
    page = support.page("/audit")
    assert team.workspace.name in page
    assert other.workspace.name in page
    for event_id in ids:
        support.page(f"/audit/{event_id}")
        support.json(f"/audit/{event_id}")


def test_nobody_but_support_reads_across_workspaces(app: Any, database: Database, team: Team, admin: Acting) -> None:
    event_id = record(database, team)
    operator = Acting(app, database, make_person(database, staff="operator"))
    admin.at = ""
    for somebody in (admin, operator):
        for path in ("/audit", f"/audit/{event_id}"):
            somebody.json(path, 404)


def test_a_refusal_is_in_the_trail_as_refused(app: Any, admin: Acting, database: Database, team: Team) -> None:
    viewer = Acting(app, database, add_member(database, team, "viewer", name="Vera"), admin.at)
    viewer.send("POST", "/courses", {"title": "x"}, status=403)
    event = admin.json("/audit?outcome=refused")["items"][0]
    assert (event["action"], event["actor"], event["outcome"]) == ("request.refused", "Vera", "refused")
    assert "Refused" in admin.page("/audit?outcome=refused")
    admin.page(f"/audit/{event['id']}")


def test_canaries_of_content_and_secrets_are_nowhere_in_the_trail(
    app: Any, admin: Acting, support: Acting, database: Database, team: Team
) -> None:
    canary = "canary-31f9"
    course_id = make_course(database, team)
    made = admin.send("POST", f"/courses/{course_id}/pages", {"title": "T", "body": canary}, status=201).get_json()
    at = f"/courses/{course_id}/pages/{made['id']}"
    made = admin.send("PATCH", at, {"body": f"{canary} again"}, status=200, If_Match=made["etag"]).get_json()
    admin.form(f"{at}/edit", 412, etag='"old"', title="T", body=canary, tags="")
    admin.client.post("/sign-in", json={"email": "x@hub.example", "password": canary}, headers=admin._token)
    admin.send("DELETE", at, status=200, If_Match=made["etag"])
    assert not any(canary in event.whole for event in rows(database, "select event::text as whole from audit.event"))
    listed = admin.json("/audit?range=all")["items"]
    shown = admin.page("/audit") + support.page("/audit") + str(listed)
    shown += "".join(admin.page(f"/audit/{event['id']}") for event in listed)
    assert canary not in shown


def test_lists_and_events_cost_few_statements(app: Any, admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team)
    admin.send("POST", f"/courses/{course_id}/pages", {"title": "x"}, status=201)
    event_id = admin.json("/audit")["items"][0]["id"]
    for number in range(30):
        record(database, team, target_id=course_id, target_name=str(number))
    statements = count_statements(app.extensions["hub"].db)
    for path, most in (("/audit", 5), (f"/audit/{event_id}", 6)):
        statements.clear()
        admin.page(path)
        assert len(statements) <= most, path


def test_reading_changes_nothing(admin: Acting, database: Database, team: Team) -> None:
    event_id = record(database, team)
    count = "select count(*) as n from audit.event"
    before = rows(database, count)
    for path in ("/audit", f"/audit/{event_id}", "/audit?who=x", "/courses", "/tags"):
        admin.page(path)
    assert rows(database, count) == before


def test_no_address_changes_or_removes_an_event(admin: Acting, database: Database, team: Team) -> None:
    event_id = record(database, team)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for path in ("/audit", f"/audit/{event_id}"):
            admin.send(method, path, {}, status=405)


def test_old_events_of_a_renamed_person_keep_the_name_then(admin: Acting, database: Database, team: Team) -> None:
    record(database, team, target_name="x")
    run(database, "update hub.person set name = 'Renamed' where id = :id", id=team.admin.id)
    assert admin.json("/audit?action=course")["items"][0]["actor"] == team.admin.name
