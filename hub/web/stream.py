"""Server-sent events: one listening connection feeds all streams of a process.

The database says which jobs changed; a thread of this process reads each of them once, however many streams watch it,
and leaves the newest row in the slot of each of its streams. A slot holds one row, so a slow client gets the latest
and costs no more than that. A stream's own thread (gunicorn's) turns the row into an event. While it waits, a stream
holds no database connection. Beats show that the stream lives, bound what a lost notification can cost, and are the
moment at which session and membership are looked at again.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from flask import Response, current_app, request
from jinja2 import Environment

from hub.config import Settings
from hub.db import Database, driver
from hub.errors import Unavailable
from hub.jobs import view
from hub.models import watch
from hub.queue import reads
from hub.queue.listener import Listener
from hub.queue.reads import Job
from hub.web import respond
from hub.web.auth import Place
from hub.web.filters import asset
from hub.web.state import state

log = logging.getLogger(__name__)

CHANNEL = "hub_job"
# Seconds. A page that hears nothing for 40 takes the stream for dead, so a beat may be late but not missing.
BEAT = 15.0
PROGRESS_EVERY = 1.0
ROTATE = 600.0
# How soon a client that went away is noticed, at most.
PEEK = 5.0
# So many streams are woken at once, and then others may run for so long: a thousand threads that all want to run would
# keep every page of the process waiting for half a second.
WOKEN_AT_ONCE = 10
BREATH = 0.005
RETRY_MS = 5000
FRAGMENTS_KEPT = 512

_making = threading.Lock()


@dataclass(frozen=True)
class Viewer:
    """For whom a stream is: the sign-in and workspace that must go on to hold, and the zone of the times."""

    session_id: UUID
    workspace_id: UUID
    zone: ZoneInfo

    @property
    def watcher(self) -> watch.Watcher:
        """What `hub.models.watch` is asked about."""
        return (self.session_id, self.workspace_id)


def answer(place: Place, job: Job) -> Response:
    """The stream of `job` for the visitor at `place`. Raises Unavailable when there are too many."""
    viewer = Viewer(place.session_id, place.workspace.id, place.zone)
    stream = streams().open(viewer, job, request.environ.get("gunicorn.socket"))
    response = Response(stream, mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-store, no-transform"
    response.headers["X-Accel-Buffering"] = "no"
    return response


def fragment(environment: Environment, job: Job, zone: ZoneInfo, icons: str) -> str:
    """The live fragment of a job: the body of a poll and the data of an event, byte for byte.

    `icons` is the address of the icon sheet. Needs no request, so a stream can render it at any time.
    """
    text = environment.get_template("jobs/_live.html").render(slots=view.slots(job, zone), icons=icons)
    # An event cannot carry a carriage return; so that poll and stream stay the same, neither does.
    return text.replace("\r", " ").strip()


def streams() -> Streams:
    """The current app's open streams."""
    held = state()
    with _making:
        if held.listener is None:
            held.listener = Streams(held.settings, held.db, current_app.jinja_env, asset("icons.svg"))
    made: Streams = held.listener
    return made


