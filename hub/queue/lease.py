"""Keeps a worker's leases alive, on a thread and a connection of its own.

A handler that computes, waits or hangs must not cost its job the lease, so renewal never depends on the handler's
thread. The keeper also tells watchers of progress, at most once a second and job: a NOTIFY inside the per-item
transaction would serialise the commits of all workers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import psycopg

from hub import db
from hub.queue import store
from hub.queue.job import Claimed, Interrupted, LeaseLost

log = logging.getLogger(__name__)

PULSE = 1.0
BEAT = store.WORKER_SILENT / 3
# A lease is given up this share of its length early: the database's clock and ours may run apart a little.
MARGIN = 0.1


@dataclass(eq=False, slots=True)
class Held:
    """A claim that this process holds, and what its handlers must know before each write.

    It stands for one job; or for all that were claimed ahead together, which share their fate.
    """

    claim: int
    ids: set[int]
    # By our own monotonic clock, counted from before the claim or renewal was sent.
    good_until: float
    renew_at: float
    # When the attempt's time is up, by the same clock.
    deadline: float
    # When the worker noticed that the claim is lost while its handler still ran.
    loss_seen_at: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise LeaseLost or Interrupted if the handler may not go on; called before each item and outside write."""
        if self.stop.is_set():
            raise Interrupted
        if self.is_lost():
            raise LeaseLost

    def is_lost(self) -> bool:
        """Whether the claim may be somebody else's by now."""
        return time.monotonic() >= self.good_until

    def remaining(self) -> float:
        """Seconds until the deadline; 0 if the claim is lost."""
        return 0.0 if self.is_lost() else max(0.0, self.deadline - time.monotonic())


class LeaseKeeper:
    """Renews every held claim every `renew` seconds for `lease` seconds; one thread, one connection.

    On the same connection it gives the worker's signs of life, if `worker` is its number, and tells whether it hears.
    """

    def __init__(self, url: str, *, lease: float, renew: float, worker: int | None = None) -> None:
        self._url = url
        self.lease = lease
        self._renew = renew
        self._worker = worker
        self._beat_at = time.monotonic() + BEAT if worker else float("inf")
        self._listening = False
        self._listening_since = time.monotonic()
        self._held: set[Held] = set()
        self._wakes_at = 0.0
        self._moved: set[int] = set()
        self._lock = threading.Condition()
        self._stopping = False
        self._connection: psycopg.Connection[object] | None = None
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; held claims are left to lapse."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        self._thread.join(timeout=5)

    def hold(self, jobs: list[Claimed], claimed_at: float) -> Held:
        """Keep the claim of these jobs alive from now on, as one.

        `claimed_at`: time.monotonic() from before the claim was sent.
        """
        good_for = min(job.good_for for job in jobs)
        held = Held(
            jobs[0].claim,
            {job.id for job in jobs},
            good_until=claimed_at + good_for * (1 - MARGIN),
            renew_at=claimed_at + min(self._renew, good_for / 3),
            deadline=claimed_at + min(job.attempt_seconds for job in jobs),
        )
        with self._lock:
            self._held.add(held)
            # Woken only if it would sleep too long: a woken thread would take the processor from the claimed job.
            if held.renew_at < self._wakes_at:
                self._lock.notify()
        return held

    def drop(self, held: Held, ids: Iterable[int]) -> None:
        """These jobs have ended or were given up: renew them no longer."""
        with self._lock:
            held.ids.difference_update(ids)
            self._moved.difference_update(ids)
            if not held.ids:
                self._held.discard(held)

    def moved(self, job_id: int) -> None:
        """A job made progress; its watchers are told within a second."""
        if job_id not in self._moved:
            with self._lock:
                self._moved.add(job_id)
                self._lock.notify()

    def listens(self, listening: bool) -> None:
        """Note in the worker's row, at once, that notifications reach it, or no longer do."""
        with self._lock:
            self._listening, self._listening_since = listening, time.monotonic()
            self._beat_at = self._listening_since
            self._lock.notify()

    def _run(self) -> None:
        next_pulse = 0.0
        while True:
            with self._lock:
                while not self._stopping and (wait := self._sleep(next_pulse)) > 0:
                    self._wakes_at = time.monotonic() + wait
                    self._lock.wait(None if wait == float("inf") else wait)
                if self._stopping:
                    break
                now = time.monotonic()
                due = [held for held in self._held if held.renew_at <= now]
                moved = sorted(self._moved) if now >= next_pulse else []
                self._moved.difference_update(moved)
            try:
                if now >= self._beat_at:
                    self._beat(now)
                if moved:
                    next_pulse = now + PULSE
                    store.announce_progress(self._open(), moved)
                for held in due:
                    self._renew_one(held)
            except Exception as error:
                # Whatever it is: without this thread the worker would look well while it loses every job.
                self._recover(error, due)
        if self._connection:
            self._connection.close()

    def _sleep(self, next_pulse: float) -> float:
        times = [held.renew_at for held in self._held]
        times.append(self._beat_at)
        if self._moved:
            times.append(next_pulse)
        return min(times) - time.monotonic()

    def _beat(self, now: float) -> None:
        # The next one is due also if this one fails: a sign of life is not worth a storm.
        self._beat_at = now + BEAT
        assert self._worker is not None
        seconds = time.monotonic() - self._listening_since
        store.beat(self._open(), self._worker, listening=self._listening, seconds=seconds)

    def _renew_one(self, held: Held) -> None:
        sent_at = time.monotonic()
        with self._lock:
            ids = sorted(held.ids)
        if not ids:
            return
        try:
            good_for = self._extend(held.claim, ids)
        except psycopg.errors.LockNotAvailable:
            # The handler's own transaction holds the row, as when an editor holds the page it waits for.
            held.renew_at = sent_at + min(1.0, self._renew / 2)
            return
        if good_for is not None:
            held.good_until = sent_at + good_for * (1 - MARGIN)
            held.renew_at = sent_at + min(self._renew, good_for / 3)
        elif not held.ids.isdisjoint(ids):
            held.good_until = min(held.good_until, sent_at)
            self.drop(held, ids)
            log.warning("lease lost or deadline passed", extra={"job_id": ids[0], "claim": held.claim})

    def _extend(self, claim: int, ids: list[int]) -> float | None:
        if len(ids) == 1:
            return store.renew(self._open(), ids[0], claim, self.lease)
        return store.renew_many(self._open(), ids, claim, self.lease)

    def _recover(self, error: Exception, due: list[Held]) -> None:
        if isinstance(error, psycopg.Error):
            log.warning("leases cannot be renewed: %s", type(error).__name__)
        else:
            log.exception("renewing leases failed")
        if self._connection:
            self._connection.close()
            self._connection = None
        # Soon again: the lease gives at least two more periods.
        retry_at = time.monotonic() + min(0.5, self._renew / 2)
        for held in due:
            held.renew_at = retry_at

    def _open(self) -> psycopg.Connection[object]:
        if self._connection is None or self._connection.closed:
            self._connection = db.connect(
                self._url,
                application_name="hub worker leases",
                statement_timeout=max(1.0, self.lease / 4),
                lock_timeout=min(1.0, self.lease / 10),
                autocommit=True,
            )
        return self._connection
