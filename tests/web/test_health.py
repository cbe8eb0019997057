"""For whoever watches the processes."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import psycopg
import pytest

from hub import db
from hub.web import create_app
from tests import cluster, factories
from tests.factories_jobs import sign_in
from tests.web.visitor import HTML, JSON

AWAY = "postgresql://hub_app@/hub?host=/nowhere/at/all"


@pytest.fixture
def app_without_database(settings: Any) -> Any:
    app = create_app(dataclasses.replace(settings, database_url=AWAY))
    yield app
    app.extensions["hub"].db.close()


def test_both_are_well_with_a_database(client: Any, database: Any) -> None:
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").json == {"status": "ready"}


def test_without_a_database_the_process_lives_but_is_not_ready(app_without_database: Any) -> None:
    client = app_without_database.test_client()
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz", headers=JSON)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "5"
    assert answer.json["error"]["retry_after"] == 5


def test_pages_say_that_the_database_is_away(app: Any, app_without_database: Any, database: Any) -> None:
    person = factories.make_person(database)
    client = app.test_client()
    sign_in(client, database, person)
    outage = app_without_database.test_client()
    outage.set_cookie("hub", client.get_cookie("hub").value)
    page = outage.get("/account", headers=HTML)
    assert page.status_code == 503
    assert page.headers["Retry-After"] == "5"
    assert "Hub is not available right now" in page.text
    assert outage.get("/account", headers=JSON).json["error"]["code"] == "unavailable"


def test_a_schema_that_does_not_fit_is_not_ready(settings: Any, own_database: Any, admin_url: str) -> None:
    app = create_app(dataclasses.replace(settings, database_url=own_database.url))
    with psycopg.connect(cluster.as_role(own_database.url, "hub_admin"), autocommit=True) as admin:
        admin.execute("update hub.schema_revision set revision = 0")
    answer = app.test_client().get("/readyz", headers=JSON)
    assert answer.status_code == 503
    assert answer.json["error"]["code"] == "schema_mismatch"
    app.extensions["hub"].db.close()


def test_a_new_app_has_neither_connections_nor_threads(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that loads it before it forks would give both to all its processes."""
    opened: list[Any] = []
    connect = db.connect

    def connect_and_note(*args: Any, **values: Any) -> Any:
        opened.append(connect(*args, **values))
        return opened[-1]

    monkeypatch.setattr(db, "connect", connect_and_note)
    before = set(threading.enumerate())
    create_app(settings)
    assert [connection.closed for connection in opened] == [True]
    assert set(threading.enumerate()) <= before
