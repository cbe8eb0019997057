"""What need not be kept is removed in small batches; what people asked for never is."""

from __future__ import annotations

import dataclasses
from typing import Any

import psycopg

from hub.config import Settings
from hub.db import Database
from hub.queue import Fail, retention
from hub.queue.retention import Removed, Retention, prune
from hub.queue.testing import drain
from tests import factories
from tests.factories import row, rows, run
from tests.queue.conftest import Bench

# At this age everything that has ended is old.
ANY_AGE = 0
MACHINES = """
insert into queue.job (queue, kind, state, max_attempts, attempt_seconds, args, created_at, finished_at)
select 'old', 'old', 'succeeded', 1, 1, '{}', t, t
from generate_series(1, :count), (select statement_timestamp() - make_interval(days => :days) as t) made
"""

DECIDED = "decided_at = now(), decided_by_name = 'Olga'"


def machines(database: Database, count: int, days: int = 30) -> None:
    """So many jobs that no person asked for, made and ended so many days ago."""
    run(database, MACHINES, count=count, days=days)


def remove(database: Database, days: int = 14) -> Removed:
    """One batch."""
    with database.autocommit() as connection:
        return prune(connection, days)


def remove_all(database: Database, days: int = 14) -> int:
    """Batches until there is no more; how many jobs they removed."""
    jobs, more = 0, True
    while more:
        removed = remove(database, days)
        jobs, more = jobs + removed.jobs, removed.more
    return jobs


def left(database: Database) -> list[int]:
    """The jobs that are there."""
    return [found.id for found in rows(database, "select id from queue.job order by id")]


def test_jobs_of_machines_are_removed_when_they_ended_long_enough_ago(database: Database) -> None:
    machines(database, 3, days=15)
    machines(database, 2, days=13)
    young = left(database)[3:]
    assert remove(database) == Removed(jobs=3, ticks=0, workers=0, more=False)
    assert left(database) == young
    assert remove(database).jobs == 0


def test_nothing_hangs_on_after_a_job_is_removed(bench: Bench, settings: Settings) -> None:
    def fail_for_good(context: Any, args: Any) -> None:
        raise Fail("unsupported")

    def fail(context: Any, args: Any) -> None:
        raise ValueError("as told")

    for handler in (fail_for_good, fail):
        kind = bench.kind(handler, attempts=2)
        job_id = bench.enqueue(kind, items=2)
        bench.work(kind)
        if handler is fail:
            bench.make_due(job_id)
            bench.work(kind)
    run(bench.database, f"update queue.dead_letter set state = 'discarded', reason = 'no', {DECIDED}")
    assert remove_all(bench.database, ANY_AGE) == 2
    for table in ("job", "detail", "attempt", "dead_letter", "worklist"):
        assert row(bench.database, f"select count(*) as count from queue.{table}").count == 0, table


def test_a_job_whose_dead_letter_is_open_is_kept(bench: Bench) -> None:
    def fail(context: Any, args: Any) -> None:
        raise ValueError("as told")

    kind = bench.kind(fail, attempts=1)
    kept, redriven = bench.enqueue(kind), bench.enqueue(kind)
    bench.work(kind)
    bench.work(kind)
    run(
        bench.database,
        f"update queue.dead_letter set state = 'redriven', redriven_as = 7, {DECIDED} where job_id = :id",
        id=redriven,
    )
    assert remove_all(bench.database, ANY_AGE) == 1
    assert left(bench.database) == [kept]
    assert bench.job(kept).error == "ValueError: as told"


def test_a_job_that_has_not_ended_is_kept_however_old(bench: Bench) -> None:
    kind = bench.kind()
    waiting, running = bench.enqueue(kind, priority=2), bench.enqueue(kind)
    assert bench.claim_one(kind).id == running
    run(bench.database, "update queue.job set created_at = created_at - interval '1 year'")
    assert remove_all(bench.database, ANY_AGE) == 0
    assert left(bench.database) == [waiting, running]


def test_what_people_asked_for_is_kept_for_ever(database: Database, settings: Settings) -> None:
    team = factories.make_team(database)
    ids = []
    for _ in range(3):
        course = factories.make_course(database, team)
        ids.append(factories.start_tagging(database, settings, team, course).job_id)
        machines(database, 5)
    drain(database, settings, "workspace.jobs")
    assert remove_all(database, ANY_AGE) == 15
    assert left(database) == ids
    assert row(database, "select count(*) as count from queue.request").count == 3
    assert row(database, "select count(*) as count from queue.detail").count == 3


