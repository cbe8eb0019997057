"""`hub up`: everything on one machine, from an empty folder to a page one can sign in to; Ctrl-C ends all of it.

The web server and a worker run as child processes and are started again if they die; the embedded PostgreSQL too.
They stop in the order web, worker, database, so that none loses what it still needs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import psycopg

from hub import demo, postgres, schema
from hub.config import Settings
from hub.errors import ConfigError, HubError
from hub.postgres import PostgresError, Server

ROOT = Path(__file__).parent.parent
# The lanes of `hub up` when HUB_LANES names none: every queue there is.
ALL_LANES = "workspace.jobs=2"
# A new cluster with its first write-ahead log takes 40 MB; below this much the first busy day would fill the disk.
DISK_NEEDED = 200_000_000
# How long gunicorn lets requests finish, and how much longer it is waited for.
WEB_GRACE = 10
MARGIN = 5.0
# A process killed with its parent a moment ago may still hold the port.
PORT_PATIENCE = 3.0
LONGEST_PAUSE = 30.0
# Before Hub was ever ready, so many early ends mean that something is wrong which waiting does not mend.
TRIES_TO_START = 4
STEADY = 60.0


class StartError(HubError):
    """`hub up` cannot start here; the message is one sentence that says why and what to do."""


def run(settings: Settings) -> int:
    """Start everything, keep it running until a signal, stop it in order; returns the exit code.

    What stands in the way of a start is told in one sentence on standard error.
    """
    signals = _Signals()
    try:
        with ExitStack() as stack:
            settings = replace(settings, data_dir=settings.data_dir.absolute())
            _prepare_folder(settings.data_dir)
            stack.enter_context(_alone(settings.data_dir))
            _check_bind(settings.bind, signals)
            server = None if settings.database_url else _start_server(settings, stack)
            if server is not None:
                settings = replace(settings, database_url=server.url(), migrate_database_url=server.url("hub_migrate"))
            if settings.migrate_database_url:
                schema.upgrade(settings.migrate_database_url)
            schema.check(settings.database_url)
            people = demo.ensure(settings.database_url, settings) if settings.env == "development" else None
            _supervise(settings, server, people, signals, stack)
    except HubError as error:
        return _refuse(str(error))
    except psycopg.OperationalError as error:
        return _refuse(f"The database does not answer: {str(error).strip().splitlines()[0]}.")
    return 0


def exec_web(settings: Settings) -> NoReturn:
    """Become the web server alone: gunicorn in place of this process."""
    _allow_many_files()
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", *web_module(settings)])


def web_module(settings: Settings) -> list[str]:
    """The module that serves the pages, and its arguments.

    Each open stream holds a thread; 100 more answer ordinary requests. Gunicorn's hooks are in `hub.web.gunicorn`.
    """
    threads = settings.streams_per_process + 100
    options = {
        "config": "python:hub.web.gunicorn",
        "worker-class": "gthread",
        "workers": settings.web_processes,
        "threads": threads,
        # Connections beyond the threads wait in the process, where a refusal can still be answered.
        "worker-connections": threads * 3,
        "graceful-timeout": WEB_GRACE,
        "bind": settings.bind,
        "chdir": ROOT,
        "log-level": "warning",
    }
    return [
        "gunicorn",
        *(f"--{name}={value}" for name, value in options.items()),
        "--no-control-socket",
        "app:app",
    ]


class _Signals:
    """Signals that end `hub up`; a second one makes haste. A child's end wakes the waiting too."""

    def __init__(self) -> None:
        self.count = 0
        self._wake = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: self._wake.set())

    @property
    def stop(self) -> bool:
        return self.count > 0

    def wait(self, seconds: float) -> None:
        """Sleep until something happens or the time is over."""
        self._wake.wait(seconds)
        self._wake.clear()

    def _end(self, *_: object) -> None:
        self.count += 1
        self._wake.set()


@dataclass
class _Child:
    """A Python module running as a process of its own that ends with this one."""

    name: str
    module: list[str]
    environ: dict[str, str]
    grace: float
    process: subprocess.Popen[bytes] | None = None
    pause: float = 0.5
    started: float = 0.0
    due: float = 0.0
    ends: int = 0

    def ensure_running(self) -> None:
        """Start the process if it is not there; after a death wait first, longer each time it dies young."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is not None:
            self.pause = 0.5 if now - self.started > STEADY else min(self.pause * 2, LONGEST_PAUSE)
            print(
                f"hub: {self.name} ended with code {self.process.returncode}; again in {self.pause:g} s",
                file=sys.stderr,
            )
            self.process, self.due, self.ends = None, now + self.pause, self.ends + 1
        if self.process is None and now >= self.due:
            self.started = now
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hub.leash", str(os.getpid()), *self.module],
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                # A Ctrl-C in the terminal must reach this process alone, which then stops its children in order.
                start_new_session=True,
            )

    def stop(self, signals: _Signals) -> None:
        """End the process: politely, again when a second signal makes haste, by force when its time is over."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        deadline = time.monotonic() + self.grace + MARGIN
        hurried = False
        while self.process.poll() is None and time.monotonic() < deadline:
            if signals.count > 1 and not hurried:
                hurried = True
                self.process.terminate()
                deadline = time.monotonic() + MARGIN
            signals.wait(0.2)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _refuse(sentence: str) -> int:
    print(f"hub: {sentence}", file=sys.stderr)
    return 1


