"""`hub queues`: the lines of jobs, and pausing them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hub.cli import base

if TYPE_CHECKING:
    from hub.queue.overview import Queue


@click.group()
def queues() -> None:
    """Queues: what waits and runs in each, pause and resume."""
    # Importing the kinds is what makes their queues known.
    import hub.jobs  # noqa: F401


@queues.command("list")
@base.as_json
def queues_list(as_json: bool) -> None:
    """Show every queue: how many jobs wait and run, lanes of live workers, whether it is paused."""
    from hub.db import driver
    from hub.queue import overview

    with base.transaction(None) as (session, _):
        found = overview.queues(driver(session))
    if as_json:
        base.print_json([base.plain(asdict(queue)) for queue in found])
        return
    for queue in found:
        click.echo(_told(queue))


def _told(queue: Queue) -> str:
    parts = [f"{queue.waiting} waiting", f"{queue.running} running", f"{queue.lanes} lanes"]
    if queue.later:
        parts.append(f"{queue.later} for later")
    if queue.paused:
        parts.append(f"paused by {queue.paused_by}: {queue.paused_because}")
    if queue.unknown:
        parts.append(f"unknown kinds: {', '.join(queue.unknown)}")
    return f"{queue.queue}: {', '.join(parts)}"


@queues.command("pause")
@click.argument("queue")
@click.option("--reason", required=True, help="Why, for whoever finds it paused.")
@click.option("--until", type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z"]), help="When it goes on.")
@base.acting_as
@base.as_json
def queues_pause(queue: str, reason: str, until: datetime | None, email: str | None, as_json: bool) -> None:
    """Let a queue start nothing new until it is resumed; what runs goes on."""
    from hub.jobs import operate

    with base.transaction(email) as (session, actor):
        operate.pause(session, queue=queue, reason=reason, until=until, actor=actor)
    report = {"queue": queue, "paused": True, "until": base.plain(until)}
    base.answer(report, as_json, f"The queue {queue} is paused.")


@queues.command("resume")
@click.argument("queue")
@base.acting_as
@base.as_json
def queues_resume(queue: str, email: str | None, as_json: bool) -> None:
    """Let a paused queue go on."""
    from hub.jobs import operate

    with base.transaction(email) as (session, actor):
        operate.resume(session, queue=queue, actor=actor)
    base.answer({"queue": queue, "paused": False}, as_json, f"The queue {queue} goes on.")
