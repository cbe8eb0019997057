"""Jobs in any stored state, and signed-in clients, for tests of pages."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from datetime import timedelta
from functools import lru_cache
from typing import Any

from hub.db import Database, driver
from hub.models.person import Person, hash_password
from hub.queue import reads
from hub.queue.reads import Job
from tests import factories
from tests.factories import Team

PASSWORD = "a password for tests"
_numbers = itertools.count(1)

# For each label, the columns of a row that carries it. Times are seconds from now.
STORED: dict[str, dict[str, Any]] = {
    "waiting": {"state": "queued"},
    "scheduled": {"state": "queued", "again_at": 3600},
    "running": {"state": "running", "attempt": 1, "changed": 95, "skipped": 4, "failed": 3},
    "stopping": {"state": "running", "attempt": 1, "changed": 103, "cancel_requested_at": -5},
    "retrying": {"state": "queued", "attempt": 2, "again_at": 42, "changed": 102, "started_at": -60},
    "finished": {"state": "succeeded", "attempt": 1, "changed": 236, "skipped": 4},
    "finished_with_problems": {"state": "succeeded", "attempt": 1, "changed": 237, "failed": 3},
    "failed": {"state": "failed", "attempt": 1, "changed": 102, "code": "actor_not_authorized"},
    "needs_attention": {"state": "failed", "attempt": 5, "changed": 10, "code": "worker_lost", "dead_letter": True},
    "cancelled": {"state": "cancelled", "attempt": 1, "changed": 103, "cancel_requested_at": -20},
}
TIMES = ("again_at", "deadline_at", "cancel_requested_at", "progressed_at", "created_at", "started_at", "finished_at")


def make_job(database: Database, team: Team, label: str = "waiting", **columns: Any) -> int:
    """A job that wears `label`, asked for by the team's admin; returns its number. `columns` overrule."""
    values = _defaults(STORED[label]) | STORED[label] | columns
    job_id: int
    with database.transaction() as session:
        connection = driver(session)
        job_id = connection.execute(_JOB, _job_values(team, values)).fetchone()[0]  # type: ignore[index]
        connection.execute(_DETAIL, _detail_values(job_id, values))
        connection.execute(_REQUEST, _request_values(job_id, team, values))
        if values.get("dead_letter"):
            connection.execute(
                "insert into queue.dead_letter (job_id, queue, kind, code, of_people)"
                " values (%s, 'workspace.jobs', %s, %s, true)",
                [job_id, values["kind"], values["code"]],
            )
    return job_id


def change_job(database: Database, job_id: int, assignments: str, **values: Any) -> None:
    """Change a job as a worker would, and tell those who watch it."""
    with database.transaction() as session:
        connection = driver(session)
        statement = f"update queue.job set {assignments}, version = version + 1 where id = %(id)s"
        connection.execute(statement, values | {"id": job_id})  # type: ignore[arg-type]
        connection.execute("select pg_notify('hub_job', %s)", [str(job_id)])


def finish_job(database: Database, job_id: int) -> None:
    """End a running job in success."""
    change_job(
        database,
        job_id,
        "state = 'succeeded', changed = total - skipped - failed, claim = null, again_at = null, deadline_at = null,"
        " finished_at = statement_timestamp()",
    )


def read_job(database: Database, job_id: int) -> Job:
    """The job as pages read it."""
    with database.transaction() as session:
        (job,) = reads.these(driver(session), [job_id])
    return job


def sign_in(client: Any, database: Database, person: Person) -> str:
    """Sign the person in with a test client; returns the CSRF token of the new session."""
    factories.run(database, "update hub.person set password_hash = :hash where id = :id", hash=_hash(), id=person.id)
    token = csrf_token(client.get("/sign-in").text)
    answer = client.post("/sign-in", json={"email": person.email, "password": PASSWORD}, headers={"X-CSRFToken": token})
    assert answer.status_code == 200, answer.text
    return csrf_token(client.get("/account").text)


def csrf_token(page: str) -> str:
    """The token that a page carries."""
    found = re.search(r'name="csrf-token" content="([^"]+)"', page)
    assert found, page
    return found[1]


@lru_cache
def _hash() -> str:
    return hash_password(PASSWORD)


