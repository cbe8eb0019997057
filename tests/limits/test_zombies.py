"""A worker frozen past its lease: another finishes the job, and nothing that the first one does afterwards lands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import psycopg

from hub.db import driver
from hub.queue import store
from tests.factories import Team, make_course, start_tagging
from tests.invariants import Watch
from tests.limits import lingering
from tests.limits.harness import Site, Timer, freeze, scaled, thaw
from tests.limits.wire import Trap, Wire
from tests.processes import Program, Worker, until

PAGES = scaled(4000, 1500)
LEASE = {"HUB_QUEUE_LEASE": "3", "HUB_QUEUE_RENEW": "1"}
LOST = "nothing more is written"
# What the backends of a claim did after the claim was taken from it.
LATE = """
    with mine as (select distinct pid from $transition where job_id = %(job)s and new_claim = %(claim)s),
    taken as (
        select min(seq) as seq, min(at) as at from $transition
        where job_id = %(job)s and old_claim = %(claim)s and new_claim is distinct from old_claim
    )
    select 'job' as what, t.seq from $transition t, taken
    where t.job_id = %(job)s and t.seq > taken.seq and t.pid in (select pid from mine)
    union all
    select 'page', w.seq from $page_write w, taken where w.at > taken.at and w.pid in (select pid from mine)
"""


def test_frozen_between_two_transactions(site: Callable[..., Site], watch: Watch) -> None:
    hub = site(replicas=0, workers=1, **LEASE)
    team, job_id, first, claim = _begin(hub)
    freeze(first)
    _finish_elsewhere(hub, job_id)
    thaw(first)
    _check(hub, watch, team, job_id, first, claim)


def test_frozen_for_two_leases_with_all_its_lanes_busy(site: Callable[..., Site], watch: Watch, wire: Wire) -> None:
    hub = site(replicas=0, workers=0, **LEASE)
    hub.add_worker(HUB_DATABASE_URL=wire.url)
    team, job_id, first, claim = _begin(hub)
    course = make_course(hub.database, team, PAGES)
    other = start_tagging(hub.database, hub.settings, team, course, "chemistry").job_id
    until(lambda: hub.job(other).changed > 0)
    wire.hold()
    # Both handlers, and the renewal of their leases.
    wire.await_held(3)
    freeze(first)
    timer = Timer()
    _finish_elsewhere(hub, job_id)
    until(lambda: hub.job(other).finished_at and timer.seconds > 2 * hub.settings.queue_lease)
    thaw(first)
    wire.release()
    # Its handlers did not hang: they were frozen, as was whoever watches over them.
    until(lambda: sum(LOST in line for line in first.lines) == 2)
    _check(hub, watch, team, job_id, first, claim)


def test_frozen_while_its_statement_waits_for_a_row(site: Callable[..., Site], watch: Watch, admin_url: str) -> None:
    hub = site(replicas=0, workers=1, **LEASE)
    team = hub.team()
    course = make_course(hub.database, team, PAGES)
    middle = hub.row(
        "select id from hub.page where course_id = :course and position = :middle", course=course, middle=PAGES // 2
    )
    with psycopg.connect(admin_url) as editor:
        editor.execute("select from hub.page where id = %s for update", [middle.id])
        job_id = start_tagging(hub.database, hub.settings, team, course).job_id
        waiting = """
            select count(*) from pg_stat_activity
            where datname = current_database() and application_name = 'hub worker' and wait_event_type = 'Lock'
        """
        until(lambda: hub.count(waiting))
        first, claim = _holder(hub, job_id)
        freeze(first)
        # The server gives up the statement, and with it the job's row, although its client is frozen.
        until(lambda: not hub.count(waiting))
        editor.rollback()
    _finish_elsewhere(hub, job_id)
    thaw(first)
    _check(hub, watch, team, job_id, first, claim)


def test_frozen_inside_an_open_transaction(site: Callable[..., Site], watch: Watch, tmp_path: Path) -> None:
    hub = site(replicas=0, workers=0, **LEASE)
    team = hub.team()
    page = hub.row("select id, version from hub.page where course_id = :id", id=make_course(hub.database, team, 1))
    first = _lingering(hub)
    file = tmp_path / "go on"
    job_id = _enqueue(hub, team, page.id, file)
    first.await_line("inside the transaction")
    claim = hub.job(job_id).claim
    freeze(first)
    second = _lingering(hub)
    until(lambda: hub.job(job_id).finished_at)
    file.touch()
    thaw(first)
    first.await_line(LOST)
    job = hub.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert hub.row("select title from hub.page where id = :id", id=page.id).title == "attempt 2"
    assert watch.rows(LATE, {"job": job_id, "claim": claim}) == []
    second.terminate()
    _goes_on(hub, team, first)


def test_frozen_with_a_statement_on_its_way(site: Callable[..., Site], watch: Watch, wire: Wire) -> None:
    hub = site(replicas=0, workers=0, **LEASE)
    hub.add_worker(HUB_DATABASE_URL=wire.url)
    team, job_id, first, claim = _begin(hub)
    wire.hold()
    wire.await_held()
    freeze(first)
    done = hub.job(job_id).changed
    second = hub.add_worker(HUB_QUEUE_LEASE="60", HUB_QUEUE_RENEW="20")
    until(lambda: hub.job(job_id).changed > done + 50)
    _freeze_between_transactions(hub, second, job_id)
    # Now the statement of the old claim arrives, and is executed while the job runs under the new one.
    wire.release()
    thaw(first)
    first.await_line(LOST)
    thaw(second)
    until(lambda: hub.job(job_id).finished_at)
    _check(hub, watch, team, job_id, first, claim)


def test_cut_off_before_the_commit_of_its_end(site: Callable[..., Site], watch: Watch, wire: Wire) -> None:
    hub = site(replicas=0, workers=0, **LEASE)
    hub.add_worker(HUB_DATABASE_URL=wire.url)
    wire.set_trap(Trap(after=b"job.succeeded", at=b"COMMIT", act="hold"))
    team = hub.team()
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, PAGES)).job_id
    wire.await_held()
    first, claim = _holder(hub, job_id)
    # The open transaction has the job's row; the server ends it before the lease lapses.
    _finish_elsewhere(hub, job_id)
    wire.release()
    _check(hub, watch, team, job_id, first, claim)


def test_cut_off_without_being_frozen(site: Callable[..., Site], watch: Watch, wire: Wire) -> None:
    hub = site(replicas=0, workers=0, **LEASE)
    hub.add_worker(HUB_DATABASE_URL=wire.url)
    team, job_id, first, claim = _begin(hub)
    wire.hold()
    wire.await_held()
    _finish_elsewhere(hub, job_id)
    wire.release()
    _check(hub, watch, team, job_id, first, claim)


def _begin(hub: Site) -> tuple[Team, int, Worker, int]:
    """A job in the middle of its pages, with the worker that runs it and its claim."""
    team = hub.team()
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, PAGES)).job_id
    until(lambda: hub.job(job_id).changed > 50)
    first, claim = _holder(hub, job_id)
    return team, job_id, first, claim


def _holder(hub: Site, job_id: int) -> tuple[Worker, int]:
    (worker,) = hub.workers
    claim = hub.job(job_id).claim
    assert claim is not None
    return worker, claim


def _freeze_between_transactions(hub: Site, worker: Worker, job_id: int) -> None:
    """Freeze a worker while it does not hold the job's row."""

    def frozen() -> bool:
        freeze(worker)
        free = hub.rows("select from queue.job where id = :id for no key update skip locked", id=job_id)
        if not free:
            thaw(worker)
        return bool(free)

    until(frozen)


