"""The audit trail: who did what to which, when, from where, and whether it was done.

The catalogue below is closed: an action that is not in it, or a field it does not list, cannot be recorded. `record` is
the one writer. It calls the database's function ``audit.record``, which fills id, time and transaction id itself, in
the transaction of the change that the event tells of. Rows never change and are never removed.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import CheckConstraint, ColumnElement, Index, Select, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, Session, mapped_column
from sqlalchemy.types import UserDefinedType

from hub.errors import NotFound
from hub.models.base import Base, time_column
from hub.models.workspace import Workspace

MAX_VALUE = 300


@dataclass(frozen=True)
class Action:
    """What an action is done to, and the fields that its event may carry. Its sentence: ``audit.action.<name>``."""

    target: str
    fields: frozenset[str] = frozenset()
    # Whether its values are ``[before, after]``.
    compares: bool = False


def _action(target: str, *fields: str) -> Action:
    return Action(target, frozenset(fields))


def _change(target: str, *fields: str) -> Action:
    return Action(target, frozenset(fields), compares=True)


ACTIONS: dict[str, Action] = {
    "session.signed_in": _action("person"),
    "session.refused": _action("person", "reason"),
    "session.ended": _action("person", "sessions"),
    "request.refused": _action("request", "code", "attempted"),
    "member.added": _action("person", "role"),
    "member.role_changed": _change("person", "role"),
    "member.enabled": _action("person"),
    "member.disabled": _action("person"),
    "person.added": _action("person", "staff"),
    "person.enabled": _action("person"),
    "person.disabled": _action("person"),
    "person.password_changed": _action("person"),
    "person.time_zone_changed": _change("person", "time_zone"),
    "workspace.created": _action("workspace", "name"),
    "workspace.restored": _action("workspace", "name", "source", "records", "left_out"),
    "workspace.enabled": _action("workspace"),
    "workspace.disabled": _action("workspace"),
    "course.created": _action("course", "title"),
    "course.imported": _action("course", "pages", "source"),
    "course.renamed": _change("course", "title"),
    "course.deleted": _action("course", "pages"),
    "page.created": _action("page", "title", "tags"),
    "page.edited": _change("page", "title", "tags", "body_characters"),
    "page.deleted": _action("page"),
    "backup.created": _action("backup", "bytes", "records"),
    "backup.exported": _action("workspace", "bytes", "records"),
    "backup.downloaded": _action("backup", "bytes"),
    "backup.verified": _action("backup", "result", "entry"),
    "backup.restored": _action("backup", "name", "workspace"),
    "backup.deleted": _action("backup", "bytes"),
    "backup.expired": _action("backup", "bytes"),
    "backup.retention_changed": _change("workspace", "keep", "keep_days"),
    "job.queued": _action("job", "kind", "subject", "tags", "pages", "total", "origin"),
    "job.cancel_requested": _action("job", "changed", "total"),
    "job.succeeded": _action("job", "total", "changed", "skipped", "failed"),
    "job.failed": _action("job", "total", "changed", "skipped", "failed", "code"),
    "job.cancelled": _action("job", "total", "changed", "skipped", "failed"),
    "queue.paused": _action("queue", "reason", "until"),
    "queue.resumed": _action("queue"),
    "dead_letter.redriven": _action("dead_letter", "kind", "redriven_as"),
    "dead_letter.discarded": _action("dead_letter", "kind", "reason"),
    "schedule.run": _action("schedule"),
    "schedule.paused": _action("schedule", "reason"),
    "schedule.resumed": _action("schedule"),
    "support.visited": _action("workspace", "reason"),
}
OUTCOMES = ("done", "refused", "failed")
# What actions are filtered by: the part of their names before the dot.
GROUPS = tuple(dict.fromkeys(name.partition(".")[0] for name in ACTIONS))


@dataclass(frozen=True)
class Actor:
    """Who acts, and by which way: recorded as it was then, so later changes of the person do not alter the trail.

    `kind`: person, support or hub. `channel`: web, cli or hub. `address` only for requests.
    """

    id: uuid.UUID | None
    name: str
    kind: str = "person"
    channel: str = "web"
    address: str | None = None
    request_id: str | None = None


class TransactionId(UserDefinedType[str]):
    """PostgreSQL's xid8."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:
        """The type's name in DDL."""
        return "xid8"


