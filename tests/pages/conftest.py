"""One web server for all tests of pages, and browsers that are signed in to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from hub.config import variable
from hub.db import Database
from tests import factories
from tests.conftest import WIDE
from tests.factories import Team
from tests.factories_jobs import sign_in
from tests.processes import WebServer

# A stream finds a lost right at its next beat; and the machine may be busy.
expect.set_options(timeout=30_000)

# What a page may log without anything being wrong: the answers of a server that is away or refuses on purpose.
HARMLESS = ("Failed to load resource",)


@pytest.fixture(scope="module")
def pages_environ(_pool: Database, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of the server as environment variables."""
    wide = {variable(name): str(value) for name, value in WIDE.items()}
    folder = tmp_path_factory.mktemp("data")
    return wide | {"HUB_DATABASE_URL": _pool.url, "HUB_DATA_DIR": str(folder)}


@pytest.fixture(scope="module")
def pages_server(pages_environ: dict[str, str]) -> Iterator[WebServer]:
    """Gunicorn with one process, for a whole module."""
    server = WebServer(pages_environ)
    yield server
    server.close()


@pytest.fixture
def team(database: Database) -> Team:
    """A workspace with an admin."""
    return factories.make_team(database)


@pytest.fixture
def enter(browser: Any, database: Database, team: Team, pages_server: WebServer) -> Iterator[Callable[..., Any]]:
    """Opens a tab that is signed in as the team's admin: ``enter(width=360, java_script_enabled=False)``.

    `page.base` is the workspace's address. Any error in a page's console fails the test.
    """
    complaints: list[str] = []
    contexts = []

    def open_tab(width: int = 1280, person: Any = None, server: WebServer = pages_server, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        with httpx.Client(base_url=server.url) as client:
            sign_in(client, database, person or team.admin)
            cookies = [{"name": name, "value": value, "url": server.url} for name, value in client.cookies.items()]
        context.add_cookies(cookies)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.base = f"{server.url}/w/{team.workspace.slug}"
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert [text for text in complaints if not text.startswith(HARMLESS)] == []