def _finish_elsewhere(hub: Site, job_id: int) -> None:
    """Another worker takes the job once the lease has lapsed, and ends it."""
    hub.add_worker()
    until(lambda: hub.job(job_id).finished_at)


def _check(hub: Site, watch: Watch, team: Team, job_id: int, first: Worker, claim: int) -> None:
    """The job ended once, by the other worker, with every page done once; the first noticed and works on."""
    first.await_line(LOST)
    job = hub.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert (job.changed, job.skipped, job.failed) == (PAGES, 0, 0)
    assert hub.count("select count(*) from hub.page_tag where job_id = :id", id=job_id) == PAGES
    assert hub.row("select outcome::text, code from queue.attempt where job_id = :id", id=job_id) == (
        "lost",
        "worker_lost",
    )
    assert watch.rows(LATE, {"job": job_id, "claim": claim}) == []
    hub.workers[-1].terminate()
    _goes_on(hub, team, first)


def _goes_on(hub: Site, team: Team, worker: Program) -> None:
    """With no other worker there, this one does the next job."""
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, 3)).job_id
    until(lambda: hub.job(job_id).state == "succeeded")
    assert worker.process.poll() is None


def _lingering(hub: Site) -> Program:
    program = hub.keep(Program([sys.executable, "-m", "tests.limits.lingering"], hub.environ))
    program.await_line(Worker.READY)
    return program


def _enqueue(hub: Site, team: Team, page_id: UUID, file: Path) -> int:
    with hub.database.transaction() as session:
        return store.enqueue(
            driver(session),
            lingering.KIND,
            {"page_id": str(page_id), "file": str(file)},
            ceiling=hub.settings.queue_max_attempts,
            workspace_id=team.workspace.id,
        ).id
