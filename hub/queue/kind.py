"""What a kind of job declares, and the register of all kinds.

A kind is a module in `hub.jobs` that calls `register(Kind(…))` when it is imported. The queue holds its functions
without knowing what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hub.queue import schedule as schedules
from hub.queue.schedule import Schedule

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from hub.config import Settings
    from hub.db import Database
    from hub.queue.context import Context
    from hub.queue.job import Claimed, Ended
    from hub.queue.store import Item

STANDARD = "standard"
EXCLUSIVE = "exclusive"
# Jobs claimed ahead wait a few seconds for a lane, which counts towards their deadline.
PREFETCH_DEADLINE = 15.0


@dataclass(frozen=True)
class Kind:
    """A type of work.

    name: its key, such as ``course.tag``; queue: the line it waits in, by default its own name.
    run: the handler, called with a Context and the validated arguments; returns the job's result (JSON) or None.
    args: the pydantic model of its arguments.
    policy: STANDARD, or EXCLUSIVE (one live job for each singleton key).
    priority: 0 uploads, 1 syncs and people's jobs, 2 sweeps. attempts: most tries, under the deployment's ceiling.
    retry_max: seconds, the longest wait before another try, under the deployment's ceiling.
    deadline: seconds that an attempt may take; with `steps`, the longest time without a finished item.
    prefetch: a worker may claim its jobs ahead of its lanes, and end them in batches. For short work that may run twice
    without harm, that nobody watches and that leaves nothing to write at its end.
    locks: called first in every ending transaction; locks the row that the job is about, which comes before the job's.
    recorded: called in the ending transaction; writes what must never be missing (audit). If it raises, nothing ends;
    if it raises Fail at a success, the job fails for that reason instead.
    closing: called after it in a savepoint; marks the subject. If it raises three times, the job ends without it.
    follow_up: called in the transaction of a success; if it answers with an item, that is enqueued as the next job of
    the kind, which an exclusive kind could not do a moment earlier (see `hub.queue.mirror`).
    tidy: called once a worker has recorded an end and that has committed; removes what is left outside the database.
    Nothing depends on it: what it raises is logged.
    schedule: when the clock starts jobs of this kind, with empty arguments; an exclusive one has its queue as the key.
    command, form, opening: of kinds that people start, the pydantic model of what they send, the hook that says what
    their start page shows, and the hook that turns a command into `args` and a worklist in the creating transaction;
    see `hub.jobs.people`.
    """

    name: str
    run: Callable[[Context, Any], dict[str, Any] | None]
    args: type[Any]
    queue: str = ""
    policy: str = STANDARD
    priority: int = 1
    attempts: int = 5
    retry_max: float | None = None
    deadline: float = 300.0
    steps: bool = False
    prefetch: bool = False
    locks: Callable[[Session, Claimed], None] | None = None
    recorded: Callable[[Session, Ended], None] | None = None
    closing: Callable[[Session, Ended], None] | None = None
    follow_up: Callable[[Session, Ended], Item | None] | None = None
    tidy: Callable[[Database, Settings, Ended], None] | None = None
    schedule: Schedule | None = None
    command: type[Any] | None = None
    form: Callable[..., Any] | None = None
    opening: Callable[..., Any] | None = None

    @property
    def line(self) -> str:
        """The queue that its jobs wait in."""
        return self.queue or self.name


_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Make a kind known. Raises ValueError if its name is taken by another, or if it cannot keep what it declares."""
    if kind.prefetch:
        _check_prefetch(kind)
    if kind.schedule:
        _check_schedule(kind, kind.schedule)
    if kind.name in _kinds and _kinds[kind.name] is not kind:
        raise ValueError(f"two kinds are called {kind.name}")
    _kinds[kind.name] = kind
    return kind


def _check_prefetch(kind: Kind) -> None:
    """A worker's death charges an attempt to every job it claimed ahead, and a batch writes nothing but the success."""
    hooks = (kind.locks, kind.recorded, kind.closing, kind.follow_up, kind.tidy, kind.command)
    if kind.policy != STANDARD or kind.attempts < 2 or any(hooks) or kind.deadline < PREFETCH_DEADLINE:
        needs = f"the standard policy, two attempts, a deadline of {PREFETCH_DEADLINE:g} s and no hooks"
        raise ValueError(f"{kind.name}: prefetch needs {needs}")


def _check_schedule(kind: Kind, schedule: Schedule) -> None:
    """The clock has no arguments to give and nobody to ask for."""
    kind.args.model_validate({})
    if kind.command is not None:
        raise ValueError(f"{kind.name}: what people start has no schedule")
    if kind.policy == EXCLUSIVE and schedule.overlap != schedules.SKIP:
        raise ValueError(f"{kind.name}: jobs of an exclusive kind do not overlap")
    for other in _kinds.values():
        taken = other.schedule is not None and schedules.setting(other.name) == schedules.setting(kind.name)
        if taken and other.name != kind.name:
            raise ValueError(f"{kind.name} and {other.name} would have one setting")


def find(name: str) -> Kind | None:
    """The kind of this name."""
    return _kinds.get(name)


def all_kinds() -> dict[str, Kind]:
    """Every kind by name."""
    return dict(_kinds)


def of_queue(queue: str) -> dict[str, Kind]:
    """The kinds whose jobs wait in this queue."""
    return {name: kind for name, kind in _kinds.items() if kind.line == queue}
