"""One LISTEN connection a process: wakes lanes and open streams.

A notification is a hint, never the truth: connections die silently, notifications of the gap are gone. So the
connection is pinged, and after each reconnect `on_reconnect` makes the owner look for itself.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from hub import db

log = logging.getLogger(__name__)


class Listener:
    """Calls `on_notify(channel, payload)` for each notification, on its own thread.

    `ping` is the seconds of silence after which the connection is tested. `on_reconnect` is called whenever it begins
    to listen, the first time included.
    """

    def __init__(
        self,
        url: str,
        channels: tuple[str, ...],
        on_notify: Callable[[str, str], None],
        on_reconnect: Callable[[], None],
        ping: float,
        name: str,
    ) -> None:
        self._url = url
        self._channels = channels
        self._on_notify = on_notify
        self._on_reconnect = on_reconnect
        self._ping = ping
        self._name = name
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        """Begin to listen; returns at once, the connection is made in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and close the connection."""
        self._stopping.set()
        os.write(self._wake_write, b"x")
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        wait = 0.1
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    wait = 0.1
                    self._on_reconnect()
                    self._listen(connection)
            except (psycopg.Error, OSError) as error:
                log.warning("listening connection lost: %s", type(error).__name__)
                # Jitter, so that all processes do not come back at once; bounded, so that work resumes within seconds.
                self._stopping.wait(wait * random.uniform(1, 1.5))
                wait = min(wait * 2, 2.0)

    def _connect(self) -> psycopg.Connection[Any]:
        connection = db.connect(
            self._url, application_name=self._name, statement_timeout=5, idle_timeout=0, autocommit=True
        )
        # What arrives together with the answer to a ping is handed to this handler, and only to it.
        connection.add_notify_handler(lambda note: self._on_notify(note.channel, note.payload))
        for channel in self._channels:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        return connection

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        while not self._stopping.is_set():
            ready, _, _ = select.select([connection.fileno(), self._wake_read], [], [], self._ping)
            if not ready:
                # Nobody spoke for long: is anybody there? A dead connection raises here.
                connection.execute("select 1")
            elif self._wake_read in ready:
                return
            connection.pgconn.consume_input()
            while note := connection.pgconn.notifies():
                self._on_notify(note.relname.decode(), note.extra.decode())