class Streams:
    """All open streams of this process, and the two threads that feed them: listener and reader."""

    def __init__(self, settings: Settings, database: Database, environment: Environment, icons: str) -> None:
        self._settings = settings
        self._database = database
        self._environment = environment
        self._icons = icons
        self._open: set[Stream] = set()
        self._changed: set[int] = set()
        self._news = threading.Condition()
        self._listener: Listener | None = None
        self._closed = False
        self._fragments: OrderedDict[tuple[int, int, str], str] = OrderedDict()
        # Whether the server is going down; gunicorn's hook sets it (`hub.web.gunicorn`).
        self.is_ending: Callable[[], bool] = lambda: False

    def open(self, viewer: Viewer, job: Job, connection: Any) -> Stream:
        """A stream that begins with `job` as it was just read. Raises Unavailable above the cap and while ending."""
        stream = Stream(self, viewer, job, connection)
        if job.terminal:
            return stream
        with self._news:
            if self._closed or self.is_ending():
                raise Unavailable(retry_after=2)
            if len(self._open) >= self._settings.streams_per_process:
                raise Unavailable("stream_limit", retry_after=30)
            self._start()
            self._open.add(stream)
            # Whatever happened between the reading of `job` and now was not listened for.
            self._changed.add(job.id)
            self._news.notify()
        return stream

    def leave(self, stream: Stream) -> None:
        """The stream is over."""
        with self._news:
            self._open.discard(stream)

    def count(self) -> int:
        """How many streams are open."""
        return len(self._open)

    def close(self) -> None:
        """End all streams with `bye` and stop the threads."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._listener:
            self._listener.stop()
        self._say_bye("shutdown")

    def fragment(self, job: Job, zone: ZoneInfo) -> str:
        """The fragment, rendered once for all viewers of the same zone."""
        key = (job.id, job.version, zone.key)
        known = self._fragments.get(key)
        if known is None:
            known = self._fragments[key] = fragment(self._environment, job, zone, self._icons)
            while len(self._fragments) > FRAGMENTS_KEPT:
                self._fragments.popitem(last=False)
        return known

    def _start(self) -> None:
        """Start the threads with the first stream: never before a server has forked its processes."""
        if self._listener is not None:
            return
        self._listener = Listener(
            self._settings.listen_database_url or self._settings.database_url,
            (CHANNEL,),
            lambda _channel, payload: self._note(int(number) for number in payload.split(",") if number.isdigit()),
            lambda: self._note(stream.job_id for stream in list(self._open)),
            self._settings.queue_listen_ping,
            "hub web listener",
        )
        self._listener.start()
        threading.Thread(target=self._run, name="streams", daemon=True).start()

    def _note(self, ids: Iterable[int]) -> None:
        with self._news:
            watched = {stream.job_id for stream in self._open}
            changed = watched.intersection(ids)
            if changed:
                self._changed |= changed
                self._news.notify()

    def _run(self) -> None:
        beat_at = time.monotonic() + BEAT
        while True:
            with self._news:
                # The server's end is asked after twice a second: a signal handler must not take locks.
                self._news.wait_for(lambda: self._changed or self._closed, timeout=0.5)
                changed, self._changed = self._changed, set()
            if self._closed:
                return
            if self.is_ending():
                self._say_bye("shutdown")
            elif time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT
                self._beat()
            elif changed:
                self._read(changed)

    def _read(self, changed: set[int]) -> None:
        try:
            self._hand_out(self._load(changed), beat=False)
        except Exception:
            log.warning("changed jobs could not be read; they are read again", exc_info=True)
            time.sleep(0.5)
            self._note(changed)

    def _beat(self) -> None:
        """Look at everything again: who may still watch, and every watched job, whether or not it was notified."""
        current = list(self._open)
        if not current:
            return
        try:
            with self._database.transaction() as session:
                allowed = watch.still_in(session, (stream.viewer.watcher for stream in current))
            for stream in current:
                if stream.viewer.watcher not in allowed:
                    stream.end("access")
            self._hand_out(self._load({stream.job_id for stream in current}), beat=True)
        except Exception:
            # Nobody's right can be looked at, and nothing new can be told: the pages ask by themselves.
            log.warning("the streams' beat failed", exc_info=True)
            self._say_bye("unavailable")

    def _load(self, ids: set[int]) -> dict[int, Job]:
        with self._database.transaction() as session:
            return {job.id: job for job in reads.these(driver(session), ids)}

    def _hand_out(self, jobs: dict[int, Job], beat: bool) -> None:
        woken = 0
        for stream in list(self._open):
            job = jobs.get(stream.job_id)
            if job is not None and stream.put(job, beat, self._settings.queue_lease):
                woken += 1
                if woken % WOKEN_AT_ONCE == 0:
                    time.sleep(BREATH)

    def _say_bye(self, reason: str) -> None:
        for stream in list(self._open):
            stream.end(reason)


class Stream:
    """One client's events. Iterated by the server's thread; `put` and `end` are called by others."""

    def __init__(self, owner: Streams, viewer: Viewer, job: Job, connection: Any) -> None:
        self.viewer = viewer
        self.job_id = job.id
        self._owner = owner
        self._job = job
        self._connection = connection
        self._woken = threading.Condition()
        self._newest: Job | None = None
        self._pulse: str | None = None
        self._bye: str | None = None

    def put(self, job: Job, beat: bool, lease: float) -> bool:
        """Leave the newest row; with `beat`, tell also that the stream lives. True if there is something to say."""
        with self._woken:
            is_newer = job.version > (self._newest or self._job).version
            if is_newer:
                self._newest = job
            if beat:
                self._pulse = json.dumps(pulse(job, lease))
            # Waking a thread for nothing is dear when a thousand watch one job: each new stream has the job read again.
            if is_newer or beat:
                self._woken.notify()
            return is_newer or beat

    def end(self, reason: str) -> None:
        """Close the stream before the job has ended; `reason` is for `bye`."""
        with self._woken:
            self._bye = reason
            self._woken.notify()

    def close(self) -> None:
        """Called by the server when the answer is over, whoever ended it."""
        self._owner.leave(self)

    def __iter__(self) -> Iterator[bytes]:
        yield f"retry: {RETRY_MS}\n\n".encode()
        yield self._event("end" if self._job.terminal else "snapshot", self._job)
        if not self._job.terminal:
            yield from self._live()

    def _live(self) -> Iterator[bytes]:
        rotate_at = time.monotonic() + ROTATE
        # The worker announces progress once a second too. Only progress sets the time of the next: a change of state in
        # between would put the two out of step and hold every later event back for most of a second.
        progress_at = time.monotonic()
        while True:
            bye, beat = self._wait(progress_at)
            if _hung_up(self._connection):
                return
            if bye is not None or time.monotonic() >= rotate_at:
                yield _frame("bye", json.dumps({"reason": bye or "rotate", "after_ms": 2000}))
                return
            name = self._step(time.monotonic() >= progress_at)
            if name == "progress":
                progress_at = time.monotonic() + PROGRESS_EVERY
            if name:
                yield self._event(name, self._job)
            if name == "end":
                return
            if beat is not None:
                yield _frame("beat", beat)

    def _wait(self, progress_at: float) -> tuple[str | None, str | None]:
        """Sleep until there is something to say, or to look after the client; returns reason to end, and beat."""
        with self._woken:
            if self._newest is not None:
                # Progress that came too soon after the last is held back, but not the end of waiting.
                self._woken.wait_for(self._urgent, timeout=max(0.0, progress_at - time.monotonic()))
            else:
                self._woken.wait_for(lambda: self._newest is not None or self._urgent(), timeout=PEEK)
            beat, self._pulse = self._pulse, None
            return self._bye, beat

    def _urgent(self) -> bool:
        if self._bye is not None or self._pulse is not None:
            return True
        return self._newest is not None and _is_step(self._job, self._newest)

    def _step(self, may_progress: bool) -> str | None:
        """Take the newest row if it is to be told now, and return the name of its event."""
        with self._woken:
            if self._newest is None:
                return None
            step = _is_step(self._job, self._newest)
            if not step and not may_progress:
                return None
            self._job, self._newest = self._newest, None
        if self._job.terminal:
            return "end"
        return "state" if step else "progress"

    def _event(self, name: str, job: Job) -> bytes:
        return _frame(name, self._owner.fragment(job, self.viewer.zone), job.version)


def pulse(job: Job, lease: float) -> dict[str, Any]:
    """What a beat tells beside the fragment: the server's time, the worker's last sign of life, failures so far.

    A lease that the deadline cut short says nothing of the worker's age.
    """
    tells = job.state == "running" and job.again_at is not None and job.again_at != job.deadline_at
    left = (job.again_at - job.read_at).total_seconds() if tells and job.again_at else None
    return {
        "now": respond.iso(job.read_at),
        "worker_age_s": None if left is None else max(0, round(lease - left)),
        "lease_until": respond.iso(job.again_at) if tells else None,
        "failed": job.failed,
    }


def _is_step(before: Job, after: Job) -> bool:
    """Whether the change is one of state, which is told at once."""
    return view.label(before) != view.label(after) or before.attempt != after.attempt


def _frame(name: str, data: str, version: int | None = None) -> bytes:
    lines = [f"event: {name}"]
    if version is not None:
        lines.append(f"id: {version}")
    lines += [f"data: {line}" for line in data.split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


def _hung_up(connection: Any) -> bool:
    """Whether the client closed its end. The first write to a closed socket succeeds, so it must be looked at."""
    if connection is None:
        return False
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as peek:
            return peek.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
