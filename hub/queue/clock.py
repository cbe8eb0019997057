"""Starts the jobs of schedules. Every worker ticks those of the queues it has lanes for; there is no leader.

A due time is decided once: whoever locks the schedule's row enters it into the ledger (`queue.tick`), enqueues its job
and moves the schedule on (`ticked_at`), in one transaction. The database's clock alone says what is due: a worker's own
may be wrong, and is only used to measure how long to sleep. When the database's clock is put back, what was decided
stays decided; when it is put forward, or no worker was there, the schedule's policy says what becomes of the due times
that passed. What that may be: `schedule.decide`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable
from uuid import UUID

from hub.config import Settings
from hub.db import is_conflict, is_connection_loss
from hub.queue import backoff, ledger, plans, store
from hub.queue.job import Enqueued
from hub.queue.kind import EXCLUSIVE
from hub.queue.ledger import Row
from hub.queue.plans import Plan
from hub.queue.schedule import FIRED, SKIP, SKIPPED, decide
from hub.queue.store import Connection

log = logging.getLogger(__name__)

# The database's clock may be set: look at it at least so often, in seconds.
LONGEST_SLEEP = 120.0
# A worker without schedules has nothing to look at.
NEVER = 86_400.0
# Workers come so many seconds after a due time, not all at once; the first of them decides it.
JITTER = 0.5
# When another worker is deciding a schedule, look again this soon.
HELD_WAIT = 1.0
# A schedule that cannot be decided is tried again after so long at the most.
LONGEST_WAIT = 60.0


class Clock:
    """Ticks the schedules of some queues. Raises ConfigError for a setting of any schedule that makes no sense."""

    name = "clock"

    def __init__(self, settings: Settings, queues: Iterable[str], worker: int | None = None) -> None:
        mine = set(queues)
        self._plans = {name: plan for name, plan in plans.load(settings).items() if plan.kind.line in mine}
        self._ceiling = settings.queue_max_attempts
        self._worker = worker
        self._declared = False
        # Of schedules that could not be decided: how often in a row, and when to try again by the monotonic clock.
        self._failing: dict[str, tuple[int, float]] = {}

    def act(self, connection: Connection) -> float:
        """Decide every due time up to now; answers in how many seconds the next one may come."""
        if not self._plans:
            return NEVER
        rows = self._look(connection)
        waits = [self._advance(connection, plan, rows[plan.name]) for plan in self._plans.values()]
        return min(LONGEST_SLEEP, *waits) + random.uniform(0, JITTER)

    def note(self, connection: Connection, error: str) -> None:
        """Note that no schedule can be decided, and why."""
        ledger.fail(connection, list(self._plans), error)

    def _look(self, connection: Connection) -> dict[str, Row]:
        names = list(self._plans)
        rows = ledger.look(connection, names) if self._declared else {}
        if len(rows) < len(names):
            ledger.declare(connection, self._plans.values())
            self._declared = True
            rows = ledger.look(connection, names)
        return rows

    def _advance(self, connection: Connection, plan: Plan, row: Row) -> float:
        """Decide a schedule's due times; seconds until the next. What goes wrong with it leaves the others alone."""
        failures, try_at = self._failing.get(plan.name, (0, 0.0))
        if (wait := try_at - time.monotonic()) > 0:
            return wait
        try:
            wait = self._decide_due(connection, plan, row)
        except Exception as error:
            if is_connection_loss(error):
                raise
            wait = backoff.wait(failures + 1, base=HELD_WAIT, ceiling=LONGEST_WAIT)
            self._failing[plan.name] = (failures + 1, time.monotonic() + wait)
            self._tell(connection, plan.name, error, wait)
            return wait
        self._failing.pop(plan.name, None)
        return wait

    def _decide_due(self, connection: Connection, plan: Plan, row: Row) -> float:
        due = plan.cron.next(row.ticked_at) if plan.cron else None
        if due is not None and due <= row.now:
            if not settle(connection, plan, self._ceiling, self._worker):
                return HELD_WAIT
            assert plan.cron
            due = plan.cron.next(row.now)
        elif row.error is not None:
            ledger.recover(connection, [plan.name])
        return (due - row.now).total_seconds() if due else LONGEST_SLEEP

    def _tell(self, connection: Connection, name: str, error: Exception, wait: float) -> None:
        told = (name, type(error).__name__, wait)
        if is_conflict(error):
            log.warning("schedule %s is busy: %s; tried again in %.1f s", *told)
            return
        log.error("schedule %s cannot be decided: %s; tried again in %.1f s", *told, exc_info=error)
        ledger.fail(connection, [name], type(error).__name__)


