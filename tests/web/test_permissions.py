"""Who may do what: every route, as every kind of person.

A new route without a line in RIGHTS fails here. What each right means stands in `hub.models.permission`.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from hub.jobs.create import create
from hub.models import audit, permission
from hub.queue.testing import drain
from tests import factories
from tests.factories_jobs import make_job
from tests.web.visitor import JSON, Visitor, rows

# Everybody signed in; nobody in particular; or staff of one kind.
SIGNED_IN, PUBLIC, SUPPORT = "signed in", "public", "support"

RIGHTS: dict[str, str] = {
    "static": PUBLIC,
    "health.alive": PUBLIC,
    "health.ready": PUBLIC,
    "signin.show": PUBLIC,
    "signin.sign_in": PUBLIC,
    "signin.home": SIGNED_IN,
    "signin.sign_out": SIGNED_IN,
    "workspaces.index": SIGNED_IN,
    "account.show": SIGNED_IN,
    "account.change_password": SIGNED_IN,
    "account.change_theme": SIGNED_IN,
    "account.change_time_zone": SIGNED_IN,
    "account.end_other_sessions": SIGNED_IN,
    "account.end_session": SIGNED_IN,
    "support.show": SUPPORT,
    "support.visit": SUPPORT,
    "audit.everywhere": SUPPORT,
    "audit.show_anywhere": SUPPORT,
    "dashboard.show": "workspace.see",
    "members.index": "members.manage",
    "members.show": "members.manage",
    "members.change": "members.manage",
    "audit.index": "audit.read",
    "audit.show": "audit.read",
    "courses.index": "workspace.see",
    "courses.show": "workspace.see",
    "courses.pages": "workspace.see",
    "courses.tags": "workspace.see",
    "courses.show_page": "workspace.see",
    "courses.new": "course.edit",
    "courses.create": "course.edit",
    "courses.import_zip": "course.edit",
    "courses.rename": "course.edit",
    "courses.rename_form": "course.edit",
    "courses.rename_by_form": "course.edit",
    "courses.delete": "course.edit",
    "courses.delete_form": "course.edit",
    "courses.new_page": "course.edit",
    "courses.create_page": "course.edit",
    "courses.edit_form": "course.edit",
    "courses.edit_by_form": "course.edit",
    "courses.edit_page": "course.edit",
    "courses.delete_page": "course.edit",
    "courses.delete_page_form": "course.edit",
    "courses.delete_page_by_form": "course.edit",
    "jobs.index": "workspace.see",
    "jobs.rows": "workspace.see",
    "jobs.show": "workspace.see",
    "jobs.live": "workspace.see",
    "jobs.events": "workspace.see",
    "jobs.failures": "workspace.see",
    "jobs.start_tagging": "job.start",
    "jobs.new": "job.start",
    "find.show": "workspace.see",
    "jobs.create": "job.start",
    "jobs.confirm_cancel": "job.start",
    "jobs.cancel": "job.start",
    "jobs.run_again": "job.start",
    "jobs.back_up": "job.start",
    "jobs.restore": "job.start",
    "backups.index": "backup.see",
    "backups.show": "backup.see",
    "backups.download": "backup.manage",
    "backups.verify": "backup.manage",
    "backups.confirm_delete": "backup.manage",
    "backups.delete": "backup.manage",
    "backups.retention": "backup.manage",
}
# Addresses of these end a session or a right that the walk still needs.
ENDS_ITSELF = ("signin.sign_out", "account.change_password", "account.end_other_sessions", "account.end_session")

IDS = {"course_id", "page_id", "person_id", "job_id", "event_id", "backup_id"}

TABLE = {
    "workspace.see": "admin member viewer support",
    "page.read": "admin member viewer",
    "course.edit": "admin member",
    "job.start": "admin",
    "backup.see": "admin member support",
    "backup.manage": "admin",
    "audit.read": "admin support",
    "members.manage": "admin",
}


@dataclasses.dataclass
class World:
    """A workspace with something of everything, and a visitor of each kind."""

    slug: str
    parts: dict[str, Any]
    visitors: dict[str, Visitor]


@pytest.fixture
def world(app: Any, database: Any, settings: Any) -> World:
    team = factories.make_team(database)
    with database.transaction() as session:
        actor = audit.Actor(team.admin.id, team.admin.name)
        order = {"kind": "workspace.backup", "args": {}, "key": "world"}
        create(session, settings, workspace=team.workspace, actor=actor, **order)
    drain(database, settings, "workspace.jobs")
    course = factories.make_course(database, team)
    page = rows(database, "select id from hub.page limit 1")[0].id
    people = {role: factories.add_member(database, team, role) for role in ("member", "viewer")}
    people |= {"admin": team.admin, "stranger": factories.make_person(database)}
    people |= {staff: factories.make_person(database, staff=staff) for staff in ("support", "operator")}
    people["disabled"] = factories.add_member(database, team, "admin")
    factories.run(database, "update hub.membership set enabled = false where person_id = :id", id=people["disabled"].id)
    visitors = {who: Visitor(app, database, person) for who, person in people.items()}
    visitors["support"].form(f"/support/{team.workspace.slug}", reason="Ticket 4711")
    event = rows(database, "select min(id) as id from audit.event where workspace_id = :id", id=team.workspace.id)
    parts = {
        "slug": team.workspace.slug,
        "course_id": course,
        "page_id": page,
        "person_id": people["member"].id,
        "job_id": make_job(database, team, "finished"),
        "event_id": event[0].id,
        "backup_id": rows(database, "select id from hub.backup")[0].id,
        "session_id": "01890000-0000-7000-8000-000000000000",
        "filename": "app.css",
        "kind": "course.tag",
    }
    return World(team.workspace.slug, parts, visitors)


def asked(app: Any, world: World, endpoint: str, method: str, who: str) -> int:
    """The status that somebody gets; the content of what is sent is mostly wrong, which is looked at after rights."""
    rules = [rule for rule in app.url_map.iter_rules(endpoint) if method in (rule.methods or ())]
    values = {name: world.parts[name] for name in rules[0].arguments}
    if endpoint == "jobs.new":
        # What the job is to be about stands in the query.
        values["course_id"] = world.parts["course_id"]
    path = app.url_map.bind("localhost").build(endpoint, values, method=method)
    answer = world.visitors[who].json(method, path, {} if method != "GET" else None)
    answer.close()
    return answer.status_code


def pairs(app: Any) -> list[tuple[str, str]]:
    """Endpoints with methods: first what only reads, last what deletes."""
    return sorted(
        {
            (rule.endpoint, method)
            for rule in app.url_map.iter_rules()
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
            if rule.endpoint not in ENDS_ITSELF
        },
        key=lambda pair: (pair[1] != "GET", ".delete" in pair[0], pair),
    )


def test_every_route_has_its_right_written_down(app: Any) -> None:
    assert {rule.endpoint for rule in app.url_map.iter_rules()} == set(RIGHTS)


def test_the_table_is_the_one_in_code() -> None:
    assert set(TABLE) == set(permission.ACTIONS)
    for action, roles in TABLE.items():
        assert {role for role in permission.RIGHTS if permission.may(role, action)} == set(roles.split()), action


def test_a_misspelt_right_lets_nobody_in() -> None:
    with pytest.raises(KeyError):
        permission.may("admin", "course.edti")


@pytest.mark.parametrize("who", ["admin", "member", "viewer", "support"])
def test_each_role_gets_just_what_the_table_says(app: Any, world: World, who: str) -> None:
    for endpoint, method in pairs(app):
        right = RIGHTS[endpoint]
        status = asked(app, world, endpoint, method, who)
        if right in (PUBLIC, SIGNED_IN):
            assert status not in (401, 403), (endpoint, method, status)
        elif right == SUPPORT:
            # Elsewhere than in workspaces, staff pages do not exist for others.
            assert (status != 404) == (who == "support"), (endpoint, method, status)
        elif permission.may(who, right):
            gone = method != "GET" and ".delete" in endpoint
            assert status not in (401, 403) and (status != 404 or gone), (endpoint, method, status)
        else:
            assert status == 403, (endpoint, method, status)


@pytest.mark.parametrize("who", ["stranger", "operator", "disabled"])
def test_whoever_has_no_right_finds_nothing(app: Any, world: World, who: str, database: Any) -> None:
    before = rows(database, "select count(*) from hub.page"), rows(database, "select count(*) from queue.job")
    for endpoint, method in pairs(app):
        if RIGHTS[endpoint] not in (PUBLIC, SIGNED_IN):
            assert asked(app, world, endpoint, method, who) == 404, (endpoint, method)
    assert before == (rows(database, "select count(*) from hub.page"), rows(database, "select count(*) from queue.job"))


def test_nobody_gets_anywhere_without_a_session(app: Any, world: World) -> None:
    client = app.test_client()
    bound = app.url_map.bind("localhost")
    for endpoint, method in pairs(app):
        if RIGHTS[endpoint] == PUBLIC:
            continue
        rule = next(rule for rule in app.url_map.iter_rules(endpoint) if method in (rule.methods or ()))
        path = bound.build(endpoint, {name: world.parts[name] for name in rule.arguments}, method=method)
        assert client.open(path, method=method, headers=JSON).status_code == 401, (endpoint, method)


def test_admins_of_another_workspace_find_nothing_through_their_own(app: Any, world: World, database: Any) -> None:
    other = factories.make_team(database)
    visitor = Visitor(app, database, other.admin)
    mixed = world.parts | {"slug": other.workspace.slug}
    bound = app.url_map.bind("localhost")
    for endpoint, method in pairs(app):
        rule = next(rule for rule in app.url_map.iter_rules(endpoint) if method in (rule.methods or ()))
        if "slug" not in rule.arguments or not rule.arguments & IDS:
            continue
        path = bound.build(endpoint, {name: mixed[name] for name in rule.arguments}, method=method)
        body = {"title": "x", "body": "", "tags": [], "role": "viewer"} if method != "GET" else None
        answer = visitor.json(method, path, body, **{"If-Match": "*", "Idempotency-Key": "k"})
        assert answer.status_code == 404, (endpoint, method, answer.status_code)


@pytest.mark.parametrize(
    "loss",
    [
        "update hub.person set enabled = false where id = :id",
        "update hub.membership set enabled = false where person_id = :id",
        "update hub.workspace set enabled = false",
        "update hub.membership set role = 'member' where person_id = :id",
        "delete from hub.session",
    ],
)
def test_a_lost_right_is_gone_with_the_next_request(app: Any, world: World, database: Any, loss: str) -> None:
    admin = world.visitors["admin"]
    path = f"/w/{world.slug}/members"
    assert admin.json("GET", path).status_code == 200
    factories.run(database, loss, **({"id": admin.person.id} if ":id" in loss else {}))
    assert admin.json("GET", path).status_code in (401, 403, 404)


def test_support_sees_that_a_page_is_there_but_not_what_it_says(world: World, database: Any) -> None:
    factories.run(database, "update hub.page set body = 'canary in the body'")
    parts = world.parts
    path = f"/w/{world.slug}/courses/{parts['course_id']}/pages/{parts['page_id']}"
    assert "canary" in world.visitors["viewer"].get(path).text
    assert "canary" in world.visitors["viewer"].json("GET", path).text
    assert "canary" not in world.visitors["support"].get(path).text
    assert "canary" not in world.visitors["support"].json("GET", path).text


def test_controls_that_a_person_may_never_use_are_not_on_the_page(world: World) -> None:
    viewer, admin = world.visitors["viewer"], world.visitors["admin"]
    assert f"/w/{world.slug}/members" not in viewer.get(f"/w/{world.slug}/").text
    assert f"/w/{world.slug}/members" in admin.get(f"/w/{world.slug}/").text


def test_support_sees_no_form_in_a_workspace_but_that_of_signing_out(world: World) -> None:
    support = world.visitors["support"]
    parts = world.parts
    for path in ("", "jobs", f"jobs/{parts['job_id']}", "courses", f"courses/{parts['course_id']}", "tags", "audit"):
        page = support.get(f"/w/{world.slug}/{path}").text
        assert "Support view of" in page, path
        assert re.findall(r'<form method="post" action="([^"]*)"', page) == ["/sign-out"], path