class Event(Base):
    """One event. Names are copied in and nothing refers outward, so the trail outlives what it tells of."""

    __tablename__ = "event"
    __table_args__ = (
        CheckConstraint("outcome in ('done', 'refused', 'failed')", name="outcome"),
        Index("event_workspace_id_at_idx", "workspace_id", "at", "id"),
        Index("event_at_idx", "at", "id"),
        Index("event_request_id_idx", "request_id"),
        Index("event_job_id_idx", "job_id", "id"),
        Index("event_target_idx", "target_kind", "target_id", "id"),
        Index("event_actor_id_idx", "actor_id", "id"),
        {"schema": "audit"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    xid: Mapped[str] = mapped_column(TransactionId())
    at: Mapped[datetime] = time_column()
    workspace_id: Mapped[uuid.UUID | None]
    actor_id: Mapped[uuid.UUID | None]
    actor_name: Mapped[str]
    actor_kind: Mapped[str]
    channel: Mapped[str]
    address: Mapped[str | None]
    request_id: Mapped[str | None]
    action: Mapped[str]
    outcome: Mapped[str]
    target_kind: Mapped[str]
    target_id: Mapped[str | None]
    target_name: Mapped[str]
    job_id: Mapped[int | None]
    # {field: value} or, for a change, {field: [before, after]}
    changes: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))

    @property
    def differences(self) -> list[tuple[str, Any, Any]]:
        """Each field with its value before, which is None where nothing is compared, and after."""
        compares = self.action in ACTIONS and ACTIONS[self.action].compares
        return [
            (name, *value) if compares and isinstance(value, list) and len(value) == 2 else (name, None, value)
            for name, value in sorted(self.changes.items())
        ]


@dataclass(frozen=True)
class Filters:
    """What a list of events is narrowed to; empty and None mean no narrowing.

    `who`: words in the actor's name, in any letter case, or the actor's id. `action`: an action, or a group of them.
    `within`: so long before now, by the database's clock. `since` is inclusive, `until` exclusive.
    """

    who: str = ""
    action: str = ""
    outcome: str = ""
    target_kind: str = ""
    target_id: str = ""
    job_id: int | None = None
    request_id: str = ""
    within: timedelta | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Entry:
    """An event with the workspace it happened in, as that is called now; some events happen in none."""

    event: Event
    slug: str | None
    workspace: str | None


def record(
    session: Session,
    action: str,
    *,
    actor: Actor,
    workspace_id: uuid.UUID | None,
    target_id: object = None,
    target_name: str = "",
    outcome: str = "done",
    job_id: int | None = None,
    changes: dict[str, Any] | None = None,
) -> int:
    """Write one event in the caller's transaction; returns its id.

    `changes` maps a field to its value, or to ``[before, after]``; values are cut at 300 characters. Raises ValueError
    for an action or a field that the catalogue does not have: deny by default, so nothing secret slips in.
    """
    entry = ACTIONS.get(action)
    if entry is None:
        raise ValueError(f"unknown audit action {action}")
    unknown = set(changes or {}) - entry.fields
    if unknown or outcome not in OUTCOMES:
        raise ValueError(f"audit action {action} does not take {', '.join(sorted(unknown)) or outcome}")
    event_id: int = session.execute(
        _RECORD,
        {
            "workspace_id": workspace_id,
            "actor_id": actor.id,
            "actor_name": actor.name[:MAX_VALUE],
            "actor_kind": actor.kind,
            "channel": actor.channel,
            "address": actor.address,
            "request_id": actor.request_id,
            "action": action,
            "outcome": outcome,
            "target_kind": entry.target,
            "target_id": None if target_id is None else str(target_id),
            "target_name": target_name[:MAX_VALUE],
            "job_id": job_id,
            "changes": json.dumps({field: _bounded(value) for field, value in (changes or {}).items()}),
        },
    ).scalar_one()
    return event_id


