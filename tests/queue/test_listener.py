"""The listening connection: what it hears, and what it does when it hears nothing."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from hub.db import Database
from hub.queue.listener import Listener
from tests.factories import run
from tests.processes import until
from tests.queue.hole import Hole

NAME = "tests listener"
PATIENCE = 30


class Ear:
    """A listener with everything it was told."""

    def __init__(self, url: str, ping: float) -> None:
        self.heard: queue.Queue[tuple[str, str]] = queue.Queue()
        self.connected: queue.Queue[None] = queue.Queue()
        self.lost: queue.Queue[None] = queue.Queue()
        self.listener = Listener(
            url,
            ("hub_queue", "hub_job"),
            lambda *note: self.heard.put(note),
            lambda: self.connected.put(None),
            ping,
            NAME,
            lambda: self.lost.put(None),
        )


@contextmanager
def listening(url: str, ping: float = 60.0) -> Iterator[Ear]:
    """A listener that has connected."""
    ear = Ear(url, ping)
    ear.listener.start()
    ear.connected.get(timeout=PATIENCE)
    yield ear
    ear.listener.stop()


def notify(database: Database, channel: str, payload: str) -> None:
    run(database, "select pg_notify(:channel, :payload)", channel=channel, payload=payload)


def test_it_hears_its_channels_in_order(database: Database) -> None:
    with listening(database.url) as ear:
        notify(database, "hub_queue", "workspace.jobs")
        notify(database, "hub_job", "12")
        notify(database, "another", "13")
        notify(database, "hub_job", "14")
        heard = [ear.heard.get(timeout=PATIENCE) for _ in range(3)]
    assert heard == [("hub_queue", "workspace.jobs"), ("hub_job", "12"), ("hub_job", "14")]


def cut(admin_url: str) -> None:
    """End the listener's connection on the server."""
    with psycopg.connect(admin_url) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and application_name = %s",
            [NAME],
        )


def test_it_hears_again_however_often_its_connection_is_cut(database: Database, admin_url: str) -> None:
    with listening(database.url) as ear:
        for number in range(3):
            cut(admin_url)
            ear.connected.get(timeout=PATIENCE)
            assert ear.lost.get(timeout=PATIENCE) is None
            notify(database, "hub_job", str(number))
            assert ear.heard.get(timeout=PATIENCE) == ("hub_job", str(number))


def test_a_half_open_connection_is_given_up_after_one_ping_without_answer(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hub.queue.listener")
    with closing(Hole(database.url)) as hole, listening(hole.url, ping=1.0) as ear:
        hole.swallow()
        # Into the gap: this one is lost, and the owner is told to look for itself.
        notify(database, "hub_job", "1")
        ear.connected.get(timeout=PATIENCE)
        notify(database, "hub_job", "2")
        assert ear.heard.get(timeout=PATIENCE) == ("hub_job", "2")
        assert hole.swallowed.count(b"notify") == 1
    assert ear.lost.qsize() == 1
    told = [record.getMessage() for record in caplog.records]
    assert told == ["listening connection lost: it does not bring its own notification", "listening again"]


def test_it_does_not_say_that_it_listens_while_no_notification_reaches_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pooler in transaction mode takes LISTEN and brings nothing."""
    ask = Listener._ask
    monkeypatch.setattr(Listener, "_ask", lambda self, pgconn, query: ask(self, pgconn, query + b"; unlisten *"))
    ear = Ear(database.url, ping=0.1)
    ear.listener.start()
    until(lambda: len(caplog.records) >= 2)
    ear.listener.stop()
    assert {record.getMessage() for record in caplog.records} == {
        "listening connection lost: it does not bring its own notification"
    }
    assert ear.connected.empty() and ear.lost.empty()


def test_an_owner_that_raises_does_not_make_it_deaf(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    heard: queue.Queue[str] = queue.Queue()

    def hear(_channel: str, payload: str) -> None:
        heard.put(payload)
        raise KeyError(payload)

    connected: queue.Queue[None] = queue.Queue()
    listener = Listener(database.url, ("hub_job",), hear, lambda: connected.put(None), 60.0, NAME)
    listener.start()
    for number in ("1", "2"):
        connected.get(timeout=PATIENCE)
        notify(database, "hub_job", number)
        assert heard.get(timeout=PATIENCE) == number
    connected.get(timeout=PATIENCE)
    listener.stop()
    assert "listening failed" in caplog.text


def test_however_often_it_connects_it_has_one_connection(
    database: Database, admin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.queue.listener.FIRST_WAIT", 0.01)
    taken: queue.Queue[None] = queue.Queue()
    connected: queue.Queue[None] = queue.Queue()

    def fail(_channel: str, payload: str) -> None:
        taken.put(None)
        raise KeyError(payload)

    listener = Listener(database.url, ("hub_job",), fail, lambda: connected.put(None), 60.0, NAME)
    listener.start()
    for number in range(20):
        connected.get(timeout=PATIENCE)
        notify(database, "hub_job", str(number))
        taken.get(timeout=PATIENCE)
    connected.get(timeout=PATIENCE)
    query = "select count(*) from pg_stat_activity where datname = current_database() and application_name = %s"
    with psycopg.connect(admin_url, autocommit=True) as connection:
        until(lambda: connection.execute(query, [NAME]).fetchone() == (1,))
    listener.stop()


def test_it_stops_while_nothing_is_said(database: Database, admin_url: str) -> None:
    with listening(database.url):
        pass
    # The server notices a closed connection a moment later.
    query = "select from pg_stat_activity where datname = current_database() and application_name = %s"
    with psycopg.connect(admin_url, autocommit=True) as connection:
        until(lambda: not connection.execute(query, [NAME]).fetchall())


def test_it_stops_while_the_database_is_away(tmp_path: Any) -> None:
    ear = Ear(f"postgresql://hub_app@/hub?host={tmp_path}", 60.0)
    ear.listener.start()
    ear.listener.stop()
    assert ear.connected.empty()
