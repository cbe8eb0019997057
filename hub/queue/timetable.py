"""What people are shown of schedules: when they come, what became of the last tick, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from hub.config import Settings
from hub.queue import clock, ledger, plans, schedule
from hub.queue.ledger import Overview
from hub.queue.plans import Plan
from hub.queue.store import Connection

NEXT = 5
# A due time that nobody decided for so long means that no worker ticks the schedule.
OVERDUE = schedule.ON_TIME + timedelta(seconds=clock.LONGEST_SLEEP)


@dataclass(frozen=True)
class Due:
    """A due time to come: in UTC, on the clock of the schedule's zone, and what a change of clocks does to it.

    The note is a key: moved, first, second or once; see `Cron.note`.
    """

    at: datetime
    local: datetime
    note: str | None


@dataclass(frozen=True)
class Line:
    """A schedule under the expression that the workers know, or that of this process's settings if none knows it yet.

    `cron` is empty if it is off. `next` are the next due times. `due_since` is a due time that nobody decided though
    it is long past. `here` is the expression of this process's settings. `unreadable`: this version of Hub cannot read
    that of the workers.
    """

    plan: Plan
    row: Overview
    cron: str
    time_zone: str
    next: list[Due]
    due_since: datetime | None
    here: str
    unreadable: bool

    @property
    def differs(self) -> bool:
        """Whether the workers know another expression, or zone, than this process."""
        zones = (self.time_zone, self.plan.schedule.time_zone)
        return self.here != self.cron or (bool(self.cron) and zones[0] != zones[1])

    @property
    def trouble(self) -> str | None:
        """What is wrong with the schedule, in a sentence for whoever runs Hub; None if nothing is."""
        if self.row.error:
            return (
                f"{self.plan.name} cannot be decided: {self.row.error}, since {self.row.failed_at:%Y-%m-%d %H:%M UTC}"
            )
        if self.due_since:
            return f"{self.plan.name} is due since {self.due_since:%Y-%m-%d %H:%M UTC}, and no worker ticks it"
        if self.unreadable:
            return f"{self.plan.name} runs by {self.cron!r}, which this version of Hub cannot read"
        return None


def lines(connection: Connection, settings: Settings) -> list[Line]:
    """All schedules by name, as they stand."""
    known = plans.load(settings)
    rows = ledger.overview(connection, list(known))
    return [_line(plan, rows[plan.name]) for plan in known.values()]


def _line(plan: Plan, row: Overview) -> Line:
    here, text, zone = plan.text, plan.text, plan.schedule.time_zone
    if row.cron is not None and row.time_zone is not None:
        text, zone = row.cron, row.time_zone
    unreadable = False
    try:
        plan = plan.known_as(text, zone)
    except ValueError:
        unreadable = True
    return Line(
        plan,
        row,
        text,
        zone,
        [] if unreadable else _next(plan, row),
        None if unreadable else _due_since(plan, row),
        here,
        unreadable,
    )


def _next(plan: Plan, row: Overview) -> list[Due]:
    cron = plan.cron
    if cron is None:
        return []
    # What is decided stays so, also if the database's clock was put back.
    after = max(row.now, row.ticked_at or row.now)
    return [Due(due, cron.local(due), cron.note(due)) for due in islice(cron.after(after), NEXT)]


def _due_since(plan: Plan, row: Overview) -> datetime | None:
    due = plan.cron.next(row.ticked_at) if plan.cron and row.ticked_at else None
    return due if due is not None and due < row.now - OVERDUE else None
