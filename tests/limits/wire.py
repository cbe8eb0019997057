"""A stretch of wire between a process and PostgreSQL that the test can hold: bytes sent into it wait there."""

from __future__ import annotations

import re
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit


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
        self._sockets: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(50)
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """From now on, nothing that the process sends arrives."""
        self._flows.clear()

    def await_held(self, patience: float = 30) -> None:
        """Wait until bytes of the process wait in the wire."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._waiting > 0, patience), "nothing was sent into the wire"

    def release(self) -> None:
        """Let everything through, first what waits."""
        self._flows.set()

    def cut(self) -> None:
        """Break all connections that go through it; new ones may be made."""
        sockets, self._sockets = self._sockets, []
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Take the wire away."""
        self.release()
        self._listening.close()
        self.cut()
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
        with suppress(OSError):
            while data := source.recv(65536):
                if held and not self._flows.is_set():
                    self._wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait(self) -> None:
        with self._arrived:
            self._waiting += 1
            self._arrived.notify_all()
        self._flows.wait()
        with self._arrived:
            self._waiting -= 1


def _socket_of(url: str) -> Path:
    query = parse_qs(urlsplit(url).query)
    return Path(query["host"][0]) / f".s.PGSQL.{query.get('port', ['5432'])[0]}"
