"""The statements of the hot path are planned onto their indexes, whatever the statistics say when they are prepared."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from hub import db, postgres
from hub.db import Database
from hub.jobs import course_tag
from hub.queue import store
from tests import cluster

SMALL = """
insert into hub.workspace (id, slug, name) values (gen_random_uuid(), 'w', 'w');
insert into hub.person (id, email, name, password_hash) values (gen_random_uuid(), 'p', 'p', 'p');
insert into hub.membership (workspace_id, person_id, role)
select w.id, p.id, 'admin' from hub.workspace w, hub.person p;
insert into hub.course (id, workspace_id, title, updated_by) select gen_random_uuid(), id, 'c', '' from hub.workspace;
insert into hub.page (id, course_id, position, title, body, updated_by)
select gen_random_uuid(), id, n, 't', 'b', '' from hub.course, generate_series(1, 5) n;
insert into hub.tag (id, workspace_id, name, key) select gen_random_uuid(), id, 't', 't' from hub.workspace;
insert into hub.page_tag (page_id, tag_id) select p.id, t.id from hub.page p, hub.tag t;
"""

FILL = """
insert into queue.job (queue, kind, state, max_attempts, attempt_seconds, total, changed, attempt,
                       created_at, started_at, finished_at)
select 'workspace.jobs', 'course.tag', 'succeeded', 5, 300, 10, 10, 1, now(), now(), now()
from generate_series(1, 1000000);
insert into queue.job (queue, kind, workspace_id, max_attempts, attempt_seconds)
select 'workspace.jobs', 'course.tag', gen_random_uuid(), 5, 300 from generate_series(1, 100);
insert into queue.detail (job_id, args) select id, '{}' from queue.job where id % 10 = 0
"""

WAITING = """
insert into queue.job (queue, kind, workspace_id, max_attempts, attempt_seconds)
select 'workspace.jobs', 'course.tag', md5((n % 100)::text)::uuid, 5, 300 from generate_series(1, 50000) n
"""

# A statement may be planned for good at any of these moments of a database's life: what happened before it.
STATES = {
    "never analysed": [SMALL],
    "analysed empty": ["vacuum analyze", SMALL],
    "analysed with one small course": [SMALL, "vacuum analyze"],
    "analysed when 1,000,000 jobs had ended": [FILL, "vacuum analyze", SMALL],
    "analysed when 50,000 jobs waited": [WAITING, "vacuum analyze", SMALL],
}


@pytest.fixture(scope="module")
def databases(server: Any) -> Iterator[dict[str, Database]]:
    """A database for each state of the statistics, reached with a worker's options."""
    made = {}
    for number, state in enumerate(STATES):
        name = f"test_{os.getpid()}_plans{number}"
        cluster.clone(server, name)
        with psycopg.connect(server.url(postgres.SUPERUSER, name), autocommit=True) as connection:
            for statement in STATES[state]:
                connection.execute(statement.encode())
        made[state] = Database(server.url("hub_app", name), application_name="tests", options=db.KEYED_PLANS)
    yield made
    for number, own in enumerate(made.values()):
        own.close()
        cluster.drop(server, f"test_{os.getpid()}_plans{number}")


