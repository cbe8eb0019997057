"""A worker process: claims jobs for its free lanes, keeps their leases, stops gracefully.

One thread, this module's, claims; the lanes run handlers (`lanes`, `execute`); one thread renews leases (`lease`), one
writes successes in batches (`complete`), one listens (`listener`). The claiming thread sleeps until something is due: a
notification, a lane that became free, the next retry or the end of anybody's lease, at the latest the backstop. It
never polls for work.

What becomes of a job when
- its worker dies: nobody renews its lease; when that ends, the claim of any worker takes the job, records the attempt
  as lost and runs it again, or closes it if that was its last attempt;
- its handler hangs: at its deadline the lease is renewed no more, and the same happens; the lane is lost, another
  thread takes its place, and when as many are lost as there are lanes, the process drains and ends for its supervisor;
- the worker is told to stop: nothing is claimed, running handlers may finish for the grace time, what cannot is given
  back without charging the attempt.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import psycopg

from hub import db
from hub.config import Settings
from hub.db import KEYED_PLANS, Database, is_connection_loss
from hub.queue import kind, plans, store
from hub.queue.chores import Chores
from hub.queue.clock import JITTER, Clock
from hub.queue.complete import Completer
from hub.queue.execute import AheadExecution, Execution
from hub.queue.job import Claimed
from hub.queue.kind import STANDARD
from hub.queue.lanes import Lanes
from hub.queue.lease import Held, LeaseKeeper
from hub.queue.listener import Listener
from hub.queue.retention import Retention

log = logging.getLogger(__name__)

# When due rows were found locked by another claimer, look again this soon.
LOCKED_WAIT = 0.25
# After a claim that found something, look for what is due next only so many seconds later: the jobs go first, and where
# they come one by one, one look does for several.
LOOK_WAIT = 0.05


class Worker:
    """Runs the jobs of the queues in `lanes` (queue: number of jobs at once). `run` returns the exit status."""

    def __init__(self, settings: Settings, lanes: dict[str, int]) -> None:
        self._settings = settings
        self._lanes = {queue: Lanes(queue, size, kind.of_queue(queue), self._wake) for queue, size in lanes.items()}
        self._kinds = kind.all_kinds()
        self._database = Database(
            settings.database_url,
            application_name="hub worker",
            size=sum(lanes.values()) * 2 + 2,
            # A statement or an idle transaction must end before the lease does, or a frozen worker could keep a row.
            statement_timeout=settings.queue_lease / 2,
            lock_timeout=min(5.0, settings.queue_lease / 4),
            idle_timeout=settings.queue_lease / 4,
            options=KEYED_PLANS,
        )
        # How long a handler may take to notice that its claim is lost.
        self._patience = settings.queue_lease / 2
        # Something to look at: a notification, a free lane, a signal. A handler of signals may put into this queue even
        # while the main thread is in the middle of taking from it; an Event would lock up there.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._number = 0
        self._counter = 0
        self._connections: dict[bool, psycopg.Connection[Any]] = {}

    def run(self) -> int:
        """Work until SIGTERM or SIGINT, then drain. 0: drained; 1: lanes were lost to handlers that hang."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        if not self._lanes:
            log.warning("no lanes are configured: this worker claims nothing")
            while not self._stopping:
                self._await_news()
            return 0
        if not self._register():
            return 0
        self._start_threads()
        sizes = {queue: lanes.size for queue, lanes in self._lanes.items()}
        log.info("worker ready", extra={"worker": self._number, "lanes": sizes})
        while not self._stopping and not self._too_many_lost():
            self._await_news(self._dispatch())
        self._listener.stop()
        self._chores.stop()
        return self._drain()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stopping:
            # The second signal: at once. Leases lapse, and other workers take the jobs up.
            os._exit(1)
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        self._news.put(None)

    def _await_news(self, seconds: float | None = None) -> None:
        with suppress(Empty):
            self._news.get(timeout=seconds)
            while True:
                self._news.get_nowait()

    def _register(self) -> bool:
        """Draw this worker's number, waiting for the database if need be; False: told to stop meanwhile."""
        name = f"{socket.gethostname()}:{os.getpid()}"
        sizes = {queue: lanes.size for queue, lanes in self._lanes.items()}
        while not self._stopping:
            try:
                with self._database.autocommit() as connection:
                    self._number = store.start_worker(connection, name, sizes)
                return True
            except Exception as error:
                if not is_connection_loss(error):
                    raise
                log.warning("database away: %s", type(error).__name__)
                self._await_news(random.uniform(0.5, 1.5))
        return False

    def _start_threads(self) -> None:
        url, settings = self._settings.database_url, self._settings
        self._keeper = LeaseKeeper(url, lease=settings.queue_lease, renew=settings.queue_renew, worker=self._number)
        self._keeper.start()
        self._completer = Completer(url, self._keeper)
        self._completer.start()
        self._listener = Listener(
            settings.listen_database_url or url,
            ("hub_queue",),
            self._on_notify,
            self._on_reconnect,
            settings.queue_listen_ping,
            "hub worker listener",
            lambda: self._keeper.listens(False),
        )
        self._listener.start()
        self._chores = Chores(url)
        # Workers that start together do not do their chores together.
        self._chores.add(Clock(settings, self._lanes, self._number), random.uniform(0, JITTER))
        self._chores.add(Retention(settings), settings.queue_prune * random.uniform(0.1, 1))
        self._chores.start()

    def _on_notify(self, _channel: str, queue: str) -> None:
        if lanes := self._lanes.get(queue):
            lanes.fresh = True
            self._wake()

    def _on_reconnect(self) -> None:
        self._keeper.listens(True)
        # Whatever was notified in the gap is lost.
        self._look_everywhere()
        self._wake()

    def _look_everywhere(self) -> None:
        for lanes in self._lanes.values():
            lanes.fresh = lanes.due = True

    def _dispatch(self) -> float:
        """Claim what fits into the free lanes; returns how many seconds the worker may sleep."""
        try:
            self._give_back_stale()
            self._claim_all()
            self._look_where_due()
            return self._next_time()
        except Exception as error:
            self._close_connections()
            self._look_everywhere()
            if not is_connection_loss(error):
                log.exception("claiming failed")
            else:
                log.warning("database away: %s", type(error).__name__)
            return random.uniform(0.5, 1.5)

    def _claim_all(self) -> None:
        now = time.monotonic()
        for lanes in self._lanes.values():
            lanes.due = lanes.due or lanes.claim_at <= now
            if lanes.due or (lanes.fresh and not lanes.ahead):
                self._claim(lanes)
            if lanes.fresh and lanes.ahead:
                self._claim_ahead(lanes)

    def _claim(self, lanes: Lanes) -> None:
        """Claim for the free lanes: what is due, and fresh jobs unless they are claimed ahead."""
        if not (free := lanes.free()):
            return
        # Lowered before the claim is sent: what is enqueued while it runs raises the flag again.
        lanes.due, lanes.claim_at = False, float("inf")
        if not lanes.ahead:
            lanes.fresh = False
        claimed_at = time.monotonic()
        jobs = store.claim(
            self._connection(ahead=False),
            **self._next_claim(lanes),
            lanes=free,
            only_due=lanes.ahead,
            after=lanes.served,
        )
        if jobs:
            lanes.served = jobs[-1].workspace_id
        lanes.put([self._execution(Execution, job, self._keeper.hold([job], claimed_at)) for job in jobs])
        if len(jobs) == free:
            lanes.due = True
        else:
            self._look_soon(lanes, bool(jobs))

    def _claim_ahead(self, lanes: Lanes) -> None:
        """Claim fresh jobs ahead of the lanes, if what waits there runs short."""
        if not (most := lanes.room()):
            return
        lanes.fresh = False
        claimed_at = time.monotonic()
        jobs = store.claim_ahead(self._connection(ahead=True), **self._next_claim(lanes), most=most)
        if jobs:
            held = self._keeper.hold(jobs, claimed_at)
            lanes.put([self._execution(AheadExecution, job, held) for job in jobs], ahead=True)
        if len(jobs) == most:
            lanes.fresh = True
        else:
            self._look_soon(lanes, bool(jobs))

    def _look_soon(self, lanes: Lanes, found: bool) -> None:
        lanes.look_at = min(lanes.look_at, time.monotonic() + (LOOK_WAIT if found else 0.0))

    def _next_claim(self, lanes: Lanes) -> dict[str, Any]:
        self._counter += 1
        number = (self._number << 32) | self._counter
        return {"queue": lanes.queue, "kinds": list(lanes.kinds), "claim": number, "lease": self._settings.queue_lease}

    def _execution(self, make: type[Execution], job: Claimed, held: Held) -> Execution:
        kind = self._kinds[job.kind]
        return make(job, held, kind, self._database, self._keeper, self._settings, self._completer)

    def _connection(self, ahead: bool) -> psycopg.Connection[Any]:
        """The connection to claim on. What is claimed ahead need not wait for the disk: lost in a crash of the server,
        such a claim leaves its jobs queued, and its number is never drawn again."""
        connection = self._connections.get(ahead)
        if connection is None or connection.closed:
            connection = self._connections[ahead] = db.connect(
                self._settings.database_url,
                application_name="hub worker claims",
                statement_timeout=self._settings.queue_lease / 2,
                autocommit=True,
                options=KEYED_PLANS + (" -c synchronous_commit=off" if ahead else ""),
            )
        return connection

    def _close_connections(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _look_where_due(self) -> None:
        """Learn when to claim again for the queues that were found empty, or not looked at for long."""
        now = time.monotonic()
        due = {queue: lanes for queue, lanes in self._lanes.items() if lanes.look_at <= now}
        if not due:
            return
        kinds = [name for lanes in due.values() for name in lanes.kinds]
        # A claim made after this look ends no sooner than one lease from now, so looking again by then sees every end.
        latest = now + min(self._settings.queue_backstop, self._settings.queue_lease)
        for row in store.look(self._connection(False), list(due), kinds):
            lanes = due[row["queue"]]
            lanes.look_at = latest
            if row["fresh"] and not lanes.fresh:
                lanes.claim_at = now + LOCKED_WAIT
            if row["due_in"] is not None:
                lanes.claim_at = min(lanes.claim_at, now + max(row["due_in"] + 0.01, LOCKED_WAIT))

    def _next_time(self) -> float:
        """Seconds until something is due by the clock."""
        times = [self._next_loss(), time.monotonic() + self._settings.queue_backstop]
        for lanes in self._lanes.values():
            times.append(lanes.look_at)
            if not lanes.due:
                times.append(lanes.claim_at)
            if lanes.stale_at is not None:
                times.append(lanes.stale_at)
        return max(0.0, min(times) - time.monotonic())

    def _running(self) -> list[Execution]:
        return [execution for lanes in self._lanes.values() for execution in lanes.running()]

    def _next_loss(self) -> float:
        """When a lane may be lost, or given up, if its handler does not return."""
        now = time.monotonic()
        times = [float("inf")]
        for held in (execution.held for execution in self._running()):
            if held.loss_seen_at is None:
                times.append(held.good_until)
            elif (hung_at := held.loss_seen_at + self._patience) > now:
                times.append(hung_at)
        return min(times)

    def _is_hung(self, held: Held) -> bool:
        """Whether a handler ignores that its claim is lost. One that waited for the database notices a little later.

        That time begins when this process sees the loss: one that was frozen sees it late, and so do its handlers.
        """
        if not held.is_lost():
            return False
        now = time.monotonic()
        if held.loss_seen_at is None:
            held.loss_seen_at = now
        return now >= held.loss_seen_at + self._patience

    def _too_many_lost(self) -> bool:
        """Whether as many handlers hang as there are lanes: then the process is of no use; its supervisor renews it."""
        hung = sum(1 for execution in self._running() if self._is_hung(execution.held))
        if hung >= sum(lanes.size for lanes in self._lanes.values()):
            log.error("every lane is lost to a handler that ignores its deadline: the worker stops")
            return True
        return False

    def _give_back_stale(self) -> None:
        for lanes in self._lanes.values():
            self._give_back_unstarted(lanes.stale())

    def _give_back_unstarted(self, executions: list[Execution]) -> None:
        """Return what was claimed ahead and never started."""
        claims: dict[Held, list[int]] = {}
        for execution in executions:
            claims.setdefault(execution.held, []).append(execution.job.id)
        for held, ids in claims.items():
            self._keeper.drop(held, ids)
            store.unclaim(self._connection(False), sorted(ids), held.claim)

    def _drain(self) -> int:
        """Let running items finish, give back what cannot, and leave."""
        unstarted = [execution for lanes in self._lanes.values() for execution in lanes.close()]
        running = self._running()
        hung = {execution for execution in running if self._is_hung(execution.held)}
        for execution in running:
            execution.held.stop.set()
        # Said when it holds: from this line on no handler begins another item.
        log.info("worker draining")
        self._try(lambda: self._give_back_unstarted([one for one in unstarted if isinstance(one, AheadExecution)]))
        self._give_back([one for one in unstarted if not isinstance(one, AheadExecution)])
        give_up_at = time.monotonic() + self._settings.queue_grace
        hanging = [left for lanes in self._lanes.values() for left in lanes.await_idle(give_up_at, hung)]
        self._give_back(hanging)
        self._completer.stop(max(1.0, give_up_at - time.monotonic()))
        self._keeper.stop()
        self._try(lambda: store.stop_worker(self._connection(False), self._number))
        log.info("worker stopped", extra={"given_up": len(hanging)})
        if hanging or hung:
            # Their threads would go on for as long as the process lives, which must end now.
            os._exit(1 if hung else 0)
        return 0

    def _give_back(self, hanging: list[Execution]) -> None:
        """Return jobs whose handlers do not stop.

        An exclusive one lapses instead, for its handler may still be at work; so does one that is only being closed,
        whose attempts are used up.
        """
        for execution in hanging:
            job = execution.job
            if execution.declared.policy == STANDARD and not execution.held.is_lost() and not job.used_up:
                self._try(lambda job=job: store.release(self._connection(False), job))

    def _try(self, write: Any) -> None:
        """One last write, which may fail: then a lease lapses instead."""
        try:
            write()
        except Exception as error:
            self._close_connections()
            log.warning("a worker's last words could not be written: %s", type(error).__name__)


def main(settings: Settings, lanes: dict[str, int]) -> int:
    """Run a worker with these lanes until it is told to stop; returns the exit status.

    Raises ConfigError for a setting of a schedule that makes no sense.
    """
    for name in plans.unknown(settings):
        log.warning("no schedule has the setting %s", name)
    return Worker(settings, lanes).run()
