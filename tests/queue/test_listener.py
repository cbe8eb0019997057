"""The listening connection: what it hears, and what it does when it hears nothing."""

from __future__ import annotations

import queue
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from hub.db import Database
from hub.queue.listener import Listener
from tests.factories import run
from tests.processes import until

NAME = "tests listener"
PATIENCE = 30


class Ear:
    """A listener with everything it was told."""

    def __init__(self, url: str, ping: float) -> None:
        self.heard: queue.Queue[tuple[str, str]] = queue.Queue()
        self.connected: queue.Queue[None] = queue.Queue()
        channels = ("hub_queue", "hub_job")
        self.listener = Listener(
            url, channels, lambda *note: self.heard.put(note), lambda: self.connected.put(None), ping, NAME
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


def test_it_connects_again_and_says_so_when_its_connection_is_cut(database: Database, admin_url: str) -> None:
    with listening(database.url) as ear:
        with psycopg.connect(admin_url) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                "and application_name = %s",
                [NAME],
            )
        ear.connected.get(timeout=PATIENCE)
        notify(database, "hub_job", "1")
        assert ear.heard.get(timeout=PATIENCE) == ("hub_job", "1")


def test_what_arrives_together_with_the_answer_to_a_ping_is_heard(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for news sees nothing, though a notification is under way: then the ping's answer brings it."""
    deaf = True

    def select_nothing(*files: Any) -> Any:
        nonlocal deaf
        if not deaf:
            return select.select(*files)
        deaf = False
        notify(database, "hub_job", "7")
        return [], [], []

    class Deaf:
        select = staticmethod(select_nothing)

    monkeypatch.setattr("hub.queue.listener.select", Deaf)
    with listening(database.url) as ear:
        assert ear.heard.get(timeout=PATIENCE) == ("hub_job", "7")


def test_a_ping_on_a_dead_connection_leads_to_a_new_one(database: Database, admin_url: str) -> None:
    with listening(database.url, ping=0.05) as ear:
        for number in range(3):
            with psycopg.connect(admin_url) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and application_name = %s",
                    [NAME],
                )
            ear.connected.get(timeout=PATIENCE)
            notify(database, "hub_job", str(number))
            assert ear.heard.get(timeout=PATIENCE) == ("hub_job", str(number))


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
