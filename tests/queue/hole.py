"""A TCP address of PostgreSQL whose connections can be made half-open: they stay, and nothing comes through."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg.conninfo


class Hole:
    """Forwards connections of a loopback port to the server whose socket `url` names; `url` of the hole leads there."""

    def __init__(self, url: str) -> None:
        query = parse_qs(urlsplit(url).query)
        self._target = Path(query["host"][0]) / f".s.PGSQL.{query.get('port', ['5432'])[0]}"
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = psycopg.conninfo.make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable")
        # What was sent into connections that are half-open by now.
        self.swallowed = b""
        self._flows: list[threading.Event] = []
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """From now on nothing comes through the connections that there are, in either direction; new ones work."""
        for flows in self._flows:
            flows.clear()

    def close(self) -> None:
        """Take the address away, with all connections."""
        for end in (self._listening, *self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._target))
                flows = threading.Event()
                flows.set()
                self._flows.append(flows)
                self._sockets += [near, far]
                threading.Thread(target=self._carry, args=(near, far, flows, True), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, flows, False), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, flows: threading.Event, forth: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if flows.is_set():
                    sink.sendall(data)
                elif forth:
                    self.swallowed += data
            if flows.is_set():
                sink.shutdown(socket.SHUT_RDWR)