def _prepare_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StartError(
            f"HUB_DATA_DIR: the folder {folder} cannot be written ({error.strerror}): change its owner or mode, or"
            " name another folder."
        ) from None
    if free < DISK_NEEDED:
        raise StartError(
            f"The disk of {folder} has {free // 1_000_000} MB free and Hub needs {DISK_NEEDED // 1_000_000}:"
            " make room there, or set HUB_DATA_DIR to a folder on another disk."
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse a second `hub up` on one folder: the first to stop would take the database from the other."""
    with open(folder / "up.lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise StartError(
                f"Hub already runs on the data in {folder} (process {lock.read().strip() or 'unknown'}): stop it"
                " first, or set HUB_DATA_DIR and HUB_BIND for a second one."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
        lock.truncate(0)


def _check_bind(bind: str, signals: _Signals) -> None:
    if bind.startswith("unix:"):
        return
    host, port = _address(bind)
    deadline = time.monotonic() + PORT_PATIENCE
    while (problem := _bind_problem(host, port)) == errno.EADDRINUSE and time.monotonic() < deadline:
        signals.wait(0.1)
    if problem == errno.EADDRINUSE:
        raise StartError(
            f"HUB_BIND: something already listens on {bind}: stop it, or choose another port, as in"
            f" HUB_BIND={bind.rpartition(':')[0]}:{port + 1 if port < 65535 else 8000}."
        )
    if problem:
        raise ConfigError(f"HUB_BIND: {bind} cannot be listened on: {os.strerror(problem)}")


def _address(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    if int(port) > 65535:
        raise ConfigError("HUB_BIND: a port is at most 65535")
    return host.strip("[]"), int(port)


def _bind_problem(host: str, port: int) -> int:
    """The number of the system's error on listening there; 0 if it can be done."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _start_server(settings: Settings, stack: ExitStack) -> Server:
    server = postgres.start(settings.data_dir / "pg", settings.pg_bin or None, tied=True)
    stack.callback(server.stop)
    schema.init(server.admin_url)
    return server


def _supervise(
    settings: Settings, server: Server | None, people: dict[str, str] | None, signals: _Signals, stack: ExitStack
) -> None:
    _allow_many_files()
    environ = _environ(settings)
    worker = _Child("worker", ["hub", "worker", "--lanes", _lanes(settings)], environ, settings.queue_grace)
    web = _Child("web", web_module(settings), environ, WEB_GRACE)
    # The stack ends what was pushed last first: web, then worker, then the database.
    for child in (worker, web):
        stack.callback(child.stop, signals)
    told = False
    while not signals.stop:
        if server is not None:
            _keep_alive(server)
        for child in (web, worker):
            child.ensure_running()
            if not told and child.ends >= TRIES_TO_START:
                raise StartError(f"The {child.name} process does not start; what it said stands above.")
        if not told and _answers(settings.bind):
            _tell(settings, people)
            told = True
        signals.wait(1.0 if told else 0.1)
    print("hub: stopping", file=sys.stderr)


def _keep_alive(server: Server) -> None:
    if server.alive():
        return
    print("hub: the database ended; starting it again", file=sys.stderr)
    try:
        server.restart()
    except (PostgresError, OSError) as error:
        # The next round tries again: what is in the way, such as a full disk, may go.
        print(f"hub: {error}", file=sys.stderr)


def _environ(settings: Settings) -> dict[str, str]:
    """What web and worker are told: they connect as `hub_app` and never learn the way to more rights."""
    environ = os.environ | {"HUB_DATABASE_URL": settings.database_url, "HUB_DATA_DIR": str(settings.data_dir)}
    environ.pop("HUB_MIGRATE_DATABASE_URL", None)
    return environ


def _lanes(settings: Settings) -> str:
    return ",".join(f"{queue}={number}" for queue, number in settings.lanes.items()) or ALL_LANES


def _answers(bind: str) -> bool:
    """Whether something accepts connections there."""
    try:
        if bind.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(bind.removeprefix("unix:"))
        else:
            socket.create_connection(_address(bind), timeout=1).close()
    except OSError:
        return False
    return True


def _tell(settings: Settings, people: dict[str, str] | None) -> None:
    lines = [f"Hub is ready: http://{settings.bind}" if ":/" not in settings.bind else f"Hub is ready: {settings.bind}"]
    for email, password in (people or {}).items():
        lines.append(f"    {email:<24} {password}")
    print("\n".join([*lines, "Ctrl-C stops it."]), flush=True)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as allowed: each stream holds a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
