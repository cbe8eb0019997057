"""Streams behind nginx with its default buffering and everything compressed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.factories import make_course, start_tagging
from tests.invariants import Watch
from tests.limits.harness import Site, measured
from tests.limits.nginx import Nginx
from tests.limits.streams import Event, Stream, Streams

# When each version of the job was committed.
COMMITS = """
    select new_version as version, extract(epoch from pg_xact_commit_timestamp(xid::xid))::float8 as at
    from $transition where job_id = %(job)s
"""


def test_each_event_passes_a_buffering_and_compressing_proxy_at_once(
    site: Callable[..., Site], streams: Streams, watch: Watch, tmp_path: Path
) -> None:
    hub = site(replicas=1, workers=0)
    nginx = hub.keep(Nginx(tmp_path, hub.web[0].url))
    team = hub.team()
    client = hub.client(team.admin)
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, 30_000)).job_id
    path = f"/w/{team.workspace.slug}/jobs/{job_id}/events"
    (stream,) = streams.open(nginx.url + path, client.headers | {"Accept-Encoding": "gzip"})
    # Each event is awaited before what comes after it is caused, so none can have waited for more to come.
    streams.wait(lambda: stream.names() == ["snapshot"])
    assert stream.headers["content-encoding"] == "gzip"
    hub.add_worker()
    streams.wait(lambda: "state" in stream.names())
    streams.wait(lambda: stream.names().count("progress") >= 4)
    assert hub.job(job_id).finished_at is None
    assert client.cancel(team, job_id).status_code == 200
    streams.wait(lambda: stream.ended)
    assert stream.names()[-1] == "end"
    assert stream.ids() == sorted(set(stream.ids()))
    measured("longest time from a commit to its event, s", _slowest(stream, watch, job_id))


def _slowest(stream: Stream, watch: Watch, job_id: int) -> tuple[str, float]:
    commits = {row["version"]: row["at"] for row in watch.rows(COMMITS, {"job": job_id})}
    # The snapshot tells of a commit that was long ago when the stream was opened.
    events: list[Event] = [event for event in stream.events[1:] if event.id is not None]
    lags = [(event.name, round(event.at - commits[event.id], 3)) for event in events]
    return max(lags, key=lambda lag: lag[1])