def _defaults(stored: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(TIMES) | {
        "kind": "course.tag",
        "total": 240,
        "attempt": 0,
        "changed": 0,
        "skipped": 0,
        "failed": 0,
        "done_before": 0,
        "claim": None,
        "created_at": -100,
        "closing_failed": False,
        "subject": f"course:{uuid.uuid4()}",
        "subject_name": "Introduction to Biology",
        "code": None,
        "result": None,
        "error": None,
        "priority": 1,
        "actor": None,
    }
    if stored["state"] == "running":
        values |= {"claim": 1, "started_at": -60, "progressed_at": -1, "again_at": 55, "deadline_at": 299}
    if stored["state"] in ("succeeded", "failed", "cancelled"):
        values |= {"started_at": -60, "progressed_at": -11, "finished_at": -10}
    return values


def _job_values(team: Team, values: dict[str, Any]) -> dict[str, Any]:
    times = {name: None if values[name] is None else timedelta(seconds=values[name]) for name in TIMES}
    return values | times | {"workspace": team.workspace.id}


def _detail_values(job_id: int, values: dict[str, Any]) -> dict[str, Any]:
    course_id = str(values["subject"]).removeprefix("course:")
    asked = {"course_id": course_id, "tags": ["biology"], "pages": "all"}
    items = [
        {
            "id": str(uuid.UUID(int=number)),
            "title": f"Page {number}",
            "code": "edit_conflict",
            "attempt": 1,
            "at": "2026-11-30T14:02:11Z",
        }
        for number in range(1, min(values["failed"], 100) + 1)
    ]
    counts = {"edit_conflict": values["failed"]} if values["failed"] else {}
    failures = values.get("failures", {"counts": counts, "items": items})
    return {
        "id": job_id,
        "args": json.dumps({"course_id": course_id, "tag_ids": [], "asked": asked}),
        "failures": json.dumps(failures),
        "code": values["code"],
        "error": values["error"],
        "result": None if values["result"] is None else json.dumps(values["result"]),
    }


def _request_values(job_id: int, team: Team, values: dict[str, Any]) -> dict[str, Any]:
    actor: Person = values["actor"] or team.admin
    asked_to_stop = values["cancel_requested_at"] is not None
    return {
        "id": job_id,
        "workspace": team.workspace.id,
        "actor": actor.id,
        "actor_name": actor.name,
        "kind": values["kind"],
        "subject": values["subject"],
        "subject_name": values["subject_name"],
        "key": f"key-of-job-{next(_numbers)}",
        "created_at": timedelta(seconds=values["created_at"]),
        "by_id": actor.id if asked_to_stop else None,
        "by_name": actor.name if asked_to_stop else None,
        "ended_as": values["state"] if values["state"] in ("succeeded", "failed", "cancelled") else None,
    }


_JOB = """
    insert into queue.job (queue, kind, state, priority, workspace_id, subject, attempt, max_attempts, attempt_seconds,
        claim, again_at, deadline_at, cancel_requested_at, total, changed, skipped, failed, done_before, progressed_at,
        closing_failed, created_at, started_at, finished_at)
    select 'workspace.jobs', %(kind)s, %(state)s::queue.state, %(priority)s, %(workspace)s, %(subject)s, %(attempt)s, 5,
        300, %(claim)s, now + %(again_at)s::interval, now + %(deadline_at)s::interval,
        now + %(cancel_requested_at)s::interval, %(total)s, %(changed)s, %(skipped)s, %(failed)s, %(done_before)s,
        now + %(progressed_at)s::interval, %(closing_failed)s, now + %(created_at)s::interval,
        now + %(started_at)s::interval, now + %(finished_at)s::interval
    from statement_timestamp() now
    returning id
"""
_DETAIL = """
    insert into queue.detail (job_id, args, failures, code, error, result)
    values (%(id)s, %(args)s, %(failures)s, %(code)s, %(error)s, %(result)s)
"""
_REQUEST = """
    insert into queue.request (job_id, workspace_id, actor_id, actor_name, kind, subject, subject_name, idempotency_key,
        fingerprint, created_at, cancel_by_id, cancel_by_name, ended_as)
    values (%(id)s, %(workspace)s, %(actor)s, %(actor_name)s, %(kind)s, %(subject)s, %(subject_name)s, %(key)s,
        decode(repeat('00', 32), 'hex'), statement_timestamp() + %(created_at)s::interval, %(by_id)s, %(by_name)s,
        %(ended_as)s::queue.state)
"""
