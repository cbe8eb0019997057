"""One LISTEN connection a process: wakes lanes and open streams.

A notification is a hint, never the truth: connections die silently, notifications of the gap are gone. So the
connection must prove itself: when it begins, and whenever nobody spoke for a while, it notifies itself and must hear
that. A half-open connection, and a pooler that lets LISTEN pass and brings nothing, are found out so; after each
reconnect `on_reconnect` makes the owner look for itself.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from hub import db

log = logging.getLogger(__name__)

# One's own notification comes back within milliseconds; after so many seconds it is lost (or a ping, if shorter).
ANSWER = 5.0
FIRST_WAIT = 0.1
LONGEST_WAIT = 2.0


class Unheard(Exception):
    """A listener's notification to itself did not come back."""


class Listener:
    """Calls `on_notify(channel, payload)` for each notification, on its own thread.

    `ping` is the seconds of silence after which the connection is tested. `on_reconnect` is called whenever it has
    proven that it hears, the first time included; `on_loss` whenever it no longer does.
    """

    def __init__(
        self,
        url: str,
        channels: tuple[str, ...],
        on_notify: Callable[[str, str], None],
        on_reconnect: Callable[[], None],
        ping: float,
        name: str,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._own = f"hub_ping_{uuid.uuid4().hex}"
        self._channels = channels
        self._on_notify = on_notify
        self._on_reconnect = on_reconnect
        self._on_loss = on_loss
        self._ping = ping
        self._name = name
        self._hears = False
        self._lost_at = 0.0
        self._wait = FIRST_WAIT
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
        while not self._stopping.is_set():
            try:
                # Closed, not left as a context: that would wait for a rollback, for ever if it is half-open.
                with closing(self._connect()) as connection:
                    self._listen(connection)
            except Exception as error:
                self._lost(error)
                # Jitter, so that all processes do not come back at once; bounded, so that work resumes within seconds.
                self._stopping.wait(self._wait * random.uniform(1, 1.5))
                self._wait = min(self._wait * 2, LONGEST_WAIT)

    def _connect(self) -> psycopg.Connection[Any]:
        return db.connect(self._url, application_name=self._name, statement_timeout=5, idle_timeout=0, autocommit=True)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        """Hear until told to stop. Nothing here waits for an answer without a limit, as `execute` would."""
        pgconn = connection.pgconn
        listens = [sql.SQL("listen {}").format(sql.Identifier(name)) for name in (*self._channels, self._own)]
        ping = sql.SQL("notify {}").format(sql.Identifier(self._own))
        due = self._ask(pgconn, sql.SQL("; ").join([*listens, ping]).as_bytes(connection))
        asked = True
        while not self._stopping.is_set():
            ready, _, _ = select.select([pgconn.socket, self._wake_read], [], [], max(0.0, due - time.monotonic()))
            if self._wake_read in ready:
                return
            if ready and self._take(pgconn):
                self._heard()
                asked, due = False, time.monotonic() + self._ping
            elif time.monotonic() >= due:
                if asked:
                    raise Unheard
                asked, due = True, self._ask(pgconn, ping.as_bytes(connection))

    def _ask(self, pgconn: PGconn, query: bytes) -> float:
        """Send a notification to oneself; returns when it must have come back, by the monotonic clock."""
        pgconn.send_query(query)
        pgconn.flush()
        return time.monotonic() + min(ANSWER, self._ping)

    def _take(self, pgconn: PGconn) -> bool:
        """Take what has arrived; True if a notification did, anybody's."""
        pgconn.consume_input()
        while not pgconn.is_busy() and (result := pgconn.get_result()):
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.OperationalError(result.get_error_message())
        heard = False
        while note := pgconn.notifies():
            heard = True
            if note.relname != self._own.encode():
                self._on_notify(note.relname.decode(), note.extra.decode())
        return heard

    def _heard(self) -> None:
        if self._hears:
            return
        self._hears = True
        self._wait = FIRST_WAIT
        if self._lost_at:
            log.info("listening again", extra={"deaf_seconds": round(time.monotonic() - self._lost_at, 1)})
        self._on_reconnect()

    def _lost(self, error: Exception) -> None:
        if isinstance(error, Unheard):
            log.warning("listening connection lost: it does not bring its own notification")
        elif isinstance(error, (psycopg.Error, OSError)):
            log.warning("listening connection lost: %s", type(error).__name__)
        else:
            log.exception("listening failed")
        if self._hears or not self._lost_at:
            self._lost_at = time.monotonic()
        if self._hears:
            self._hears = False
            self._on_loss()
