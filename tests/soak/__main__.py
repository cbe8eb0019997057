"""``make soak``: a mix of jobs, two workers and a server of their own, faults drawn from a seed; then the verdict.

SOAK_SECONDS, SOAK_JOBS and SOAK_SEED say how long, how many and which. The seed decides what is enqueued and which
faults come in which order; how they meet is up to the machine. Exit status 1: something did not hold; then the folder
with the database and what the workers said is kept.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from hub import config, postgres, schema
from hub.config import Settings
from hub.db import Database
from tests import factories
from tests.factories import Team
from tests.invariants import Violation, Watch
from tests.soak import kinds, verdict
from tests.soak.callers import COURSES, THREADS, Callers, draw_wishes
from tests.soak.faults import Faults, Workers

WORKERS = 2
TEAMS, PAGES = 3, 30
# After the faults, jobs are given up as stuck when none has ended for so many seconds.
STUCK_SECONDS = 60.0
# Short leases, short waits; limits on what people may ask for so wide that nobody meets them.
SETTINGS: dict[str, Any] = {
    "queue_lease": 2.0,
    "queue_renew": 0.5,
    "queue_retry_base": 0.05,
    "queue_retry_max": 1.0,
    "queue_backstop": 5.0,
    "queue_listen_ping": 2.0,
    "queue_grace": 5.0,
}
LIMITS: dict[str, Any] = {
    "jobs_max_pending_per_workspace": 1_000_000,
    "jobs_max_pending_per_actor": 1_000_000,
    "jobs_max_created_per_day": 1_000_000,
}


@dataclass(frozen=True)
class Plan:
    """How long faults come, how many jobs are enqueued meanwhile, and the seed."""

    seconds: float
    jobs: int
    seed: int


@dataclass(frozen=True)
class Ground:
    """Where the soak takes place: a server with Hub's schemas and the soak's tables."""

    folder: Path
    server: postgres.Server
    settings: Settings
    database: Database
    watch: Watch


def main() -> int:
    """Run the soak that the environment describes."""
    seed = os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(2**32)
    plan = Plan(float(os.environ.get("SOAK_SECONDS", "180")), int(os.environ.get("SOAK_JOBS", "6000")), int(seed))
    print(f"seed {plan.seed}: {plan.jobs} enqueues, {WORKERS} workers, {plan.seconds:g} seconds of faults", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="hub-soak-"))
    passed = False
    try:
        with prepare(folder) as ground:
            passed = soak(ground, plan)
    finally:
        if passed:
            shutil.rmtree(folder)
        else:
            print(f"kept: {folder}")
    return 0 if passed else 1


@contextmanager
def prepare(folder: Path) -> Iterator[Ground]:
    """A server of its own in the folder, that ends with this process."""
    folder.chmod(0o755)
    server = postgres.start(folder, os.environ.get("HUB_PG_BIN") or None, tied=True)
    try:
        schema.init(server.admin_url)
        schema.upgrade(server.url("hub_migrate"))
        with psycopg.connect(server.admin_url) as connection:
            connection.execute(kinds.TABLES)
        watch = Watch(server.admin_url)
        watch.install()
        settings = replace(config.load({}), data_dir=folder, database_url=server.url("hub_app"), **SETTINGS, **LIMITS)
        database = Database(settings.database_url, application_name="soak", size=THREADS + 2)
        yield Ground(folder, server, settings, database, watch)
        database.close()
    finally:
        server.stop()


def soak(ground: Ground, plan: Plan) -> bool:
    """Enqueue, inflict faults, let everything end, judge; whether all held."""
    wishes = draw_wishes(random.Random(f"wishes {plan.seed}"), plan.jobs)
    courses = make_courses(ground.database)
    workers = Workers(environ(ground.settings), WORKERS, ground.folder)
    try:
        faults = Faults(random.Random(f"faults {plan.seed}"), ground.server, workers, ground.settings.queue_lease)
        callers = Callers(ground.database, ground.settings, courses, wishes, plan.seconds)
        callers.start()
        faults.run(plan.seconds)
        callers.finish()
        await_ends(ground.database)
        workers.stop()
    finally:
        workers.close()
    violations = verdict.check(ground.database, ground.settings, ground.watch, callers.acknowledged)
    violations += told("callers", "every enqueue is answered", callers.errors)
    violations += told("workers", "no worker ends but for a fault", workers.surprises)
    report(ground.database, faults, callers)
    print("\n".join(map(str, violations)) if violations else "PASS")
    return not violations


def make_courses(database: Database) -> list[tuple[Team, UUID]]:
    """Courses of a few teams, for people to tag."""
    teams = [factories.make_team(database) for _ in range(TEAMS)]
    return [(team, factories.make_course(database, team, PAGES)) for team in teams for _ in range(COURSES // TEAMS)]


def environ(settings: Settings) -> dict[str, str]:
    """The workers' settings."""
    names = ("database_url", "data_dir", *SETTINGS)
    return {config.variable(name): str(getattr(settings, name)) for name in names}


def await_ends(database: Database) -> None:
    """Wait until every job has ended, or none has for long."""
    left, since = None, time.monotonic()
    while time.monotonic() < since + STUCK_SECONDS:
        now = factories.row(database, "select count(*) as jobs from queue.job where finished_at is null").jobs
        if now == 0:
            return
        if now != left:
            left, since = now, time.monotonic()
        time.sleep(0.1)


def told(name: str, says: str, errors: list[str]) -> list[Violation]:
    """What is no row of the database, as a violation."""
    return [Violation(name, says, [{"error": error} for error in errors[:20]])] if errors else []


def report(database: Database, faults: Faults, callers: Callers) -> None:
    """Print what happened, in numbers."""
    print("faults:", ", ".join(f"{name} {number}" for name, number in sorted(faults.counts.items())))
    twins = sum(not one.created for one in callers.acknowledged)
    print(
        f"enqueues acknowledged: {len(callers.acknowledged)}, {twins} of them by the live job of their key;"
        f" in doubt meanwhile: {len(callers.in_doubt)}"
    )
    for kind, state, code, jobs in verdict.jobs_by_end(database):
        print(f"{jobs:8}  {kind} {state} {code}")
    attempts = [f"{outcome} {number}" for outcome, number in verdict.attempts_by_outcome(database)]
    print("attempts that did not end their job:", ", ".join(attempts))


if __name__ == "__main__":
    sys.exit(main())
