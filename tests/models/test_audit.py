"""The audit trail: what it takes, what it never lets go, and how it is read."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from hub import words
from hub.db import Database, count_statements
from hub.errors import NotFound
from hub.models import audit
from hub.models.audit import ACTIONS, Actor, Filters
from tests import cluster
from tests.factories import Team, make_team, row, rows


@pytest.fixture
def team(database: Database) -> Team:
    return make_team(database)


def record(database: Database, team: Team, action: str = "course.renamed", **fields: Any) -> int:
    values: dict[str, Any] = {"actor": team.actor, "workspace_id": team.workspace.id} | fields
    with database.transaction() as session:
        return audit.record(session, action, **values)


def listed(database: Database, team: Team | None, **filters: Any) -> list[int]:
    with database.transaction() as session:
        found = audit.entries(session, team.workspace.id if team else None, Filters(**filters))
    return [entry.event.id for entry in found]


def test_every_action_has_its_sentence_and_every_field_its_label() -> None:
    for name, action in ACTIONS.items():
        assert words.has(f"audit.action.{name}")
        assert words.has(f"audit.group.{name.partition('.')[0]}")
        for field in action.fields:
            assert words.has(f"audit.field.{field}")


def test_an_action_or_a_field_that_is_not_in_the_catalogue_is_refused(database: Database, team: Team) -> None:
    for action, fields in (
        ("course.exploded", {}),
        ("course.renamed", {"changes": {"body": "text"}}),
        ("course.renamed", {"outcome": "perhaps"}),
    ):
        with pytest.raises(ValueError, match="audit action"):
            record(database, team, action, **fields)
    assert rows(database, "select from audit.event") == []


def test_the_database_sets_id_time_and_transaction(database: Database, team: Team) -> None:
    with database.transaction() as session:
        first = audit.record(session, "course.renamed", actor=team.actor, workspace_id=team.workspace.id)
        second = audit.record(session, "course.renamed", actor=team.actor, workspace_id=team.workspace.id)
        xid = session.execute(text("select pg_current_xact_id()::text")).scalar_one()
    events = rows(database, "select id, xid::text, at <= clock_timestamp() as past from audit.event order by id")
    assert [tuple(event) for event in events] == [(first, xid, True), (second, xid, True)]


def test_long_values_are_cut(database: Database, team: Team) -> None:
    record(database, team, target_name="n" * 1000, changes={"title": ["a" * 1000, "b" * 1000]})
    event = row(database, "select target_name, changes from audit.event")
    assert (len(event.target_name), [len(value) for value in event.changes["title"]]) == (300, [300, 300])


CHANGES = [
    "update audit.event set actor_name = 'nobody'",
    "delete from audit.event",
    "truncate audit.event",
    "insert into audit.event select * from audit.event",
    "alter table audit.event disable trigger all",
    "drop table audit.event",
    "create or replace function audit.refuse_change() returns trigger language sql as 'select null'",
    "set session_replication_role = replica",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_the_application_can_only_add(database: Database, team: Team, statement: str) -> None:
    record(database, team)
    with psycopg.connect(database.url, autocommit=True) as connection, pytest.raises(psycopg.Error):
        connection.execute(statement)
    assert row(database, "select actor_name from audit.event").actor_name == team.admin.name


@pytest.mark.parametrize("statement", CHANGES[:3])
@pytest.mark.parametrize("role", ["origin", "replica"])
def test_not_even_owner_and_superuser_change_or_remove_an_event(
    database: Database, team: Team, admin_url: str, statement: str, role: str
) -> None:
    record(database, team)
    for address in (admin_url, cluster.as_role(admin_url, "hub_migrate")):
        with psycopg.connect(address, autocommit=True) as connection:
            if address == admin_url:
                connection.execute(f"set session_replication_role = {role}")
            with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                connection.execute(statement)
    assert len(rows(database, "select from audit.event")) == 1


def test_events_are_narrowed_by_each_filter_and_by_all_together(database: Database, team: Team) -> None:
    maria = Actor(id=uuid.uuid4(), name="Maria Ölsen", request_id="r1")
    course = uuid.uuid4()
    wanted = record(
        database, team, actor=maria, target_id=course, outcome="refused", job_id=7, changes={"title": ["a", "b"]}
    )
    record(database, team, "page.created", target_id=uuid.uuid4())
    record(database, make_team(database))
    filters = {
        "who": "ÖLS",
        "action": "course.renamed",
        "outcome": "refused",
        "target_kind": "course",
        "target_id": str(course),
        "job_id": 7,
        "request_id": "r1",
        "since": datetime.now(UTC) - timedelta(hours=1),
        "until": datetime.now(UTC) + timedelta(hours=1),
    }
    for name in filters.keys() - {"since", "until"}:
        assert listed(database, team, **{name: filters[name]}) == [wanted], name
    assert listed(database, team, **filters) == [wanted]
    assert listed(database, team, **filters | {"action": "course", "who": str(maria.id)}) == [wanted]
    assert listed(database, team, action="course.exploded") == []
    assert len(listed(database, team)) == 2
    assert len(listed(database, None)) == 3


def test_who_is_matched_as_words_and_not_as_a_pattern(database: Database, team: Team) -> None:
    record(database, team, actor=Actor(id=None, name="100% sure_"))
    record(database, team, actor=Actor(id=None, name="100 sure"))
    assert len(listed(database, team, who="0% s")) == 1
    assert len(listed(database, team, who="_")) == 1


def test_a_walk_sees_each_event_once_also_of_one_moment(database: Database, team: Team, admin_url: str) -> None:
    with psycopg.connect(admin_url) as connection:
        connection.execute(
            """
            insert into audit.event (id, xid, at, workspace_id, actor_name, actor_kind, channel, action, outcome,
                target_kind, target_name)
            select 1000000 + n, pg_current_xact_id(),
                timestamptz '2026-11-30 12:00Z' + (n / 100) * interval '1 second', %s, '', 'hub',
                'hub', 'course.renamed', 'done', 'course', ''
            from generate_series(1, 450) n
            """,
            [team.workspace.id],
        )
    seen: list[int] = []
    before = None
    while True:
        with database.transaction() as session:
            page = audit.entries(session, team.workspace.id, Filters(), before=before, limit=50)
        if not page:
            break
        seen += [entry.event.id for entry in page]
        before = (page[-1].event.at, page[-1].event.id)
        record(database, team)
    assert seen == list(range(1_000_450, 1_000_000, -1))


def test_a_jobs_history_is_a_story_and_a_things_history_begins_with_the_newest(database: Database, team: Team) -> None:
    course = uuid.uuid4()
    first = record(database, team, target_id=course)
    ids = [record(database, team, action, target_id=12, job_id=12) for action in ("job.queued", "job.succeeded")]
    second = record(database, team, target_id=course)
    with database.transaction() as session:
        job = audit.timeline(session, team.workspace.id, job_id=12)
        thing = audit.timeline(session, team.workspace.id, target_kind="course", target_id=course)
        other = audit.timeline(session, make_team(database).workspace.id, job_id=12)
        neighbours = audit.neighbours(session, thing[0])
    assert [event.id for event in job] == ids
    assert [event.id for event in thing] == [second, first]
    assert other == []
    assert neighbours == (first, None)


def test_an_event_is_found_in_its_own_workspace_only(database: Database, team: Team) -> None:
    event_id = record(database, team)
    other = make_team(database)
    with database.transaction() as session:
        assert audit.find(session, team.workspace.id, event_id).slug == team.workspace.slug
        assert audit.find(session, None, event_id).workspace == team.workspace.name
        with pytest.raises(NotFound):
            audit.find(session, other.workspace.id, event_id)


def test_a_list_is_one_statement(database: Database, team: Team) -> None:
    for _ in range(3):
        record(database, team)
    statements = count_statements(database)
    assert len(listed(database, None)) == 3
    assert len(statements) == 1


def test_the_default_view_reads_by_index_however_long_the_trail_is(
    database: Database, team: Team, admin_url: str
) -> None:
    with database.transaction() as session:
        session.execute(
            text("""
                select audit.record(
                    md5((n % 50)::text)::uuid, null, 'Hub', 'hub', 'hub', null, null,
                    'course.created', 'done', 'course', n::text, '', null, '{}')
                from generate_series(1, 5000) n
            """)
        )
    record(database, team)
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("analyze audit.event")
    with database.transaction() as session:
        plan = session.execute(
            text("""
                explain select * from audit.event where workspace_id = :workspace and at >= now() - interval '7 days'
                order by at desc, id desc limit 50
            """),
            {"workspace": team.workspace.id},
        ).scalars()
        assert "event_workspace_id_at_idx" in "".join(plan)


def test_what_is_compared_is_told_apart_from_what_is_not(database: Database, team: Team) -> None:
    record(database, team, changes={"title": ["old", "new"]})
    record(database, team, "page.created", changes={"tags": ["a", "b"], "title": "t"})
    with database.transaction() as session:
        created, renamed = (entry.event for entry in audit.entries(session, team.workspace.id, Filters()))
    assert renamed.differences == [("title", "old", "new")]
    assert created.differences == [("tags", None, ["a", "b"]), ("title", None, "t")]
