"""A stretch of wire between a process and PostgreSQL that the test can hold: bytes sent into it wait there."""

from __future__ import annotations

import re
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit


@dataclass(frozen=True)
class Trap:
    """What the wire does, once, when `at` passes on a connection on which `after` has passed before.

    "hold": nothing arrives any more, `at` included. "lose": the connection breaks before `at` arrives.
    "swallow": `at` arrives, then the connection breaks, so its answer does not.
    """

    after: bytes
    at: bytes
    act: Literal["hold", "lose", "swallow"]


class Wire:
    """Forwards connections of its own socket to the server at `url`. `url` of the wire is the address through it."""

    def __init__(self, url: str) -> None:
        self._target = _socket_of(url)
        self._folder = tempfile.TemporaryDirectory(prefix="hubwire")
        path = Path(self._folder.name) / self._target.name
        self.url = re.sub(r"host=[^&]*", f"host={quote(self._folder.name, safe='')}", url)
        self._flows = threading.Event()
        self._flows.set()
        self._arrived = threading.Condition()
        self._waiting = 0
        self._trap: Trap | None = None
        self.sprung = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(50)
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """From now on, nothing that the process sends arrives."""
        self._flows.clear()

    def set_trap(self, trap: Trap) -> None:
        """Do something at a certain moment; `sprung` tells that it has happened."""
        self.sprung.clear()
        self._trap = trap

    def await_held(self, connections: int = 1, patience: float = 30) -> None:
        """Wait until bytes of the process wait in the wire, on so many connections."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._waiting >= connections, patience), f"only {self._waiting} wait"

    def release(self) -> None:
        """Let everything through, first what waits."""
        self._flows.set()

    def close(self) -> None:
        """Take the wire away, with all connections that go through it."""
        self.release()
        self._listening.close()
        for end in self._sockets:
            _break(end)
        self._folder.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(str(self._target))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            threading.Thread(target=self._carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, False), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, held: bool) -> None:
        passed = b""
        with suppress(OSError):
            while data := source.recv(65536):
                passed = (passed + data)[-1_000_000:] if held else b""
                act = self._spring(passed) if held else None
                if act == "lose":
                    break
                if held and not self._flows.is_set():
                    self._wait()
                sink.sendall(data)
                if act == "swallow":
                    break
        _break(source)
        _break(sink)

    def _spring(self, passed: bytes) -> str | None:
        trap = self._trap
        if trap is None or (before := passed.find(trap.after)) < 0 or passed.find(trap.at, before) < 0:
            return None
        self._trap = None
        if trap.act == "hold":
            self.hold()
        self.sprung.set()
        return trap.act

    def _wait(self) -> None:
        with self._arrived:
            self._waiting += 1
            self._arrived.notify_all()
        self._flows.wait()
        with self._arrived:
            self._waiting -= 1


def _break(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _socket_of(url: str) -> Path:
    query = parse_qs(urlsplit(url).query)
    return Path(query["host"][0]) / f".s.PGSQL.{query.get('port', ['5432'])[0]}"
