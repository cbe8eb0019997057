"""Whether the queue is well: what `hub check` says of it beside the machine's own readiness.

A finding is not ok when jobs wait for what will not come by itself; it asks for a look when somebody decided something,
or has to decide. docs/operations.md tells what to do about each.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta

import psycopg
from psycopg import sql

from hub import db
from hub.config import Settings
from hub.queue import letters, overview
from hub.queue.letters import Group
from hub.queue.overview import Queue, Worker
from hub.readiness import Finding

# A notification to oneself comes back within milliseconds.
ROUND_TRIP = 5.0
# A listening connection that came back so recently is mentioned.
LATELY = timedelta(hours=1)
# A worker's listening connection takes a moment to begin, which is no loss.
SETTLED = timedelta(seconds=60)


def findings(settings: Settings) -> list[Finding]:
    """Look at queues, workers, pauses, dead letters and notifications; the kinds must be known, the database there."""
    with db.connect(settings.database_url, application_name="hub check", autocommit=True) as connection:
        queues, workers = overview.queues(connection), overview.workers(connection)
        groups = letters.groups(connection)
    return [
        _notifications(settings),
        _queues(queues),
        _workers(workers),
        _listening([worker for worker in workers if not worker.silent], settings),
        _pauses(queues),
        _letters([group for group in groups if not group.of_people]),
    ]


def _notifications(settings: Settings) -> Finding:
    """Whether a notification comes through the address that web and worker listen on."""
    channel = sql.Identifier(f"hub_check_{uuid.uuid4().hex}")
    url = settings.listen_database_url or settings.database_url
    try:
        with db.connect(url, application_name="hub check", autocommit=True) as connection:
            connection.execute(sql.SQL("listen {}").format(channel))
            sent_at = time.monotonic()
            connection.execute(sql.SQL("notify {}").format(channel))
            heard = any(connection.notifies(timeout=ROUND_TRIP, stop_after=1))
    except psycopg.Error as error:
        return Finding("notifications", False, f"cannot listen: {str(error).strip().splitlines()[0]}")
    if not heard:
        told = "do not come through: behind a pooler, HUB_LISTEN_DATABASE_URL must be the direct address"
        return Finding("notifications", False, told)
    return Finding("notifications", True, f"come through in {(time.monotonic() - sent_at) * 1000:.0f} ms")


def _queues(queues: list[Queue]) -> Finding:
    stuck = [queue for queue in queues if not queue.lanes and not queue.paused and (queue.waiting or queue.due)]
    if stuck:
        told = (f"{queue.queue} ({_count(max(queue.waiting, queue.due))}{_since(queue.oldest_at)})" for queue in stuck)
        return Finding("queues", False, f"jobs wait and no live worker has lanes for {_list(told)}")
    unknown = [f"{name} in {queue.queue}" for queue in queues for name in queue.unknown]
    if unknown:
        return Finding("queues", True, f"jobs wait whose kind this version does not know: {_list(unknown)}", look=True)
    waiting, running = (_count(sum(getattr(queue, name) for queue in queues)) for name in ("waiting", "running"))
    return Finding("queues", True, f"{len(queues)} queues, {waiting} jobs wait, {running} run")


def _workers(workers: list[Worker]) -> Finding:
    live = [worker for worker in workers if not worker.silent]
    served = {queue for worker in live for queue in worker.lanes}
    silent = [worker for worker in workers if worker.silent]
    told = _list(f"{worker.name}{_since(worker.seen_at)}" for worker in silent)
    missed = sorted({queue for worker in silent for queue in worker.lanes} - served)
    if missed:
        return Finding("workers", False, f"silent: {told}; no other has lanes for {_list(missed)}")
    if silent:
        return Finding("workers", True, f"{len(live)} live, which have the lanes of the silent: {told}", look=True)
    if not live:
        return Finding("workers", True, "none runs: jobs will wait", look=True)
    versions = _list(sorted({worker.version for worker in live}))
    return Finding("workers", True, f"{len(live)} live, of version {versions}")


def _listening(live: list[Worker], settings: Settings) -> Finding:
    deaf = [f"{worker.name}{_since(worker.listening_since)}" for worker in live if not worker.listening]
    if deaf:
        told = f"no notifications reach {_list(deaf)}; jobs start when the worker looks, every"
        return Finding("listening", False, f"{told} {settings.queue_backstop:g} s at the latest")
    back = [
        f"{worker.name}{_since(worker.listening_since)}"
        for worker in live
        if worker.listening_since > max(worker.started_at + SETTLED, worker.read_at - LATELY)
    ]
    if back:
        return Finding("listening", True, f"the connection was lost and is back: {_list(back)}", look=True)
    return Finding("listening", True, f"notifications reach {len(live)} workers")


def _pauses(queues: list[Queue]) -> Finding:
    paused = [
        f"{queue.queue} by {queue.paused_by}{_since(queue.paused_at)}"
        f"{f' until {_time(queue.until)}' if queue.until else ''} ({queue.paused_because})"
        for queue in queues
        if queue.paused
    ]
    return Finding("pauses", True, _list(paused) or "no queue is paused", look=bool(paused))


def _letters(groups: list[Group]) -> Finding:
    told = (f"{_count(group.count)} of {group.kind} ({group.code})" for group in groups)
    return Finding("dead letters", True, f"open: {_list(told)}" if groups else "none is open", look=bool(groups))


def _count(number: int) -> str:
    return f"more than {overview.MAX_COUNT:,}" if number > overview.MAX_COUNT else f"{number:,}"


def _list(told: Iterable[str], most: int = 10) -> str:
    found = list(told)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def _since(at: datetime | None) -> str:
    return f" since {_time(at)}" if at else ""


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
