"""Real workers: killed, stopped, cut off, hung; their jobs go on elsewhere, each item once."""

from __future__ import annotations

import re
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hub.config import Settings
from hub.db import Database
from hub.queue import Kind, store
from tests import factories
from tests.factories import row, rows, run
from tests.invariants import Watch, invariants, watch
from tests.processes import Program, until
from tests.queue import entry
from tests.queue.hole import Hole

__all__ = ["invariants", "watch"]
pytestmark = pytest.mark.usefixtures("invariants")

# A worker that hears nothing looks for itself so rarely that a test which waits for that fails.
RARELY = {"HUB_QUEUE_BACKSTOP": "3600", "HUB_QUEUE_LEASE": "3600", "HUB_QUEUE_RENEW": "1200"}
BRIEFLY = {"HUB_QUEUE_LEASE": "2", "HUB_QUEUE_RENEW": "0.5"}
Start = Callable[..., Program]


class LabWorker(Program):
    """A worker process that knows the tests' kinds; ready when made."""

    def __init__(self, environ: Mapping[str, str], lanes: str) -> None:
        super().__init__([sys.executable, "-m", "tests.queue.entry", lanes], environ)
        self.await_line(r"worker ready|no lanes")


@pytest.fixture
def start(environ: dict[str, str], database: Database, watch: Watch) -> Iterator[Start]:
    """Starts worker processes: ``start("test.act=2", HUB_QUEUE_LEASE="2")``; ended after the test."""
    with ExitStack() as stack:

        def start(lanes: str = "workspace.jobs=2", **settings: str) -> Program:
            worker = LabWorker(environ | settings, lanes)
            stack.callback(worker.close)
            return worker

        yield start


def enqueue(database: Database, kind: Kind = entry.ACT, act: str = "return", key: str | None = None) -> int:
    """A job of a test's kind."""
    with database.autocommit() as connection:
        return store.enqueue(connection, kind, {"act": act}, ceiling=5, key=key).id


def job(database: Database, job_id: int) -> Any:
    """The job's row with its detail."""
    columns = "j.*, j.state::text as state, d.code"
    return row(
        database,
        f"select {columns} from queue.job j left join queue.detail d on d.job_id = j.id where id = :id",
        id=job_id,
    )


def until_state(database: Database, job_id: int, state: str) -> Any:
    """Wait until the job is in the state, and return its row."""
    return until(lambda: (now := job(database, job_id)).state == state and now)


def attempts(database: Database, job_id: int) -> list[tuple[int, str, str]]:
    """(number, outcome, code) of the attempts that ended without ending the job."""
    query = "select number, outcome::text, code from queue.attempt where job_id = :id order by ended_at, claim"
    return [tuple(attempt) for attempt in rows(database, query, id=job_id)]


def lapse(database: Database, job_id: int) -> None:
    """Let the job's lease end now, and wake the workers, as if its time had passed."""
    run(database, "update queue.job set again_at = statement_timestamp() where id = :id", id=job_id)
    run(database, "select pg_notify('hub_queue', queue) from queue.job where id = :id", id=job_id)


def backends(admin_url: str, application: str, act: str = "pid") -> list[Any]:
    """What `act` gives for each backend of that application in the test's database."""
    query = f"select {act} from pg_stat_activity where datname = current_database() and application_name like %s"
    with psycopg.connect(admin_url) as connection:
        return [answer for (answer,) in connection.execute(query.encode(), [application])]


@contextmanager
def stuck_at_page(database: Database, admin_url: str, position: int) -> Iterator[None]:
    """While the block runs, whoever tags the page at this position waits for its row."""
    with database.autocommit() as connection, connection.transaction():
        connection.execute("select from hub.page where position = %s for update", [position])
        yield


def until_stuck(admin_url: str) -> None:
    """Wait until a worker waits for a lock."""
    until(lambda: "Lock" in backends(admin_url, "hub worker", "wait_event_type"))


def tagging(database: Database, settings: Settings, pages: int = 40) -> int:
    """A course.tag job over a fresh course."""
    team = factories.make_team(database)
    return factories.start_tagging(database, settings, team, factories.make_course(database, team, pages)).job_id