def test_a_batch_is_small_and_the_next_goes_on_from_there(database: Database) -> None:
    machines(database, 2500)
    batches = [remove(database) for _ in range(4)]
    assert [(batch.jobs, batch.more) for batch in batches] == [(1000, True), (1000, True), (500, False), (0, False)]
    machines(database, 10)
    assert remove(database).jobs == 10


def test_what_had_not_ended_when_it_was_passed_is_removed_a_day_later(bench: Bench) -> None:
    kind = bench.kind()
    late = bench.enqueue(kind)
    machines(bench.database, 2)
    run(bench.database, "update queue.job set created_at = created_at - interval '30 days' where id = :id", id=late)
    assert remove_all(bench.database) == 2
    bench.work(kind)
    assert remove_all(bench.database, ANY_AGE) == 0
    run(bench.database, "update queue.retention set began_at = began_at - interval '25 hours'")
    assert remove_all(bench.database, ANY_AGE) == 0
    assert remove_all(bench.database, ANY_AGE) == 1
    assert left(bench.database) == []


def test_only_one_worker_goes_through_the_jobs_at_a_time(database: Database) -> None:
    machines(database, 5)
    remove_all(database, 365)
    with database.autocommit() as other, other.transaction():
        other.execute("select from queue.retention for no key update")
        assert remove(database) == Removed(0, 0, 0, more=False)
    assert remove(database).jobs == 5


def test_what_somebody_has_locked_is_passed_over(database: Database) -> None:
    machines(database, 5)
    with database.autocommit() as other, other.transaction():
        other.execute("select from queue.job where id = (select min(id) from queue.job) for key share")
        assert remove(database).jobs == 4
    assert len(left(database)) == 1


def test_old_ticks_are_removed_but_never_the_latest_of_a_schedule(database: Database) -> None:
    for name, ticks in (("busy", 1200), ("rare", 1)):
        run(
            database,
            "insert into queue.schedule (name, cron, time_zone, ticked_at)"
            " values (:name, '0 * * * *', 'UTC', date_trunc('hour', statement_timestamp() - interval '20 days'))",
            name=name,
        )
        run(
            database,
            "insert into queue.tick (schedule, due_at, outcome)"
            " select name, ticked_at - make_interval(hours => n), 'missed'"
            " from queue.schedule, generate_series(0, :ticks - 1) n where name = :name",
            name=name,
            ticks=ticks,
        )
    run(database, "insert into queue.tick (schedule, due_at, outcome) values ('busy', statement_timestamp(), 'missed')")
    assert remove(database) == Removed(jobs=0, ticks=1000, workers=0, more=True)
    assert remove(database) == Removed(jobs=0, ticks=199, workers=0, more=False)
    kept = rows(database, "select schedule, count(*) as count from queue.tick group by schedule order by schedule")
    assert [tuple(each) for each in kept] == [("busy", 2), ("rare", 1)]


def test_worker_processes_long_gone_are_forgotten_and_their_numbers_not_given_again(database: Database) -> None:
    for days in (100, 80, 91):
        run(
            database,
            "insert into queue.worker (name, version, lanes, seen_at)"
            " values ('w', '1', '{}', statement_timestamp() - make_interval(days => :days))",
            days=days,
        )
    highest = row(database, "select max(id) as id from queue.worker").id
    assert remove(database).workers == 2
    (kept,) = rows(database, "select id from queue.worker")
    assert kept.id == highest - 1
    run(database, "insert into queue.worker (name, version, lanes) values ('w', '1', '{}')")
    assert row(database, "select max(id) as id from queue.worker").id > highest


def test_the_chore_takes_its_time_when_there_is_no_more(database: Database, settings: Settings) -> None:
    chore = Retention(dataclasses.replace(settings, queue_prune=600.0))
    machines(database, 1001)
    with database.autocommit() as connection:
        assert chore.act(connection) == retention.BREATH
        waits = {chore.act(connection) for _ in range(5)}
    assert all(480 <= wait <= 720 for wait in waits)
    assert len(waits) == 5


def test_what_keeps_it_from_working_is_told_until_it_works(database: Database, settings: Settings) -> None:
    chore = Retention(settings)
    with database.autocommit() as connection:
        chore.act(connection)
        assert retention.trouble(connection) is None
        chore.note(connection, "QueryCanceled")
        told = retention.trouble(connection)
        assert told is not None and told.startswith("old rows cannot be removed: QueryCanceled, since ")
        chore.act(connection)
        assert retention.trouble(connection) is None


def test_completing_a_job_writes_no_index_for_this(admin_url: str, database: Database) -> None:
    with psycopg.connect(admin_url) as connection:
        indexes = {name for (name,) in connection.execute("select indexname from pg_indexes where tablename = 'job'")}
    assert indexes == {"job_pkey", "job_fresh", "job_again", "job_live_key", "job_subject", "job_failed"}
