"""Every setting of Hub: its name, type, default, unit and reason; read once from the environment.

`load` refuses nonsense by the setting's name, so a process with a wrong setting never starts.
`hub settings` prints this list.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit

from hub.errors import ConfigError

LANES = re.compile(r"^[a-z0-9_.]{1,80}=\d{1,3}$")


def _text(value: str) -> str:
    if "\x00" in value:
        raise ValueError("must not contain NUL")
    return value


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError(f"must be from {low} to {high}")
        return number

    return parse


def _seconds(low: float, high: float) -> Callable[[str], float]:
    def parse(value: str) -> float:
        number = float(value)
        if not low <= number <= high:
            raise ValueError(f"must be from {low:g} to {high:g} seconds")
        return number

    return parse


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return value

    return parse


def _networks(value: str) -> tuple[str, ...]:
    entries = tuple(entry.strip() for entry in value.split(",") if entry.strip())
    for entry in entries:
        if entry != "unix":
            ipaddress.ip_network(entry)
    return entries


def _blob_url(value: str) -> str:
    parts = urlsplit(_text(value))
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a key: keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if parts.scheme == "file" and parts.path and parts.netloc in ("", "localhost"):
        return value
    if parts.scheme == "s3" and parts.netloc:
        return value
    raise ValueError("must look like file:/srv/hub/blobs or s3://bucket/prefix")


def parse_lanes(value: str) -> dict[str, int]:
    """``"workspace.jobs=2,knowledge.ingest=4"`` as ``{queue: lanes}``; empty text means no lanes.

    Raises ValueError for anything else.
    """
    lanes: dict[str, int] = {}
    for entry in (part.strip() for part in value.split(",")):
        if not entry:
            continue
        if not LANES.match(entry):
            raise ValueError("must look like workspace.jobs=2,knowledge.ingest=4")
        queue, _, number = entry.partition("=")
        if queue in lanes:
            raise ValueError(f"names {queue} twice")
        if int(number):
            lanes[queue] = int(number)
    return lanes


def _prefix_only(_value: str) -> dict[str, str]:
    raise ValueError("must be followed by the name of a schedule, see `hub schedules list`")


def _setting(default: Any, parse: Callable[[str], Any], why: str, unit: str = "", secret: bool = False) -> Any:
    make = {"default": default} if not isinstance(default, dict) else {"default_factory": dict}
    return field(**make, metadata={"parse": parse, "why": why, "unit": unit, "secret": secret})


@dataclass(frozen=True)
class Settings:
    """All settings, as the process uses them. Durations are seconds."""

    database_url: str = _setting(
        "", _text, "where web and worker connect as hub_app; empty: the embedded server", secret=True
    )
    migrate_database_url: str = _setting("", _text, "where `hub db upgrade` connects as hub_migrate", secret=True)
    listen_database_url: str = _setting(
        "", _text, "direct address for LISTEN when HUB_DATABASE_URL is a pooler", secret=True
    )
    pg_bin: str = _setting("", _text, "folder of PostgreSQL's programs, if not the embedded ones")
    data_dir: Path = _setting(Path("var"), Path, "where the embedded server, generated keys and backups live")
    blob_url: str = _setting(
        "", _blob_url, "where backups are kept: file:FOLDER or s3://BUCKET/PREFIX; empty: `blobs` in HUB_DATA_DIR"
    )
    bind: str = _setting("127.0.0.1:8000", _text, "address and port that the web server listens on")
    secret_key: str = _setting("", _text, "signs cookies; empty: a random one kept in the data folder", secret=True)
    env: str = _setting("development", _choice("development", "production"), "production refuses demo people and debug")
    trusted_proxies: tuple[str, ...] = _setting(
        (), _networks, "peers that may state another address: CIDR list, `unix`"
    )
    lanes: dict[str, int] = _setting({}, parse_lanes, "lanes of a worker for each queue; empty: claims nothing")
    web_processes: int = _setting(2, _whole(1, 64), "web server processes", "processes")
    streams_per_process: int = _setting(
        1000, _whole(1, 20000), "open live streams per web process; above: 503", "streams"
    )

    queue_lease: float = _setting(60.0, _seconds(1, 3600), "a claim holds this long without renewal", "s")
    queue_renew: float = _setting(
        20.0, _seconds(0.1, 1200), "a claim is renewed this often; at most a third of the lease", "s"
    )
    queue_max_attempts: int = _setting(5, _whole(1, 100), "ceiling on attempts of any job", "attempts")
    queue_max_redrives: int = _setting(10, _whole(1, 1000), "a dead letter is redriven so often in a row", "redrives")
    queue_retry_base: float = _setting(10.0, _seconds(0.01, 3600), "first wait before another attempt; doubles", "s")
    queue_retry_max: float = _setting(900.0, _seconds(0.01, 86400), "ceiling on that wait, jitter included", "s")
    queue_backstop: float = _setting(
        60.0, _seconds(0.5, 3600), "look for work at least this often, whatever is notified", "s"
    )
    queue_listen_ping: float = _setting(30.0, _seconds(0.5, 600), "test of the listening connection", "s")
    queue_grace: float = _setting(30.0, _seconds(0, 3600), "time to finish after SIGTERM", "s")
    queue_keep_days: int = _setting(
        14, _whole(1, 36_500), "ended jobs that no person asked for, and ticks of schedules, are kept so long", "days"
    )
    queue_prune: float = _setting(600.0, _seconds(1, 86_400), "a worker looks so often for what need not be kept", "s")
    # What is set of HUB_CRON_…, by name, as it is written: only the schedules know whether it makes sense.
    cron: dict[str, str] = _setting({}, _prefix_only, "cron expressions of schedules")

    jobs_max_pending_per_workspace: int = _setting(10, _whole(1, 10**6), "jobs of a workspace not yet ended", "jobs")
    jobs_max_pending_per_actor: int = _setting(
        3, _whole(1, 10**6), "jobs of a person in a workspace not yet ended", "jobs"
    )
    jobs_max_created_per_day: int = _setting(
        100, _whole(1, 10**6), "jobs created in a workspace in any 24 hours", "jobs"
    )
    jobs_max_course_pages: int = _setting(100_000, _whole(1, 10**7), "pages of a course that a job takes on", "pages")
    jobs_create_per_minute: int = _setting(
        10, _whole(1, 10**6), "creation requests per address in any minute", "requests"
    )

    session_idle: float = _setting(43_200.0, _seconds(60, 31_536_000), "a session ends after so long without use", "s")
    session_absolute: float = _setting(604_800.0, _seconds(60, 31_536_000), "a session ends so long after sign-in", "s")
    signin_per_minute: int = _setting(
        10, _whole(1, 10**6), "sign-in tries per account and per address in any minute", "tries"
    )
    demo_password: str = _setting("", _text, "password of the demo people; empty: a random one", secret=True)


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read all settings from `environ` (by default the process's).

    Raises ConfigError, naming the setting, for a value that cannot be read or makes no sense beside the others.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for setting in fields(Settings):
        name = variable(setting.name)
        raw = environ.get(name)
        # An empty value means "not set" everywhere but for the lanes, where empty is the default anyway.
        if raw is None or raw.strip() == "":
            continue
        try:
            values[setting.name] = setting.metadata["parse"](raw.strip())
        except ValueError as error:
            raise ConfigError(f"{name}: {_reason(error, raw, setting.metadata['secret'])}") from None
    values["cron"] = {name: raw.strip() for name, raw in sorted(environ.items()) if name.startswith("HUB_CRON_")}
    settings = Settings(**values)
    _check_sense(settings)
    return settings


def variable(field_name: str) -> str:
    """The environment variable of a field: ``queue_lease`` is HUB_QUEUE_LEASE."""
    return f"HUB_{field_name.upper()}"


def _reason(error: ValueError, raw: str, secret: bool) -> str:
    message = str(error)
    if message.startswith(("must", "names")):
        return message
    return "cannot be read" if secret else f"cannot be read: {raw[:80]!r}"


def _check_sense(s: Settings) -> None:
    if s.queue_renew > s.queue_lease / 3 + 1e-9:
        raise ConfigError(
            "HUB_QUEUE_RENEW: must be at most a third of HUB_QUEUE_LEASE, or one lost renewal ends a live claim"
        )
    if s.queue_retry_base > s.queue_retry_max:
        raise ConfigError("HUB_QUEUE_RETRY_BASE: must not be above HUB_QUEUE_RETRY_MAX")
    if s.session_idle > s.session_absolute:
        raise ConfigError("HUB_SESSION_IDLE: must not be above HUB_SESSION_ABSOLUTE")
    if not re.match(r"^(unix:.+|\[?[0-9A-Za-z.:_-]+\]?:\d{1,5})$", s.bind):
        raise ConfigError("HUB_BIND: must look like 127.0.0.1:8000")
    if s.env == "production" and not s.secret_key:
        raise ConfigError("HUB_SECRET_KEY: production needs a key of its own, of at least 32 characters")
    if s.secret_key and len(s.secret_key) < 32:
        raise ConfigError("HUB_SECRET_KEY: must have at least 32 characters")
    if s.env == "production" and s.demo_password:
        raise ConfigError("HUB_DEMO_PASSWORD: production has no demo people")


def kept_secret(folder: Path, name: str) -> str:
    """A random secret kept in the file `name`, made on first use; readable by this user alone."""
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # The draft is readable by this user alone. A link never replaces what another process made a moment ago, and
        # never shows half a file.
        with NamedTemporaryFile("w", dir=folder, prefix=f".{name}.") as draft:
            draft.write(secrets.token_urlsafe(32))
            draft.flush()
            with suppress(FileExistsError):
                os.link(draft.name, path)
    return path.read_text().strip()


def describe(settings: Settings) -> list[dict[str, Any]]:
    """Each setting with name, value in force, default, unit and reason; secrets only as set or not.

    Without those of schedules, which `hub.queue.plans` describes.
    """
    return [
        {
            "name": variable(f.name),
            "value": _shown(getattr(settings, f.name), f.metadata["secret"]),
            "default": _shown({} if f.name == "lanes" else f.default, False),
            "unit": f.metadata["unit"],
            "why": f.metadata["why"],
        }
        for f in fields(Settings)
        if f.name != "cron"
    ]


def _shown(value: Any, secret: bool) -> str:
    if secret:
        return "(set)" if value else ""
    if isinstance(value, dict):
        return ",".join(f"{key}={number}" for key, number in value.items())
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
