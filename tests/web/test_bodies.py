"""Bodies that arrive slowly: nobody's connection to the database waits for them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from hub.db import Database
from tests.factories import Team, add_member, make_course, make_team, rows
from tests.factories_jobs import make_job
from tests.web.acting import JSON, Acting

BOUNDARY = "between"
MULTIPART = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="title"\r\n\r\nCells\r\n'
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n\r\nno zip\r\n--{BOUNDARY}--\r\n'
)
BODIES = {
    "application/json": '{"title": "Cells"}',
    "application/x-www-form-urlencoded": "title=Cells",
    f"multipart/form-data; boundary={BOUNDARY}": MULTIPART,
}


class Arriving(io.BytesIO):
    """A body that calls `meanwhile` whenever somebody waits for more of it."""

    def __init__(self, data: bytes, meanwhile: Callable[[], None]) -> None:
        super().__init__(data)
        self._meanwhile = meanwhile

    def read(self, size: int | None = -1) -> bytes:
        self._meanwhile()
        return super().read(size)

    def readinto(self, buffer: Any) -> int:
        self._meanwhile()
        return super().readinto(buffer)


@pytest.fixture
def team(database: Database) -> Team:
    return make_team(database)


def send(somebody: Acting, method: str, path: str, kind: str, meanwhile: Callable[[], None]) -> Any:
    data = BODIES[kind].encode()
    return somebody.client.open(
        path,
        method=method,
        input_stream=Arriving(data, meanwhile),
        content_type=kind,
        headers=JSON | somebody._token | {"Content-Length": str(len(data)), "If-Match": "*"},
    )


@pytest.mark.parametrize("kind", BODIES)
def test_no_view_holds_a_connection_while_a_body_arrives(app: Any, database: Database, team: Team, kind: str) -> None:
    held: dict[str, int] = {}
    pool = app.extensions["hub"].db.engine.pool
    for rule in app.url_map.iter_rules():
        for method in sorted(rule.methods & {"POST", "PUT", "PATCH", "DELETE"}):
            # Anew for each, since some of them sign out, or delete what others are about.
            somebody = Acting(app, database, team.admin)
            course_id = make_course(database, team, pages=1)
            values = {
                "slug": team.workspace.slug,
                "course_id": course_id,
                "page_id": rows(database, "select id from hub.page where course_id = :id", id=course_id)[0].id,
                "job_id": make_job(database, team, "finished"),
                "person_id": add_member(database, team, "viewer").id,
                "session_id": course_id,
                "backup_id": course_id,
                "kind": "course.tag",
            }
            with app.test_request_context():
                path = rule.build({name: values[name] for name in rule.arguments})[1]
            name = f"{method} {rule.rule}"

            def look(name: str = name) -> None:
                held[name] = max(held.get(name, 0), pool.checkedout())

            send(somebody, method, path, kind, look)
    assert {name for name, count in held.items() if count} == set()
    assert {
        "POST /w/<slug>/courses",
        "POST /w/<slug>/courses/import",
        "PATCH /w/<slug>/courses/<uuid:course_id>",
        "POST /w/<slug>/courses/<uuid:course_id>/edit",
        "POST /w/<slug>/courses/<uuid:course_id>/pages",
        "PATCH /w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>",
        "POST /w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>/edit",
        "POST /w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>/delete",
        "POST /w/<slug>/jobs",
    } <= held.keys()


@pytest.mark.parametrize(
    ("method", "at"),
    [("POST", ""), ("PATCH", "/{0}"), ("POST", "/{0}/edit"), ("POST", "/{0}/pages"), ("PATCH", "/{0}/pages/{1}")]
    + [("POST", "/{0}/pages/{1}/edit"), ("POST", "/{0}/pages/{1}/delete")],
)
def test_a_right_lost_while_the_body_arrives_is_lost(
    app: Any, database: Database, team: Team, method: str, at: str
) -> None:
    course_id = make_course(database, team, pages=1)
    page_id = rows(database, "select id from hub.page where course_id = :id", id=course_id)[0].id
    somebody = add_member(database, team, "member")

    def lower() -> None:
        with database.transaction() as session:
            lowering = "update hub.membership set role = 'viewer' where person_id = :person"
            session.execute(text(lowering), {"person": somebody.id})

    path = f"/w/{team.workspace.slug}/courses{at.format(course_id, page_id)}"
    answer = send(Acting(app, database, somebody), method, path, "application/json", lower)
    assert answer.status_code == 403, answer.text
    assert rows(database, "select from hub.course where title = 'Cells'") == []
    assert rows(database, "select from hub.page where title = 'Cells'") == []
    assert len(rows(database, "select from hub.page")) == 1


def test_whoever_may_not_edit_is_refused_before_a_body_is_read(app: Any, database: Database, team: Team) -> None:
    viewer = Acting(app, database, add_member(database, team, "viewer"))
    read: list[None] = []
    path = f"/w/{team.workspace.slug}/courses"
    assert send(viewer, "POST", path, "application/json", lambda: read.append(None)).status_code == 403
    assert read == []
