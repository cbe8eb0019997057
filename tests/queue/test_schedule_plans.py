"""The statements of clock and retention read their rows by keys, with few rows and with very many."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from hub import postgres
from hub.db import Database
from hub.queue import ledger, retention
from tests import cluster
from tests.queue.test_plans import generic_plan, indexes, read_whole, scanned

MANY = """
set session_replication_role = replica;
insert into queue.schedule (name, cron, time_zone)
select 'schedule' || n, '* * * * *', 'UTC' from generate_series(1, 10) n;
insert into queue.tick (schedule, due_at, outcome, job_id)
select 'schedule' || n % 10 + 1, date_trunc('minute', now()) - n * interval '1 minute', 'fired', n
from generate_series(1, 100000) n;
insert into queue.job (queue, kind, state, max_attempts, attempt_seconds, args, created_at, finished_at)
select 'q', 'k', 'succeeded', 5, 300, '{}', now(), now() from generate_series(1, 20000);
insert into queue.request (job_id, workspace_id, actor_id, actor_name, kind, subject_name, idempotency_key, fingerprint)
select id, gen_random_uuid(), gen_random_uuid(), 'Ada', 'k', 's', 'key', decode(repeat('00', 32), 'hex')
from queue.job where id % 5 = 0
"""
STATES = {
    "never analysed": [],
    "with 100,000 old ticks": [MANY, "vacuum analyze"],
    "with 100,000 old ticks that came after it was analysed": ["vacuum analyze", MANY],
}
# As the chores' connection has it.
OPTIONS = "-c enable_seqscan=off"

TYPES = {
    "name": "text", "names": "text[]", "schedule": "text", "due_at": "timestamptz", "until": "timestamptz",
    "job_id": "bigint", "id": "bigint", "outcome": "text", "reason": "text", "error": "text", "by_id": "uuid",
    "by_name": "text", "before": "timestamptz", "most": "integer", "days": "integer", "crons": "text[]",
    "time_zones": "text[]", "cron": "text", "time_zone": "text", "worker_id": "bigint",
    "through_at": "timestamptz[]", "outcomes": "text[]", "reasons": "text[]",
}  # fmt: skip


@pytest.fixture(scope="module")
def databases(server: Any) -> Iterator[dict[str, Database]]:
    """A database for each state of its tables, reached as the chores reach it."""
    made = {}
    for number, state in enumerate(STATES):
        name = f"test_{os.getpid()}_ticks{number}"
        cluster.clone(server, name)
        with psycopg.connect(server.url(postgres.SUPERUSER, name), autocommit=True) as connection:
            for statement in STATES[state]:
                connection.execute(statement.encode())
        made[state] = Database(server.url("hub_app", name), application_name="tests", options=OPTIONS)
    yield made
    for number, own in enumerate(made.values()):
        own.close()
        cluster.drop(server, f"test_{os.getpid()}_ticks{number}")


def plan_of(database: Database, statement: str) -> list[dict[str, Any]]:
    """The plan that a prepared statement keeps."""
    parameters = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))
    arrays = {"due_at": "timestamptz[]"} if "unnest(%(due_at)s" in statement else {}
    return generic_plan(database, statement, {name: (TYPES | arrays)[name] for name in parameters})


def how_read(plan: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """How a plan reads ticks and jobs."""
    return [
        (node["Node Type"], node["Index Name"], node.get("Index Cond", ""))
        for node in plan
        if node.get("Index Name") in ("tick_pkey", "job_pkey")
    ]


@pytest.mark.parametrize("name", ledger.SQL)
def test_what_the_clock_does_reads_rows_by_their_keys_and_has_one_plan(
    databases: dict[str, Database], name: str
) -> None:
    plans = {state: plan_of(database, ledger.SQL[name]) for state, database in databases.items()}
    for state, plan in plans.items():
        # There are no more schedules than kinds.
        assert scanned(plan) == [] and set(read_whole(plan)) <= {"schedule_pkey"}, state
    assert len({str(how_read(plan)) for plan in plans.values()}) == 1


@pytest.mark.parametrize("state", STATES)
def test_looking_for_old_jobs_walks_their_primary_key(databases: dict[str, Database], state: str) -> None:
    plan = plan_of(databases[state], retention.SQL["prune_jobs"])
    assert scanned(plan) == read_whole(plan) == []
    assert indexes(plan, "job") == {"job_pkey"}
    if "100,000" in state:
        # While nobody has asked for anything it does not matter which, and the statement is planned anew each time.
        assert indexes(plan, "request") == {"request_pkey"}
    assert indexes(plan, "dead_letter") <= {"dead_letter_pkey"}


@pytest.mark.parametrize("state", STATES)
def test_looking_for_old_ticks_begins_with_the_oldest_of_each_schedule(
    databases: dict[str, Database], state: str
) -> None:
    plan = plan_of(databases[state], retention.SQL["prune_ticks"])
    assert "tick" not in scanned(plan)
    assert "tick_pkey" not in read_whole(plan)
    assert indexes(plan, "tick") == {"tick_pkey"}
