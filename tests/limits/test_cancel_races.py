"""Cancels at every moment: one end for ever, nothing done after it, and the same word for it everywhere."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from hub.db import driver
from hub.jobs import people
from hub.jobs.cancel import cancel
from hub.queue import store
from hub.queue.job import Claimed
from tests.factories import Team, make_course, start_tagging
from tests.invariants import Watch
from tests.limits.harness import Client, Site, Timer, at_once, measured, scaled
from tests.processes import until

RACES = scaled(200, 60)
CANCELS = scaled(100, 30)
LANES = 2
WAITING = """
    select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
"""
# Page changes by a job that come after its cancelled row.
LATE = """
    select w.page_id, t.job_id from $page_write w
    join $tagged t on t.xid = w.xid and t.page_id = w.page_id
    join $transition e on e.job_id = t.job_id and e.new_state = 'cancelled'
    where w.at > e.at
"""


def test_creating_and_cancelling_back_to_back(site: Callable[..., Site], watch: Watch) -> None:
    hub = site()
    team = hub.team()
    client = hub.client(team.admin)
    courses = [make_course(hub.database, team, pages) for pages in (1, 2, 3, 5, 8, 13, 21, 34)]

    def race(number: int) -> int:
        created = client.create(team, courses[number % len(courses)], f"tag {number}", replica=number % 2)
        assert created.status_code == 201, created.text
        job_id: int = created.json()["id"]
        answers = [client.cancel(team, job_id, replica=(number + 1) % 2), client.cancel(team, job_id)]
        assert {answer.status_code for answer in answers} == {200}
        return job_id

    timer = Timer()
    jobs = at_once(race, range(RACES), threads=8)
    hub.await_jobs()
    measured(f"{RACES} races, s", timer.seconds)
    measured("ends", _ends(hub))
    _check(hub, watch, client, team, jobs)


def test_cancelling_at_random_moments(site: Callable[..., Site], watch: Watch) -> None:
    hub = site()
    team = hub.team()
    client = hub.client(team.admin)
    courses = [make_course(hub.database, team, 300) for _ in range(4)]
    chance = random.Random(1)
    moments = [chance.uniform(0, 0.6) for _ in range(CANCELS)]

    def race(number: int) -> int:
        created = client.create(team, courses[number % len(courses)], f"tag {number}", replica=number % 2)
        job_id: int = created.json()["id"]
        # The moment is what is tried here, not something waited for.
        threading.Event().wait(moments[number])
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda n: client.cancel(team, job_id, replica=n % 2), range(4)))
        assert {answer.status_code for answer in answers} == {200}
        requests = {str(answer.json()["cancel_requested"]) for answer in answers if answer.json()["cancel_requested"]}
        assert len(requests) <= 1
        return job_id

    timer = Timer()
    jobs = at_once(race, range(CANCELS), threads=4)
    hub.await_jobs()
    measured(f"{CANCELS} cancels at random moments, s", timer.seconds)
    measured("ends", _ends(hub))
    _check(hub, watch, client, team, jobs)


@pytest.mark.parametrize(
    ("change", "state"), [("release", "cancelled"), ("retry", "cancelled"), ("claim", "running"), ("finish", "failed")]
)
def test_a_cancel_that_waited_for_another_change_judges_by_what_the_job_is_then(
    site: Callable[..., Site], watch: Watch, change: str, state: str
) -> None:
    hub = site(replicas=0, workers=0)
    team = hub.team()
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, 3)).job_id
    if change != "claim":
        claimed = _claim(hub)
    with ThreadPoolExecutor(1) as pool:
        with hub.database.transaction() as session:
            connection = driver(session)
            if change == "claim":
                _claim(hub, connection)
            elif change == "release":
                assert store.release(connection, claimed)
            elif change == "retry":
                assert store.retry(connection, claimed, wait=60, code="handler_failed", error="")
            else:
                ended = store.finish(connection, claimed, state="failed", code="page_missing")
                assert ended
                people.record_end(session, ended)
            request = pool.submit(_cancel, hub, team, job_id)
            until(lambda: hub.count(WAITING))
        request.result()
    assert hub.job(job_id).state == state
    assert (hub.job(job_id).cancel_requested_at is None) == (change == "finish")


def _claim(hub: Site, connection: store.Connection | None = None) -> Claimed:
    if connection is None:
        with hub.database.autocommit() as own:
            return _claim(hub, own)
    number = store.start_worker(connection, "tests", {"workspace.jobs": 1})
    (job,) = store.claim(connection, "workspace.jobs", ["course.tag"], claim=number << 32, lanes=1, lease=60)
    return job


def _cancel(hub: Site, team: Team, job_id: int) -> None:
    with hub.database.transaction() as session:
        cancel(session, job_id=job_id, actor=team.actor)


def _check(hub: Site, watch: Watch, client: Client, team: Team, jobs: list[int]) -> None:
    assert watch.rows(LATE) == []
    terminal = "select job_id from $transition where new_state in ('succeeded', 'failed', 'cancelled')"
    assert Counter(row["job_id"] for row in watch.rows(terminal)) == dict.fromkeys(jobs, 1)
    requests = "select job_id from audit.event where action = 'job.cancel_requested'"
    assert max(Counter(row.job_id for row in hub.rows(requests)).values(), default=1) == 1
    states = _told_states(hub, client, team, jobs)
    assert set(states.values()) <= {"cancelled", "succeeded"}
    cancelled = [job_id for job_id, state in states.items() if state == "cancelled"]
    assert cancelled
    _check_told_alike(hub, client, team, states)
    _check_lanes(watch)
    _check_counters(hub, cancelled)


def _check_lanes(watch: Watch) -> None:
    """No worker had more jobs under claims at once than it has lanes. (A claim's upper half is its worker.)"""
    held: dict[int, set[int]] = defaultdict(set)
    for row in watch.rows("select job_id, old_claim, new_claim from $transition order by seq"):
        if row["old_claim"] is not None:
            held[row["old_claim"] >> 32].discard(row["job_id"])
        if row["new_claim"] is not None:
            held[row["new_claim"] >> 32].add(row["job_id"])
            assert len(held[row["new_claim"] >> 32]) <= LANES


def _told_states(hub: Site, client: Client, team: Team, jobs: list[int]) -> dict[int, str]:
    states = {row.id: row.state for row in hub.rows("select id, state::text from queue.job")}
    assert set(states) == set(jobs)
    return states


def _check_told_alike(hub: Site, client: Client, team: Team, states: dict[int, str]) -> None:
    """List, job page and audit name the same end as the row."""
    listed: dict[int, str] = {}
    cursor = None
    while True:
        page = client.get(
            f"/w/{team.workspace.slug}/jobs", params={"limit": 100} | ({"cursor": cursor} if cursor else {})
        )
        listed |= {item["id"]: item["state"] for item in page.json()["items"]}
        cursor = page.json()["next"]
        if cursor is None:
            break
    assert listed == states
    ended = "select job_id, action from audit.event where action in ('job.succeeded', 'job.failed', 'job.cancelled')"
    assert {row.job_id: row.action.removeprefix("job.") for row in hub.rows(ended)} == states
    for job_id in random.Random(2).sample(sorted(states), 10):
        assert client.job(team, job_id, replica=job_id % 2)["state"] == states[job_id]


def _check_counters(hub: Site, cancelled: list[int]) -> None:
    """What a cancelled job says that it changed is what its tags on pages are."""
    told = """
        select j.id from queue.job j
        where j.state = 'cancelled'
          and j.changed <> (select count(distinct t.page_id) from hub.page_tag t where t.job_id = j.id)
    """
    assert hub.rows(told) == []


def _ends(hub: Site) -> dict[str, int]:
    counts = hub.rows("select state::text, count(*) as jobs from queue.job group by state")
    return {row.state: row.jobs for row in counts}
