"""`hub jobs`: look at jobs of every kind, cancel them, decide about dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hub.cli import base
from hub.errors import Forbidden, NotFound, Refusal

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from hub.config import Settings
    from hub.models.audit import Actor
    from hub.queue.letters import Outcome

STATES = ("queued", "running", "succeeded", "failed", "cancelled")
# The largest number that a job can have.
job_number = click.IntRange(1, 2**63 - 1)

Decide = Callable[["Session", "Settings", list[int], "Actor"], "list[Outcome]"]


@click.group()
def jobs() -> None:
    """Jobs of every kind, and the dead letters of those that used up their attempts."""
    import hub.jobs  # noqa: F401


@jobs.command("list")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--dead", is_flag=True, help="Open dead letters instead, by kind and reason.")
@click.option("--before", type=job_number, help="Only jobs older than this one.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@base.as_json
def jobs_list(
    queue: str | None,
    kind: str | None,
    state: str | None,
    dead: bool,
    before: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show jobs, newest first; with --dead, what waits for a decision."""
    from hub.db import driver
    from hub.queue import letters, overview

    if dead:
        with base.transaction(None) as (session, _):
            groups = letters.groups(driver(session))
        _print([asdict(group) for group in groups], as_json, lambda g: f"{g['kind']}: {g['code']}: {g['count']} open")
        return
    with base.transaction(None) as (session, _):
        page = overview.page(driver(session), queue=queue, kind=kind, state=state, before=before, limit=limit)
    if as_json:
        base.print_json({"items": [base.plain(asdict(job)) for job in page.jobs], "next": page.before})
        return
    _print([asdict(job) for job in page.jobs], False, lambda job: f"{job['id']}  {job['kind']}  {job['state']}")
    if page.before is not None:
        click.echo(f"There may be more: --before {page.before}")


def _print(rows: list[dict[str, Any]], as_json: bool, say: Callable[[dict[str, Any]], str]) -> None:
    if as_json:
        base.print_json(base.plain(rows))
        return
    for row in rows:
        click.echo(say(row))


@jobs.command("show")
@click.argument("number", type=job_number)
@base.as_json
def jobs_show(number: int, as_json: bool) -> None:
    """Show one job, its earlier attempts and its dead letter."""
    from hub.db import driver
    from hub.queue import letters, overview, reads

    with base.transaction(None) as (session, _):
        connection = driver(session)
        job = overview.find(connection, number)
        if job is None:
            raise NotFound("no_job", job=str(number))
        attempts = [asdict(attempt) for attempt in reads.attempts(connection, number)]
        letter = letters.find(connection, number)
    report = asdict(job) | {"attempts": attempts, "dead_letter": asdict(letter) if letter else None}
    if as_json:
        base.print_json(base.plain(report))
        return
    for name, value in base.plain(report).items():
        if value not in (None, [], {}):
            click.echo(f"{name}: {value}")


@jobs.command("cancel")
@click.argument("number", type=job_number)
@base.acting_as
@base.as_json
def jobs_cancel(number: int, email: str | None, as_json: bool) -> None:
    """Cancel a job: a waiting one ends at once, a running one stops at its next step."""
    from hub.db import driver
    from hub.queue import overview

    with base.transaction(email) as (session, actor):
        _cancel(session, number, actor)
        job = overview.find(driver(session), number)
    assert job is not None
    asked = job.cancel_requested_at is not None
    report = {"id": number, "state": job.state, "cancel_requested": asked}
    base.answer(report, as_json, f"Job {number} is {job.state}{', and will stop' if job.state == 'running' else ''}.")


def _cancel(session: Session, number: int, actor: Actor) -> None:
    """People's jobs are cancelled by an admin of their workspace, machines' by an operator."""
    from hub.db import driver
    from hub.jobs import cancel, operate
    from hub.models.workspace import Workspace
    from hub.queue import store

    asked = store.requested_by(driver(session), number)
    if asked is None:
        operate.cancel(session, job_id=number, actor=actor)
        return
    if actor.id is None:
        raise Forbidden("people_job", job=str(number))
    workspace = session.get(Workspace, asked["workspace_id"])
    assert workspace is not None
    base.require(session, workspace, actor, "job.start")
    cancel.cancel(session, job_id=number, actor=actor)


@jobs.command("redrive")
@click.argument("numbers", type=job_number, nargs=-1)
@click.option("--kind", help="All open dead letters of this kind with the reason --code.")
@click.option("--code", help="The reason that goes with --kind.")
@base.acting_as
@base.as_json
def jobs_redrive(
    numbers: tuple[int, ...], kind: str | None, code: str | None, email: str | None, as_json: bool
) -> None:
    """Make new jobs of the dead letters of these jobs, or of all of a kind and reason."""
    from hub.jobs import operate

    def redrive(session: Session, settings: Settings, ids: list[int], actor: Actor) -> list[Outcome]:
        return operate.redrive(session, settings, job_ids=ids, actor=actor)

    _decide(redrive, numbers, kind, code, email, as_json)


@jobs.command("discard")
@click.argument("numbers", type=job_number, nargs=-1)
@click.option("--kind", help="All open dead letters of this kind with the reason --code.")
@click.option("--code", help="The reason that goes with --kind.")
@click.option("--reason", required=True, help="Why they are given up.")
@base.acting_as
@base.as_json
def jobs_discard(
    numbers: tuple[int, ...], kind: str | None, code: str | None, reason: str, email: str | None, as_json: bool
) -> None:
    """Give the dead letters of these jobs up, or all of a kind and reason."""
    from hub.jobs import operate

    def discard(session: Session, settings: Settings, ids: list[int], actor: Actor) -> list[Outcome]:
        return operate.discard(session, job_ids=ids, reason=reason, actor=actor)

    _decide(discard, numbers, kind, code, email, as_json)


def _decide(
    act: Decide, numbers: tuple[int, ...], kind: str | None, code: str | None, email: str | None, as_json: bool
) -> None:
    """Act on letters in batches, each in a transaction of its own, and say what came of each letter."""
    from hub.jobs import operate

    if bool(numbers) == bool(kind) or bool(kind) != bool(code):
        raise click.UsageError("Name the jobs, or else --kind and --code.")
    refused = 0
    told: list[dict[str, Any]] = []
    with base.open_database() as (settings, database):
        for ids in _batches(database, numbers, kind, code):
            with database.transaction() as session:
                outcomes = act(session, settings, ids, base.actor(session, email))
            for outcome in outcomes:
                problem = operate.refusal(outcome, settings)
                refused += problem is not None
                report = {"id": outcome.job_id, "made": outcome.made}
                told.append(report | {"problem": outcome.problem, "twin": outcome.twin})
                if not as_json:
                    click.echo(_sentence(outcome, problem))
    if as_json:
        base.print_json({"items": told})
    if refused:
        raise SystemExit(1)


def _batches(database: Any, numbers: tuple[int, ...], kind: str | None, code: str | None) -> Iterator[list[int]]:
    from hub.queue import letters

    if kind and code:
        yield from letters.batches(database, kind, code)
    for start in range(0, len(numbers), letters.BATCH):
        yield list(numbers[start : start + letters.BATCH])


def _sentence(outcome: Outcome, problem: Refusal | None) -> str:
    from hub import words

    if problem is not None:
        return words.refusal(problem.code, problem.status, problem.data)
    return f"Job {outcome.job_id}: " + (f"job {outcome.made} is made of it" if outcome.made else "discarded")
