"""What all jobs that people start share: how one is opened, whose right is checked, and the event of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from hub import words
from hub.config import Settings
from hub.db import driver
from hub.models import audit
from hub.models.workspace import Workspace
from hub.queue import store
from hub.queue.job import Ended, Fail


@dataclass(frozen=True)
class Order:
    """A person's wish for a job, as its kind's `opening` hook sees it before anything is written."""

    session: Session
    settings: Settings
    workspace: Workspace
    actor: audit.Actor
    args: Any


@dataclass(frozen=True)
class Form:
    """What the start page of a kind tells of its subject; `values` are for the kind's template.

    `empty`: there is nothing that a job could do.
    """

    subject: str
    subject_name: str
    values: dict[str, Any] = field(default_factory=dict)
    empty: bool = False


@dataclass(frozen=True)
class Opening:
    """A kind's answer to an order.

    args: what the handler is given (JSON). subject, subject_name: what the job is about. items: a query of
    (item uuid, place) over `values` for the worklist; None: the job has no items. most: most items it may have.
    told: fields for the event `job.queued`. made: called with the job's number once its row is there.
    """

    args: dict[str, Any]
    subject: str
    subject_name: str
    items: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    most: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    made: Callable[[int], None] | None = None


def title(kind: str, subject_name: str) -> str:
    """A job's name for people, such as “Tag a course: Introduction to Biology”."""
    return words.say("jobs.title", kind=kind_name(kind), subject=subject_name)


def kind_name(kind: str) -> str:
    """The kind's name for people; its key while nobody has found words for it."""
    return words.say(f"jobs.kind.{kind}") if words.has(f"jobs.kind.{kind}") else kind


def record_end(session: Session, ended: Ended) -> None:
    """Write the one event of a job's end: job.succeeded, job.failed or job.cancelled, by Hub."""
    asked = store.requested_by(driver(session), ended.id)
    assert asked is not None, "a job of people has a request"
    changes: dict[str, Any] = {
        "total": ended.total,
        "changed": ended.changed,
        "skipped": ended.skipped,
        "failed": ended.failed,
    }
    if ended.state == "failed":
        changes["code"] = ended.code
    audit.record(
        session,
        f"job.{ended.state}",
        actor=HUB,
        workspace_id=asked["workspace_id"],
        target_id=ended.id,
        target_name=title(ended.kind, asked["subject_name"]),
        outcome="failed" if ended.state == "failed" else "done",
        job_id=ended.id,
        changes=changes,
    )


# Who acts when no person does.
HUB = audit.Actor(id=None, name="Hub", kind="hub", channel="hub")


def actor_of(connection: store.Connection, job_id: int) -> tuple[UUID, str]:
    """Id and name of the person on whose behalf a job runs."""
    asked = store.requested_by(connection, job_id)
    assert asked is not None, "a job of people has a request"
    return asked["actor_id"], asked["actor_name"]


def require_admin(connection: store.Connection, workspace_id: UUID, actor_id: UUID | None) -> None:
    """Raise Fail if person, membership and workspace are not all enabled any more, or the role is no longer admin."""
    row = connection.execute(_IS_ADMIN, {"workspace": workspace_id, "actor": actor_id}, prepare=True).fetchone()
    if row is None:
        raise Fail("actor_not_authorized")


_IS_ADMIN = b"""
    select 1 from hub.membership m
    join hub.person p on p.id = m.person_id
    join hub.workspace w on w.id = m.workspace_id
    where m.workspace_id = %(workspace)s and m.person_id = %(actor)s
      and m.role = 'admin' and m.enabled and p.enabled and w.enabled
"""
