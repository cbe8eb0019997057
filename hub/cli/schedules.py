"""`hub schedules`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hub import config
from hub.cli import base

if TYPE_CHECKING:
    from hub.queue.ledger import Overview
    from hub.queue.timetable import Line

name_argument = click.argument("name")


@click.group()
def schedules() -> None:
    """Schedules: what the clock starts."""
    # Importing the kinds is what makes their schedules known.
    import hub.jobs  # noqa: F401


@schedules.command("list")
@base.as_json
def schedules_list(as_json: bool) -> None:
    """Show every schedule: when it comes next, what became of its last tick, whether it is paused or off."""
    from hub.db import driver
    from hub.queue import timetable

    with base.transaction(None) as (session, _):
        lines = timetable.lines(driver(session), config.load())
    if as_json:
        base.print_json([_as_dict(line) for line in lines])
        return
    for line in lines:
        click.echo("\n    ".join(_told(line)))
    if not lines:
        click.echo("No kind of job has a schedule.")


@schedules.command("run")
@name_argument
@base.acting_as
@base.as_json
def schedules_run(name: str, email: str | None, as_json: bool) -> None:
    """Start the job of a schedule now, whether it is paused, off or neither."""
    from hub.jobs import schedules

    with base.transaction(email) as (session, actor):
        job_id = schedules.run(session, config.load(), name, actor)
    base.answer({"name": name, "job_id": job_id}, as_json, f"Job {job_id} waits for a worker.")


@schedules.command("pause")
@name_argument
@click.option("--reason", required=True, help="Why, for whoever finds it paused.")
@base.acting_as
@base.as_json
def schedules_pause(name: str, reason: str, email: str | None, as_json: bool) -> None:
    """Let a schedule's ticks be skipped until it is resumed."""
    from hub.jobs import schedules

    with base.transaction(email) as (session, actor):
        schedules.pause(session, config.load(), name, reason, actor)
    base.answer({"name": name, "paused": True}, as_json, f"The schedule {name} is paused.")


@schedules.command("resume")
@name_argument
@base.acting_as
@base.as_json
def schedules_resume(name: str, email: str | None, as_json: bool) -> None:
    """Let a paused schedule's ticks fire again, from now on."""
    from hub.jobs import schedules

    with base.transaction(email) as (session, actor):
        schedules.resume(session, config.load(), name, actor)
    base.answer({"name": name, "paused": False}, as_json, f"The schedule {name} runs again.")


def _as_dict(line: Line) -> dict[str, Any]:
    from hub.queue import schedule

    row = line.row
    paused = {"at": _utc(row.paused_at), "by": row.paused_by_name, "reason": row.paused_reason}
    last = {
        "due_at": _utc(row.due_at),
        "through_at": _utc(row.through_at),
        "outcome": row.outcome,
        "reason": row.reason,
        "job_id": row.job_id,
        "job_state": row.job_state,
        "by": row.by_name,
    }
    return {
        "name": line.plan.name,
        "queue": line.plan.kind.line,
        "setting": schedule.setting(line.plan.name),
        "cron": line.cron,
        "time_zone": line.time_zone,
        "off": not line.cron,
        "overlap": line.plan.schedule.overlap,
        "missed": line.plan.schedule.missed,
        "paused": paused if row.paused_at else None,
        "last": last if row.due_at else None,
        "next": [{"at": _utc(due.at), "local": due.local.isoformat(), "note": due.note} for due in line.next],
        "due_since": _utc(line.due_since),
        "error": {"code": row.error, "at": _utc(row.failed_at)} if row.error else None,
        "differs": line.differs,
    }


def _utc(moment: datetime | None) -> str | None:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else None


def _told(line: Line) -> list[str]:
    """A schedule in lines of text, the first of them its name."""
    from hub import words

    row = line.row
    told = [f"{line.plan.name}  {line.cron or 'off'}  {line.time_zone}  (queue {line.plan.kind.line})"]
    if row.paused_at:
        told.append(f"paused  since {row.paused_at:%Y-%m-%d %H:%M UTC} by {row.paused_by_name}: {row.paused_reason}")
    for due in line.next:
        note = f"  ({words.say(f'schedule.note.{due.note}')})" if due.note else ""
        told.append(f"next    {due.local:%Y-%m-%d %H:%M %Z}{note}")
    if row.due_at:
        told.append(f"last    {row.due_at:%Y-%m-%d %H:%M:%S UTC}  {_outcome(row)}")
    if line.due_since:
        told.append(f"LATE    due since {line.due_since:%Y-%m-%d %H:%M UTC}: no worker ticks it")
    if row.error and row.failed_at:
        told.append(f"FAILS   since {row.failed_at:%Y-%m-%d %H:%M UTC}: {row.error}; a worker's log says more")
    if line.unreadable:
        told.append("The workers know an expression that this version of Hub cannot read.")
    elif line.differs:
        told.append(f"The settings here say {line.here or 'off'}, the workers go by what stands above.")
    return told


def _outcome(row: Overview) -> str:
    outcome = f"{row.outcome} by {row.by_name}" if row.by_name else f"{row.outcome}"
    reason = f" ({row.reason})" if row.reason else ""
    if row.job_id is None:
        return outcome + reason
    return f"{outcome}{reason}, job {row.job_id} {row.job_state or 'removed since'}"