def entries(
    session: Session,
    workspace_id: uuid.UUID | None,
    filters: Filters,
    *,
    before: tuple[datetime, int] | None = None,
    limit: int = 50,
) -> list[Entry]:
    """Events newest first, at most `limit`, those behind `before` (a time and an id).

    `workspace_id` None means all workspaces and what happened in none: for staff only.
    """
    query = _entries(workspace_id).where(*_conditions(filters)).order_by(Event.at.desc(), Event.id.desc())
    if before is not None:
        query = query.where(tuple_(Event.at, Event.id) < tuple_(*before))
    return [Entry(*row) for row in session.execute(query.limit(limit))]


def find(session: Session, workspace_id: uuid.UUID | None, event_id: int) -> Entry:
    """One event, of this workspace unless `workspace_id` is None. Raises NotFound."""
    row = session.execute(_entries(workspace_id).where(Event.id == event_id)).one_or_none()
    if row is None:
        raise NotFound()
    return Entry(*row)


def neighbours(session: Session, event: Event) -> tuple[int | None, int | None]:
    """The ids of the earlier and the later event of the same target; None where there is none."""
    if event.target_id is None:
        return None, None
    same = (
        Event.workspace_id.is_not_distinct_from(event.workspace_id),
        Event.target_kind == event.target_kind,
        Event.target_id == event.target_id,
    )
    earlier = select(func.max(Event.id)).where(*same, Event.id < event.id).scalar_subquery()
    later = select(func.min(Event.id)).where(*same, Event.id > event.id).scalar_subquery()
    row = session.execute(select(earlier, later)).one()
    return row[0], row[1]


def timeline(
    session: Session,
    workspace_id: uuid.UUID,
    *,
    target_kind: str = "",
    target_id: object = None,
    job_id: int | None = None,
    limit: int = 50,
) -> list[Event]:
    """The history of one thing: of a job oldest first, as a story; of anything else newest first. At most `limit`."""
    query = select(Event).where(Event.workspace_id == workspace_id)
    if job_id is not None:
        query = query.where(Event.job_id == job_id).order_by(Event.id)
    else:
        query = query.where(Event.target_kind == target_kind, Event.target_id == str(target_id))
        query = query.order_by(Event.id.desc())
    return list(session.scalars(query.limit(limit)))


def _entries(workspace_id: uuid.UUID | None) -> Select[Event, str, str]:
    query = select(Event, Workspace.slug, Workspace.name).outerjoin(Workspace, Workspace.id == Event.workspace_id)
    return query if workspace_id is None else query.where(Event.workspace_id == workspace_id)


def _conditions(filters: Filters) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if filters.who:
        conditions.append(_by(filters.who))
    if filters.action:
        names = [name for name in ACTIONS if filters.action in (name, name.partition(".")[0])]
        conditions.append(Event.action.in_(names))
    if filters.within is not None:
        conditions.append(Event.at >= func.statement_timestamp() - filters.within)
    if filters.since is not None:
        conditions.append(Event.at >= filters.since)
    if filters.until is not None:
        conditions.append(Event.at < filters.until)
    equal = ("outcome", "target_kind", "target_id", "job_id", "request_id")
    conditions += [getattr(Event, name) == getattr(filters, name) for name in equal if getattr(filters, name)]
    return conditions


def _by(who: str) -> ColumnElement[bool]:
    try:
        return Event.actor_id == uuid.UUID(who)
    except ValueError:
        return func.strpos(func.lower(Event.actor_name), func.lower(who)) > 0


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_VALUE]
    if isinstance(value, (list, tuple)):
        return [_bounded(item) for item in value[:100]]
    return value


_RECORD = text("""
    select audit.record(
        cast(:workspace_id as uuid), cast(:actor_id as uuid), :actor_name, :actor_kind, :channel, :address, :request_id,
        :action, :outcome, :target_kind, :target_id, :target_name, cast(:job_id as bigint), cast(:changes as jsonb))
""")
