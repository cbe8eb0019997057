"""Event streams: what they tell, in which order, when they end, and what they cost."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from hub.web import create_app, stream
from tests import factories
from tests.factories import Team
from tests.factories_jobs import STORED, change_job, finish_job, make_job, read_job, sign_in
from tests.processes import until
from tests.web.watching import Watch

TERMINAL = [label for label in STORED if label in ("finished", "finished_with_problems", "failed", "cancelled")]


@pytest.fixture
def team(database: Any) -> Team:
    return factories.make_team(database)


@pytest.fixture
def signed_in(client: Any, database: Any, team: Team) -> Any:
    sign_in(client, database, team.admin)
    return client


@pytest.fixture
def watch(app: Any, signed_in: Any, team: Team) -> Iterator[Any]:
    """Opens streams of this process: ``watch(job_id)``."""
    answers = []

    def open_stream(job_id: int, client: Any = signed_in, **headers: str) -> Watch:
        answer = client.get(f"/w/{team.workspace.slug}/jobs/{job_id}/events", headers=headers)
        assert answer.status_code == 200, answer.text
        answers.append(answer)
        return Watch(answer.response, answer.close)

    yield open_stream
    stream_state = app.extensions["hub"].listener
    if stream_state is not None:
        stream_state.close()


def address(team: Team, job_id: int, rest: str = "") -> str:
    return f"/w/{team.workspace.slug}/jobs/{job_id}{rest}"


def test_begins_with_a_snapshot_tells_progress_and_state_and_ends_once(watch: Any, database: Any, team: Team) -> None:
    job_id = make_job(database, team, "running")
    seen = watch(job_id)
    assert seen.until("snapshot").id == 1
    change_job(database, job_id, "changed = changed + 1")
    assert seen.until("progress").id == 2
    change_job(database, job_id, "cancel_requested_at = statement_timestamp()")
    assert seen.until("state").id == 3
    finish_job(database, job_id)
    events = seen.until_end()
    assert [event.name for event in events if event.name != "beat"] == ["snapshot", "progress", "state", "end"]
    ids = [event.id for event in events if event.id is not None]
    assert ids == sorted(ids)
    assert 'data-terminal="true"' in events[-1].data


@pytest.mark.parametrize("label", TERMINAL)
@pytest.mark.parametrize("last", ["", "1"])
def test_of_an_ended_job_gives_one_end_and_closes(watch: Any, database: Any, team: Team, label: str, last: str) -> None:
    job_id = make_job(database, team, label)
    events = watch(job_id, **({"Last-Event-ID": last} if last else {})).until_end()
    assert [(event.name, event.id) for event in events] == [("end", 1)]


@pytest.mark.parametrize("label", list(STORED))
def test_tells_the_same_bytes_as_the_poll(watch: Any, signed_in: Any, database: Any, team: Team, label: str) -> None:
    job_id = make_job(database, team, label, subject_name="Größe &\r\n<b>“Ünïcode”</b>\u2028\n\nend")
    polled = signed_in.get(address(team, job_id, "/live")).data
    seen = watch(job_id)
    seen.until("end" if label in TERMINAL or label == "needs_attention" else "snapshot")
    assert seen.events[0].data.encode() == polled


def test_shows_times_in_each_viewers_zone(app: Any, watch: Any, database: Any, team: Team) -> None:
    job_id = make_job(database, team, "running")
    other = factories.add_member(database, team, "viewer", time_zone="Asia/Ho_Chi_Minh")
    client = app.test_client()
    sign_in(client, database, other)
    here, there = watch(job_id).until("snapshot"), watch(job_id, client).until("snapshot")
    assert " UTC" in here.data and "UTC+07:00" in there.data


def test_may_not_be_buffered_cached_or_transformed(signed_in: Any, database: Any, team: Team) -> None:
    answer = signed_in.get(address(team, make_job(database, team, "finished"), "/events"))
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store, no-transform"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.data.startswith(b"retry: 5000\n\n")


def test_a_burst_of_progress_is_told_by_its_latest(watch: Any, database: Any, team: Team) -> None:
    job_id = make_job(database, team, "running", changed=0)
    seen = watch(job_id)
    seen.until("snapshot")
    for _ in range(50):
        change_job(database, job_id, "changed = changed + 1")
    seen.until_version(51)
    assert len(seen.named("progress")) < 25


def test_a_change_right_after_the_snapshot_was_read_is_not_missed(
    watch: Any, database: Any, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither a beat nor the listener's first connection finds it.
    monkeypatch.setattr(stream, "BEAT", 3600.0)
    other = make_job(database, team, "running")
    listening = watch(other)
    listening.until("snapshot")
    change_job(database, other, "changed = changed + 1")
    listening.until_version(2)
    job_id = make_job(database, team, "running")
    opened = stream.Streams.open

    def change_first(self: stream.Streams, *arguments: Any) -> Any:
        # Its notification has gone by already.
        factories.run(
            database, "update queue.job set changed = changed + 1, version = version + 1 where id = :id", id=job_id
        )
        return opened(self, *arguments)

    monkeypatch.setattr(stream.Streams, "open", change_first)
    seen = watch(job_id)
    seen.until_version(2)
    assert [(event.name, event.id) for event in seen.events] == [("snapshot", 1), ("progress", 2)]


def test_a_row_that_was_read_late_never_follows_a_newer_one(app: Any, database: Any, team: Team) -> None:
    job_id = make_job(database, team, "running")
    older = read_job(database, job_id)
    change_job(database, job_id, "changed = changed + 1")
    newer = read_job(database, job_id)
    told: Any = stream.Stream(Any, Any, older, None)  # type: ignore[arg-type]
    assert told.put(newer, beat=False, lease=60.0)
    assert not told.put(older, beat=False, lease=60.0)
    assert told._newest is newer


def test_a_change_while_the_listener_was_cut_off_is_told_when_it_is_back(
    watch: Any, database: Any, admin_url: str, team: Team
) -> None:
    job_id = make_job(database, team, "running")
    seen = watch(job_id)
    seen.until("snapshot")
    cut = """
        select pg_terminate_backend(pid) from pg_stat_activity
        where application_name = 'hub web listener' and datname = current_database()
    """
    until(lambda: factories.rows(database, cut))
    # No notification: only looking again can find it.
    factories.run(
        database, "update queue.job set changed = changed + 1, version = version + 1 where id = :id", id=job_id
    )
    assert seen.until_version(2)


def test_an_open_stream_holds_no_database_connection(watch: Any, app: Any, database: Any, team: Team) -> None:
    job_id = make_job(database, team, "running")
    watched = [watch(job_id) for _ in range(20)]
    for seen in watched:
        seen.until("snapshot")
    until(lambda: app.extensions["hub"].db.engine.pool.checkedout() == 0)


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BEAT", 0.2)


def test_a_beat_tells_the_servers_time_and_the_workers_age(
    quick_beats: None, watch: Any, database: Any, team: Team
) -> None:
    beat = json.loads(watch(make_job(database, team, "running")).until("beat").data)
    assert set(beat) == {"now", "worker_age_s", "lease_until", "failed"}
    assert beat["worker_age_s"] >= 5 and beat["failed"] == 3


@pytest.mark.parametrize(
    "loss",
    [
        "delete from hub.session",
        "update hub.session set expires_at = statement_timestamp()",
        "update hub.session set seen_at = statement_timestamp() - interval '1 year'",
        "update hub.person set enabled = false",
        "update hub.membership set enabled = false",
        "delete from hub.membership",
        "update hub.workspace set enabled = false",
    ],
)
def test_ends_within_a_beat_of_the_loss_of_session_or_right(
    quick_beats: None, watch: Any, database: Any, team: Team, loss: str
) -> None:
    seen = watch(make_job(database, team, "running"))
    seen.until("beat")
    factories.run(database, loss)
    events = seen.until_end()
    assert json.loads(events[-1].data)["reason"] == "access" and events[-1].name == "bye"
    assert not seen.named("end")


def test_ends_by_bye_after_its_time(watch: Any, database: Any, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "ROTATE", 0.0)
    monkeypatch.setattr(stream, "PEEK", 0.1)
    events = watch(make_job(database, team, "running")).until_end()
    assert json.loads(events[-1].data)["reason"] == "rotate"


def test_a_lost_notification_is_made_good_by_the_next_beat(
    quick_beats: None, watch: Any, database: Any, team: Team
) -> None:
    job_id = make_job(database, team, "running")
    seen = watch(job_id)
    seen.until("beat")
    factories.run(
        database, "update queue.job set changed = changed + 1, version = version + 1 where id = :id", id=job_id
    )
    assert seen.until_version(2)


def test_too_many_are_refused_with_a_time_to_come_back(settings: Any, database: Any, team: Team, watch: Any) -> None:
    app = create_app(dataclasses.replace(settings, streams_per_process=1))
    client = app.test_client()
    sign_in(client, database, team.admin)
    job_id = make_job(database, team, "running")
    seen = watch(job_id, client)
    seen.until("snapshot")
    refused = client.get(address(team, job_id, "/events"))
    assert refused.status_code == 503 and int(refused.headers["Retry-After"]) > 0
    finish_job(database, job_id)
    seen.until_end()
    until(lambda: app.extensions["hub"].listener.count() == 0)
    app.extensions["hub"].listener.close()
    app.extensions["hub"].db.close()


# Against real gunicorn


@pytest.fixture
def remote(web_server: Any, database: Any, team: Team) -> Iterator[Any]:
    server = web_server(HUB_STREAMS_PER_PROCESS="1")
    with httpx.Client(base_url=server.url, timeout=30) as client:
        sign_in(client, database, team.admin)
        client.server = server  # type: ignore[attr-defined]
        yield client


def test_a_client_that_went_away_is_noticed(remote: Any, database: Any, team: Team) -> None:
    path = address(team, make_job(database, team, "running"), "/events")
    cookie = "; ".join(f"{name}={value}" for name, value in remote.cookies.items())
    with socket.create_connection(("127.0.0.1", remote.server.port)) as gone:
        gone.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode())
        assert b"200 OK" in gone.recv(4096)

    def has_room() -> bool:
        with remote.stream("GET", path) as answer:
            return answer.status_code == 200

    until(has_room)


def test_says_bye_and_closes_when_the_server_stops(remote: Any, database: Any, team: Team) -> None:
    with remote.stream("GET", address(team, make_job(database, team, "running"), "/events")) as answer:
        seen = Watch(answer.iter_bytes())
        seen.until("snapshot")
        assert remote.server.terminate() == 0
        events = seen.until_end()
    assert events[-1].name == "bye" and json.loads(events[-1].data)["reason"] == "shutdown"