def assert_each_page_was_tagged_once(database: Database, pages: int = 40) -> None:
    written = row(database, "select count(*) as pages, min(version) as least, max(version) as most from hub.page")
    assert tuple(written) == (pages, 2, 2)
    assert row(database, "select count(*) from hub.page_tag").count == pages


def test_a_killed_workers_job_goes_on_after_its_last_page(
    database: Database, settings: Settings, admin_url: str, start: Start
) -> None:
    job_id = tagging(database, settings)
    with stuck_at_page(database, admin_url, 20):
        first = start()
        until_stuck(admin_url)
        first.kill()
    lapse(database, job_id)
    start()
    ended = until_state(database, job_id, "succeeded")
    assert (ended.attempt, ended.changed, ended.done_before in (19, 20)) == (2, 40, True)
    assert attempts(database, job_id) == [(1, "lost", "worker_lost")]
    assert_each_page_was_tagged_once(database)


def test_an_idle_worker_takes_up_a_dead_workers_job_when_its_lease_ends(
    database: Database, settings: Settings, admin_url: str, start: Start
) -> None:
    job_id = tagging(database, settings)
    # A page that stays locked is given up after a part of the lease: long enough to start another worker.
    patiently = {"HUB_QUEUE_LEASE": "8", "HUB_QUEUE_RENEW": "2"}
    with stuck_at_page(database, admin_url, 20):
        first = start(**patiently)
        until_stuck(admin_url)
        start(**patiently | {"HUB_QUEUE_BACKSTOP": "3600"})
        first.kill()
    assert until_state(database, job_id, "succeeded").attempt == 2
    assert_each_page_was_tagged_once(database)


def test_a_frozen_worker_that_wakes_after_its_lease_writes_nothing_more(
    database: Database, settings: Settings, admin_url: str, start: Start
) -> None:
    job_id = tagging(database, settings)
    with stuck_at_page(database, admin_url, 20):
        frozen = start()
        until_stuck(admin_url)
        frozen.send(signal.SIGSTOP)
    lapse(database, job_id)
    start()
    until_state(database, job_id, "succeeded")
    frozen.send(signal.SIGCONT)
    frozen.await_line("lease lost")
    assert_each_page_was_tagged_once(database)
    assert attempts(database, job_id) == [(1, "lost", "worker_lost")]


def test_a_stopped_worker_finishes_its_page_and_gives_its_job_back(
    database: Database, settings: Settings, admin_url: str, start: Start
) -> None:
    job_id = tagging(database, settings)
    with stuck_at_page(database, admin_url, 20):
        first = start()
        until_stuck(admin_url)
        first.send(signal.SIGTERM)
        first.await_line("worker draining")
    assert first.wait() == 0
    given = job(database, job_id)
    assert (given.state, given.attempt, given.changed) == ("queued", 0, 20)
    assert attempts(database, job_id) == [(1, "interrupted", "worker_stopped")]
    assert row(database, "select stopped_at is not null as stopped from queue.worker").stopped
    start()
    ended = until_state(database, job_id, "succeeded")
    assert (ended.attempt, ended.changed) == (1, 40)
    assert_each_page_was_tagged_once(database)


def test_a_second_signal_stops_a_worker_at_once(
    database: Database, settings: Settings, admin_url: str, start: Start
) -> None:
    job_id = tagging(database, settings)
    with stuck_at_page(database, admin_url, 20):
        worker = start()
        until_stuck(admin_url)
        worker.send(signal.SIGTERM)
        worker.await_line("worker draining")
        worker.send(signal.SIGTERM)
        assert worker.wait(5) == 1
    assert job(database, job_id).state == "running"
    lapse(database, job_id)
    start()
    until_state(database, job_id, "succeeded")
    assert_each_page_was_tagged_once(database)


def test_an_idle_worker_stops_at_the_first_signal(database: Database, start: Start) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        worker = start(**RARELY)
        worker.send(number)
        assert worker.wait() == 0


def test_a_worker_that_waits_for_the_database_stops_at_the_first_signal(
    environ: dict[str, str], tmp_path: Path
) -> None:
    away = environ | {"HUB_DATABASE_URL": f"postgresql://hub_app@/hub?host={tmp_path}"}
    worker = Program([sys.executable, "-m", "tests.queue.entry", "test.act=1"], away)
    worker.await_line("database away")
    assert worker.terminate() == 0


