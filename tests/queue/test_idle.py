"""What a worker asks the database when it has nothing to do: once for each hint, and then no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hub.queue import store
from hub.queue.worker import Worker
from tests.queue.conftest import Bench


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that look for work, as they are sent."""
    sent: list[str] = []
    for name in ("claim", "claim_ahead", "look"):
        monkeypatch.setattr(store, name, noting(sent, name, getattr(store, name)))
    return sent


def noting(sent: list[str], name: str, statement: Callable[..., Any]) -> Callable[..., Any]:
    """The statement, which notes its name first."""

    def note_and_send(*args: Any, **values: Any) -> Any:
        sent.append(name)
        return statement(*args, **values)

    return note_and_send


@pytest.mark.parametrize(
    ("prefetch", "first", "for_a_hint"),
    [(False, ["claim", "look"], ["claim", "look"]), (True, ["claim", "claim_ahead", "look"], ["claim_ahead", "look"])],
)
def test_an_idle_worker_asks_once_for_each_hint_and_otherwise_never(
    bench: Bench, asked: list[str], prefetch: bool, first: list[str], for_a_hint: list[str]
) -> None:
    kind, other = bench.kind(prefetch=prefetch), bench.kind()
    worker = Worker(bench.settings, {kind.line: 2})
    try:
        assert turn(worker, asked) == first
        assert turn(worker, asked) == []
        worker._on_notify("hub_queue", other.line)
        assert turn(worker, asked) == []
        for _ in range(5):
            worker._on_notify("hub_queue", kind.line)
        assert turn(worker, asked) == for_a_hint
        assert turn(worker, asked) == []
    finally:
        worker._close_connections()


def turn(worker: Worker, asked: list[str]) -> list[str]:
    """What the worker asks in one turn of its loop. It sleeps until the next due time, which is far."""
    asked.clear()
    assert worker._dispatch() > 1.0
    return list(asked)
