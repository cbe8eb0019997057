"""Whether this machine's Hub is ready: what `hub check` prints."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import psycopg

from hub import db, schema
from hub.config import Settings
from hub.errors import SchemaMismatch

# All times come from the database's clock; a machine whose own clock is far off shows wrong countdowns and log lines.
MAX_SKEW = 5.0


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `look`: nothing is broken, but somebody should have a look."""

    name: str
    ok: bool
    text: str
    look: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The same, for printing."""
        return asdict(self)


def findings(settings: Settings) -> list[Finding]:
    """Look at everything; what depends on the database is left out when it is away."""
    reached = _database(settings)
    rest = [_schema(settings), _clock(settings)] if reached.ok else []
    return [reached, *rest, _folder(settings.data_dir)]


def _database(settings: Settings) -> Finding:
    try:
        with db.connect(settings.database_url, application_name="hub check", autocommit=True) as connection:
            server = connection.info.server_version // 10_000
            return Finding("database", True, f"PostgreSQL {server} answers {connection.info.user}")
    except psycopg.Error as error:
        return Finding("database", False, str(error).strip().splitlines()[0])


def _schema(settings: Settings) -> Finding:
    try:
        schema.check(settings.database_url)
    except SchemaMismatch as error:
        return Finding("schema", False, str(error))
    return Finding("schema", True, "fits this version of Hub, and the role has rows only")


def _clock(settings: Settings) -> Finding:
    with db.connect(settings.database_url, application_name="hub check", autocommit=True) as connection:
        before = time.time()
        row = connection.execute("select clock_timestamp()").fetchone()
        assert row
        middle = (before + time.time()) / 2
    skew = (row[0] - datetime.fromtimestamp(middle, UTC)).total_seconds()
    return Finding("clock", abs(skew) <= MAX_SKEW, f"{skew:+.1f} seconds between the database's clock and this one")


def _folder(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return Finding("data folder", True, f"{folder} can be written")
    except OSError as error:
        return Finding("data folder", False, f"{folder} cannot be written: {error.strerror}")
