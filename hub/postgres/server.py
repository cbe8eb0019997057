"""One server: its cluster made, its process started, healed and stopped."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psycopg

from hub.leash import tie
from hub.postgres.account import (
    Account,
    PostgresError,
    account_for,
    digest,
    home_for,
    own_folder,
    popen_options,
    run,
    write_owned,
)
from hub.postgres.programs import find_programs, major_version

SUPERUSER = "hub_admin"
DATABASE = "hub"

# A socket's address holds about 104 bytes on the strictest system; the name of the socket itself takes 20 of them.
_LONGEST_SOCKET_FOLDER = 84
# Long enough for the recovery after a crash of a server that was writing hard.
_PATIENCE = 60.0
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "track_commit_timestamp": "on",
    "log_checkpoints": "off",
    # The server's log tells what went wrong, not what people wrote.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}
# For tests: only a crash of the machine loses anything by these; a killed server must keep what it committed.
_FAST = {"fsync": "off", "full_page_writes": "off"}


@dataclass
class Server:
    """A server that `start` has started, or found running."""

    home: Path
    programs: Path
    account: Account
    fast: bool
    tied: bool
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _log_start: int = field(default=0, repr=False)

    @property
    def data(self) -> Path:
        """The cluster's folder."""
        return self.home / "data"

    @property
    def log(self) -> Path:
        """The file with what the server says."""
        return self.home / "postgres.log"

    @property
    def socket_folder(self) -> Path:
        """The folder of the socket; elsewhere than in `home` where the path is too long or holds odd characters."""
        own = self.home / "sock"
        if len(os.fsencode(own)) <= _LONGEST_SOCKET_FOLDER and not re.search(r"[,'\"\\\n]", str(own)):
            return own
        return Path(tempfile.gettempdir()) / f"hubpg-{digest(self.home)}"

    @property
    def admin_url(self) -> str:
        """The address of Hub's database for the superuser, `hub_admin`."""
        return self.url(SUPERUSER)

    def url(self, user: str = "hub_app", database: str = DATABASE) -> str:
        """The address of a database of this server, for a role. The port stands in it so that PGPORT cannot."""
        folder = quote(os.fsencode(self.socket_folder), safe="")
        return f"postgresql://{quote(user)}@/{quote(database)}?host={folder}&port=5432"

    def alive(self) -> bool:
        """Whether the server's main process runs."""
        return self._pid() is not None

    def status(self) -> str:
        """What the server says of itself: `starting`, `ready`, `stopping`; empty if it does not run."""
        if self._pid() is not None:
            lines = self._lock_file()
            return lines[7].strip() if len(lines) > 7 else "starting"
        return "starting" if self.process is not None and self.process.poll() is None else ""

    def restart(self) -> None:
        """Start the server again if its main process is gone; the data are as last committed."""
        with _locked(self.home):
            self._ensure_running()

    def stop(self) -> None:
        """End the server: sessions are cut off, what is committed is on disk. No error if it does not run."""
        with _locked(self.home):
            self._end(signal.SIGINT) or self._end(signal.SIGQUIT)

    def initialise(self) -> None:
        """Make the cluster if there is none. Half a cluster of a killed attempt is thrown away."""
        if (self.data / "PG_VERSION").exists():
            self._check_version()
            return
        fresh = self.home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        own_folder(fresh, self.account)
        # The locale that PostgreSQL brings itself sorts alike on every system; it came with version 17.
        provider = "builtin" if major_version(self.programs, self.account) >= 17 else "libc"
        command = [self.programs / "initdb", "-D", fresh, "-U", SUPERUSER, "--encoding=UTF8"]
        command += ["--auth-local=trust", "--auth-host=reject"]
        command += [f"--locale-provider={provider}", "--locale=C.UTF-8", *(["--no-sync"] if self.fast else [])]
        done = run(command, self.account)
        if done.returncode:
            raise PostgresError(_reason(done.stdout, f"PostgreSQL could not make a cluster in {self.home}"))
        with open(fresh / "postgresql.conf", "a") as configuration:
            configuration.write("include 'hub.conf'\n")
        fresh.rename(self.data)

    def ensure_database(self) -> None:
        """Make Hub's database if there is none."""
        with psycopg.connect(self.url(SUPERUSER, "postgres"), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_catalog.pg_database WHERE datname = %s", [DATABASE])
            if found.fetchone() is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _check_version(self) -> None:
        made_by = (self.data / "PG_VERSION").read_text().strip()
        ours = major_version(self.programs, self.account)
        if made_by != str(ours):
            raise PostgresError(
                f"The data in {self.data} were made by PostgreSQL {made_by} and the programs in {self.programs} are"
                f" version {ours}: set HUB_PG_BIN to the programs of version {made_by}, or move the data to"
                f" {ours} with pg_upgrade."
            )

    def _ensure_running(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if self._pid() is None:
                self._launch()
            status = self._await(lambda status: status in ("ready", ""), deadline)
            if status == "ready":
                return
            # A killed server's last processes still hold its memory for a moment: then the next try succeeds.
            if self.process and not re.search(r"is still in use|lock file", said := self._said()):
                raise PostgresError(_reason(said, f"PostgreSQL did not start, see {self.log}"))
            time.sleep(0.1)
        raise PostgresError(f"PostgreSQL did not become ready within {_PATIENCE:.0f} seconds, see {self.log}.")

    def _launch(self) -> None:
        self._heal(self.data / "postmaster.pid")
        self._heal(self.socket_folder / ".s.PGSQL.5432.lock")
        own_folder(self.socket_folder, self.account)
        write_owned(self.data / "hub.conf", self._configuration(), self.account)
        if self.log.exists() and self.log.stat().st_size > 10_000_000:
            self.log.replace(self.log.with_suffix(".log.1"))
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            # Output goes to a file: a pipe would stay open for as long as the server runs.
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal must not reach the server: it is stopped after its clients.
                start_new_session=True,
                preexec_fn=partial(tie, os.getpid(), signal.SIGINT) if self.tied and sys.platform == "linux" else None,
                **popen_options(self.account),
            )

    def _configuration(self) -> str:
        options = _OPTIONS | {"unix_socket_directories": str(self.socket_folder)} | (_FAST if self.fast else {})
        return "".join(f"{name} = '{value}'\n" for name, value in options.items())

    def _heal(self, lock_file: Path) -> None:
        """Make a lock file that a killed server left name a process that is surely gone.

        PostgreSQL takes any process of that number for a running server, also a zombie and one that got the number
        anew. The file is not removed: its other lines let PostgreSQL notice processes of the old server.
        """
        try:
            lines = lock_file.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return
        gone = subprocess.Popen(["true"])
        gone.wait()
        write_owned(lock_file, "".join([f"{gone.pid}\n", *lines[1:]]), self.account)

    def _pid(self) -> int | None:
        """The number of the running main process of exactly this cluster."""
        if self.process is not None:
            self.process.poll()
        lines = self._lock_file()
        pid = int(lines[0]) if lines and lines[0].isdigit() else 0
        return pid if pid and _is_postgres(pid, self.data) else None

    def _lock_file(self) -> list[str]:
        """The lines of the server's lock file; none if there is no server."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _await(self, wanted: Callable[[str], bool], deadline: float) -> str:
        """Wait until the server's status is as wanted, and return the last one seen."""
        while True:
            status = self.status()
            if wanted(status) or time.monotonic() >= deadline:
                return status
            time.sleep(0.01)

    def _end(self, how: signal.Signals) -> bool:
        pid = self._pid()
        if pid is not None:
            os.kill(pid, how)
        if self._await(lambda status: status == "", time.monotonic() + _PATIENCE) == "":
            self.process = None
            return True
        return False

    def _said(self) -> str:
        """What the server wrote to its log since it was last launched here."""
        if self.process is None:
            return ""
        with open(self.log, "rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")


def start(data_dir: Path, pg_bin: str | None = None, fast: bool = False, tied: bool = False) -> Server:
    """Start the server of the folder `data_dir`, or find it running; make cluster and database where missing.

    `fast` gives up durability, for tests. `tied` has the server end with this process, however that ends.
    Any number of processes may call this at once for one folder: one of them starts it.
    Raises PostgresError.
    """
    data_dir = Path(os.path.abspath(data_dir))
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        account = account_for(data_dir)
        home = home_for(data_dir, account)
        with _locked(home):
            server = Server(home, find_programs(pg_bin, home, account), account, fast, tied)
            server.initialise()
            server._ensure_running()
            server.ensure_database()
    except OSError as error:
        raise PostgresError(f"PostgreSQL's folder {data_dir} cannot be used: {error.strerror or error}.") from error
    except psycopg.Error as error:
        raise PostgresError(f"PostgreSQL runs but does not answer as {SUPERUSER}: {error}") from error
    return server


def existing(data_dir: Path) -> Server:
    """The server of a folder as it stands, running or not: to look at it or to stop it, not to start it."""
    data_dir = Path(os.path.abspath(data_dir))
    account = account_for(data_dir)
    home = home_for(data_dir, account)
    return Server(home, home, account, fast=False, tied=False)


def destroy(data_dir: Path) -> None:
    """Stop the server of a folder and remove the folder, with everything kept elsewhere for it."""
    if not data_dir.exists():
        return
    server = existing(data_dir)
    server.stop()
    for folder in {server.home, data_dir, server.socket_folder}:
        shutil.rmtree(folder, ignore_errors=True)


def _is_postgres(pid: int, data: Path) -> bool:
    """Whether a process is alive, is PostgreSQL, and works in this cluster's folder."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
        if name != "postgres" or rest[0] in "ZX":
            return False
        # The number may have gone to a process of another server; a main process stands in its cluster's folder.
        return os.path.samefile(f"/proc/{pid}/cwd", data)
    except OSError:
        if Path("/proc/self/stat").exists():
            return False
    shown = subprocess.run(
        ["ps", "-o", "stat=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return len(shown) == 2 and not shown[0].startswith("Z") and shown[1].endswith("postgres")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one process at a time starts, heals or stops its server."""
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _reason(output: str, what: str) -> str:
    """One sentence from a program's output: a full disk by name, else its first complaint."""
    if "No space left on device" in output:
        return f"{what}: the disk is full, make room there and start again."
    complaints = [line for line in output.splitlines() if re.search(r"FATAL|PANIC|error|could not|cannot", line)]
    return f"{what}: {complaints[0].split('  ')[-1].strip() if complaints else output.strip()[-200:]}"