def generic_plan(database: Database, statement: str, types: dict[str, str]) -> list[dict[str, Any]]:
    """The nodes of the plan that a prepared statement keeps, for psycopg's statement with named parameters."""
    order = list(types)
    numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${order.index(found[1]) + 1}", statement).replace("%%", "%")
    with database.autocommit() as connection:
        connection.execute(f"prepare planned ({', '.join(types.values())}) as {numbered}".encode())
        nulls = ", ".join(f"null::{kind}" for kind in types.values())
        ((answer,),) = connection.execute(f"explain (format json) execute planned ({nulls})".encode()).fetchall()
        connection.execute("deallocate planned")
    return list(nodes(answer[0]["Plan"] if not isinstance(answer, str) else json.loads(answer)[0]["Plan"]))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan's nodes, one after the other."""
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def scanned(plan: list[dict[str, Any]]) -> list[str]:
    """The tables that a plan reads from end to end."""
    return [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"]


def read_whole(plan: list[dict[str, Any]]) -> list[str]:
    """The indexes that a plan reads from end to end: without a condition."""
    return [node["Index Name"] for node in plan if "Index Name" in node and "Index Cond" not in node]


def indexes(plan: list[dict[str, Any]], relation: str) -> set[str]:
    """The indexes that a plan uses to read a table. A bitmap's index scan does not name its table."""
    return {
        node["Index Name"]
        for node in plan
        if "Index Name" in node and (node.get("Relation Name") == relation or node["Index Name"].startswith(relation))
    }


CLAIM = {"queue": "text", "kinds": "text[]", "claim": "bigint", "lease": "float8"}
FULL_CLAIM = CLAIM | {"after": "uuid"}


@pytest.mark.parametrize("state", STATES)
def test_a_claim_reads_the_line_of_its_queue_and_nothing_else(databases: dict[str, Database], state: str) -> None:
    plan = generic_plan(
        databases[state], store.SQL["claim"].replace("%(lanes)s", "2").replace("%(fresh)s", "2"), FULL_CLAIM
    )
    assert scanned(plan) == read_whole(plan) == []
    assert indexes(plan, "job") == {"job_fresh", "job_again", "job_pkey"}
    assert indexes(plan, "detail") == {"detail_pkey"}


@pytest.mark.parametrize("state", STATES)
def test_a_claim_ahead_reads_the_line_of_its_queue_and_nothing_else(databases: dict[str, Database], state: str) -> None:
    plan = generic_plan(databases[state], store.SQL["claim_ahead"].replace("%(most)s", "500"), CLAIM)
    assert scanned(plan) == read_whole(plan) == []
    assert indexes(plan, "job") == {"job_fresh", "job_pkey"}


@pytest.mark.parametrize("state", STATES)
def test_the_look_for_what_is_due_reads_two_index_ends(databases: dict[str, Database], state: str) -> None:
    plan = generic_plan(databases[state], store.SQL["look"], {"queues": "text[]", "kinds": "text[]"})
    assert scanned(plan) == read_whole(plan) == []
    assert indexes(plan, "job") == {"job_fresh", "job_again"}


@pytest.mark.parametrize("state", STATES)
def test_a_step_reads_rows_by_their_keys_only(databases: dict[str, Database], state: str) -> None:
    types = {
        "id": "bigint",
        "claim": "bigint",
        "position": "integer",
        "page_id": "uuid",
        "course_id": "uuid",
        "tag_ids": "uuid[]",
        "workspace_id": "uuid",
        "actor_id": "uuid",
        "actor_name": "text",
        "most_tags": "integer",
    }
    plan = generic_plan(databases[state], store.compose_step(course_tag.TAG_PAGE).decode(), types)
    assert scanned(plan) == read_whole(plan) == []
    assert indexes(plan, "job") == {"job_pkey"}
    assert indexes(plan, "page") == {"page_pkey", "page_tag_pkey"}


KEYED = [
    "renew", "renew_many", "held", "worklist_chunk", "fail_item", "retry", "snooze", "release", "unclaim", "complete",
    "finish", "cancel", "requested_by",
]  # fmt: skip
TYPES = {
    "id": "bigint", "claim": "bigint", "lease": "float8", "chunk": "integer", "position": "integer", "code": "text",
    "item_id": "text", "title": "text", "wait": "float8", "error": "text", "state": "text", "result": "text",
    "closing_failed": "boolean", "dead": "boolean", "told": "boolean", "by_id": "uuid", "by_name": "text",
    "ids": "bigint[]",
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", KEYED)
def test_what_is_written_on_a_job_reads_rows_by_their_keys_only(
    databases: dict[str, Database], name: str, state: str
) -> None:
    statement = store.SQL[name]
    types = {parameter: TYPES[parameter] for parameter in dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))}
    plan = generic_plan(databases[state], statement, types)
    assert scanned(plan) == read_whole(plan) == []


ADMISSION = {
    "find_request": {"workspace_id": "uuid", "actor_id": "uuid", "idempotency_key": "text"},
    "count_pending": {"workspace_id": "uuid", "actor_id": "uuid"},
    "day_wait": {"workspace_id": "uuid", "most": "integer"},
    "live_twin": {"queue": "text", "live_key": "text"},
}


@pytest.mark.parametrize("name", ADMISSION)
def test_admission_reads_indexes_only(databases: dict[str, Database], name: str) -> None:
    database = databases["analysed when 1,000,000 jobs had ended"]
    assert scanned(generic_plan(database, store.SQL[name], ADMISSION[name])) == []
