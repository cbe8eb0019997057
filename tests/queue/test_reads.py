"""What pages read of the queue: of one workspace only, newest first, by index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hub.db import Database, driver
from hub.jobs import view
from hub.queue import reads
from hub.queue.reads import Filters
from hub.queue.sql import load
from tests import factories
from tests.factories import Team
from tests.factories_jobs import STORED, make_job, read_job

SQL = Path(reads.__file__).with_name("reads.sql")


@pytest.fixture
def team(database: Database) -> Team:
    return factories.make_team(database)


@pytest.fixture
def connection(database: Database) -> Iterator[Any]:
    with database.transaction() as session:
        yield driver(session)


def test_a_job_is_found_in_its_own_workspace_only(database: Database, team: Team) -> None:
    other = factories.make_team(database)
    job_id = make_job(database, team)
    with database.transaction() as session:
        found = reads.get(driver(session), job_id, team.workspace.id)
        assert found is not None and found.id == job_id
        assert reads.get(driver(session), job_id, other.workspace.id) is None


@pytest.mark.parametrize("number", [0, -1, 2**63, 10**30, 999_999_999])
def test_an_impossible_number_is_no_job(connection: Any, team: Team, number: int) -> None:
    assert reads.get(connection, number, team.workspace.id) is None
    assert reads.these(connection, [number]) == []


def test_work_that_nobody_asked_for_is_no_job_of_people(database: Database, team: Team) -> None:
    job_id = make_job(database, team)
    factories.run(database, "delete from queue.request where job_id = :id", id=job_id)
    with database.transaction() as session:
        assert reads.get(driver(session), job_id, team.workspace.id) is None


def test_pages_show_each_job_once_though_all_are_of_one_moment(database: Database, team: Team) -> None:
    made = [make_job(database, team) for _ in range(7)]
    make_job(database, factories.make_team(database))
    seen: list[int] = []
    before: int | None = None
    more = True
    while more:
        with database.transaction() as session:
            page = reads.page(driver(session), team.workspace.id, Filters(), before, limit=3)
        seen += [job.id for job in page.jobs]
        before, more = page.jobs[-1].id, page.more
    assert seen == sorted(made, reverse=True)


@pytest.mark.parametrize("label", list(STORED))
def test_the_lists_groups_agree_with_the_label(database: Database, team: Team, label: str) -> None:
    job_id = make_job(database, team, label)
    bucket = view.bucket(read_job(database, job_id))
    for name in reads.BUCKETS:
        with database.transaction() as session:
            found = reads.page(driver(session), team.workspace.id, Filters(bucket=name)).jobs
            counts = reads.counts(driver(session), team.workspace.id, Filters())
        assert bool(found) == (name == bucket) == (counts[name] == 1)


def test_filters_narrow_together(database: Database, team: Team) -> None:
    other = factories.add_member(database, team, "admin")
    wanted = make_job(database, team, "finished_with_problems", subject_name="Cells and 50% _more_", actor=other)
    make_job(database, team, "finished", subject_name="Cells", actor=other)
    make_job(database, team, "finished_with_problems", subject_name="Rust", actor=other)
    make_job(database, team, "finished_with_problems", subject_name="Cells")
    filters = Filters(bucket="finished", kind="course.tag", words="CELLS", actor=other.id, problems=True)
    with database.transaction() as session:
        connection = driver(session)
        assert [job.id for job in reads.page(connection, team.workspace.id, filters).jobs] == [wanted]
        assert reads.page(connection, team.workspace.id, Filters(kind="other")).jobs == []
        exact = reads.page(connection, team.workspace.id, Filters(words="50% _more"))
        assert [job.id for job in exact.jobs] == [wanted]


def test_a_range_has_its_start_and_not_its_end(database: Database, team: Team) -> None:
    old = make_job(database, team, created_at=-7200)
    new = make_job(database, team, created_at=-60)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with database.transaction() as session:
        connection = driver(session)
        since = reads.page(connection, team.workspace.id, Filters(since=hour_ago)).jobs
        until = reads.page(connection, team.workspace.id, Filters(until=hour_ago)).jobs
        assert [job.id for job in since] == [new] and [job.id for job in until] == [old]
        assert reads.counts(connection, team.workspace.id, Filters(since=hour_ago))["all"] == 1


def test_attempts_come_newest_first_with_their_worker(database: Database, team: Team) -> None:
    job_id = make_job(database, team, "needs_attention")
    worker = factories.row(
        database, "insert into queue.worker (name, version, lanes) values ('worker one', '1', '{}') returning id"
    ).id
    for number in (1, 2):
        factories.run(
            database,
            "insert into queue.attempt (job_id, claim, number, started_at, outcome, code, done)"
            " values (:job, :claim, :number, statement_timestamp(), 'lost', 'worker_lost', 3)",
            job=job_id,
            claim=worker * 2**32 + number,
            number=number,
        )
    with database.transaction() as session:
        found = reads.attempts(driver(session), job_id)
    assert [(attempt.number, attempt.worker) for attempt in found] == [(2, "worker one"), (1, "worker one")]


def test_of_very_many_attempts_the_latest_hundred_are_told(database: Database, team: Team) -> None:
    job_id = make_job(database, team, "needs_attention")
    factories.run(
        database,
        "insert into queue.attempt (job_id, claim, number, started_at, ended_at, outcome, code, done)"
        " select :job, n, 1, now(), now() + n * interval '1 second', 'snoozed', 'throttled', n"
        " from generate_series(1, 10000) n",
        job=job_id,
    )
    with database.transaction() as session:
        found = reads.attempts(driver(session), job_id)
    assert [attempt.done for attempt in found] == list(range(10_000, 9_900, -1))


def test_live_jobs_about_a_subject_are_those_that_have_not_ended(database: Database, team: Team) -> None:
    running = make_job(database, team, "running", subject="course:1")
    ended = make_job(database, team, "finished", subject="course:1")
    make_job(database, team, "running", subject="course:2")
    with database.transaction() as session:
        connection = driver(session)
        assert [job.id for job in reads.active_for_subject(connection, "course:1")] == [running]
        assert [job.id for job in reads.latest_for_subject(connection, "course:1")] == [ended, running]


def test_unended_jobs_are_the_workspaces_own(database: Database, team: Team) -> None:
    running = make_job(database, team, "running")
    make_job(database, team, "finished")
    make_job(database, factories.make_team(database), "running")
    with database.transaction() as session:
        assert [job.id for job in reads.unended(driver(session), team.workspace.id)] == [running]


def test_ahead_counts_what_would_be_taken_first(database: Database, team: Team) -> None:
    make_job(database, team, priority=0)
    make_job(database, team)
    mine = make_job(database, team)
    make_job(database, team)
    make_job(database, team, "retrying")
    with database.transaction() as session:
        assert reads.ahead(driver(session), read_job(database, mine)) == 2


def test_newer_counts_later_jobs_of_the_workspace(database: Database, team: Team) -> None:
    first = make_job(database, team)
    make_job(database, team)
    make_job(database, factories.make_team(database))
    with database.transaction() as session:
        assert reads.newer(driver(session), team.workspace.id, first) == 1


STATEMENTS: dict[str, dict[str, Any]] = {
    "jobs": {"ids": [1, 2]},
    "page": {"before": 10, "bucket": None, "most": 51},
    "newer": {"job": 1},
    "counts": {"most": 10_001},
    "attempts": {"job": 1},
    "active_for_subject": {"subject": "course:1"},
    "latest_for_subject": {"subject": "course:1", "most": 5},
    "unended": {"most": 5},
    "ahead": {"queue": "workspace.jobs", "priority": 1, "job": 1},
    "has_worker": {"queue": "workspace.jobs", "silent": 90.0},
}


@pytest.mark.parametrize("name", list(STATEMENTS))
def test_every_statement_has_an_index_to_go_by(connection: Any, team: Team, name: str) -> None:
    filters = {"kind": None, "actor": None, "words": None, "since": None, "until": None, "problems": False}
    values = filters | {"workspace": team.workspace.id} | STATEMENTS[name]
    connection.execute("set local enable_seqscan = off")
    plan = connection.execute("explain " + load(SQL)[name], values).fetchall()
    whole = [line for (line,) in plan if "Seq Scan" in line]
    assert whole == []


def test_every_statement_is_among_those_looked_at() -> None:
    assert set(load(SQL)) == set(STATEMENTS)
