"""Hub's queue for a side-by-side measurement of job queues: one no-op kind, with everything switched on.

A runner loads this module, calls the functions below and watches the table. `benchlib` is the runner's: it counts
calls of the handler, stamps their times, and says when to go.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import benchlib
import psycopg
from pydantic import BaseModel

from hub.config import Settings
from hub.queue import Context, Item, Kind, enqueue, enqueue_many, register
from hub.queue import worker as processes

BULK = int(os.environ.get("BULK", "5000"))
LANES = int(os.environ.get("HUB_BENCH_LANES", "1"))
CEILING = Settings().queue_max_attempts
HISTORY = """
insert into queue.job (queue, kind, state, max_attempts, attempt_seconds, attempt, args, started_at, finished_at)
select 'bench', 'bench', 'succeeded', 5, 300, 1, '{"seq": 0}', now(), now() from generate_series(1, $N)
"""
INFO = {
    "backend": "postgres",
    "package": "hub",
    "retains": True,
    "n": {"one": 8000, "drain": 160000},
    "remaining": "select count(*) from queue.job where finished_at is null and (state = 'queued' and again_at is null"
    " or again_at is not null)",
    "history": [HISTORY],
    "settings": f"bulk of {BULK}, {LANES} lane, prefetch; everything as in production",
}


class Args(BaseModel):
    """A job carries one number."""

    seq: int


def run(context: Context, args: Args) -> None:
    """Nothing, but that it was called."""
    benchlib.handle(args.seq)


BENCH = register(Kind(name="bench", run=run, args=Args, prefetch=True))


def setup(dsn: str) -> None:
    """Make the queue's schema in an empty database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create schema queue")
        for revision in sorted((Path(processes.__file__).parent / "revisions").glob("*.sql")):
            connection.execute(revision.read_bytes())


def enqueue_one(dsn: str, n: int) -> float:
    """Seconds for `n` jobs, each committed before the next."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return float(benchlib.timed(_sender(connection), n))


def enqueue_bulk(dsn: str, n: int) -> float:
    """Seconds for `n` jobs in transactions of BULK."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        started_at = time.perf_counter()
        for done in range(0, n, BULK):
            items = [Item({"seq": 0}) for _ in range(min(BULK, n - done))]
            enqueue_many(connection, BENCH, items, ceiling=CEILING)
        return time.perf_counter() - started_at


def latency(dsn: str, n: int, interval: float) -> Any:
    """Enqueue one job every `interval` seconds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return benchlib.paced(_sender(connection), n, interval)


def _sender(connection: psycopg.Connection[Any]) -> Any:
    return lambda seq: enqueue(connection, BENCH, {"seq": seq}, ceiling=CEILING)


def worker(dsn: str) -> None:
    """Work until SIGTERM."""
    benchlib.ready()
    processes.main(Settings(database_url=dsn), {"bench": LANES})
