"""What `hub check` says of the queue: what waits for nobody, what is silent, paused or dead, what is not heard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hub.queue import health, store
from hub.readiness import Finding
from tests.factories import run
from tests.queue.conftest import Bench


def found(bench: Bench) -> dict[str, Finding]:
    """The findings by name."""
    return {finding.name: finding for finding in health.findings(bench.settings)}


def start_worker(bench: Bench, *queues: str) -> int:
    """A live worker with a lane for each queue."""
    with bench.connection() as connection:
        return store.start_worker(connection, "host:1", dict.fromkeys(queues, 1))


def test_all_is_well_while_nothing_waits(bench: Bench) -> None:
    assert {name for name, finding in found(bench).items() if not finding.ok} == set()


def test_jobs_that_no_live_worker_has_lanes_for_are_told(bench: Bench) -> None:
    kind = bench.kind()
    bench.enqueue(kind)
    told = found(bench)["queues"]
    assert not told.ok and kind.line in told.text
    start_worker(bench, kind.line)
    assert found(bench)["queues"].ok


def test_a_silent_worker_is_told_and_is_a_fault_if_nobody_has_its_lanes(bench: Bench) -> None:
    kind = bench.kind()
    silent = start_worker(bench, kind.line)
    run(bench.database, "update queue.worker set seen_at = now() - interval '10 minutes' where id = :id", id=silent)
    assert not found(bench)["workers"].ok
    start_worker(bench, kind.line)
    told = found(bench)["workers"]
    assert told.ok and told.look and "host:1" in told.text


def test_a_worker_that_hears_no_notifications_is_told(bench: Bench) -> None:
    worker = start_worker(bench, "any")
    run(bench.database, "update queue.worker set listening = false where id = :id", id=worker)
    told = found(bench)["listening"]
    assert not told.ok and "host:1" in told.text


def test_a_pause_and_open_letters_ask_for_a_look(bench: Bench) -> None:
    def fail(context: object, args: object) -> None:
        raise ValueError("as told")

    kind = bench.kind(fail, attempts=1)
    bench.enqueue(kind)
    bench.work(kind)
    with bench.connection() as connection:
        store.pause(connection, kind.line, reason="upstream is down", by_id=None, by_name="Olga")
    findings = found(bench)
    assert findings["pauses"].ok and findings["pauses"].look and "upstream is down" in findings["pauses"].text
    assert findings["dead letters"].look and kind.name in findings["dead letters"].text


def test_notifications_that_cannot_come_through_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(bench)["notifications"].ok
    settings = replace(bench.settings, listen_database_url="postgresql://nobody@127.0.0.1:1/none")
    told = {finding.name: finding for finding in health.findings(settings)}["notifications"]
    assert not told.ok and "cannot listen" in told.text
