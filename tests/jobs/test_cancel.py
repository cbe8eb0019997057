"""Asking for a job's end: in every state, once, and never both cancelled and done."""

from __future__ import annotations

import threading

import psycopg
import pytest

from hub.queue import store
from tests.factories import row, rows
from tests.jobs.conftest import WAITING, Desk
from tests.processes import until

pytestmark = pytest.mark.usefixtures("watch")


def test_a_waiting_job_ends_at_once_with_both_its_events(desk: Desk) -> None:
    job_id = desk.start(desk.course(1500))
    other = desk.member()
    desk.cancel(job_id, other)
    assert desk.outcome(job_id) == ("cancelled", 0, 0, 0)
    assert desk.job(job_id).cancel_by_name == other.name
    assert rows(desk.database, "select from queue.worklist") == []
    assert desk.events(job_id) == ["job.queued", "job.cancel_requested", "job.cancelled"]
    told = rows(desk.database, "select actor_name, actor_kind, xid::text from audit.event order by id")
    assert [(event.actor_name, event.actor_kind) for event in told[1:]] == [(other.name, "person"), ("Hub", "hub")]
    assert told[1].xid == told[2].xid
    desk.work()
    assert desk.outcome(job_id) == ("cancelled", 0, 0, 0)


def ask_while_working_at(desk: Desk, job_id: int, position: int) -> None:
    """Ask for the job's end while its worker is in the middle of a page: the request gets its turn after that page."""
    asker = threading.Thread(target=desk.cancel, args=(job_id,))
    with desk.working_at(position):
        asker.start()
        until(lambda: len(rows(desk.database, WAITING)) == 2)
    asker.join(60)


def test_a_running_job_stops_before_its_next_page_and_keeps_what_is_done(desk: Desk) -> None:
    job_id = desk.start(desk.course(300))
    ask_while_working_at(desk, job_id, 3)
    state, changed, skipped, failed = desk.outcome(job_id)
    told = row(desk.database, "select changes from audit.event where action = 'job.cancel_requested'").changes
    assert (state, changed, skipped, failed) == ("cancelled", told["changed"], 0, 0)
    assert 3 <= changed < 300
    assert row(desk.database, "select count(*) from hub.page_tag").count == changed
    assert desk.events(job_id) == ["job.queued", "job.cancel_requested", "job.cancelled"]
    assert rows(desk.database, "select from queue.worklist") == []


def test_a_repeated_request_changes_nothing_and_is_not_told(desk: Desk) -> None:
    job_id = desk.start(desk.course(6))
    with desk.database.autocommit() as connection:
        store.claim(connection, "workspace.jobs", ["course.tag"], claim=1, lanes=1, lease=60.0)
    desk.cancel(job_id)
    before = desk.image()
    desk.cancel(job_id, desk.member())
    assert desk.image() == before
    assert desk.job(job_id).state == "running"


@pytest.mark.parametrize("state", ["succeeded", "cancelled", "failed"])
def test_an_ended_job_is_left_as_it_is(desk: Desk, state: str) -> None:
    job_id = desk.start()
    if state == "cancelled":
        desk.cancel(job_id)
    with desk.database.autocommit() as connection:
        if state == "failed":
            connection.execute("update hub.membership set enabled = false")
    desk.work()
    assert desk.job(job_id).state == state
    before = desk.image()
    desk.cancel(job_id)
    assert desk.image() == before


def test_fifty_requests_at_once_are_one(desk: Desk) -> None:
    job_id = desk.start(desk.course(3))
    with desk.database.autocommit() as connection:
        store.claim(connection, "workspace.jobs", ["course.tag"], claim=1, lanes=1, lease=60.0)
    threads = [threading.Thread(target=desk.cancel, args=(job_id,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert desk.events(job_id) == ["job.queued", "job.cancel_requested"]
    assert desk.job(job_id).version == 3


def test_a_request_that_comes_when_every_page_is_done_is_too_late(desk: Desk) -> None:
    job_id = desk.start(desk.course(2))
    ask_while_working_at(desk, job_id, 2)
    assert desk.outcome(job_id) == ("succeeded", 2, 0, 0)
    # The worker may have told the end before the request got its turn: then there was nothing left to ask for.
    asked = ["job.cancel_requested"] if desk.job(job_id).cancel_requested_at else []
    assert desk.events(job_id) == ["job.queued", *asked, "job.succeeded"]


def test_cancels_in_any_moment_end_a_job_exactly_once(desk: Desk) -> None:
    """Jobs are cancelled while a worker claims, does and ends them; the log is checked when the test is over."""
    course = desk.course(4)
    ended = []
    for _ in range(25):
        job_id = desk.start(course, f"round {len(ended)}")
        worker = threading.Thread(target=desk.work)
        worker.start()
        desk.cancel(job_id)
        worker.join(60)
        desk.work()
        ended.append(desk.outcome(job_id))
    for state, changed, skipped, _ in ended:
        assert state == ("succeeded" if changed + skipped == 4 else "cancelled")


def test_a_trail_that_cannot_be_written_stops_the_request(desk: Desk, admin_url: str) -> None:
    job_id = desk.start()
    before = desk.image()
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("revoke execute on function audit.record from hub_app")
        try:
            with pytest.raises(Exception, match="permission denied"):
                desk.cancel(job_id)
        finally:
            connection.execute("grant execute on function audit.record to hub_app")
    assert desk.image() == before
