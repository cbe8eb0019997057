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

    The queue's jobs are claimed ahead if all its kinds say so.
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
        self._on_room = on_room
        self._waiting: deque[Execution] = deque()
        # So many at the front of what waits were claimed for free lanes.
        self._first = 0
        self._waiting_since = 0.0
        self._busy: dict[threading.Thread, Execution] = {}
        self._threads: set[threading.Thread] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._low = 0
        self._finished = 0
        self._pace_now = 0
        self._paced_at = time.monotonic()

    def free(self) -> int:
        """How many lanes have nothing to do. What waits without having been claimed ahead counts as at work."""
        with self._changed:
            at_work = sum(1 for execution in self._busy.values() if not execution.held.is_lost())
            return max(0, self.size - at_work - self._first)

    def room(self) -> int:
        """How many jobs may be claimed ahead now."""
        target = max(self.size, self._pace())
        if len(self._waiting) * 2 > target:
            return 0
        return max(self.size, next(size for size in SIZES if size <= target))

    def _pace(self) -> int:
        """How many jobs the lanes do in AHEAD_SECONDS, by what they did since the last claim."""
        now = time.monotonic()
        if (seconds := now - self._paced_at) > PACE_SECONDS:
            self._pace_now = min(SIZES[0], int(self._finished / seconds * AHEAD_SECONDS))
            self._finished, self._paced_at = 0, now
        return self._pace_now

    def put(self, executions: Sequence[Execution], first: bool = False) -> None:
        """Give the lanes work, in the order in which it shall start; `first`: before what was claimed ahead."""
        with self._changed:
            if not self._waiting:
                self._waiting_since = time.monotonic()
            if first:
                self._waiting.extendleft(reversed(executions))
                self._first += len(executions)
            else:
                self._waiting.extend(executions)
                self._low = len(self._waiting) // 2
            self._ensure_threads()
            self._changed.notify(len(executions))

    def _ensure_threads(self) -> None:
        wanted = min(self._allowed(), len(self._busy) + len(self._waiting))
        while len(self._threads) < wanted:
            thread = threading.Thread(target=self._work, name=f"lane {self.queue}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _allowed(self) -> int:
        return self.size + sum(1 for execution in self._busy.values() if execution.held.is_lost())

    def _work(self) -> None:
        me = threading.current_thread()
        while (execution := self._take(me)) is not None:
            execution.run()
            self._finished += 1
            with self._changed:
                del self._busy[me]
                if self._closed:
                    self._changed.notify_all()
            if self.due or (self.fresh and (not self.ahead or len(self._waiting) in (0, self._low))):
                self._on_room()

    def _take(self, me: threading.Thread) -> Execution | None:
        with self._changed:
            while not self._waiting and not self._closed and len(self._threads) <= self._allowed():
                self._changed.wait()
            if not self._waiting or len(self._threads) > self._allowed():
                self._threads.discard(me)
                self._changed.notify_all()
                return None
            self._waiting_since = time.monotonic()
            self._first = max(0, self._first - 1)
            execution = self._busy[me] = self._waiting.popleft()
            return execution

    def stale(self) -> list[Execution]:
        """Take back what was claimed ahead and still waits after STALE seconds: a slow job is in the way."""
        with self._changed:
            if not self.ahead or not self._waiting or time.monotonic() < self._waiting_since + STALE:
                return []
            return self._take_back(self._first)

    def close(self) -> list[Execution]:
        """Start nothing more; answers with what has not started."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._take_back(0)

    def _take_back(self, leave: int) -> list[Execution]:
        taken = [self._waiting.pop() for _ in range(len(self._waiting) - leave)]
        self._first = leave
        return taken

    def await_idle(self, give_up_at: float, apart_from: set[Execution]) -> list[Execution]:
        """Wait until no handler is at work but for some; answers with those that still are, at `give_up_at` at last."""
        with self._changed:
            while left := [execution for execution in self._busy.values() if execution not in apart_from]:
                if (seconds := give_up_at - time.monotonic()) <= 0:
                    return left
                self._changed.wait(seconds)
        return []

    def running(self) -> list[Execution]:
        """What the lanes run now."""
        with self._changed:
            return list(self._busy.values())

    @property
    def stale_at(self) -> float | None:
        """When what was claimed ahead must be given back if nothing starts before; by the monotonic clock."""
        return self._waiting_since + STALE if self.ahead and self._waiting else None