def settle(connection: Connection, plan: Plan, ceiling: int, worker: int | None = None) -> bool:
    """Decide the schedule's due times up to now, in one transaction; False if another worker is at it.

    `ceiling` is the deployment's on attempts.
    """
    with connection.transaction():
        row = ledger.hold(connection, plan.name)
        if row is None:
            return False
        _settle(connection, plan, row, ceiling, worker)
    return True


def _settle(connection: Connection, plan: Plan, row: Row, ceiling: int, worker: int | None) -> None:
    if plan.cron is None:
        return
    ticks = decide(plan.schedule, plan.cron, after=row.ticked_at, now=row.now, paused_at=row.paused_at)
    if not ticks:
        return
    new = ledger.record(connection, plan.name, ticks, worker)
    job_id = row.job_id
    for tick in ticks:
        if tick.due_at not in new:
            continue
        outcome, reason = tick.outcome, tick.reason
        if outcome == FIRED:
            started = _start(connection, plan, job_id, ceiling)
            if started.created:
                job_id = started.id
            else:
                outcome, reason = SKIPPED, "overlap"
            ledger.set_job(connection, plan.name, tick.due_at, outcome=outcome, reason=reason, job_id=started.id)
        said = {"due_at": tick.due_at.isoformat(), "outcome": outcome, "reason": reason, "started": job_id}
        log.info("tick of %s", plan.name, extra=said)
    last = ticks[-1]
    ledger.advance(connection, plan.name, last.through_at or last.due_at, job_id)


def _start(connection: Connection, plan: Plan, last_job: int | None, ceiling: int) -> Enqueued:
    """Enqueue the schedule's job, or answer with the one that is in its way."""
    if plan.kind.policy == EXCLUSIVE:
        return store.enqueue(connection, plan.kind, {}, ceiling=ceiling, key=plan.kind.line)
    if plan.schedule.overlap == SKIP and last_job is not None and ledger.lives(connection, last_job):
        return Enqueued(last_job, created=False)
    return store.enqueue(connection, plan.kind, {}, ceiling=ceiling)


def run_now(connection: Connection, plan: Plan, ceiling: int, by_name: str) -> Enqueued:
    """Start the schedule's job by hand, in the caller's transaction, whether it is paused, off or neither.

    Answers with the job, or with the one that is in its way: then nothing was started.
    """
    row = _held(connection, plan)
    started = _start(connection, plan, row.job_id, ceiling)
    if started.created:
        ledger.record_manual(connection, plan.name, started.id, by_name)
    return started


def pause(connection: Connection, plan: Plan, *, reason: str, by_id: UUID | None, by_name: str) -> bool:
    """Let the schedule's ticks be skipped, in the caller's transaction; False if they are already."""
    _held(connection, plan)
    return ledger.pause(connection, plan.name, reason=reason, by_id=by_id, by_name=by_name)


def resume(connection: Connection, plan: Plan, ceiling: int) -> bool:
    """Let the schedule's ticks fire again, from now on, in the caller's transaction; False if they do already."""
    row = _held(connection, plan)
    if row.paused_at is not None:
        # What came due during the pause was skipped by it, also if no worker was there to say so.
        _settle(connection, plan.known_as(row.cron, row.time_zone), row, ceiling, None)
    return ledger.resume(connection, plan.name)


def _held(connection: Connection, plan: Plan) -> Row:
    ledger.ensure(connection, plan)
    row = ledger.hold(connection, plan.name, wait=True)
    assert row is not None
    return row
