"""What operators read of the queue: jobs of every kind, queues, workers.

Every function takes a psycopg connection and sends one or two statements of `overview.sql`, which look at a bounded
number of rows, however many there are. Dead letters are in `letters`, what pages show of people's jobs is in `reads`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.rows import dict_row

from hub.queue import kind
from hub.queue.sql import load
from hub.queue.store import WORKER_SILENT

_SQL = load(Path(__file__).with_name("overview.sql"))
MAX_ID = 2**63 - 1
# Exact up to here; above, a page says "more than 10,000".
MAX_COUNT = 10_000
# A page of a list that is narrowed by queue or kind looks at so many jobs at most.
LOOK = 10_000
STATES = ("queued", "running", "succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Job:
    """A job as an operator sees it, as read at `read_at`.

    `asked_by` is the person who asked for it; None: a machine's job. `args` are those of machines' jobs only. `letter`
    tells what became of its dead letter, if it has one. `origin_id` is the job whose dead letter it was made from, as
    the `redrives`-th in a row. `again_at`: the next try of a queued job, the end of the lease of a running one.
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
    again_at: datetime | None
    deadline_at: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    closing_failed: bool
    workspace_id: UUID
    subject: str | None
    live_key: str | None
    worker: str | None
    asked_by: str | None
    cancel_by_name: str | None
    args: dict[str, Any] | None
    result: dict[str, Any] | None
    code: str | None
    error: str | None
    origin_id: int | None
    redrives: int
    letter: str | None
    read_at: datetime


@dataclass(frozen=True)
class Page:
    """Jobs newest first, and the number before which a next page begins; None: there is none.

    A page may hold fewer jobs than asked for and yet have a next one: so far it has looked.
    """

    jobs: list[Job]
    before: int | None


@dataclass(frozen=True)
class Queue:
    """A queue at `read_at`. Counts are exact up to MAX_COUNT and one more above it.

    waiting: jobs that a worker could take now. due: of those and of the running ones, those whose time has come (a
    retry, a lapsed lease). later: jobs that wait for their time, the next one at `next_at`. oldest_at: since when the
    first waits. lanes, workers: those of live workers. unknown: kinds of waiting jobs that this version does not know.
    """

    queue: str
    waiting: int
    due: int
    running: int
    later: int
    next_at: datetime | None
    oldest_at: datetime | None
    read_at: datetime
    lanes: int
    workers: int
    paused: bool
    paused_because: str | None
    paused_by: str | None
    paused_at: datetime | None
    until: datetime | None
    unknown: list[str]


@dataclass(frozen=True)
class Worker:
    """A worker process at `read_at`. `silent`: no sign of life for longer than store.WORKER_SILENT.

    `listening`: whether notifications reach it, as it said at `seen_at`, and since when that is so.
    """

    id: int
    name: str
    version: str
    lanes: dict[str, int]
    started_at: datetime
    seen_at: datetime
    listening: bool
    listening_since: datetime
    silent: bool
    read_at: datetime


def find(connection: Connection[Any], job_id: int) -> Job | None:
    """The job of this number, anybody's."""
    return next(iter(_these(connection, [job_id])), None)


def page(
    connection: Connection[Any],
    *,
    queue: str | None = None,
    kind: str | None = None,
    state: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Page:
    """Up to `limit` jobs that match, newest first, older than the job `before`. `state` is one of STATES."""
    values = {"queue": queue, "kind": kind, "before": MAX_ID if before is None else min(before, MAX_ID)}
    if state in ("running", "failed"):
        ids, behind = [row["id"] for row in _all(connection, state, most=limit + 1, **values)], None
    else:
        (found,) = _all(connection, "newest", state=state, look=LOOK, most=limit + 1, **values)
        ids, behind = found["ids"], found["behind"]
    return Page(_these(connection, ids[:limit]), ids[limit - 1] if len(ids) > limit else behind)


def queue_names(connection: Connection[Any]) -> set[str]:
    """Every queue that a kind known here uses, that has jobs to do, is paused, or has lanes in a live worker."""
    there = {row["queue"] for row in _all(connection, "queue_names", silent=WORKER_SILENT)}
    return there | {declared.line for declared in kind.all_kinds().values()}


def queues(connection: Connection[Any]) -> list[Queue]:
    """All queues by name."""
    names = sorted(queue_names(connection))
    values = {"kinds": list(kind.all_kinds()), "most": MAX_COUNT + 1, "silent": WORKER_SILENT}
    return [Queue(**row) for row in _all(connection, "queues", queues=names, **values)]


def workers(connection: Connection[Any]) -> list[Worker]:
    """Workers that have not stopped and gave a sign of life in the last day, the latest started first."""
    return [Worker(**row) for row in _all(connection, "workers", silent=WORKER_SILENT)]


def _these(connection: Connection[Any], ids: Iterable[int]) -> list[Job]:
    known = [number for number in ids if 0 < number <= MAX_ID]
    return [Job(**row) for row in _all(connection, "jobs", ids=known)] if known else []


def _all(connection: Connection[Any], name: str, **values: Any) -> list[Mapping[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return list(cursor.execute(_SQL[name], values).fetchall())