def test_a_signal_at_any_moment_stops_a_worker(environ: dict[str, str]) -> None:
    script = Program([sys.executable, "-m", "tests.queue.signals"], environ)
    assert script.wait() == 0, script.output
    assert re.search(r"stopped at each of \d\d+ lines and while it waited", script.output)


def test_a_handler_that_does_not_stop_in_time_loses_its_job_uncharged(database: Database, start: Start) -> None:
    job_id = enqueue(database, act="hang")
    worker = start("test.act=1", HUB_QUEUE_GRACE="0.2")
    worker.await_line("job started")
    assert worker.terminate() == 0
    given = job(database, job_id)
    assert (given.state, given.attempt) == ("queued", 0)
    assert attempts(database, job_id) == [(1, "interrupted", "worker_stopped")]


def test_an_exclusive_job_is_not_given_back_while_its_handler_runs(database: Database, start: Start) -> None:
    job_id = enqueue(database, entry.ALONE, act="hang", key="k")
    worker = start("test.alone=1", HUB_QUEUE_GRACE="0.2")
    worker.await_line("job started")
    assert worker.terminate() == 0
    assert job(database, job_id).state == "running"


def test_a_worker_without_lanes_takes_no_part(database: Database, admin_url: str, start: Start) -> None:
    job_id = enqueue(database)
    worker = start("")
    assert backends(admin_url, "hub worker%") == []
    assert worker.terminate() == 0
    assert job(database, job_id).state == "queued"
    assert rows(database, "select from queue.worker") == []


def test_a_worker_takes_jobs_of_its_lanes_only(database: Database, start: Start) -> None:
    other = enqueue(database, entry.SHORT)
    start("test.act=1", **RARELY)
    until_state(database, enqueue(database), "succeeded")
    assert job(database, other).state == "queued"


def test_a_notification_wakes_an_idle_worker(database: Database, admin_url: str, start: Start) -> None:
    start("test.act=1", **RARELY)
    for _ in range(3):
        until_state(database, enqueue(database), "succeeded")


def test_an_idle_worker_whose_listening_connection_was_cut_hears_again(
    database: Database, admin_url: str, start: Start
) -> None:
    worker = start("test.act=1", **RARELY)
    until_state(database, enqueue(database), "succeeded")
    assert backends(admin_url, "hub worker listener", "pg_terminate_backend(pid)") == [True]
    # Into the gap: nobody may be listening when this is notified.
    until_state(database, enqueue(database), "succeeded")
    worker.await_line("listening connection lost")
    until_state(database, enqueue(database), "succeeded")


def listens(database: Database) -> bool:
    """Whether the one worker's row says that notifications reach it."""
    (listening,) = row(database, "select listening from queue.worker")
    return bool(listening)


def test_a_worker_whose_listening_connection_is_half_open_notices_and_hears_again(
    database: Database, start: Start
) -> None:
    with closing(Hole(database.url)) as hole:
        through = {"HUB_LISTEN_DATABASE_URL": hole.url, "HUB_QUEUE_LISTEN_PING": "1"}
        worker = start("test.act=1", **RARELY | through)
        until_state(database, enqueue(database), "succeeded")
        until(lambda: listens(database))
        hole.swallow()
        until_state(database, enqueue(database), "succeeded")
        worker.await_line("listening connection lost: it does not bring its own notification")
        worker.await_line("listening again")
        until_state(database, enqueue(database), "succeeded")


def test_a_worker_that_cannot_listen_says_so_in_its_row_and_looks_for_work_at_the_backstop(
    database: Database, start: Start
) -> None:
    hole = Hole(database.url)
    start("test.act=1", HUB_LISTEN_DATABASE_URL=hole.url, HUB_QUEUE_LISTEN_PING="600", HUB_QUEUE_BACKSTOP="1")
    until(lambda: listens(database))
    since = row(database, "select listening_since from queue.worker").listening_since
    hole.close()
    until(lambda: not listens(database))
    assert row(database, "select listening_since from queue.worker").listening_since > since
    until_state(database, enqueue(database), "succeeded")


