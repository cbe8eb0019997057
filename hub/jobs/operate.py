"""What operators do to queues, dead letters and the jobs of machines: each act with its event, in one transaction.

Jobs of people are none of their business: an admin cancels those (`hub.jobs.cancel`), or runs them again through
admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hub import words
from hub.config import Settings
from hub.db import driver
from hub.errors import Conflict, Forbidden, Invalid, NotFound, Refusal
from hub.jobs import people
from hub.models import audit, content, permission
from hub.models.person import Person
from hub.queue import closing, letters, overview, store
from hub.queue.letters import Outcome


def pause(session: Session, *, queue: str, reason: object, actor: audit.Actor, until: datetime | None = None) -> None:
    """Stop a queue from claiming jobs, until it is resumed or until a time; what runs goes on.

    Raises Forbidden, NotFound("no_queue"), Invalid naming `reason` or `until`, and Conflict("queue_paused").
    """
    _require_operator(session, actor)
    _require_queue(session, queue)
    reason = _valid_reason(reason)
    if until is not None:
        _check_until(session, until)
    connection = driver(session)
    if not store.pause(connection, queue, reason=reason, by_id=actor.id, by_name=actor.name, until=until):
        raise Conflict("queue_paused", queue=queue)
    changes = {"reason": reason} | ({"until": until.isoformat()} if until else {})
    _record_queue(session, "queue.paused", queue, actor, changes)


def resume(session: Session, *, queue: str, actor: audit.Actor) -> None:
    """Let a paused queue claim jobs again. Raises Forbidden, NotFound("no_queue") and Conflict("queue_not_paused")."""
    _require_operator(session, actor)
    _require_queue(session, queue)
    if not store.resume(driver(session), queue):
        raise Conflict("queue_not_paused", queue=queue)
    _record_queue(session, "queue.resumed", queue, actor)


def redrive(session: Session, settings: Settings, *, job_ids: Sequence[int], actor: audit.Actor) -> list[Outcome]:
    """Make new jobs from dead letters, at most `letters.BATCH`; one outcome for each. Raises Forbidden."""
    _require_operator(session, actor)
    outcomes = letters.redrive(
        driver(session),
        job_ids,
        ceiling=settings.queue_max_attempts,
        most=settings.queue_max_redrives,
        by_id=actor.id,
        by_name=actor.name,
    )
    for outcome in outcomes:
        if outcome.made is not None:
            _record_letter(session, "dead_letter.redriven", outcome, actor, {"redriven_as": outcome.made})
    return outcomes


def discard(session: Session, *, job_ids: Sequence[int], reason: object, actor: audit.Actor) -> list[Outcome]:
    """Give dead letters up, at most `letters.BATCH`; one outcome for each. Raises Forbidden and Invalid("reason")."""
    _require_operator(session, actor)
    reason = _valid_reason(reason)
    outcomes = letters.discard(driver(session), job_ids, reason=reason, by_id=actor.id, by_name=actor.name)
    for outcome in outcomes:
        if outcome.problem is None:
            _record_letter(session, "dead_letter.discarded", outcome, actor, {"reason": reason})
    return outcomes


def refusal(outcome: Outcome, settings: Settings) -> Refusal | None:
    """Why nothing was decided about a letter, as what a caller raises or says; None if something was."""
    if outcome.problem is None:
        return None
    refused = {"no_dead_letter": NotFound, "people_job": Forbidden}.get(outcome.problem, Conflict)
    told = {"job": str(outcome.job_id), "kind": outcome.kind, "most": settings.queue_max_redrives}
    return refused(outcome.problem, twin=str(outcome.twin), **told)


def cancel(session: Session, *, job_id: int, actor: audit.Actor) -> None:
    """Cancel a job of a machine: a waiting one ends at once, a running one stops at its handler's next look.

    A repeated request, and one for a job that has ended, change nothing and write no event. Raises Forbidden, also for
    a job of people, and NotFound("no_job").
    """
    _require_operator(session, actor)
    connection = driver(session)
    if store.requested_by(connection, job_id) is not None:
        raise Forbidden("people_job", job=str(job_id))
    row = closing.cancel(session, job_id, actor.id, actor.name)
    if row is None:
        if overview.find(connection, job_id) is None:
            raise NotFound("no_job", job=str(job_id))
        return
    audit.record(
        session,
        "job.cancel_requested",
        actor=actor,
        workspace_id=_workspace(row.workspace_id),
        target_id=job_id,
        target_name=_title(row.kind, job_id),
        job_id=job_id,
        changes={"changed": row.changed} | ({} if row.total is None else {"total": row.total}),
    )


def _require_operator(session: Session, actor: audit.Actor) -> None:
    """Whoever acts in somebody's name may do what that person may; at the command line Hub itself may act."""
    if actor.id is None and actor.channel == "cli":
        return
    person = session.execute(select(Person.staff).where(Person.id == actor.id, Person.enabled)).one_or_none()
    if person is None or not permission.staff_may(person.staff, "ops.act"):
        raise Forbidden("not_operator")


def _require_queue(session: Session, queue: str) -> None:
    if queue not in overview.queue_names(driver(session)):
        raise NotFound("no_queue", queue=queue)


def _valid_reason(reason: object) -> str:
    """A reason of 1 to 500 characters on one line, something of it visible. Raises Invalid."""
    text = " ".join(reason.split()) if isinstance(reason, str) else ""
    content.plain_text(text, "reason")
    if not 1 <= len(text) <= letters.MAX_REASON or not content.has_visible(text) or content.has_control(text):
        raise Invalid({"reason": words.say("ops.reason.length", most=letters.MAX_REASON)})
    return text


def _check_until(session: Session, until: datetime) -> None:
    if until.tzinfo is None:
        raise Invalid({"until": words.say("ops.until.zone")})
    if until <= session.execute(select(func.statement_timestamp())).scalar_one():
        raise Invalid({"until": words.say("ops.until.past")})


def _record_queue(
    session: Session, action: str, queue: str, actor: audit.Actor, changes: dict[str, Any] | None = None
) -> None:
    audit.record(session, action, actor=actor, workspace_id=None, target_id=queue, target_name=queue, changes=changes)


def _record_letter(
    session: Session, action: str, outcome: Outcome, actor: audit.Actor, changes: dict[str, Any]
) -> None:
    assert outcome.kind is not None and outcome.workspace_id is not None
    audit.record(
        session,
        action,
        actor=actor,
        workspace_id=_workspace(outcome.workspace_id),
        target_id=outcome.job_id,
        target_name=_title(outcome.kind, outcome.job_id),
        job_id=outcome.job_id,
        changes={"kind": outcome.kind} | changes,
    )


def _title(name: str, job_id: int) -> str:
    return words.say("ops.job", kind=people.kind_name(name), job=str(job_id))


def _workspace(workspace_id: UUID) -> UUID | None:
    return None if workspace_id == store.NO_WORKSPACE else workspace_id
