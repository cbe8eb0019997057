"""Successes written in batches: none is lost, whatever keeps a batch from being written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from hub.queue import store
from hub.queue.complete import Completer
from hub.queue.job import Claimed
from hub.queue.lease import Held, LeaseKeeper
from tests.factories import rows
from tests.processes import until
from tests.queue.conftest import Bench


@pytest.fixture
def completer(bench: Bench) -> Iterator[Completer]:
    """A completer at work, beside a keeper that is never started."""
    completer = Completer(bench.settings.database_url, LeaseKeeper(bench.settings.database_url, lease=60.0, renew=20.0))
    completer.start()
    yield completer
    completer.stop(5)


def hold(completer: Completer, jobs: list[Claimed]) -> Held:
    return completer._keeper.hold(jobs, time.monotonic())


def succeeded(bench: Bench) -> list[int]:
    return [job.id for job in rows(bench.database, "select id from queue.job where state = 'succeeded' order by id")]


@pytest.mark.parametrize("error", [psycopg.OperationalError("away"), KeyError("as told")], ids=["away", "a fault"])
def test_whatever_keeps_a_success_from_being_written_it_is_written_later(
    bench: Bench, completer: Completer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    kind = bench.kind(prefetch=True)
    ids = [bench.enqueue(kind) for _ in range(3)]
    held = hold(completer, bench.claim(kind, lanes=3))
    raised = threading.Event()
    complete = store.complete

    def raise_once(*args: Any) -> int:
        if not raised.is_set():
            raised.set()
            raise error
        return complete(*args)

    monkeypatch.setattr(store, "complete", raise_once)
    for job_id in ids:
        completer.done(held, job_id)
    assert raised.wait(30)
    until(lambda: succeeded(bench) == ids)
    assert held.ids == set()


def test_a_success_under_a_claim_that_was_taken_is_not_written(bench: Bench, completer: Completer) -> None:
    kind = bench.kind(prefetch=True)
    ids = [bench.enqueue(kind) for _ in range(2)]
    held = hold(completer, bench.claim(kind, lanes=2))
    bench.make_due(ids[0])
    (again,) = bench.claim(kind)
    for job_id in ids:
        completer.done(held, job_id)
    until(lambda: succeeded(bench) == [ids[1]])
    assert (bench.job(ids[0]).state, bench.job(ids[0]).claim) == ("running", again.claim)
