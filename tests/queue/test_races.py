"""Everything at once on one queue: workers, lapsing leases, late writes, cancels. The log and the tables must agree."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from hub.queue import Kind, store
from hub.queue.job import Claimed
from tests.factories import row, rows, run
from tests.invariants import Watch
from tests.queue.conftest import Bench
from tests.queue.test_store import STEP

JOBS = 150
ITEMS = 3


def live(bench: Bench) -> int:
    """How many jobs have not ended."""
    return int(row(bench.database, "select count(*) from queue.job where finished_at is null").count)


def work(bench: Bench, kind: Kind, seed: int, late: list[Claimed]) -> None:
    """A worker whose attempts end in every way; claims that it loses are kept for late writes."""
    luck = random.Random(seed)
    while live(bench):
        for job in bench.claim(kind, lanes=3):
            with bench.connection() as connection:
                attempt(connection, job, luck)
            late.append(job)


def attempt(connection: store.Connection, job: Claimed, luck: random.Random) -> None:
    """One attempt: some items, then an end, or none at all as if the worker had died."""
    position = job.position
    while not (job.used_up or job.cancelled) and position < ITEMS and luck.random() < 0.8:
        if store.step(connection, STEP, {"id": job.id, "claim": job.claim, "position": position}) is None:
            break
        position += 1
    if job.cancelled:
        store.finish(connection, job, state="cancelled")
    elif job.used_up:
        store.finish(connection, job, state="failed", code=job.cause, dead=True)
    elif position == ITEMS:
        store.finish(connection, job, state="succeeded")
    elif luck.random() < 0.3:
        store.release(connection, job)
    elif luck.random() < 0.5 and job.attempt < job.max_attempts:
        store.retry(connection, job, wait=0.0, code="handler_failed", error="")


def let_time_pass(bench: Bench, kind: Kind, seed: int, late: list[Claimed]) -> None:
    """Leases lapse, one after the other."""
    while live(bench):
        run(
            bench.database,
            "update queue.job set again_at = statement_timestamp() where id = (select id from queue.job "
            "where state = 'running' order by random() limit 1 for update skip locked)",
        )


def write_late(bench: Bench, kind: Kind, seed: int, late: list[Claimed]) -> None:
    """Workers that froze wake up and try to end, put back and give back what they once had."""
    luck = random.Random(seed)
    while live(bench):
        if not late:
            continue
        job = luck.choice(late)
        with bench.connection() as connection:
            if store.held(connection, job.id, job.claim) is None:
                assert store.finish(connection, job, state="failed", code="not_there") is None
                assert not store.retry(connection, job, wait=0.0, code="handler_failed", error="")
                assert not store.release(connection, job)
                assert store.renew(connection, job.id, job.claim, 60.0) is None


def ask_for_the_end(bench: Bench, kind: Kind, seed: int, late: list[Claimed]) -> None:
    """People cancel, some of them twice."""
    luck = random.Random(seed)
    ids = [job.id for job in rows(bench.database, "select id from queue.job")]
    for job_id in luck.choices(ids, k=JOBS // 2):
        bench.cancel(job_id)


def deadlocks(admin_url: str) -> int:
    """How many deadlocks the database has counted."""
    with psycopg.connect(admin_url) as connection:
        connection.execute("select pg_stat_force_next_flush()")
        query = "select deadlocks from pg_stat_database where datname = current_database()"
        ((count,),) = connection.execute(query).fetchall()
        return int(count)


def test_whatever_meets_each_job_ends_once_and_no_write_comes_late(bench: Bench, watch: Watch, admin_url: str) -> None:
    kind = bench.kind(attempts=4, steps=True)
    for _ in range(JOBS):
        bench.enqueue(kind, items=ITEMS)
    before = deadlocks(admin_url)
    errors: list[BaseException] = []
    late: list[Claimed] = []

    def guarded(act: Callable[..., Any], seed: int) -> None:
        try:
            act(bench, kind, seed, late)
        except BaseException as error:
            errors.append(error)
            raise

    acts = [work, work, work, let_time_pass, write_late, ask_for_the_end]
    threads = [threading.Thread(target=guarded, args=(act, seed)) for seed, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert live(bench) == 0
    assert deadlocks(admin_url) == before
    ends = watch.rows(
        "select job_id, count(*) as n from $transition where new_state in ('succeeded', 'failed', 'cancelled') "
        "group by job_id"
    )
    assert sorted(end["n"] for end in ends) == [1] * JOBS
