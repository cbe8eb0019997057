"""One short function a statement: values in, rows out. It decides nothing; the SQL stands in queries.sql."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from hub.queue import sql
from hub.queue.job import Claimed, Ended, Enqueued
from hub.queue.kind import EXCLUSIVE, Kind

SQL = sql.load(Path(__file__).parent / "queries.sql")

Connection = psycopg.Connection[Any]
Row = dict[str, Any]


def enqueue(
    connection: Connection,
    kind: Kind,
    args: dict[str, Any],
    *,
    ceiling: int,
    workspace_id: UUID | None = None,
    subject: str | None = None,
    key: str | None = None,
    delay: float | None = None,
    request_id: str | None = None,
) -> Enqueued:
    """Put a job of `kind` in its queue, in the caller's transaction, and wake a worker when that commits.

    args: its arguments, JSON. ceiling: the deployment's ceiling on attempts. key: the singleton key, which an exclusive
    kind needs. delay: seconds until it may start. Answers with the new job, or with the live one that holds the key.
    """
    if (kind.policy == EXCLUSIVE) != (key is not None):
        raise ValueError(f"{kind.name}: a singleton key goes with exclusive kinds, and only with them")
    values = {
        "queue": kind.line,
        "kind": kind.name,
        "priority": kind.priority,
        "workspace_id": workspace_id,
        "subject": subject,
        "live_key": key,
        "max_attempts": min(kind.attempts, ceiling),
        "attempt_seconds": kind.deadline,
        "delay": delay,
        "args": json.dumps(args),
        "request_id": request_id,
    }
    while True:
        if row := _one(connection, "enqueue", values):
            announce(connection, kind.line)
            return Enqueued(row["id"], created=True)
        # The twin may have ended between the two statements: then the key is free, and the insert is tried again.
        if twin := _one(connection, "live_twin", {"queue": kind.line, "live_key": key}):
            return Enqueued(twin["id"], created=False)


def announce(connection: Connection, queue: str) -> None:
    """Wake a worker of the queue once the transaction commits."""
    _one(connection, "announce", {"queue": queue})


def add_request(connection: Connection, **values: Any) -> None:
    """Note whose wish a job is; columns as in queue.request."""
    connection.execute(SQL["add_request"], values)


def find_request(connection: Connection, workspace_id: UUID, actor_id: UUID, key: str) -> Row | None:
    """The job (`job_id`, `fingerprint`) that an idempotency key already made."""
    values = {"workspace_id": workspace_id, "actor_id": actor_id, "idempotency_key": key}
    return _one(connection, "find_request", values)


def count_pending(connection: Connection, workspace_id: UUID, actor_id: UUID) -> Row:
    """Jobs not yet ended: `workspace`, and `actor` in it."""
    row = _one(connection, "count_pending", {"workspace_id": workspace_id, "actor_id": actor_id})
    assert row is not None
    return row


def day_wait(connection: Connection, workspace_id: UUID, most: int) -> float | None:
    """Seconds until another job may be created under the daily limit; None if one may now."""
    row = _one(connection, "day_wait", {"workspace_id": workspace_id, "most": most})
    return row["seconds"] if row else None


def pending_wait(connection: Connection, workspace_id: UUID, actor_id: UUID | None) -> float | None:
    """Seconds until the first pending job should end by its own speed; None if that cannot be told."""
    row = _one(connection, "pending_wait", {"workspace_id": workspace_id, "actor_id": actor_id})
    return row["seconds"] if row else None


def make_worklist(connection: Connection, job_id: int, items: str, values: dict[str, Any]) -> int:
    """Store the job's items from the query `items` (columns item uuid, place); returns how many, and sets the total."""
    statement = SQL["make_worklist"].replace("%(items)s", items)
    row = _fetch(connection, statement, values | {"job_id": job_id})
    assert row is not None
    total: int = row["total"]
    connection.execute(SQL["set_total"], {"job_id": job_id, "total": total})
    return total


def start_worker(connection: Connection, name: str, lanes: dict[str, int]) -> int:
    """Register a worker process; returns its number, never issued twice."""
    row = _one(connection, "start_worker", {"name": name, "lanes": json.dumps(lanes)})
    assert row is not None
    number: int = row["id"]
    return number


def stop_worker(connection: Connection, worker_id: int) -> None:
    """Note that the worker has drained."""
    connection.execute(SQL["stop_worker"], {"id": worker_id})


def claim(
    connection: Connection, queue: str, kinds: list[str], *, claim: int, lanes: int, lease: float
) -> list[Claimed]:
    """Take up to `lanes` jobs of the queue under the claim number; `lease` is seconds. In order of urgency."""
    statement = SQL["claim"].replace("%(lanes)s", str(int(lanes)))
    values = {"queue": queue, "kinds": kinds, "claim": claim, "lease": lease}
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(statement.encode(), values, prepare=True).fetchall()
    return [Claimed(**{name: row[name] for name in Claimed.__dataclass_fields__}) for row in rows]


