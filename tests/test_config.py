"""Settings: read once, and refused by name when they make no sense."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from hub import config
from hub.config import Settings, load, parse_lanes
from hub.errors import ConfigError

KEY = "k" * 32


def test_the_defaults_are_those_of_the_design() -> None:
    settings = load({})
    assert (settings.bind, settings.web_processes, settings.streams_per_process) == ("127.0.0.1:8000", 2, 1000)
    assert (settings.queue_lease, settings.queue_renew, settings.queue_max_attempts) == (60, 20, 5)
    assert (settings.queue_retry_base, settings.queue_retry_max) == (10, 900)
    assert (settings.queue_backstop, settings.queue_listen_ping, settings.queue_grace) == (60, 30, 30)
    assert (settings.jobs_max_pending_per_workspace, settings.jobs_max_pending_per_actor) == (10, 3)
    assert (settings.jobs_max_created_per_day, settings.jobs_max_course_pages) == (100, 100_000)
    assert (settings.jobs_create_per_minute, settings.signin_per_minute) == (10, 10)
    assert (settings.session_idle, settings.session_absolute) == (43_200, 604_800)
    assert (settings.lanes, settings.trusted_proxies, settings.env) == ({}, (), "development")


def test_every_setting_can_be_set_and_says_why() -> None:
    for field in dataclasses.fields(Settings):
        assert config.variable(field.name) == f"HUB_{field.name.upper()}"
        assert field.metadata["why"], field.name


def test_an_empty_value_is_the_default() -> None:
    assert load({"HUB_QUEUE_LEASE": "  ", "HUB_LANES": ""}) == load({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HUB_QUEUE_LEASE", "soon"),
        ("HUB_QUEUE_LEASE", "0"),
        ("HUB_QUEUE_LEASE", "-1"),
        ("HUB_QUEUE_LEASE", "nan"),
        ("HUB_QUEUE_LEASE", "inf"),
        ("HUB_QUEUE_LEASE", "1e9"),
        ("HUB_QUEUE_MAX_ATTEMPTS", "0"),
        ("HUB_QUEUE_MAX_ATTEMPTS", "2.5"),
        ("HUB_QUEUE_RENEW", "30"),
        ("HUB_QUEUE_RETRY_BASE", "1000"),
        ("HUB_WEB_PROCESSES", "0"),
        ("HUB_JOBS_MAX_PENDING_PER_ACTOR", "-3"),
        ("HUB_JOBS_CREATE_PER_MINUTE", "many"),
        ("HUB_SESSION_IDLE", "700000"),
        ("HUB_ENV", "staging"),
        ("HUB_BIND", "8000"),
        ("HUB_BIND", "localhost"),
        ("HUB_TRUSTED_PROXIES", "proxy.example"),
        ("HUB_TRUSTED_PROXIES", "10.0.0.0/99"),
        ("HUB_BLOB_URL", "/srv/hub"),
        ("HUB_BLOB_URL", "s3:bucket"),
        ("HUB_BLOB_URL", "file://other-host/srv"),
        ("HUB_BLOB_URL", "s3://key:secret@bucket/backups"),
        ("HUB_LANES", "workspace.jobs"),
        ("HUB_LANES", "workspace.jobs=two"),
        ("HUB_LANES", "workspace.jobs=-1"),
        ("HUB_LANES", "a=1,a=2"),
        ("HUB_LANES", "a=1;b=2"),
        ("HUB_SECRET_KEY", "short"),
        ("HUB_DATABASE_URL", "postgresql://a\x00b"),
    ],
)
def test_nonsense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load({name: value})


def test_a_refusal_never_shows_a_secret() -> None:
    with pytest.raises(ConfigError) as refused:
        load({"HUB_SECRET_KEY": "hunter2"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "environ",
    [
        {"HUB_ENV": "production"},
        {"HUB_ENV": "production", "HUB_SECRET_KEY": KEY, "HUB_DEMO_PASSWORD": "demo"},
    ],
)
def test_production_refuses_default_keys_and_demo_people(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        load(environ)
    assert load({"HUB_ENV": "production", "HUB_SECRET_KEY": KEY}).env == "production"


def test_lanes_are_read() -> None:
    assert parse_lanes("workspace.jobs=2, knowledge.ingest=4,") == {"workspace.jobs": 2, "knowledge.ingest": 4}
    assert parse_lanes("") == {}
    assert parse_lanes("workspace.jobs=0") == {}


def test_proxies_are_networks_or_the_socket() -> None:
    assert load({"HUB_TRUSTED_PROXIES": "10.0.0.0/8, ::1,unix"}).trusted_proxies == ("10.0.0.0/8", "::1", "unix")


def test_the_description_hides_secrets() -> None:
    shown = config.describe(load({"HUB_SECRET_KEY": KEY, "HUB_LANES": "a=1"}))
    values = {row["name"]: row["value"] for row in shown}
    assert values["HUB_SECRET_KEY"] == "(set)"
    assert values["HUB_LANES"] == "a=1"
    assert KEY not in str(shown)


def test_a_kept_secret_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(config.kept_secret(folder, "secret.key"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1 and len(made) == 8
    assert len(made[0]) >= 32
    assert os.stat(folder / "secret.key").st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret.key"]
