"""What operators do with schedules, each with its event, in one transaction."""

from __future__ import annotations

from sqlalchemy.orm import Session

from hub.config import Settings
from hub.db import driver
from hub.errors import Conflict, NotFound
from hub.jobs import operators
from hub.models import audit
from hub.queue import clock, plans
from hub.queue.plans import Plan


def run(session: Session, settings: Settings, name: str, actor: audit.Actor) -> int:
    """Start the job of a schedule now, whether it is paused, off or neither; returns the job's number.

    Raises Forbidden for anybody but an operator, NotFound for an unknown name, and Conflict, naming the job, if the
    schedule's job may not run beside one that lives.
    """
    operators.require(session, actor)
    plan = _find(settings, name)
    started = clock.run_now(driver(session), plan, settings.queue_max_attempts, actor.name)
    if not started.created:
        raise Conflict("schedule_running", schedule=name, job=str(started.id))
    _record(session, "schedule.run", plan, actor, job_id=started.id)
    return started.id


def pause(session: Session, settings: Settings, name: str, reason: str, actor: audit.Actor) -> None:
    """Let the schedule's ticks be skipped until it is resumed.

    Raises Forbidden and NotFound as `run`, Invalid for a reason that nobody could read, Conflict if it is paused.
    """
    operators.require(session, actor)
    plan = _find(settings, name)
    reason = operators.reason(reason)
    if not clock.pause(driver(session), plan, reason=reason, by_id=actor.id, by_name=actor.name):
        raise Conflict("schedule_paused", schedule=name)
    _record(session, "schedule.paused", plan, actor, reason=reason)


def resume(session: Session, settings: Settings, name: str, actor: audit.Actor) -> None:
    """Let the schedule's ticks fire again, from now on. Raises as `pause`, Conflict if it is not paused."""
    operators.require(session, actor)
    plan = _find(settings, name)
    if not clock.resume(driver(session), plan, settings.queue_max_attempts):
        raise Conflict("schedule_not_paused", schedule=name)
    _record(session, "schedule.resumed", plan, actor)


def _find(settings: Settings, name: str) -> Plan:
    plan = plans.load(settings).get(name)
    if plan is None:
        raise NotFound("no_schedule", schedule=name)
    return plan


def _record(
    session: Session, action: str, plan: Plan, actor: audit.Actor, *, job_id: int | None = None, **changes: str
) -> None:
    audit.record(
        session,
        action,
        actor=actor,
        workspace_id=None,
        target_id=plan.name,
        target_name=plan.name,
        job_id=job_id,
        changes=changes,
    )
