"""One short function a statement: values in, rows out. It decides nothing; the SQL stands in queries.sql."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from pydantic_core import to_json

from hub import __version__
from hub.queue import sql
from hub.queue.job import Claimed, Ended, Enqueued
from hub.queue.kind import EXCLUSIVE, Kind

SQL = sql.load(Path(__file__).parent / "queries.sql")
_ENQUEUE = SQL["enqueue"].encode()
_ENQUEUE_WIDE = SQL["enqueue_wide"].encode()
NO_WORKSPACE = UUID(int=0)
# A worker that gave no sign of life for so many seconds is shown as gone; it beats twice in that time.
WORKER_SILENT = 90.0

Connection = psycopg.Connection[Any]
Row = dict[str, Any]


# Arguments up to so many bytes of JSON stand in the hot row; larger ones would slow down every later write to it.
NARROW = 256
# Keys and subjects stand in indexes, which take no long text.
LONGEST_NAME = 500


class Item(NamedTuple):
    """One job of a bulk enqueue: its arguments, and what is its own beside them."""

    args: dict[str, Any]
    key: str | None = None
    subject: str | None = None
    workspace_id: UUID | None = None


def enqueue(
    connection: Connection,
    kind: Kind,
    args: dict[str, Any],
    *,
    ceiling: int,
    workspace_id: UUID | None = None,
    subject: str | None = None,
    key: str | None = None,
    priority: int | None = None,
    delay: float | None = None,
    start_at: datetime | None = None,
    request_id: str | None = None,
    origin: tuple[int, int] | None = None,
) -> Enqueued:
    """Put a job of `kind` in its queue, in the caller's transaction, and wake a worker when that commits.

    args: its arguments, JSON. ceiling: the deployment's ceiling on attempts. key: the singleton key, which an exclusive
    kind needs. priority: 0 to 2 instead of the kind's own. delay: seconds until it may start; start_at: the time
    instead, with its zone. origin: of a redriven job, the job whose dead letter it comes from and the how manieth
    redrive in a row it is. Answers with the new job, or with the live one that holds the key. Raises ValueError for a
    key that is missing or not allowed, a key or subject that is empty or too long, or a time without a zone.
    """
    _check_key(kind, key, subject)
    if start_at is not None and start_at.tzinfo is None:
        raise ValueError("start_at must say its time zone")
    text = _dump(args)
    values = _common(kind, ceiling, delay) | {
        "priority": kind.priority if priority is None else priority,
        "workspace_id": workspace_id or NO_WORKSPACE,
        "subject": subject,
        "live_key": key,
        "start_at": start_at,
        "args": text,
    }
    statement = _ENQUEUE
    # What people asked for is shown with its details, and so has them from the start.
    if len(text) > NARROW or kind.command or request_id or origin:
        statement = _ENQUEUE_WIDE
        origin_id, redrives = origin or (None, 0)
        values |= {"request_id": request_id, "origin_id": origin_id, "redrives": redrives}
    while True:
        if row := connection.execute(statement, values, prepare=True).fetchone():
            return Enqueued(row[0], created=True)
        # The twin may have ended between the two statements: then the key is free, and the insert is tried again.
        if twin := _one(connection, "live_twin", {"queue": kind.line, "live_key": key}):
            return Enqueued(twin["id"], created=False)


def enqueue_many(
    connection: Connection, kind: Kind, items: Sequence[Item], *, ceiling: int, delay: float | None = None
) -> list[Enqueued]:
    """Put many jobs of `kind` in its queue, in the caller's transaction; one answer for each item, in their order.

    Of several items with one exclusive key the first may make the job; the others are answered with it. Arguments as
    for `enqueue`. Raises ValueError as it does, before anything is written.
    """
    for item in items:
        _check_key(kind, item.key, item.subject)
    if not items:
        return []
    answers = (_enqueue_keyed if kind.policy == EXCLUSIVE else _copy_jobs)(connection, kind, items, ceiling, delay)
    announce(connection, kind.line)
    return answers


def _copy_jobs(
    connection: Connection, kind: Kind, items: Sequence[Item], ceiling: int, delay: float | None
) -> list[Enqueued]:
    with connection.transaction(), connection.cursor() as cursor:
        ids = [row[0] for row in cursor.execute(SQL["draw_ids"].encode(), {"count": len(items)}, prepare=True)]
        again_at = _later(cursor, delay)
        attempts = min(kind.attempts, ceiling)
        no_workspace = str(NO_WORKSPACE)
        details = []
        with cursor.copy(SQL["copy_jobs"].encode()) as rows:
            for job_id, item in zip(ids, items, strict=True):
                narrow, wide = _split(item.args)
                if wide is not None:
                    details.append((job_id, wide))
                rows.write_row(
                    (
                        job_id,
                        kind.line,
                        kind.name,
                        kind.priority,
                        str(item.workspace_id) if item.workspace_id else no_workspace,
                        item.subject,
                        attempts,
                        kind.deadline,
                        again_at,
                        narrow,
                    )
                )
        if details:
            with cursor.copy(SQL["copy_details"].encode()) as rows:
                for detail in details:
                    rows.write_row(detail)
    return [Enqueued(job_id, created=True) for job_id in ids]


def _later(cursor: psycopg.Cursor[Any], delay: float | None) -> datetime | None:
    if delay is None:
        return None
    row = cursor.execute("select statement_timestamp() + make_interval(secs => %s::float8)", [delay]).fetchone()
    assert row is not None
    later: datetime = row[0]
    return later


def _enqueue_keyed(
    connection: Connection, kind: Kind, items: Sequence[Item], ceiling: int, delay: float | None
) -> list[Enqueued]:
    first: dict[str, Item] = {}
    for item in items:
        first.setdefault(str(item.key), item)
    made: dict[str, int] = {}
    twins: dict[str, int] = {}
    with connection.transaction():
        while missing := first.keys() - made.keys() - twins.keys():
            made |= _insert_keyed(connection, kind, {key: first[key] for key in missing}, ceiling, delay)
            # A twin may end between the two statements: then its key is free, and the insert is tried again.
            keys = list(missing - made.keys())
            for row in connection.execute(SQL["live_twins"].encode(), {"queue": kind.line, "keys": keys}):
                twins[row[0]] = row[1]
    answers = []
    for item in items:
        key = str(item.key)
        answers.append(Enqueued(made.get(key) or twins[key], created=key in made and first[key] is item))
    return answers


def _insert_keyed(
    connection: Connection, kind: Kind, items: dict[str, Item], ceiling: int, delay: float | None
) -> dict[str, int]:
    split = [_split(item.args) for item in items.values()]
    values = _common(kind, ceiling, delay) | {
        "priority": kind.priority,
        "keys": list(items),
        "args": [narrow for narrow, _ in split],
        "wide_args": [wide for _, wide in split],
        "subjects": [item.subject for item in items.values()],
        "workspace_ids": [item.workspace_id for item in items.values()],
    }
    return dict(connection.execute(SQL["enqueue_keyed"].encode(), values).fetchall())


def _check_key(kind: Kind, key: str | None, subject: str | None) -> None:
    if (kind.policy == EXCLUSIVE) != (key is not None):
        raise ValueError(f"{kind.name}: a singleton key goes with exclusive kinds, and only with them")
    for name, text in (("key", key), ("subject", subject)):
        if text is not None and not 0 < len(text) <= LONGEST_NAME:
            raise ValueError(f"{kind.name}: the {name} must have 1 to {LONGEST_NAME} characters")


def _split(args: dict[str, Any]) -> tuple[str | None, str | None]:
    """Arguments as JSON for the hot row, or else for its wide sibling."""
    text = _dump(args)
    return (None, text) if len(text) > NARROW else (text, None)


def _dump(args: dict[str, Any]) -> str:
    return to_json(args, inf_nan_mode="constants").decode()


def _common(kind: Kind, ceiling: int, delay: float | None) -> dict[str, Any]:
    return {
        "queue": kind.line,
        "kind": kind.name,
        "max_attempts": min(kind.attempts, ceiling),
        "attempt_seconds": kind.deadline,
        "delay": delay,
    }


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
    row = _one(connection, "start_worker", {"name": name, "version": __version__, "lanes": json.dumps(lanes)})
    assert row is not None
    number: int = row["id"]
    return number


def beat(connection: Connection, worker_id: int, *, listening: bool, seconds: float) -> None:
    """Note that the worker lives; whether notifications reach it, and for how many seconds that has been so."""
    values = {"id": worker_id, "listening": listening, "seconds": seconds}
    connection.execute(SQL["beat"].encode(), values, prepare=True)


def stop_worker(connection: Connection, worker_id: int) -> None:
    """Note that the worker has drained."""
    connection.execute(SQL["stop_worker"], {"id": worker_id})


def pause(
    connection: Connection, queue: str, *, reason: str, by_id: UUID | None, by_name: str, until: datetime | None = None
) -> bool:
    """Stop a queue from claiming until it is resumed, or until a time; False if it is paused already."""
    values = {"queue": queue, "reason": reason, "by_id": by_id, "by_name": by_name, "until": until}
    return _one(connection, "pause", values) is not None


def resume(connection: Connection, queue: str) -> bool:
    """Let a paused queue claim again; False if it was not paused."""
    return _one(connection, "resume", {"queue": queue}) is not None


def claim(
    connection: Connection,
    queue: str,
    kinds: list[str],
    *,
    claim: int,
    lanes: int,
    lease: float,
    only_due: bool = False,
    after: UUID | None = None,
) -> list[Claimed]:
    """Take up to `lanes` jobs of the queue under the claim number; `lease` is seconds. In order of urgency.

    only_due: leave fresh jobs where they are. after: the workspace that the claimer served last.
    """
    fresh = 0 if only_due else int(lanes)
    statement = SQL["claim"].replace("%(lanes)s", str(int(lanes))).replace("%(fresh)s", str(fresh))
    values = {"queue": queue, "kinds": kinds, "claim": claim, "lease": lease, "after": after}
    with connection.cursor(binary=True) as cursor:
        return [Claimed(*row) for row in cursor.execute(statement.encode(), values, prepare=True)]


def claim_ahead(
    connection: Connection, queue: str, kinds: list[str], *, claim: int, most: int, lease: float
) -> list[Claimed]:
    """Take up to `most` fresh jobs of a queue whose kinds are all claimed ahead. In order of urgency."""
    values = {"queue": queue, "kinds": kinds, "claim": claim, "lease": lease}
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(_claim_ahead(most), values, prepare=True).fetchall()
    rows.sort(key=itemgetter(2, 0))
    jobs = []
    for job_id, kind, _, workspace_id, subject, attempt, max_attempts, seconds, args, request_id in rows:
        jobs.append(
            Claimed(
                job_id, queue, kind, workspace_id, subject, attempt, max_attempts, claim, None, 0, 0, 0, 0,
                False, False, None, min(lease, seconds), args, request_id, seconds,
            )
        )  # fmt: skip
    return jobs


@lru_cache
def _claim_ahead(most: int) -> bytes:
    return SQL["claim_ahead"].replace("%(most)s", str(int(most))).encode()


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


def renew_many(connection: Connection, job_ids: list[int], claim: int, lease: float) -> float | None:
    """Extend the leases of jobs claimed together; answers for how many seconds they are good, at the least.

    None: none was extended. Jobs that another transaction holds locked are left as they are.
    """
    values = {"ids": job_ids, "claim": claim, "lease": lease}
    rows = connection.execute(SQL["renew_many"].encode(), values, prepare=True).fetchall()
    return min((row[0] for row in rows), default=None)


def complete(connection: Connection, job_ids: list[int], claim: int) -> int:
    """End jobs claimed together as succeeded; answers for how many the claim still held."""
    return connection.execute(SQL["complete"].encode(), {"ids": job_ids, "claim": claim}, prepare=True).rowcount


def unclaim(connection: Connection, job_ids: list[int], claim: int) -> list[int]:
    """Give back jobs that never started; answers with those that went back."""
    return [row[0] for row in connection.execute(SQL["unclaim"].encode(), {"ids": job_ids, "claim": claim})]


def announce_progress(connection: Connection, job_ids: list[int]) -> None:
    """Tell watchers that these jobs moved on. A notification has room for 8,000 bytes."""
    for start in range(0, len(job_ids), 300):
        _one(connection, "announce_progress", {"ids": ",".join(map(str, job_ids[start : start + 300]))})


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


def fence(connection: Connection, job: Claimed) -> bool:
    """Hold the job's claim until the caller's transaction ends; False if it is lost or a cancel requested."""
    return _one(connection, "fence", {"id": job.id, "claim": job.claim}) is not None


def retry(connection: Connection, job: Claimed, *, wait: float, code: str, error: str) -> bool:
    """Put the job back for another attempt after `wait` seconds; False: lost, or a cancel request is in the way."""
    values = {"id": job.id, "claim": job.claim, "wait": wait, "code": code, "error": error}
    return _one(connection, "retry", values) is not None


def snooze(connection: Connection, job: Claimed, *, wait: float, code: str) -> bool:
    """Put the job back for `wait` seconds, attempt uncharged; False: lost, or a cancel request is in the way."""
    return _one(connection, "snooze", {"id": job.id, "claim": job.claim, "wait": wait, "code": code}) is not None


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
            "told": (code, error, result) != (None, None, None),
            "dead": dead,
            "closing_failed": closing_failed,
        },
    )
    return _ended(row, code=code, request_id=job.request_id, result=result, args=job.args) if row else None


def cancel(
    connection: Connection, job_id: int, by_id: UUID | None, by_name: str, *, closing_failed: bool = False
) -> Ended | None:
    """Ask for a job's end. None if it has ended or was asked before; else the row as it stands after the request."""
    values = {"id": job_id, "by_id": by_id, "by_name": by_name, "closing_failed": closing_failed}
    row = _one(connection, "cancel", values)
    return _ended(row) if row else None


def requested_by(connection: Connection, job_id: int) -> Row | None:
    """Who asked for a job: `workspace_id`, `actor_id`, `actor_name`, `subject_name`; None for a machine's job."""
    return _one(connection, "requested_by", {"id": job_id})


def _ended(row: Row, **told: Any) -> Ended:
    names = ("id", "queue", "kind", "state", "workspace_id", "subject", "total", "changed", "skipped", "failed")
    return Ended(**{name: row[name] for name in names}, **told)


def _one(connection: Connection, name: str, values: dict[str, Any]) -> Row | None:
    return _fetch(connection, SQL[name], values)


def _fetch(connection: Connection, statement: str, values: dict[str, Any]) -> Row | None:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), values).fetchone()
