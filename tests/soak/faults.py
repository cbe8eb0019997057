"""What goes wrong during the soak: workers killed, frozen and drained, connections cut, the server restarted."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import psycopg

from hub import postgres
from tests.processes import Program
from tests.soak import kinds

# How many times each fault is drawn, of so many in all.
WEIGHTS = {"kill": 3, "freeze": 3, "cut": 6, "drain": 1, "restart_fast": 2, "restart_immediate": 2}
# What else may go wrong while a worker is frozen.
MEANWHILE = ("kill", "cut", "restart_fast", "restart_immediate")
LONGEST_PAUSE = 2.0
LONGEST_OUTAGE = 3.0


class Worker(Program):
    """A worker process that ends with this one; ready when made."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        leash = ["hub.leash", os.getpid(), "tests.soak.kinds", kinds.LANES]
        super().__init__([sys.executable, "-m", *leash], environ)
        self.await_line("worker ready")


class Workers:
    """Worker processes, each of which is replaced when it ends; `surprises` tells of those that nobody ended."""

    def __init__(self, environ: Mapping[str, str], many: int, logs: Path) -> None:
        self.surprises: list[str] = []
        self._environ = environ
        self._logs = logs
        self._ended = 0
        self._running = [Worker(environ) for _ in range(many)]

    def pick(self, luck: Random) -> Worker:
        """One of them, alive."""
        self._replace_surprises()
        return luck.choice(self._running)

    def replace(self, worker: Worker) -> None:
        """Start another for one that has ended."""
        if worker in self._running:
            self._keep_output(worker)
            self._running[self._running.index(worker)] = Worker(self._environ)

    def drain(self, worker: Worker) -> None:
        """Have one stop in order."""
        if (status := worker.terminate()) != 0:
            self.surprises.append(f"a drained worker ended with status {status}")

    def stop(self) -> None:
        """Have all of them stop in order."""
        self._replace_surprises()
        for worker in self._running:
            self.drain(worker)

    def close(self) -> None:
        """End whatever still runs."""
        for worker in self._running:
            worker.close()
            self._keep_output(worker)

    def _replace_surprises(self) -> None:
        for worker in list(self._running):
            if (status := worker.process.poll()) is not None:
                self.surprises.append(f"worker {self._ended + 1} ended by itself with status {status}")
                self.replace(worker)

    def _keep_output(self, worker: Worker) -> None:
        self._ended += 1
        (self._logs / f"worker-{self._ended}.log").write_text(worker.output)


class Faults:
    """Inflicts faults drawn from `luck` and counts them."""

    def __init__(self, luck: Random, server: postgres.Server, workers: Workers, lease: float) -> None:
        self.counts: Counter[str] = Counter()
        self._luck = luck
        self._server = server
        self._workers = workers
        self._lease = lease
        self._ways: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "cut": self._cut,
            "drain": self._drain,
            "restart_fast": lambda: self._restart(signal.SIGINT),
            "restart_immediate": lambda: self._restart(signal.SIGQUIT),
        }

    def run(self, seconds: float) -> None:
        """Inflict one after the other for so long, and each at least once."""
        started_at = time.monotonic()
        for name in self._schedule():
            if time.monotonic() - started_at >= seconds and len(self.counts) == len(WEIGHTS):
                return
            self._pause(0.1, LONGEST_PAUSE)
            print(f"{time.monotonic() - started_at:7.1f} s  {name}", flush=True)
            self._inflict(name)

    def _schedule(self) -> Iterator[str]:
        once = list(WEIGHTS)
        self._luck.shuffle(once)
        yield from once
        while True:
            yield from self._luck.choices(list(WEIGHTS), list(WEIGHTS.values()))

    def _inflict(self, name: str) -> None:
        self._ways[name]()
        self.counts[name] += 1

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self._luck.uniform(least, most))

    def _kill(self) -> None:
        worker = self._workers.pick(self._luck)
        worker.kill()
        self._workers.replace(worker)

    def _drain(self) -> None:
        worker = self._workers.pick(self._luck)
        self._workers.drain(worker)
        self._workers.replace(worker)

    def _freeze(self) -> None:
        """Until its leases are over and others have its jobs; often something else goes wrong meanwhile."""
        worker = self._workers.pick(self._luck)
        worker.send(signal.SIGSTOP)
        self._pause(self._lease, self._lease * 1.5)
        if self._luck.random() < 0.3:
            self._inflict(self._luck.choice(MEANWHILE))
        worker.send(signal.SIGCONT)

    def _cut(self) -> None:
        """Cut connections of workers and of callers at random, a few times in a row."""
        for _ in range(self._luck.randint(1, 4)):
            with psycopg.connect(self._server.admin_url, autocommit=True) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and application_name ~ '^(hub worker|soak)'"
                    " and random() < %s",
                    [self._luck.uniform(0.1, 1)],
                )
            self._pause(0.0, 0.3)

    def _restart(self, how: signal.Signals) -> None:
        """SIGINT: fast, sessions are cut and the rest is put in order; SIGQUIT: immediate, as in a crash."""
        assert self._server.process is not None
        self._server.process.send_signal(how)
        self._server.process.wait()
        self._pause(0.0, LONGEST_OUTAGE)
        self._server.restart()
