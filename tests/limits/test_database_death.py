"""PostgreSQL killed again and again under load: nothing acknowledged is missing, nothing happens twice, all go on."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hub import postgres, schema
from hub.db import Database
from hub.postgres import Server
from tests.factories import make_course
from tests.invariants import Watch, assert_holds, check
from tests.limits.harness import WIDE, Site, Timer, measured, scaled
from tests.limits.load import PENDING, Load
from tests.processes import until

SECONDS = scaled(60, 20)


@pytest.fixture
def durable(open_folder: Path) -> Iterator[Server]:
    """A server of the test's own that keeps what it committed."""
    server = postgres.start(open_folder / "pg")
    schema.init(server.admin_url)
    schema.upgrade(server.url("hub_migrate"))
    yield server
    postgres.destroy(open_folder / "pg")


@pytest.fixture
def hub(durable: Server, environ: dict[str, str]) -> Iterator[Site]:
    """Two replicas and two workers on that server."""
    database = Database(durable.url(), application_name="tests")
    site = Site(database, environ | WIDE | PENDING | {"HUB_DATABASE_URL": durable.url()})
    try:
        site.start(replicas=2, workers=2)
        yield site
    finally:
        site.close()
        database.close()


def test_nothing_acknowledged_is_lost_when_the_database_dies_again_and_again(hub: Site, durable: Server) -> None:
    watch = Watch(durable.admin_url)
    watch.install()
    team = hub.team()
    load = Load(hub, team, [make_course(hub.database, team, 150) for _ in range(4)])
    with load.going():
        deaths = _kill_again_and_again(durable)
    hub.await_jobs()
    measured("deaths of the database", deaths)
    assert all(program.process.poll() is None for program in (*hub.web, *hub.workers))
    assert set(load.answers) <= {200, 201, 429, 503}
    load.check()
    assert_holds(check(hub.database, hub.settings))
    assert_holds(watch.check())


def _kill_again_and_again(server: Server) -> int:
    chance, whole = random.Random(3), Timer()
    deaths, slowest = 0, 0.0
    while whole.seconds < SECONDS:
        threading.Event().wait(chance.uniform(0.5, 3))
        _kill(server)
        deaths += 1
        threading.Event().wait(chance.uniform(0, 1))
        server.restart()
        slowest = max(slowest, _await_progress(server))
    measured("longest time from the database's return to work going on, s", slowest)
    return deaths


def _await_progress(server: Server) -> float:
    """Wait until work goes on; after how many seconds it did."""
    timer = Timer()
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        before = _progress(connection)
        until(lambda: _progress(connection) != before)
    return timer.seconds


def _progress(connection: psycopg.Connection[Any]) -> Any:
    """Something that moves whenever a worker does anything."""
    return connection.execute(
        "select sum(changed + skipped), max(started_at), max(finished_at) from queue.job"
    ).fetchone()


def _kill(server: Server) -> None:
    """SIGKILL to the server's main process and to all that it started."""
    main = int((server.data / "postmaster.pid").read_text().split("\n", 1)[0])
    started = [int(pid) for pid in Path(f"/proc/{main}/task/{main}/children").read_text().split()]
    for pid in (main, *started):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
