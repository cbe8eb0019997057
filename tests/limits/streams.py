"""Many event streams at once, read raw by one thread: what came, and when."""

from __future__ import annotations

import re
import resource
import selectors
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Event:
    """One event, and when its last byte came, by time.time()."""

    name: str
    data: str
    id: int | None
    at: float


@dataclass
class Stream:
    """What one connection received."""

    socket: socket.socket
    raw: bytearray = field(default_factory=bytearray)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    ended: bool = False
    _text: bytearray = field(default_factory=bytearray)
    _gzip: Any = None

    def names(self) -> list[str]:
        """The names of the events, in order."""
        return [event.name for event in self.events]

    def ids(self) -> list[int]:
        """The versions that were told, in order."""
        return [event.id for event in self.events if event.id is not None]

    def take(self, data: bytes, at: float) -> None:
        """More bytes of the answer."""
        self.raw += data
        if not self.status:
            if b"\r\n\r\n" not in self.raw:
                return
            self._take_head()
        self._unchunk()
        while b"\n\n" in self._text:
            block, _, self._text = self._text.partition(b"\n\n")
            self._take_event(block.decode(), at)

    def _take_head(self) -> None:
        head, _, self.raw = self.raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}

        if self.headers.get("content-encoding") == "gzip":
            self._gzip = zlib.decompressobj(31)

    def _unchunk(self) -> None:
        if self.headers.get("transfer-encoding") != "chunked":
            self._add(bytes(self.raw))
            self.raw.clear()
            return
        while found := re.match(rb"([0-9a-fA-F]+)\r\n", self.raw):
            size = int(found[1], 16)
            if len(self.raw) < found.end() + size + 2:
                return
            if size == 0:
                self.ended = True
            self._add(bytes(self.raw[found.end() : found.end() + size]))
            del self.raw[: found.end() + size + 2]

    def _add(self, data: bytes) -> None:
        self._text += self._gzip.decompress(data) if self._gzip else data

    def _take_event(self, block: str, at: float) -> None:
        fields: dict[str, list[str]] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(": ")
            fields.setdefault(name, []).append(value)
        if "event" in fields:
            number = fields.get("id")
            data = "\n".join(fields.get("data", []))
            self.events.append(Event(fields["event"][0], data, int(number[0]) if number else None, at))


class Streams:
    """Opens streams and reads all of them until closed."""

    def __init__(self) -> None:
        self.all: list[Stream] = []
        self._selector = selectors.DefaultSelector()
        self._news = threading.Condition()
        self._closed = False
        threading.Thread(target=self._read, daemon=True).start()

    def open(self, url: str, headers: dict[str, str], number: int = 1) -> list[Stream]:
        """So many new streams of this address; they may not have been answered yet."""
        split = urlsplit(url)
        assert split.hostname
        lines = [f"GET {split.path} HTTP/1.1", f"Host: {split.netloc}", "Accept: text/event-stream"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode()
        opened = []
        for _ in range(number):
            connection = socket.create_connection((split.hostname, split.port or 80), timeout=30)
            connection.sendall(request)
            stream = Stream(connection)
            opened.append(stream)
            with self._news:
                self.all.append(stream)
                self._selector.register(connection, selectors.EVENT_READ, stream)
        return opened

    def wait(self, holds: Callable[[], bool], patience: float = 60) -> None:
        """Wait until what came makes `holds` true."""
        with self._news:
            assert self._news.wait_for(holds, patience), [
                (stream.status, stream.names()[-5:], stream.ended) for stream in self.all[:5]
            ]

    def drop(self, streams: Iterable[Stream]) -> None:
        """Close our end without a word."""
        with self._news:
            for stream in streams:
                if not stream.ended:
                    self._forget(stream)

    def close(self) -> None:
        """Close everything."""
        self._closed = True
        self.drop(self.all)

    def _read(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(timeout=0.2):
                stream: Stream = key.data
                try:
                    data = stream.socket.recv(65536)
                except OSError:
                    data = b""
                with self._news:
                    if data:
                        stream.take(data, time.time())
                    if not data or stream.ended:
                        self._forget(stream)
                    self._news.notify_all()

    def _forget(self, stream: Stream) -> None:
        stream.ended = True
        with suppress(KeyError, ValueError):
            self._selector.unregister(stream.socket)
        stream.socket.close()


def allow_sockets(number: int) -> None:
    """Raise this process's limit of open files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number * 2 + 500
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