def test_a_worker_wakes_for_the_next_due_time(database: Database, start: Start) -> None:
    start("test.act=1", **RARELY | {"HUB_QUEUE_RETRY_BASE": "0.05"})
    job_id = enqueue(database, act="raise")
    ended = until_state(database, job_id, "failed")
    assert (ended.attempt, ended.code) == (3, "handler_failed")


def test_a_job_that_kills_its_workers_runs_out_of_attempts_and_costs_no_neighbour_one(
    database: Database, start: Start
) -> None:
    poison = enqueue(database, act="exit")
    good = [enqueue(database) for _ in range(10)]
    for _ in range(3):
        assert start("test.act=1", **BRIEFLY).wait() == entry.EXIT
    start("test.act=1", **BRIEFLY)
    ended = until_state(database, poison, "failed")
    assert (ended.attempt, ended.code) == (3, "worker_lost")
    assert attempts(database, poison) == [(number, "lost", "worker_lost") for number in (1, 2, 3)]
    assert [letter.job_id for letter in rows(database, "select job_id from queue.dead_letter")] == [poison]
    for job_id in good:
        assert until_state(database, job_id, "succeeded").attempt == 1
        assert attempts(database, job_id) == []


def test_a_job_that_kills_its_workers_can_be_cancelled(database: Database, start: Start) -> None:
    poison = enqueue(database, act="die")
    assert start("test.act=1", **BRIEFLY).wait() == -signal.SIGKILL
    with database.autocommit() as connection:
        store.cancel(connection, poison, factories.new_id(), "Maria")
    start("test.act=1", **BRIEFLY)
    until_state(database, poison, "cancelled")


def test_a_handler_that_hangs_loses_its_lane_which_is_replaced_until_none_is_left(
    database: Database, start: Start
) -> None:
    worker = start("test.short=2", **BRIEFLY | {"HUB_QUEUE_BACKSTOP": "3600"})
    hung = enqueue(database, entry.SHORT, act="hang")
    assert until_state(database, hung, "failed").code == "deadline_passed"
    with database.autocommit() as connection, connection.transaction():
        meeting = [store.enqueue(connection, entry.SHORT, {"act": "meet"}, ceiling=5).id for _ in range(2)]
    for job_id in meeting:
        until_state(database, job_id, "succeeded")
    enqueue(database, entry.SHORT, act="hang")
    worker.await_line("every lane is lost")
    assert worker.wait() == 1


def test_workers_cut_off_again_and_again_charge_no_attempt_and_write_each_page_once(
    database: Database, settings: Settings, admin_url: str, start: Start
) -> None:
    job_id = tagging(database, settings, pages=400)
    start(HUB_QUEUE_LEASE="60")
    for done in (1, 100, 200, 300):
        until(lambda done=done: job(database, job_id).changed >= done)
        backends(admin_url, "hub worker%", "pg_terminate_backend(pid)")
    ended = until_state(database, job_id, "succeeded")
    assert (ended.attempt, ended.changed) == (1, 400)
    assert attempts(database, job_id) == []
    assert_each_page_was_tagged_once(database, 400)


def test_one_lane_is_shared_by_the_workspaces(database: Database, start: Start) -> None:
    with database.autocommit() as connection:
        crowd = [store.Item({}, workspace_id=uuid.UUID(int=1)) for _ in range(30)]
        others = [store.Item({}, workspace_id=uuid.UUID(int=number)) for number in (2, 3)]
        made = store.enqueue_many(connection, entry.ACT, [*crowd, *others], ceiling=5)
    start("test.act=1")
    for one in made:
        until_state(database, one.id, "succeeded")
    order = [ended.id for ended in rows(database, "select id from queue.job order by started_at, id")]
    assert order[:3] == [made[0].id, made[30].id, made[31].id]


def test_two_workers_share_a_queue_without_taking_a_job_twice(database: Database, watch: Watch, start: Start) -> None:
    ids = [enqueue(database) for _ in range(60)]
    start("test.act=3")
    start("test.act=3")
    for job_id in ids:
        assert until_state(database, job_id, "succeeded").attempt == 1