def look(connection: Connection, queues: list[str], kinds: list[str]) -> list[Row]:
    """For each queue: `due_in` seconds until its next due job (None: none) and whether `fresh` jobs wait."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(SQL["look"].encode(), {"queues": queues, "kinds": kinds}, prepare=True).fetchall()


def renew(connection: Connection, job_id: int, claim: int, lease: float) -> float | None:
    """Extend a lease to `lease` seconds from now, never past the deadline; answers for how many seconds it is good.

    None: the claim is lost, or its deadline has passed.
    """
    row = _one(connection, "renew", {"id": job_id, "claim": claim, "lease": lease})
    return row["good_for"] if row else None


def announce_progress(connection: Connection, job_ids: list[int]) -> None:
    """Tell watchers that these jobs moved on."""
    _one(connection, "announce_progress", {"ids": ",".join(map(str, job_ids))})


def held(connection: Connection, job_id: int, claim: int) -> Row | None:
    """Counters and `cancelled` of a job as they stand, if the claim still holds."""
    return _one(connection, "held", {"id": job_id, "claim": claim})


def worklist_chunk(connection: Connection, job_id: int, chunk: int) -> list[UUID]:
    """The items of a chunk; empty past the end."""
    row = _one(connection, "worklist_chunk", {"id": job_id, "chunk": chunk})
    return row["items"] if row else []


def compose_step(item: str) -> bytes:
    """The step statement around a kind's own CTEs; composed once for each kind."""
    return SQL["step"].replace("%(item)s", item).encode()


def step(connection: Connection, statement: bytes, values: dict[str, Any]) -> tuple[int, int, str | None, str] | None:
    """Do one item: (changed, skipped, problem, title); None if the fence does not hold."""
    return connection.execute(statement, values, prepare=True).fetchone()


def fail_item(connection: Connection, **values: Any) -> bool:
    """Record an item's failure; False if the fence does not hold."""
    return _one(connection, "fail_item", values) is not None


def report(connection: Connection, job: Claimed, *, done: int, total: int | None, bytes_written: int | None) -> bool:
    """Tell how far the job has come; False if the fence does not hold."""
    values = {"id": job.id, "claim": job.claim, "done": done, "total": total, "bytes": bytes_written}
    return _one(connection, "report", values) is not None


def retry(connection: Connection, job: Claimed, *, wait: float, code: str, error: str) -> bool:
    """Put the job back for another attempt after `wait` seconds; False: lost, or a cancel request is in the way."""
    values = {"id": job.id, "claim": job.claim, "wait": wait, "code": code, "error": error}
    return _one(connection, "retry", values) is not None


def release(connection: Connection, job: Claimed) -> bool:
    """Give the job back without charging the attempt; False: lost, or a cancel request is in the way."""
    return _one(connection, "release", {"id": job.id, "claim": job.claim}) is not None


def finish(
    connection: Connection,
    job: Claimed,
    *,
    state: str,
    code: str | None = None,
    error: str | None = None,
    result: dict[str, Any] | None = None,
    dead: bool = False,
    closing_failed: bool = False,
) -> Ended | None:
    """End a running job; None if the lease is lost."""
    row = _one(
        connection,
        "finish",
        {
            "id": job.id,
            "claim": job.claim,
            "state": state,
            "code": code,
            "error": error,
            "result": None if result is None else json.dumps(result),
            "dead": dead,
            "closing_failed": closing_failed,
        },
    )
    return _ended(row, code, job.request_id) if row else None


def cancel(
    connection: Connection, job_id: int, by_id: UUID, by_name: str, *, closing_failed: bool = False
) -> Ended | None:
    """Ask for a job's end. None if it has ended or was asked before; else the row as it stands after the request."""
    values = {"id": job_id, "by_id": by_id, "by_name": by_name, "closing_failed": closing_failed}
    row = _one(connection, "cancel", values)
    return _ended(row, None, None) if row else None


def requested_by(connection: Connection, job_id: int) -> Row | None:
    """Who asked for a job: `workspace_id`, `actor_id`, `actor_name`, `subject_name`; None for a machine's job."""
    return _one(connection, "requested_by", {"id": job_id})


def _ended(row: Row, code: str | None, request_id: str | None) -> Ended:
    names = ("id", "queue", "kind", "state", "total", "changed", "skipped", "failed")
    return Ended(**{name: row[name] for name in names}, code=code, request_id=request_id)


def _one(connection: Connection, name: str, values: dict[str, Any]) -> Row | None:
    return _fetch(connection, SQL[name], values)


def _fetch(connection: Connection, statement: str, values: dict[str, Any]) -> Row | None:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), values).fetchone()
