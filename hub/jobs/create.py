"""Admission: may this person start this job now? And if so, job, worklist and event in one transaction.

The checks come in this order: shape of the arguments, idempotency, the workspace's lock, idempotency again, capacity,
limits of the arguments, insert. (Session, CSRF, role and address budget come before, in the web.) A refusal raises, so
the caller's transaction leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import pydantic
from sqlalchemy.orm import Session

from hub import words
from hub.config import Settings
from hub.db import driver
from hub.errors import Conflict, Invalid, TooMany
from hub.jobs import PEOPLE, people
from hub.models import audit, workspace
from hub.models.workspace import Workspace
from hub.queue import kind as kinds
from hub.queue import store
from hub.queue.kind import Kind

# 1 to 200 visible ASCII characters.
KEY = re.compile(r"[\x21-\x7e]{1,200}")
# What a 429 tells when no running job has a speed yet to tell a better time by.
UNKNOWN_WAIT = 30.0
DAY = 86_400.0


@dataclass(frozen=True)
class Created:
    """The job of a creation: a new one, or the one that the same key made before."""

    job_id: int
    created: bool


def create(
    session: Session,
    settings: Settings,
    *,
    workspace: Workspace,
    actor: audit.Actor,
    kind: str,
    args: dict[str, Any],
    key: str,
) -> Created:
    """Start a job of `kind` for `actor`, or answer with the one that `key` already made with the same command.

    Raises Invalid (fields), Conflict ``idempotency_mismatch`` (data: job_id), or TooMany with the limit's code and a
    Retry-After: exact for the daily limit, for pending jobs the time at which the first of them should end by its own
    speed so far.
    """
    declared, command = _validate(kind, args, key)
    fingerprint = _fingerprint(kind, command)
    if made := _replay(session, workspace, actor, key, fingerprint):
        return made
    _lock(session, workspace)
    if made := _replay(session, workspace, actor, key, fingerprint):
        return made
    _check_capacity(session, settings, workspace, actor)
    order = people.Order(session, settings, workspace, actor, command)
    return _insert(session, settings, order, declared, key, fingerprint)


def _validate(name: str, args: dict[str, Any], key: str) -> tuple[Kind, pydantic.BaseModel]:
    fields: dict[str, str] = {}
    declared = kinds.find(name) if isinstance(name, str) else None
    if declared is None or declared.line != PEOPLE:
        fields["kind"] = words.say("jobs.error.kind")
        declared = None
    if not isinstance(key, str) or not KEY.fullmatch(key):
        fields["idempotency_key"] = words.say("jobs.error.idempotency_key")
    command: pydantic.BaseModel | None = None
    if declared is not None:
        assert declared.command is not None, "a kind that people start has a command"
        try:
            command = declared.command.model_validate(args)
        except pydantic.ValidationError as error:
            fields |= _fields(error)
        except Invalid as error:
            fields |= error.fields
    if fields or declared is None or command is None:
        raise Invalid(fields)
    return declared, command


def _fields(error: pydantic.ValidationError) -> dict[str, str]:
    """The first problem of each field; the sentence goes by pydantic's type of error, never by its input."""
    fields: dict[str, str] = {}
    for problem in error.errors(include_url=False, include_input=False):
        place = [str(part) for part in problem["loc"]]
        name = place[0] if place else "args"
        specific = f"jobs.error.{name}.{problem['type']}"
        general = f"jobs.error.{name}"
        fallback = "jobs.error.args"
        chosen = next(choice for choice in (specific, general, fallback) if words.has(choice))
        fields.setdefault(name, words.say(chosen, name=name))
    return fields


def _fingerprint(kind: str, command: pydantic.BaseModel) -> bytes:
    """SHA-256 of the validated command in canonical JSON, so spelling (order of keys, spaces) makes no difference."""
    payload = {"kind": kind, "args": command.model_dump(mode="json")}
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).digest()


def _replay(session: Session, workspace: Workspace, actor: audit.Actor, key: str, fingerprint: bytes) -> Created | None:
    assert actor.id is not None
    made = store.find_request(driver(session), workspace.id, actor.id, key)
    if made is None:
        return None
    if bytes(made["fingerprint"]) != fingerprint:
        raise Conflict("idempotency_mismatch", job_id=made["job_id"])
    return Created(made["job_id"], created=False)


def _lock(session: Session, locked: Workspace) -> None:
    """Serialise the workspace's creations; what is counted afterwards is counted in later statements."""
    workspace.lock(session, locked.id)


def _check_capacity(session: Session, settings: Settings, workspace: Workspace, actor: audit.Actor) -> None:
    assert actor.id is not None
    connection = driver(session)
    pending = store.count_pending(connection, workspace.id, actor.id)
    if pending["actor"] >= settings.jobs_max_pending_per_actor:
        wait = store.pending_wait(connection, workspace.id, actor.id)
        raise _too_many("actor_pending_limit", wait, settings.jobs_max_pending_per_actor)
    if pending["workspace"] >= settings.jobs_max_pending_per_workspace:
        wait = store.pending_wait(connection, workspace.id, None)
        raise _too_many("workspace_pending_limit", wait, settings.jobs_max_pending_per_workspace)
    day = store.day_wait(connection, workspace.id, settings.jobs_max_created_per_day)
    if day is not None:
        raise _too_many("daily_limit", day, settings.jobs_max_created_per_day)


def _too_many(code: str, wait: float | None, limit: int) -> TooMany:
    return TooMany(code, retry_after=UNKNOWN_WAIT if wait is None else min(max(wait, 1.0), DAY), limit=limit)


def _insert(
    session: Session, settings: Settings, order: people.Order, declared: Kind, key: str, fingerprint: bytes
) -> Created:
    assert declared.opening is not None, "a kind that people start has an opening"
    opening: people.Opening = declared.opening(order)
    connection = driver(session)
    job_id = store.enqueue(
        connection,
        declared,
        opening.args,
        ceiling=settings.queue_max_attempts,
        workspace_id=order.workspace.id,
        subject=opening.subject,
        request_id=order.actor.request_id,
    ).id
    store.add_request(
        connection,
        job_id=job_id,
        workspace_id=order.workspace.id,
        actor_id=order.actor.id,
        actor_name=order.actor.name,
        kind=declared.name,
        subject=opening.subject,
        subject_name=opening.subject_name,
        idempotency_key=key,
        fingerprint=fingerprint,
    )
    if opening.made is not None:
        opening.made(job_id)
    told = dict(opening.told)
    if opening.items is not None:
        told["total"] = _list_items(connection, job_id, opening)
    audit.record(
        session,
        "job.queued",
        actor=order.actor,
        workspace_id=order.workspace.id,
        target_id=job_id,
        target_name=people.title(declared.name, opening.subject_name),
        job_id=job_id,
        changes={"kind": declared.name, "subject": opening.subject} | told,
    )
    return Created(job_id, created=True)


def _list_items(connection: store.Connection, job_id: int, opening: people.Opening) -> int:
    assert opening.items is not None
    total = store.make_worklist(connection, job_id, opening.items, opening.values)
    if total == 0:
        raise Invalid({"pages": words.say("jobs.error.no_items")})
    if total > opening.most:
        raise Invalid({"course_id": words.say("jobs.error.too_many_items", most=opening.most)})
    return total
