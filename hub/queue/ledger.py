"""One short function for each statement of schedules.sql: values in, rows out. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from psycopg.rows import class_row

from hub.queue import sql
from hub.queue.plans import Plan
from hub.queue.schedule import Tick
from hub.queue.store import Connection

T = TypeVar("T")
SQL = sql.load(Path(__file__).with_name("schedules.sql"))


@dataclass(frozen=True)
class Row:
    """A schedule's row, read at `now` of the database's clock."""

    name: str
    cron: str
    time_zone: str
    ticked_at: datetime
    paused_at: datetime | None
    job_id: int | None
    error: str | None
    now: datetime


@dataclass(frozen=True)
class Overview:
    """A schedule's row, with its last tick (`due_at` to `by_name`) and the state of that tick's job.

    All but `name` and `now` is None if no worker knew the schedule yet.
    """

    name: str
    cron: str | None
    time_zone: str | None
    ticked_at: datetime | None
    paused_at: datetime | None
    paused_by_name: str | None
    paused_reason: str | None
    error: str | None
    failed_at: datetime | None
    due_at: datetime | None
    through_at: datetime | None
    outcome: str | None
    reason: str | None
    job_id: int | None
    by_name: str | None
    job_state: str | None
    now: datetime


@dataclass(frozen=True)
class Entry:
    """A line of the ledger."""

    due_at: datetime
    through_at: datetime | None
    outcome: str
    reason: str | None
    job_id: int | None
    by_name: str | None
    at: datetime


def declare(connection: Connection, plans: Iterable[Plan]) -> None:
    """Make known which schedules there are; one that is new or has another expression than before begins now."""
    listed = list(plans)
    values = {
        "names": [plan.name for plan in listed],
        "crons": [plan.text for plan in listed],
        "time_zones": [plan.schedule.time_zone for plan in listed],
    }
    connection.execute(SQL["declare"].encode(), values)


def ensure(connection: Connection, plan: Plan) -> None:
    """Make sure that the schedule has a row."""
    values = {"name": plan.name, "cron": plan.text, "time_zone": plan.schedule.time_zone}
    connection.execute(SQL["ensure"].encode(), values)


def look(connection: Connection, names: list[str]) -> dict[str, Row]:
    """How far these schedules are decided."""
    return {row.name: row for row in _rows(connection, Row, "look", names=names)}


def hold(connection: Connection, name: str, *, wait: bool = False) -> Row | None:
    """Lock a schedule until the transaction ends; None if somebody else holds it and `wait` does not say to wait."""
    return next(iter(_rows(connection, Row, "await" if wait else "hold", name=name)), None)


def record(connection: Connection, name: str, ticks: Sequence[Tick], worker: int | None) -> set[datetime]:
    """Enter ticks; answers with the due times that nobody entered before."""
    values = {
        "schedule": name,
        "worker_id": worker,
        "due_at": [tick.due_at for tick in ticks],
        "through_at": [tick.through_at for tick in ticks],
        "outcomes": [tick.outcome for tick in ticks],
        "reasons": [tick.reason for tick in ticks],
    }
    return {row[0] for row in connection.execute(SQL["record"].encode(), values)}


def record_manual(connection: Connection, name: str, job_id: int, by_name: str) -> None:
    """Enter a start by hand, now."""
    values = {"schedule": name, "job_id": job_id, "by_name": by_name}
    while connection.execute(SQL["record_manual"].encode(), values).fetchone() is None:
        pass
    connection.execute(SQL["started"].encode(), {"name": name, "job_id": job_id})


def set_job(
    connection: Connection, name: str, due_at: datetime, *, outcome: str, reason: str | None, job_id: int
) -> None:
    """Note which job a tick started, or which one was in its way."""
    values = {"schedule": name, "due_at": due_at, "outcome": outcome, "reason": reason, "job_id": job_id}
    connection.execute(SQL["set_job"].encode(), values)


def lives(connection: Connection, job_id: int) -> bool:
    """Whether a job has not ended."""
    return connection.execute(SQL["lives"].encode(), {"id": job_id}).fetchone() is not None


def advance(connection: Connection, name: str, until: datetime, job_id: int | None) -> None:
    """Every due time of the schedule up to `until` is decided; `job_id` was started last."""
    connection.execute(SQL["advance"].encode(), {"name": name, "until": until, "job_id": job_id})


def fail(connection: Connection, names: list[str], error: str) -> None:
    """Note why the due times of these schedules cannot be decided."""
    connection.execute(SQL["fail"].encode(), {"names": names, "error": error})


def recover(connection: Connection, names: list[str]) -> None:
    """Note that they can."""
    connection.execute(SQL["recover"].encode(), {"names": names})


def pause(connection: Connection, name: str, *, reason: str, by_id: UUID | None, by_name: str) -> bool:
    """Let the schedule's ticks be skipped; False if they are already."""
    values = {"name": name, "reason": reason, "by_id": by_id, "by_name": by_name}
    return connection.execute(SQL["pause"].encode(), values).fetchone() is not None


def resume(connection: Connection, name: str) -> bool:
    """Let the schedule's ticks fire again; False if they do already."""
    return connection.execute(SQL["resume"].encode(), {"name": name}).fetchone() is not None


def overview(connection: Connection, names: list[str]) -> dict[str, Overview]:
    """These schedules with their last ticks."""
    return {row.name: row for row in _rows(connection, Overview, "overview", names=names)}


def ticks(connection: Connection, name: str, before: datetime | None = None, limit: int = 50) -> list[Entry]:
    """The ledger of a schedule, newest first."""
    return _rows(connection, Entry, "ticks", name=name, before=before, most=limit)


def _rows(connection: Connection, kind: type[T], statement: str, **values: Any) -> list[T]:
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(SQL[statement].encode(), values).fetchall()
