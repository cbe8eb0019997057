"""PostgreSQL killed again and again under load: nothing acknowledged is missing, nothing happens twice, all go on."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from hub import postgres, schema
from hub.db import Database
from hub.postgres import Server
from tests.factories import Team, make_course
from tests.invariants import Watch, assert_holds, check
from tests.limits.harness import WIDE, Site, Timer, measured, scaled
from tests.processes import until

SECONDS = scaled(60, 20)
PENDING = 12


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
    pending = {"HUB_JOBS_MAX_PENDING_PER_WORKSPACE": str(PENDING), "HUB_JOBS_MAX_PENDING_PER_ACTOR": str(PENDING)}
    site = Site(database, environ | WIDE | pending | {"HUB_DATABASE_URL": durable.url()})
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
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(load.create, n) for n in range(4)] + [pool.submit(load.cancel, n) for n in range(2)]
        try:
            deaths = _kill_again_and_again(durable)
        finally:
            load.over.set()
        for future in running:
            future.result()
    hub.await_jobs()

    measured("deaths of the database", deaths)
    measured("answers", dict(load.answers))
    measured("acknowledged creations", len(load.created))
    measured("acknowledged cancels", len(load.cancelled))
    assert all(program.process.poll() is None for program in (*hub.web, *hub.workers))
    assert set(load.answers) <= {200, 201, 429, 503}
    made = {row.idempotency_key: row.job_id for row in hub.rows("select idempotency_key, job_id from queue.request")}
    assert made == load.created
    states = {row.id: row for row in hub.rows("select id, state::text, cancel_requested_at from queue.job")}
    for job_id, state in load.cancelled.items():
        assert states[job_id].cancel_requested_at or states[job_id].state == state
    assert_holds(check(hub.database, hub.settings))
    assert_holds(watch.check())


class Load:
    """Creates and cancels until it is over; what was not acknowledged is asked again with the same key."""

    def __init__(self, hub: Site, team: Team, courses: list[uuid.UUID]) -> None:
        self._team = team
        self._courses = courses
        self._clients = [hub.client(team.admin) for _ in range(6)]
        self.over = threading.Event()
        self.answers: Counter[int] = Counter()
        # The job of each acknowledged key, and the state that each acknowledged cancel told.
        self.created: dict[str, int] = {}
        self.cancelled: dict[int, str] = {}

    def create(self, number: int) -> None:
        """Create job after job."""
        client, chance = self._clients[number], random.Random(number)
        while not self.over.is_set():
            key, course = uuid.uuid4().hex, chance.choice(self._courses)
            # A creation in doubt is asked about until there is an answer, also when the rest is over.
            while True:
                answer = client.create(self._team, course, f"tag {chance.randrange(50)}", key=key, replica=number % 2)
                self._note(answer)
                if answer.status_code < 300:
                    self.created[key] = answer.json()["id"]
                    break
                if self.over.wait(0.1) and answer.status_code == 429:
                    return

    def cancel(self, number: int) -> None:
        """Cancel one of the latest jobs now and then."""
        client, chance = self._clients[4 + number], random.Random(100 + number)
        while not self.over.wait(chance.uniform(0.05, 0.4)):
            latest = list(self.created.values())[-PENDING:]
            if not latest:
                continue
            job_id = chance.choice(latest)
            answer = client.cancel(self._team, job_id, replica=number % 2)
            self._note(answer)
            if answer.status_code == 200:
                self.cancelled[job_id] = answer.json()["state"]

    def _note(self, answer: httpx.Response) -> None:
        self.answers[answer.status_code] += 1
        if answer.status_code == 503:
            assert int(answer.headers["Retry-After"]) >= 1
        elif answer.status_code >= 500:
            raise AssertionError(answer.text)


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
    main = psutil.Process(int((server.data / "postmaster.pid").read_text().split("\n", 1)[0]))
    processes = [main, *main.children(recursive=True)]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes[1:], timeout=10)
