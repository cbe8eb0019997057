"""The lanes of one queue in this process: threads that run what was claimed, one job at a time each.

A lane whose handler outlived its claim is lost: the job may be somebody else's by now, the thread cannot be stopped.
Another thread takes its place; when the handler returns after all, the thread that is one too many leaves. How many may
be lost before the process gives up is the worker's to decide.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from hub.queue.execute import Execution
from hub.queue.kind import Kind

# Claimed ahead are at most so many at once, and only what the lanes do in so many seconds at their pace: slow jobs
# do not wait here while another worker is idle.
SIZES = (500, 250, 100, 50, 25, 10, 5, 2, 1)
AHEAD_SECONDS = 0.5
# The pace is taken over at least so many seconds.
PACE_SECONDS = 0.005
# What was claimed ahead and has waited so many seconds is given back.
STALE = 2.0


class Lanes:
    """The lanes of a queue. `size`: how many; `on_room`: called when there is room for more.

    The queue's jobs are claimed ahead if all its kinds say so. Lanes take work without a lock, for both ends of a deque
    are safe to use from several threads; the lock guards threads that come, sleep and go.
    """

    def __init__(self, queue: str, size: int, kinds: dict[str, Kind], on_room: Callable[[], None]) -> None:
        self.queue = queue
        self.size = size
        self.kinds = kinds
        self.ahead = bool(kinds) and all(kind.prefetch for kind in kinds.values())
        # Whether fresh jobs may wait in the queue, and due ones; when to claim again and when to look, by the monotonic
        # clock.
        self.fresh = True
        self.due = True
        self.claim_at = float("inf")
        self.look_at = 0.0
        # The workspace that was served last.
        self.served: UUID | None = None
        self._on_room = on_room
        # What was claimed for free lanes, and what was claimed ahead.
        self._next: deque[Execution] = deque()
        self._later: deque[Execution] = deque()
        self._started_at = 0.0
        # What each thread does; None while it takes its next job.
        self._busy: dict[threading.Thread, Execution | None] = {}
        self._threads: set[threading.Thread] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._rang = False
        self._low = 0
        self._finished = 0
        self._pace_now = 0
        self._paced_at = time.monotonic()

    def free(self) -> int:
        """How many lanes have nothing to do."""
        return max(0, self.size - sum(1 for one in self.running() if not one.held.is_lost()) - len(self._next))

    def room(self) -> int:
        """How many jobs may be claimed ahead now."""
        self._low = max(self.size, self._pace())
        self._rang = False
        if len(self._later) > self._low:
            return 0
        return max(self.size, next(size for size in SIZES if size <= self._low))

    def _pace(self) -> int:
        """How many jobs the lanes do in AHEAD_SECONDS, by what they did since the last claim."""
        now = time.monotonic()
        if (seconds := now - self._paced_at) > PACE_SECONDS:
            self._pace_now = min(SIZES[0], int(self._finished / seconds * AHEAD_SECONDS))
            self._finished, self._paced_at = 0, now
        return self._pace_now

    def put(self, executions: Sequence[Execution], ahead: bool = False) -> None:
        """Give the lanes work, in the order in which it shall start; `ahead`: after what was claimed for free lanes."""
        if not executions:
            return
        if not self._later:
            self._started_at = time.monotonic()
        (self._later if ahead else self._next).extend(executions)
        with self._changed:
            self._ensure_threads()
            self._changed.notify(len(executions))

    def _ensure_threads(self) -> None:
        wanted = min(self._allowed(), len(self.running()) + len(self._next) + len(self._later))
        while len(self._threads) < wanted:
            thread = threading.Thread(target=self._work, name=f"lane {self.queue}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _allowed(self) -> int:
        return self.size + sum(1 for execution in self.running() if execution.held.is_lost())

    def _work(self) -> None:
        me = threading.current_thread()
        while (execution := self._take(me)) is not None:
            execution.run()
            self._finished += 1
            if self.due or (self.fresh and len(self._later) <= self._low and not self._rang):
                self._rang = True
                self._busy[me] = None
                self._on_room()
            if execution.held.is_lost() and self._is_one_too_many():
                break
        with self._changed:
            self._busy.pop(me, None)
            self._threads.discard(me)
            self._changed.notify_all()

    def _take(self, me: threading.Thread) -> Execution | None:
        """The next job for this lane, waiting for it if need be; None: nothing more will come."""
        while True:
            # Before the job leaves the line: it must be seen in one place or the other.
            self._busy[me] = None
            with suppress(IndexError):
                execution = self._busy[me] = (self._next or self._later).popleft()
                self._started_at = time.monotonic()
                return execution
            with self._changed:
                del self._busy[me]
                self._changed.notify_all()
                while not self._next and not self._later:
                    if self._closed:
                        return None
                    self._changed.wait()

    def _is_one_too_many(self) -> bool:
        with self._changed:
            return len(self._threads) > self._allowed()

    def stale(self) -> list[Execution]:
        """Take back what was claimed ahead if no job started for STALE seconds: slow ones are in the way."""
        stale_at = self.stale_at
        return self._take_back(self._later) if stale_at is not None and time.monotonic() >= stale_at else []

    @property
    def stale_at(self) -> float | None:
        """When what was claimed ahead must be given back if nothing starts before; by the monotonic clock."""
        return self._started_at + STALE if self._later else None

    def close(self) -> list[Execution]:
        """Start nothing more; answers with what has not started."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return self._take_back(self._next) + self._take_back(self._later)

    def _take_back(self, line: deque[Execution]) -> list[Execution]:
        taken: list[Execution] = []
        with suppress(IndexError):
            while True:
                taken.append(line.pop())
        return taken

    def await_idle(self, give_up_at: float, apart_from: set[Execution]) -> list[Execution]:
        """Wait until no handler is at work but for some; answers with those that still are, at `give_up_at` at last."""
        with self._changed:
            while left := [execution for execution in list(self._busy.values()) if execution not in apart_from]:
                if (seconds := give_up_at - time.monotonic()) <= 0:
                    return [execution for execution in left if execution is not None]
                self._changed.wait(seconds)
        return []

    def running(self) -> list[Execution]:
        """What the lanes run now."""
        return [execution for execution in list(self._busy.values()) if execution is not None]
