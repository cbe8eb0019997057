"""When a schedule is due: cron expressions in time zones, as pure functions on times that carry their zone.

An expression has five fields, read as Debian's cron reads them. When clocks are put forward or back,

- one whose minute or hour begins with ``*`` is a rhythm and keeps to the clock on the wall: what it would do in an hour
  that is left out does not come, what it does in an hour that comes twice comes twice;
- any other names times of day, and each comes once a day: a time that is left out comes when the clock goes on, a time
  that comes twice comes the first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

SKIP = "skip"
ALLOW = "allow"
ONCE = "once"
ALL = "all"

# What became of a due time.
FIRED = "fired"
SKIPPED = "skipped"
MISSED = "missed"
MANUAL = "manual"

FIELDS = (5,)
MAX_LENGTH = 100
SECOND = timedelta(seconds=1)
YEAR = timedelta(days=366)
# An expression that does not come for so long does not come at all; February 29th on a Monday comes every 40 years.
HORIZON = 50 * YEAR
# Whether an expression can come at all is judged from one date, so that it is judged alike every day.
JUDGED_FROM = datetime(2026, 1, 1, tzinfo=UTC)
# A due time that is found so late was missed: no worker was there to see it.
ON_TIME = timedelta(minutes=5)
# Of the due times that are found at once, so many have a row each, and at most so many run.
MOST = 100


@dataclass(frozen=True)
class Schedule:
    """When the clock starts jobs of a kind.

    cron: five fields, or empty for never, unless the deployment sets another (`setting`). time_zone: the IANA name of
    the zone it is read in. overlap: SKIP (a tick is left out while the job of an earlier one lives) or ALLOW. missed:
    what becomes of due times that passed while no worker was there: SKIP (none runs), ONCE (the latest runs), ALL (the
    latest MOST run). Raises ValueError for what cannot be.
    """

    cron: str
    time_zone: str = "UTC"
    overlap: str = SKIP
    missed: str = ONCE

    def __post_init__(self) -> None:
        Cron(self.cron or "* * * * *", self.time_zone)
        if self.overlap not in (SKIP, ALLOW) or self.missed not in (SKIP, ONCE, ALL):
            raise ValueError(f"no policy is called {self.overlap} or {self.missed}")
        if self.missed == ALL and self.overlap != ALLOW:
            raise ValueError("only jobs that may overlap can all be made up for")


@dataclass(frozen=True)
class Tick:
    """What is to become of a due time. `through_at`: it stands for all due times up to there."""

    due_at: datetime
    outcome: str
    reason: str | None = None
    through_at: datetime | None = None


class Cron:
    """A cron expression in a time zone. Raises ValueError, beginning with "must", for one that can never be due."""

    def __init__(self, text: str, time_zone: str = "UTC") -> None:
        self.text = _well_formed(text)
        self.time_zone = time_zone
        self._zone = _zone(time_zone)
        minute, hour = self.text.split()[-5:-3]
        self.is_rhythm = minute.startswith("*") or hour.startswith("*") or len(self.text.split()) != 5
        if self.next(JUDGED_FROM) is None:
            raise ValueError(f"must be a cron expression that comes one day, which {text!r} never does")

    def next(self, after: datetime) -> datetime | None:
        """The first due time after `after`, in UTC; None if there is none for 50 years.

        Raises ValueError for a time without a zone.
        """
        if after.utcoffset() is None:
            raise ValueError("a time must say its zone")
        after = after.astimezone(UTC)
        if self.is_rhythm:
            return self._next_of_rhythm(after.replace(microsecond=0) + SECOND)
        dues = (due.astimezone(UTC) for due in CronSim(self.text, after.astimezone(self._zone)))
        # In an hour that comes for the second time, the library begins with its first coming.
        return next((due for due in dues if due > after), None)

    def _next_of_rhythm(self, start: datetime) -> datetime | None:
        """The library works on the bare clock on the wall, between one change of that clock and the next.

        By itself it loses ticks where clocks are changed by half an hour.
        """
        give_up_at = start + HORIZON
        while start < give_up_at:
            offset = self._offset(start)
            wall = next(CronSim(self.text, start.replace(tzinfo=None) + offset - SECOND), None)
            if wall is None:
                return None
            due = (wall - offset).replace(tzinfo=UTC)
            if self._offset(due) == offset:
                return due
            start = self._change(start, due)
        return None

    def _offset(self, moment: datetime) -> timedelta:
        offset = moment.astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset

    def _change(self, low: datetime, high: datetime) -> datetime:
        """The first second of another offset than that of `low`; there is one up to `high`."""
        offset = self._offset(low)
        while (seconds := int((high - low).total_seconds())) > 1:
            middle = low + timedelta(seconds=seconds // 2)
            if self._offset(middle) == offset:
                low = middle
            else:
                high = middle
        return high

    def after(self, moment: datetime) -> Iterator[datetime]:
        """All due times after `moment`, in order."""
        due = self.next(moment)
        while due is not None:
            yield due
            due = self.next(due)

    def latest(self, after: datetime, until: datetime, most: int) -> tuple[list[datetime], bool]:
        """The last due times in (after, until], at most `most`, in order; and whether there are earlier ones.

        However many there are, only some thousands are computed.
        """
        found = self._some(after, until, most)
        if len(found) <= most:
            return found, False
        low, high, found = after, until, []
        while high - low > SECOND:
            middle = low + (high - low) / 2
            some = self._some(middle, until, most)
            if len(some) > most:
                low = middle
            else:
                high, found = middle, some
        return found, True

    def _some(self, after: datetime, until: datetime, most: int) -> list[datetime]:
        return list(islice(takewhile(lambda due: due <= until, self.after(after)), most + 1))

    def shortest(self) -> float:
        """The least seconds from one due time to the next, as a year begins; a year if there are no two."""
        dues = takewhile(lambda due: due < JUDGED_FROM + YEAR, islice(self.after(JUDGED_FROM), 300))
        return min(((later - due).total_seconds() for due, later in pairwise(dues)), default=YEAR.total_seconds())

    def local(self, due: datetime) -> datetime:
        """The due time on the clock of the zone."""
        return due.astimezone(self._zone)

    def note(self, due: datetime) -> str | None:
        """What a change of clocks does to a due time, as a key; None on other days.

        moved: the time that the expression names is left out that day. first, second: the time comes twice and this is
        its first or second coming; once: it comes twice and is due the first time only.
        """
        wall = due.astimezone(self._zone)
        bare = wall.replace(tzinfo=None, fold=0)
        if next(CronSim(self.text, bare - SECOND), None) != bare:
            return "moved"
        first, second = (wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
        if first == second:
            return None
        return ("second" if wall.fold else "first") if self.is_rhythm else "once"


def _well_formed(text: str) -> str:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"must be a cron expression of at most {MAX_LENGTH} characters")
    fields = text.split()
    if len(fields) not in FIELDS:
        raise ValueError(f"must be a cron expression of five fields, such as */5 * * * *, and is {text!r}")
    try:
        CronSim(text, JUDGED_FROM)
    except (CronSimError, ValueError) as error:
        raise ValueError(f"must be a cron expression, and {text!r} is none: {str(error).lower()}") from None
    return " ".join(fields)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"must be in a time zone, and none is called {name!r}") from None


def setting(kind: str) -> str:
    """The setting that overrides the cron expression of a kind."""
    return f"HUB_CRON_{kind.upper().replace('.', '_')}"


def decide(
    schedule: Schedule, cron: Cron, *, after: datetime, now: datetime, paused_at: datetime | None = None
) -> list[Tick]:
    """What becomes of the due times in (after, now], in order: at most MOST, and one for all that lie before these.

    FIRED means that it is to be started, if no overlap is in the way.
    """
    latest, more = cron.latest(after, now, MOST)
    ticks = []
    if more:
        first, last = cron.next(after), _before(cron, after, latest[0])
        assert first is not None
        ticks.append(Tick(first, *_outcome_of_unfired(last, paused_at), through_at=last))
    for due in latest:
        runs = schedule.missed == ALL or (due == latest[-1] and (schedule.missed == ONCE or due >= now - ON_TIME))
        if paused_at is None and runs:
            ticks.append(Tick(due, FIRED, "late" if due < now - ON_TIME else None))
        else:
            ticks.append(Tick(due, *_outcome_of_unfired(due, paused_at)))
    return ticks


def _before(cron: Cron, after: datetime, due: datetime) -> datetime:
    """The last due time in (after, due)."""
    (last,), _ = cron.latest(after, due - SECOND, 1)
    return last


def _outcome_of_unfired(due: datetime, paused_at: datetime | None) -> tuple[str, str | None]:
    return (SKIPPED, "paused") if paused_at is not None and due >= paused_at else (MISSED, None)
