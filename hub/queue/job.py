"""A job as a worker holds it.

The life of a job:

    enqueue ──> queued ──claim──> running ──finish──> succeeded | failed | cancelled
                  ^  └──cancel──> cancelled   │
                  └──retry, snooze, release───┘      (a lapsed lease is claimed again: running ──> running)

The last three states are terminal: the table refuses every later change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID


@dataclass(slots=True)
class Claimed:
    """A job under a claim. (id, claim) is the fence that every later write must match."""

    id: int
    queue: str
    kind: str
    workspace_id: UUID
    subject: str | None
    attempt: int
    max_attempts: int
    claim: int
    total: int | None
    changed: int
    skipped: int
    failed: int
    closing_tries: int
    used_up: bool
    cancelled: bool
    # Why the attempt before this claim was lost, if it was: worker_lost or deadline_passed.
    cause: str | None
    # Seconds from the claim until it lapses without renewal.
    good_for: float
    args: dict[str, Any]
    request_id: str | None
    # How long the attempt may run; for kinds that step through items, the longest time without a step.
    attempt_seconds: float

    @property
    def position(self) -> int:
        """How many items are done, whatever became of them: the place in the worklist."""
        return self.changed + self.skipped + self.failed


@dataclass(frozen=True)
class Ended:
    """What a closing hook learns of a job that ends in its transaction."""

    id: int
    queue: str
    kind: str
    state: str
    workspace_id: UUID
    subject: str | None
    total: int | None
    changed: int
    skipped: int
    failed: int
    code: str | None = None
    request_id: str | None = None
    result: dict[str, Any] | None = None
    args: dict[str, Any] | None = None


class Enqueued(NamedTuple):
    """The answer to an enqueue: the new job, or the live one that holds the exclusive key."""

    id: int
    created: bool


class Fail(Exception):
    """A handler raises it to fail for good, at once: no retry, no dead letter. `code` is the reason's key."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Snooze(Exception):
    """A handler raises it to be called again after `seconds`, at the price of no attempt: an upstream is throttled.

    `code` says why, as a key. Raises ValueError for a wait that is not between 0 and 30 days.
    """

    def __init__(self, seconds: float, code: str = "throttled") -> None:
        super().__init__(code)
        if not 0 <= seconds <= 30 * 86400:
            raise ValueError(f"a job may snooze for 0 seconds to 30 days, not {seconds}")
        self.seconds = seconds
        self.code = code


class Stopped(Exception):
    """Base of the reasons for which a handler is told to stop; handlers let them pass."""


class LeaseLost(Stopped):
    """Somebody else may hold the job now: write nothing more."""


class Cancelled(Stopped):
    """A cancel request was committed; what is done stays."""


class Interrupted(Stopped):
    """The worker is shutting down; the job is given back."""
