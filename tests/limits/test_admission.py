"""Many creations at once over two replicas: the limits hold exactly, one key makes one job, addresses are counted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from tests.factories import make_course
from tests.limits.harness import Site, Timer, at_once, measured, scaled

QUEUED = "select count(*) from audit.event where action = 'job.queued'"


@pytest.mark.parametrize(
    ("setting", "code", "actors"),
    [
        ("HUB_JOBS_MAX_PENDING_PER_WORKSPACE", "workspace_pending_limit", 4),
        ("HUB_JOBS_MAX_PENDING_PER_ACTOR", "actor_pending_limit", 1),
        ("HUB_JOBS_MAX_CREATED_PER_DAY", "daily_limit", 4),
    ],
)
def test_forty_creations_at_a_limit_of_five_make_five_jobs(
    site: Callable[..., Site], setting: str, code: str, actors: int
) -> None:
    hub = site(workers=0, **{setting: "5"})
    team = hub.team()
    course = make_course(hub.database, team, 3)
    people = [team.admin, *(hub.add_admin(team) for _ in range(actors - 1))]
    clients = [hub.client(person) for person in people]
    timer = Timer()
    answers = at_once(lambda n: clients[n % actors].create(team, course, f"tag {n}", replica=n % 2), range(40))
    measured("forty creations at once, s", timer.seconds)
    assert Counter(answer.status_code for answer in answers) == {201: 5, 429: 35}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.json()["error"]["code"] for answer in refused} == {code}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert hub.count("select count(*) from queue.job") == hub.count(QUEUED) == 5
    assert hub.count("select count(*) from queue.worklist") == 5
    # The workspace that is full is no other workspace's concern.
    other = hub.team()
    assert hub.client(other.admin).create(other, make_course(hub.database, other)).status_code == 201


def test_twenty_threads_with_one_key_make_one_job(site: Callable[..., Site]) -> None:
    hub = site(workers=2, HUB_JOBS_MAX_PENDING_PER_ACTOR="1")
    team = hub.team()
    client = hub.client(team.admin)
    course = make_course(hub.database, team, 3)
    for turn in range(scaled(20, 5)):
        answers = at_once(lambda n, key=f"turn-{turn}": client.create(team, course, key=key, replica=n % 2), range(20))
        assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 19}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert hub.count("select count(*) from queue.job") == hub.count(QUEUED) == turn + 1
        hub.await_jobs()


def test_the_eleventh_creation_in_a_minute_is_refused_over_replicas_and_restarts(site: Callable[..., Site]) -> None:
    hub = site(workers=0, HUB_JOBS_CREATE_PER_MINUTE="10")
    team = hub.team()
    client = hub.client(team.admin)
    course = make_course(hub.database, team, 3)
    before = at_once(lambda n: client.create(team, course, replica=n % 2), range(6))
    hub.stop_web()
    hub.start(replicas=2, workers=0)
    after = at_once(lambda n: client.create(team, course, replica=n % 2), range(14))
    assert Counter(answer.status_code for answer in before + after) == {201: 10, 429: 10}
    assert hub.count("select count(*) from queue.job") == hub.count(QUEUED) == 10
    _check_refusal(after)
    # Somebody else at the same address is counted with it, whatever the workspace.
    other = hub.team()
    answer = hub.client(other.admin).create(other, make_course(hub.database, other))
    assert answer.json()["error"]["code"] == "rate_limited"


def test_forwarding_headers_of_a_peer_that_is_not_trusted_change_nothing(site: Callable[..., Site]) -> None:
    hub = site(workers=0, HUB_JOBS_CREATE_PER_MINUTE="3")
    team = hub.team()
    client = hub.client(team.admin)
    course = make_course(hub.database, team, 3)
    answers = [
        client.create(
            team,
            course,
            replica=n % 2,
            **{
                "X-Forwarded-For": f"198.51.100.{n}",
                "X-Real-IP": f"198.51.100.{n}",
                "Forwarded": f"for=198.51.100.{n}",
            },
        )
        for n in range(5)
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 429, 429]
    _check_refusal(answers)
    assert {row.address for row in hub.rows("select address from audit.event where action = 'job.queued'")} == {
        "127.0.0.1"
    }


def test_a_trusted_proxy_names_the_caller_by_the_rightmost_address_that_is_not_trusted(
    site: Callable[..., Site],
) -> None:
    hub = site(workers=0, HUB_JOBS_CREATE_PER_MINUTE="1", HUB_TRUSTED_PROXIES="127.0.0.1/32")
    team = hub.team()
    client = hub.client(team.admin)
    course = make_course(hub.database, team, 3)
    replicas = itertools.cycle((0, 1))

    def status(forwarded: str) -> int:
        return client.create(team, course, replica=next(replicas), **{"X-Forwarded-For": forwarded}).status_code

    assert status("198.51.100.7") == 201
    assert status("198.51.100.7") == 429
    # What the caller itself put in front counts for nothing.
    assert status("203.0.113.1, 198.51.100.7") == 429
    assert status("203.0.113.2, 198.51.100.7, 127.0.0.1") == 429
    # An IPv4 address written into IPv6 is that address.
    assert status("::ffff:198.51.100.7") == 429
    assert status("198.51.100.8") == 201
    # One household has a /64.
    assert status("2001:db8:1:2::1") == 201
    assert status("2001:db8:1:2:ffff::9") == 429
    assert status("2001:db8:1:3::1") == 201


def _check_refusal(answers: list[httpx.Response]) -> None:
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.json()["error"]["code"] for answer in refused} == {"rate_limited"}
    assert all(1 <= int(answer.headers["Retry-After"]) <= 60 for answer in refused)
    assert all(answer.json()["error"]["retry_after"] == int(answer.headers["Retry-After"]) for answer in refused)
