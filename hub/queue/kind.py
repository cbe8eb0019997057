"""What a kind of job declares, and the register of all kinds.

A kind is a module in `hub.jobs` that calls `register(Kind(…))` when it is imported. The queue holds its functions
without knowing what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from hub.queue.context import Context
    from hub.queue.job import Ended

STANDARD = "standard"
EXCLUSIVE = "exclusive"


@dataclass(frozen=True)
class Kind:
    """A type of work.

    name: its key, such as ``course.tag``; queue: the line it waits in, by default its own name.
    run: the handler, called with a Context and the validated arguments; returns the job's result (JSON) or None.
    args: the pydantic model of its arguments.
    policy: STANDARD, or EXCLUSIVE (one live job for each singleton key).
    priority: 0 uploads, 1 syncs and people's jobs, 2 sweeps. attempts: most tries, under the deployment's ceiling.
    deadline: seconds that an attempt may take; with `steps`, the longest time without a finished item.
    recorded: called in the ending transaction; writes what must never be missing (audit). If it raises, nothing ends;
    if it raises Fail at a success, the job fails for that reason instead.
    closing: called after it in a savepoint; marks the subject. If it raises three times, the job ends without it.
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
    deadline: float = 300.0
    steps: bool = False
    recorded: Callable[[Session, Ended], None] | None = None
    closing: Callable[[Session, Ended], None] | None = None
    command: type[Any] | None = None
    form: Callable[..., Any] | None = None
    opening: Callable[..., Any] | None = None

    @property
    def line(self) -> str:
        """The queue that its jobs wait in."""
        return self.queue or self.name


_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Make a kind known. Raises ValueError if its name is taken by another."""
    if kind.name in _kinds and _kinds[kind.name] is not kind:
        raise ValueError(f"two kinds are called {kind.name}")
    _kinds[kind.name] = kind
    return kind


def find(name: str) -> Kind | None:
    """The kind of this name."""
    return _kinds.get(name)


def all_kinds() -> dict[str, Kind]:
    """Every kind by name."""
    return dict(_kinds)


def of_queue(queue: str) -> dict[str, Kind]:
    """The kinds whose jobs wait in this queue."""
    return {name: kind for name, kind in _kinds.items() if kind.line == queue}
