"""A worker process: claims jobs for its free lanes, runs each on a thread, keeps their leases, stops gracefully.

The main thread sleeps until something is due: a notification, a lane that became free, the next retry or the end of
anybody's lease, at the latest the backstop. It never polls for work.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType

from hub.config import Settings
from hub.db import KEYED_PLANS, Database, is_connection_loss
from hub.queue import kind, store
from hub.queue.execute import Execution
from hub.queue.kind import STANDARD
from hub.queue.lease import Held, LeaseKeeper
from hub.queue.listener import Listener

log = logging.getLogger(__name__)

# When due rows were found locked by another claimer, look again this soon.
LOCKED_WAIT = 0.25


class Worker:
    """Runs the jobs of the queues in `lanes` (queue: number of jobs at once). `run` returns the exit status."""

    def __init__(self, settings: Settings, lanes: dict[str, int]) -> None:
        self._settings = settings
        self._lanes = lanes
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
        self._keeper = LeaseKeeper(settings.database_url, lease=settings.queue_lease, renew=settings.queue_renew)
        # Something to look at: a notification, a free lane, a signal. A handler of signals may put into this queue even
        # while the main thread is in the middle of taking from it; an Event would lock up there.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._running: dict[threading.Thread, Held] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._counter = 0

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
        self._keeper.start()
        listener = self._listen()
        log.info("worker ready", extra={"worker": self._number, "lanes": self._lanes})
        while not self._stopping and not self._too_many_lost():
            self._await_news(self._dispatch())
        listener.stop()
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
        while not self._stopping:
            try:
                with self._database.autocommit() as connection:
                    self._number = store.start_worker(connection, name, self._lanes)
                return True
            except Exception as error:
                if not is_connection_loss(error):
                    raise
                log.warning("database away: %s", type(error).__name__)
                self._await_news(random.uniform(0.5, 1.5))
        return False

    def _listen(self) -> Listener:
        def on_notify(_channel: str, queue: str) -> None:
            if queue in self._lanes:
                self._wake()

        listener = Listener(
            self._settings.listen_database_url or self._settings.database_url,
            ("hub_queue",),
            on_notify,
            self._wake,
            self._settings.queue_listen_ping,
            "hub worker listener",
        )
        listener.start()
        return listener

    def _dispatch(self) -> float:
        """Claim what fits into the free lanes; returns how many seconds the worker may sleep."""
        try:
            return self._claim_all()
        except Exception as error:
            if not is_connection_loss(error):
                log.exception("claiming failed")
            else:
                log.warning("database away: %s", type(error).__name__)
            return random.uniform(0.5, 1.5)

    def _claim_all(self) -> float:
        open_queues = []
        for queue in self._lanes:
            # A claimed lane count short of the free lanes means that nothing more is to be had now.
            if (free := self._free(queue)) and self._claim(queue, free) < free:
                open_queues.append(queue)
        return self._sleep(open_queues)

    def _claim(self, queue: str, free: int) -> int:
        self._counter += 1
        claimed_at = time.monotonic()
        with self._database.autocommit() as connection:
            jobs = store.claim(
                connection,
                queue,
                list(kind.of_queue(queue)),
                claim=(self._number << 32) | self._counter,
                lanes=free,
                lease=self._settings.queue_lease,
            )
        for job in jobs:
            held = self._keeper.hold(job, claimed_at)
            execution = Execution(held, self._database, self._keeper, self._settings)
            thread = threading.Thread(target=self._run_lane, args=(execution,), name=f"job {job.id}", daemon=True)
            with self._lock:
                self._running[thread] = held
            thread.start()
        return len(jobs)

    def _run_lane(self, execution: Execution) -> None:
        try:
            execution.run()
        finally:
            with self._lock:
                self._running.pop(threading.current_thread(), None)
            self._wake()

    def _sleep(self, open_queues: list[str]) -> float:
        # A claim made after this look ends no sooner than one lease from now, so looking again by then sees every end.
        wait = min(self._settings.queue_backstop, self._settings.queue_lease, self._next_loss())
        if not open_queues:
            return wait
        kinds = [name for queue in open_queues for name in kind.of_queue(queue)]
        with self._database.autocommit() as connection:
            for row in store.look(connection, open_queues, kinds):
                if row["fresh"]:
                    wait = min(wait, LOCKED_WAIT)
                if row["due_in"] is not None:
                    wait = min(wait, max(row["due_in"] + 0.01, LOCKED_WAIT))
        return wait

    def _free(self, queue: str) -> int:
        """Free lanes of a queue. A handler that outlived its claim has lost its lane; the lane is replaced."""
        with self._lock:
            busy = sum(1 for held in self._running.values() if held.job.queue == queue and not held.is_lost())
        return max(0, self._lanes[queue] - busy)

    def _next_loss(self) -> float:
        """Seconds until a lane may be lost, or given up, if its handler does not return."""
        now = time.monotonic()
        waits = [float("inf")]
        with self._lock:
            for held in self._running.values():
                if held.loss_seen_at is None:
                    waits.append(max(0.0, held.good_until - now))
                elif (wait := held.loss_seen_at + self._patience - now) > 0:
                    waits.append(wait)
        return min(waits)

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
        with self._lock:
            hung = sum(1 for held in self._running.values() if self._is_hung(held))
        if hung >= sum(self._lanes.values()):
            log.error("every lane is lost to a handler that ignores its deadline: the worker stops")
            return True
        return False

    def _drain(self) -> int:
        """Let running items finish, give back what cannot, and leave."""
        log.info("worker draining")
        with self._lock:
            running = dict(self._running)
        hung = {thread for thread, held in running.items() if self._is_hung(held)}
        for held in running.values():
            held.stop.set()
        give_up_at = time.monotonic() + self._settings.queue_grace
        for thread in running.keys() - hung:
            thread.join(timeout=max(0.0, give_up_at - time.monotonic()))
        hanging = [held for thread, held in running.items() if thread.is_alive()]
        self._give_back(hanging)
        self._keeper.stop()
        self._sign_off()
        log.info("worker stopped", extra={"given_up": len(hanging)})
        if hanging:
            # Their threads would go on for as long as the process lives, which must end now.
            os._exit(1 if hung else 0)
        return 0

    def _give_back(self, hanging: list[Held]) -> None:
        """Return jobs whose handlers do not stop.

        An exclusive one lapses instead, for its handler may still be at work; so does one that is only being closed,
        whose attempts are used up.
        """
        for held in hanging:
            declared = kind.find(held.job.kind)
            if declared is None or declared.policy != STANDARD or held.is_lost() or held.job.used_up:
                continue
            try:
                with self._database.autocommit() as connection:
                    store.release(connection, held.job)
            except Exception as error:
                log.warning("a job could not be given back: %s", type(error).__name__)

    def _sign_off(self) -> None:
        try:
            with self._database.autocommit() as connection:
                store.stop_worker(connection, self._number)
        except Exception as error:
            log.warning("the worker's end could not be noted: %s", type(error).__name__)


def main(settings: Settings, lanes: dict[str, int]) -> int:
    """Run a worker with these lanes until it is told to stop; returns the exit status."""
    return Worker(settings, lanes).run()
