"""The site of each test, and the checker after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hub.config import Settings
from hub.db import Database
from tests.invariants import assert_holds, check, watch
from tests.limits.harness import WIDE, Site
from tests.limits.streams import Streams
from tests.limits.wire import Wire

__all__ = ["watch"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these tests one after the other: each of them loads the whole machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("limits"))


@pytest.fixture
def wire(settings: Settings) -> Iterator[Wire]:
    """A wire to the database that the test can hold and break."""
    wire = Wire(settings.database_url)
    yield wire
    wire.close()


@pytest.fixture
def streams() -> Iterator[Streams]:
    """Opens event streams."""
    streams = Streams()
    yield streams
    streams.close()


@pytest.fixture
def site(environ: dict[str, str], database: Database) -> Iterator[Callable[..., Site]]:
    """Starts a site: ``site(workers=1, HUB_QUEUE_LEASE="3")``. After the test the checker finds nothing."""
    with ExitStack() as stack:

        def start(replicas: int = 2, workers: int = 2, **settings: str) -> Site:
            made = Site(database, environ | WIDE | settings)
            stack.callback(lambda: assert_holds(check(made.database, made.settings)))
            stack.callback(made.close)
            made.start(replicas, workers)
            return made

        yield start
