"""As many open streams as a web process takes, and what they cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.factories import Team, make_course, start_tagging
from tests.limits.harness import Client, Site, Timer, measured, scaled
from tests.limits.streams import Stream, Streams, allow_sockets
from tests.processes import until

MANY = scaled(1000, 100)
# As /proc/net/tcp writes them.
ESTABLISHED, CLOSE_WAIT = "01", "08"
CAP = {"HUB_STREAMS_PER_PROCESS": str(MANY)}


def test_many_streams_share_one_listening_connection_and_hear_the_end(
    site: Callable[..., Site], streams: Streams
) -> None:
    allow_sockets(MANY)
    hub = site(replicas=1, workers=0, **CAP)
    team, client, job_id, path = _waiting_job(hub)
    idle = _page_time(client, team)
    timer = Timer()
    opened = streams.open(hub.web[0].url + path, client.headers, MANY)
    streams.wait(lambda: all(stream.events for stream in opened))
    measured(f"opening of {MANY} streams, s", timer.seconds)
    assert {(stream.status, *stream.names()) for stream in opened} == {(200, "snapshot")}
    assert {stream.headers["cache-control"] for stream in opened} == {"no-store, no-transform"}
    loaded = _page_time(client, team)
    measured("a page's median time idle and with the streams, ms", (idle, loaded))

    (listener,) = _connections(hub, "hub web listener")
    assert listener.query.lower().startswith(("listen", "select 1"))
    held = [row for row in _connections(hub, "hub web") if row.state != "idle"]
    assert held == []

    refused = client.get(path)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "stream_limit"
    assert int(refused.headers["Retry-After"]) >= 1
    assert client.get(path.replace("/events", "/live")).status_code == 200

    hub.add_worker()
    timer = Timer()
    busy = []
    while not all(stream.ended for stream in opened):
        busy.append(_page_time(client, team, 1))
    measured(
        "a page's median and longest times while all streams move, ms", (statistics.median(busy), sorted(busy)[-5:])
    )
    measured("from the worker's start to the last stream's end, s", timer.seconds)
    _check_ends(opened)
    assert hub.job(job_id).version == opened[0].ids()[-1]


def test_clients_that_vanish_are_let_go(site: Callable[..., Site], streams: Streams) -> None:
    allow_sockets(MANY)
    hub = site(replicas=1, workers=0, **CAP)
    _, client, _, path = _waiting_job(hub)
    url = hub.web[0].url + path
    opened = streams.open(url, client.headers, MANY)
    streams.wait(lambda: all(stream.events for stream in opened))
    timer = Timer()
    streams.drop(opened)
    until(lambda: not _client_sockets(hub))
    measured(f"until {MANY} vanished clients were let go, s", timer.seconds)
    again = streams.open(url, client.headers, MANY)
    streams.wait(lambda: all(stream.events for stream in again))
    assert {stream.status for stream in again} == {200}


def test_a_stopping_web_process_takes_leave_of_all_streams(site: Callable[..., Site], streams: Streams) -> None:
    allow_sockets(MANY)
    hub = site(replicas=1, workers=0, **CAP)
    _, client, _, path = _waiting_job(hub)
    opened = streams.open(hub.web[0].url + path, client.headers, MANY)
    streams.wait(lambda: all(stream.events for stream in opened))
    timer = Timer()
    assert hub.web[0].terminate() == 0
    measured(f"stop of a web process with {MANY} streams, s", timer.seconds)
    streams.wait(lambda: all(stream.ended for stream in opened))
    for stream in opened:
        assert [name for name in stream.names() if name != "beat"] == ["snapshot", "bye"]


def test_a_page_polls_where_the_streams_are_taken(site: Callable[..., Site], streams: Streams, browser: Any) -> None:
    hub = site(replicas=1, workers=0, HUB_STREAMS_PER_PROCESS="1")
    team = hub.team()
    client = hub.client(team.admin)
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, 3)).job_id
    url = f"{hub.web[0].url}/w/{team.workspace.slug}/jobs/{job_id}"
    (taken,) = streams.open(f"{url}/events", client.headers)
    streams.wait(lambda: bool(taken.events))
    with browser.new_context() as context:
        context.add_cookies(client.cookies())
        tab = context.new_page()
        tab.goto(url, wait_until="load")
        tab.wait_for_selector('[data-live][data-mode="polling"]')
        client.cancel(team, job_id)
        tab.wait_for_selector('[data-live][data-terminal="true"]')


def _waiting_job(hub: Site) -> tuple[Team, Client, int, str]:
    """A job that waits, with somebody who watches it and the address of its stream."""
    team = hub.team()
    course = make_course(hub.database, team, 3000)
    job_id = start_tagging(hub.database, hub.settings, team, course).job_id
    return team, hub.client(team.admin), job_id, f"/w/{team.workspace.slug}/jobs/{job_id}/events"


def _client_sockets(hub: Site) -> list[str]:
    """The web server's connections with clients, also those whose client has gone."""
    port = f":{hub.web[0].port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[1].endswith(port) and row[3] in (ESTABLISHED, CLOSE_WAIT)]


def _connections(hub: Site, name: str) -> list[Any]:
    query = """
        select query, state from pg_stat_activity where datname = current_database() and application_name = :name
    """
    return hub.rows(query, name=name)


def _page_time(client: Client, team: Team, times_asked: int = 20) -> float:
    """The median of so many answers, in milliseconds."""
    times = []
    for _ in range(times_asked):
        timer = Timer()
        assert client.get(f"/w/{team.workspace.slug}/jobs").status_code == 200
        times.append(timer.seconds)
    return round(statistics.median(times) * 1000, 1)


def _check_ends(opened: list[Stream]) -> None:
    """Each stream began with a snapshot and closed with the one end; versions only grew."""
    for stream in opened:
        names = stream.names()
        assert (names[0], names[-1], names.count("end")) == ("snapshot", "end", 1)
        assert set(names) <= {"snapshot", "state", "progress", "beat", "end"}
        assert stream.ids() == sorted(set(stream.ids()))
