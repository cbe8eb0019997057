"""A client of event streams, for tests: reads on a thread, and waits for events instead of sleeping."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PATIENCE = 20.0


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    name: str
    id: int | None
    data: str


class Watch:
    """Reads an answer's chunks until it ends, and keeps its events."""

    def __init__(self, chunks: Iterable[bytes], close: Any = None) -> None:
        self.events: list[Event] = []
        self.raw = b""
        self.ended = False
        self._close = close
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(chunks,), daemon=True)
        self._thread.start()

    def until(self, name: str, count: int = 1) -> Event:
        """The latest event of this name once there are `count` of them."""
        return self._until(lambda: len(self.named(name)) >= count) and self.named(name)[-1]

    def until_version(self, version: int) -> Event:
        """The event that shows this version."""
        self._until(lambda: any(event.id == version for event in self.events))
        return next(event for event in self.events if event.id == version)

    def until_end(self) -> list[Event]:
        """All events, once the server has closed the stream."""
        self._until(lambda: self.ended)
        return self.events

    def named(self, name: str) -> list[Event]:
        """The events of this name so far."""
        return [event for event in self.events if event.name == name]

    def _until(self, holds: Any) -> Any:
        with self._news:
            assert self._news.wait_for(holds, timeout=PATIENCE), [(event.name, event.id) for event in self.events]
        return True

    def _read(self, chunks: Iterable[bytes]) -> None:
        rest = b""
        try:
            for chunk in chunks:
                self.raw += chunk
                *frames, rest = (rest + chunk).split(b"\n\n")
                with self._news:
                    self.events += [event for event in map(_parse, frames) if event]
                    self._news.notify_all()
        except Exception:
            # A connection that was cut is an end like any other here.
            pass
        finally:
            if self._close:
                self._close()
            with self._news:
                self.ended = True
                self._news.notify_all()


def _parse(frame: bytes) -> Event | None:
    lines = [line.partition(": ") for line in frame.decode().split("\n")]
    name = next((value for field, _, value in lines if field == "event"), None)
    if name is None:
        return None
    number = next((int(value) for field, _, value in lines if field == "id"), None)
    return Event(name, number, "\n".join(value for field, _, value in lines if field == "data"))
