"""Commits whose answer never came: whoever asked asks again, and finds what really happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from tests.factories import make_course, start_tagging
from tests.invariants import Watch
from tests.limits.harness import Site
from tests.limits.wire import Trap, Wire
from tests.processes import until

Act = Literal["lose", "swallow"]


@pytest.mark.parametrize(("act", "repeated"), [("lose", 201), ("swallow", 200)])
def test_a_creation_in_doubt_is_made_once_when_it_is_asked_for_again(
    site: Callable[..., Site], wire: Wire, act: Act, repeated: int
) -> None:
    hub = site(replicas=0, workers=0)
    hub.add_web(HUB_DATABASE_URL=wire.url)
    team = hub.team()
    client = hub.client(team.admin)
    course = make_course(hub.database, team, 3)
    wire.set_trap(Trap(after=b"job.queued", at=b"COMMIT", act=act))
    answer = client.create(team, course, key="in-doubt")
    assert wire.sprung.is_set()
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    again = client.create(team, course, key="in-doubt")
    assert again.status_code == repeated
    assert [row.id for row in hub.rows("select id from queue.job")] == [again.json()["id"]]
    assert hub.count("select count(*) from audit.event where action = 'job.queued'") == 1


@pytest.mark.parametrize("act", ["lose", "swallow"])
def test_a_cancel_in_doubt_is_asked_for_once(site: Callable[..., Site], wire: Wire, act: Act) -> None:
    hub = site(replicas=0, workers=0)
    hub.add_web(HUB_DATABASE_URL=wire.url)
    team = hub.team()
    client = hub.client(team.admin)
    job_id = client.create(team, make_course(hub.database, team, 3)).json()["id"]
    wire.set_trap(Trap(after=b"job.cancel_requested", at=b"COMMIT", act=act))
    assert client.cancel(team, job_id).status_code == 503
    assert client.cancel(team, job_id).json()["state"] == "cancelled"
    assert hub.count("select count(*) from audit.event where action = 'job.cancel_requested'") == 1


@pytest.mark.parametrize("act", ["lose", "swallow"])
def test_an_end_in_doubt_is_written_once_and_the_worker_goes_on(
    site: Callable[..., Site], wire: Wire, watch: Watch, act: Act
) -> None:
    hub = site(replicas=0, workers=0)
    worker = hub.add_worker(HUB_DATABASE_URL=wire.url)
    team = hub.team()
    wire.set_trap(Trap(after=b"job.succeeded", at=b"COMMIT", act=act))
    for _ in range(2):
        course = make_course(hub.database, team, 3)
        job_id = start_tagging(hub.database, hub.settings, team, course).job_id
        until(lambda job_id=job_id: hub.job(job_id).finished_at)
        assert (hub.job(job_id).state, hub.job(job_id).attempt) == ("succeeded", 1)
    assert wire.sprung.is_set()
    assert worker.terminate() == 0


@pytest.mark.parametrize("act", ["lose", "swallow"])
def test_a_page_in_doubt_is_counted_once(site: Callable[..., Site], wire: Wire, watch: Watch, act: Act) -> None:
    hub = site(replicas=0, workers=0)
    team = hub.team()
    course = make_course(hub.database, team, 20)
    tenth = hub.row("select id from hub.page where course_id = :course and position = 10", course=course).id
    wire.set_trap(Trap(after=b"queue.worklist", at=tenth.bytes, act=act))
    hub.add_worker(HUB_DATABASE_URL=wire.url)
    job_id = start_tagging(hub.database, hub.settings, team, course).job_id
    hub.await_jobs()
    assert wire.sprung.is_set()
    job = hub.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 1)
    assert (job.changed, job.skipped, job.failed) == (20, 0, 0)
