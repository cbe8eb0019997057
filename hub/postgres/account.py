"""The system's account whose processes and files the server's are, and what is done as it or for it."""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.errors import HubError


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


def account_for(data_dir: Path) -> Account:
    """Who the server runs as: this user, or for root the owner of the cluster, `postgres` or `nobody`."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    for cluster in (data_dir / "data", elsewhere(data_dir) / "data"):
        if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return _checked(Account(entry.pw_uid, entry.pw_gid), name)
    raise PostgresError("PostgreSQL does not run as root and there is no user `postgres` or `nobody`: make one.")


def _checked(account: Account, name: str) -> Account:
    try:
        subprocess.run(["true"], check=False, **popen_options(account))
    except OSError:
        raise PostgresError(
            f"PostgreSQL does not run as root, and this process may not become the user {name}: run Hub as an ordinary"
            " user."
        ) from None
    return account


def home_for(data_dir: Path, account: Account) -> Path:
    """The folder for the server's files: `data_dir`, or one elsewhere if the account cannot reach that."""
    pointer = data_dir / "location"
    if pointer.exists():
        home = Path(pointer.read_text())
    elif account.is_own or (data_dir / "data").exists() or can_reach(data_dir, account):
        return data_dir
    else:
        home = elsewhere(data_dir)
        pointer.write_text(str(home))
    home.mkdir(parents=True, exist_ok=True)
    # Its name can be known beforehand, so nobody else may have put it there.
    check_own(home, os.geteuid())
    return home


def elsewhere(data_dir: Path) -> Path:
    """The folder that stands in for one that the account cannot reach."""
    return Path("/var/lib") / f"hub-pg-{digest(data_dir)}"


def can_reach(folder: Path, account: Account) -> bool:
    """Whether the account can enter a folder."""
    return run(["/bin/sh", "-c", 'cd "$1"', "sh", folder], account).returncode == 0


def run(command: list[Any], account: Account) -> subprocess.CompletedProcess[str]:
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
            **popen_options(account),
        )
    except PermissionError as error:
        return subprocess.CompletedProcess(command, 126, str(error))


def popen_options(account: Account) -> dict[str, Any]:
    """How a process is started as the account: in a folder that it can enter, with no setting of libpq around."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    how: dict[str, Any] = {"cwd": "/", "env": environ | {"LC_ALL": "C"}}
    if not account.is_own:
        how |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return how


def own_folder(folder: Path, account: Account) -> None:
    """Have a folder that belongs to the account and that nobody else can enter; refuse one that is someone else's."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        os.chown(folder, account.uid, account.gid)
    check_own(folder, account.uid)
    folder.chmod(0o700)


def check_own(folder: Path, uid: int) -> None:
    """Refuse what is not a folder of that user, or what others can write to."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise PostgresError(
            f"{folder} is not a folder that only its rightful owner (user {uid}) can write to: remove it."
        )


def write_owned(path: Path, text: str, account: Account) -> None:
    """Put a text in place of a file in one step, belonging to the account."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(os.fsencode(text))
    fresh.chmod(0o600)
    os.chown(fresh, account.uid, account.gid)
    fresh.replace(path)


def digest(of: Path | str) -> str:
    """A short name for a path or text."""
    return hashlib.sha256(os.fsencode(of)).hexdigest()[:10]
