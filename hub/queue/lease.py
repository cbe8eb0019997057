"""Keeps a worker's leases alive, on a thread and a connection of its own.

A handler that computes, waits or hangs must not cost its job the lease, so renewal never depends on the handler's
thread. The keeper also tells watchers of progress, at most once a second and job: a NOTIFY inside the per-item
transaction would serialise the commits of all workers.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

import psycopg

from hub import db
from hub.queue import store
from hub.queue.job import Claimed, Interrupted, LeaseLost

log = logging.getLogger(__name__)

PULSE = 1.0
# A lease is given up this share of its length early: the database's clock and ours may run apart a little.
MARGIN = 0.1


@dataclass
class Held:
    """A claim that this process holds, and what its handler must know before each write."""

    job: Claimed
    # By our own monotonic clock, counted from before the claim or renewal was sent.
    good_until: float
    renew_at: float
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


class LeaseKeeper:
    """Renews every held claim every `renew` seconds for `lease` seconds; one thread, one connection."""

    def __init__(self, url: str, *, lease: float, renew: float) -> None:
        self._url = url
        self.lease = lease
        self._renew = renew
        self._held: dict[int, Held] = {}
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

    def hold(self, job: Claimed, claimed_at: float) -> Held:
        """Keep a claim alive from now on. `claimed_at`: time.monotonic() from before the claim was sent."""
        held = Held(job, claimed_at + job.good_for * (1 - MARGIN), claimed_at + min(self._renew, job.good_for / 3))
        with self._lock:
            self._held[job.id] = held
            self._lock.notify()
        return held

    def drop(self, held: Held) -> None:
        """The job has ended or was given up: renew no longer."""
        with self._lock:
            if self._held.get(held.job.id) is held:
                del self._held[held.job.id]
            self._moved.discard(held.job.id)

    def moved(self, job_id: int) -> None:
        """A job made progress; its watchers are told within a second."""
        if job_id not in self._moved:
            with self._lock:
                self._moved.add(job_id)
                self._lock.notify()

    def _run(self) -> None:
        next_pulse = 0.0
        while True:
            with self._lock:
                while not self._stopping and (wait := self._sleep(next_pulse)) > 0:
                    self._lock.wait(None if wait == float("inf") else wait)
                if self._stopping:
                    break
                now = time.monotonic()
                due = [held for held in self._held.values() if held.renew_at <= now]
                moved = sorted(self._moved) if now >= next_pulse else []
                self._moved.difference_update(moved)
            try:
                if moved:
                    next_pulse = now + PULSE
                    store.announce_progress(self._open(), moved)
                for held in due:
                    self._renew_one(held)
            except psycopg.Error as error:
                self._recover(error, due)
        if self._connection:
            self._connection.close()

    def _sleep(self, next_pulse: float) -> float:
        times = [held.renew_at for held in self._held.values()]
        if self._moved:
            times.append(next_pulse)
        return min(times, default=float("inf")) - time.monotonic()

    def _renew_one(self, held: Held) -> None:
        sent_at = time.monotonic()
        try:
            good_for = store.renew(self._open(), held.job.id, held.job.claim, self.lease)
        except psycopg.errors.LockNotAvailable:
            # The handler's own transaction holds the row, as when an editor holds the page it waits for.
            held.renew_at = sent_at + min(1.0, self._renew / 2)
            return
        if good_for is not None:
            held.good_until = sent_at + good_for * (1 - MARGIN)
            held.renew_at = sent_at + min(self._renew, good_for / 3)
        elif self._held.get(held.job.id) is held:
            held.good_until = min(held.good_until, sent_at)
            self.drop(held)
            log.warning("lease lost or deadline passed", extra={"job_id": held.job.id, "claim": held.job.claim})

    def _recover(self, error: psycopg.Error, due: list[Held]) -> None:
        log.warning("leases cannot be renewed: %s", type(error).__name__)
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
