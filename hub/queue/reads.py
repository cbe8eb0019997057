"""What the pages read of the queue: people's jobs, as stored, with their arguments, failures and attempts.

Every function takes a psycopg connection and sends one or two statements of `reads.sql`. Rights are the caller's:
`get`, `page` and `counts` look in one workspace only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.rows import dict_row

from hub.queue.sql import load
from hub.queue.store import WORKER_SILENT

_SQL = load(Path(__file__).with_name("reads.sql"))
MAX_ID = 2**63 - 1
# Exact up to here; above, a page says "more than 10,000".
MAX_COUNT = 10_000
BUCKETS = ("running", "waiting", "retrying", "needs_attention", "failed", "finished", "cancelled")


@dataclass(frozen=True)
class Job:
    """A job that a person asked for: its row with arguments, failures and request, as read at `read_at`.

    `done` = changed + skipped + failed. `again_at` is the next try of a queued job and the end of the lease of a
    running one. `failures` is ``{"counts": {code: n}, "items": [{"id", "title", "code", "attempt", "at"}, …]}``.
    `bytes` were written so far, if the kind tells. `attempt_seconds` is how long an attempt may go on without
    progress. `worker` is the one that holds the job.
    """

    id: int
    queue: str
    kind: str
    state: str
    priority: int
    attempt: int
    max_attempts: int
    attempt_seconds: float
    version: int
    total: int | None
    changed: int
    skipped: int
    failed: int
    done: int
    done_before: int
    bytes: int | None
    again_at: datetime | None
    deadline_at: datetime | None
    cancel_requested_at: datetime | None
    progressed_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    closing_failed: bool
    subject: str | None
    worker: str | None
    workspace_id: UUID
    actor_id: UUID
    actor_name: str
    subject_name: str
    cancel_by_name: str | None
    idempotency_key: str
    args: dict[str, Any]
    result: dict[str, Any] | None
    code: str | None
    error: str | None
    failures: dict[str, Any]
    request_id: str | None
    dead_letter: bool
    read_at: datetime

    @property
    def terminal(self) -> bool:
        """Whether the job has ended, and so never changes again."""
        return self.finished_at is not None


@dataclass(frozen=True)
class Attempt:
    """An attempt that ended without ending its job. `outcome` is retry, lost or interrupted; `done` items in all."""

    number: int
    started_at: datetime
    ended_at: datetime
    outcome: str
    code: str
    error: str | None
    done: int
    worker: str | None


@dataclass(frozen=True)
class Filters:
    """What a list of jobs is narrowed to; None and False mean no narrowing.

    `bucket` is one of BUCKETS; `words` must occur in the name of what the job is about, in any letter case; `since`
    is inclusive, `until` exclusive; `problems` means jobs with failed items.
    """

    bucket: str | None = None
    kind: str | None = None
    words: str | None = None
    actor: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    problems: bool = False


@dataclass(frozen=True)
class Page:
    """Jobs newest first; `more` says whether older ones match too."""

    jobs: list[Job] = field(default_factory=list)
    more: bool = False


def get(connection: Connection[Any], job_id: int, workspace_id: UUID) -> Job | None:
    """The job of this number if people of this workspace asked for it; any other number gives None."""
    found = these(connection, [job_id])
    return found[0] if found and found[0].workspace_id == workspace_id else None


def these(connection: Connection[Any], ids: Iterable[int]) -> list[Job]:
    """The jobs of these numbers, newest first, whatever their workspace; unknown numbers are passed over."""
    known = [number for number in ids if 0 < number <= MAX_ID]
    return [Job(**row) for row in _all(connection, "jobs", ids=known)] if known else []


def page(
    connection: Connection[Any], workspace_id: UUID, filters: Filters, before: int | None = None, limit: int = 50
) -> Page:
    """Up to `limit` of the workspace's jobs that match, newest first, older than the job `before`."""
    values = _values(filters) | {"bucket": filters.bucket, "before": MAX_ID if before is None else before}
    rows = _all(connection, "page", workspace=workspace_id, most=limit + 1, **values)
    return Page(these(connection, [row["id"] for row in rows[:limit]]), more=len(rows) > limit)


def has_worker(connection: Connection[Any], queue: str) -> bool:
    """Whether a worker that gave a sign of life lately has lanes for the queue."""
    return bool(_all(connection, "has_worker", queue=queue, silent=WORKER_SILENT))


def newer(connection: Connection[Any], workspace_id: UUID, job_id: int) -> int:
    """How many of the workspace's jobs have a higher number than this, at most 100."""
    return int(_all(connection, "newer", workspace=workspace_id, job=min(job_id, MAX_ID))[0]["count"])


def counts(connection: Connection[Any], workspace_id: UUID, filters: Filters) -> dict[str, int]:
    """How many of the workspace's jobs match the filters, that of `bucket` apart: for each of BUCKETS and for "all".

    Counting stops one above MAX_COUNT in all.
    """
    rows = _all(connection, "counts", workspace=workspace_id, most=MAX_COUNT + 1, **_values(filters))
    found = {row["bucket"]: int(row["count"]) for row in rows}
    return {bucket: found.get(bucket, 0) for bucket in BUCKETS} | {"all": sum(found.values())}


def attempts(connection: Connection[Any], job_id: int) -> list[Attempt]:
    """The attempts that ended without ending the job, newest first; the job's own row tells of the latest one."""
    return [Attempt(**row) for row in _all(connection, "attempts", job=job_id)]


def active_for_subject(connection: Connection[Any], subject: str) -> list[Job]:
    """People's jobs about `subject` that have not ended, newest first, at most 20."""
    return these(connection, [row["id"] for row in _all(connection, "active_for_subject", subject=subject)])


def latest_for_subject(connection: Connection[Any], subject: str, limit: int = 5) -> list[Job]:
    """The latest of people's jobs about `subject`, newest first."""
    rows = _all(connection, "latest_for_subject", subject=subject, most=limit)
    return these(connection, [row["id"] for row in rows])


def unended(connection: Connection[Any], workspace_id: UUID, limit: int = 5) -> list[Job]:
    """The workspace's jobs that have not ended, newest first."""
    return these(connection, [row["id"] for row in _all(connection, "unended", workspace=workspace_id, most=limit)])


def ahead(connection: Connection[Any], job: Job) -> int:
    """How many waiting jobs of the queue have a better place than this one by priority and age, at most 1,000.

    Fairness between workspaces may take them in another order.
    """
    return int(_all(connection, "ahead", queue=job.queue, priority=job.priority, job=job.id)[0]["count"])


def _values(filters: Filters) -> dict[str, Any]:
    return {
        "kind": filters.kind,
        "actor": filters.actor,
        "words": filters.words,
        "since": filters.since,
        "until": filters.until,
        "problems": filters.problems,
    }


def _all(connection: Connection[Any], name: str, **values: Any) -> list[Mapping[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return list(cursor.execute(_SQL[name], values).fetchall())
