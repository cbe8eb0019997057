"""``make bench``: one tagging job against two floors, interleaved on one durable server.

floor a   a loop of bare single-row updates, each its own commit: what the server and the driver can do at all
floor b   a loop of the writes that tagging does (page version, tag row, job counters) in one statement, with no check

Rates are medians of five rounds. Figures of a noisy machine are worth little by themselves; the ratios are the result.
Then the processor time a page, of worker and server together, over a long job: its last tenth against its first.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from hub import config, postgres, schema
from hub.config import Settings
from hub.db import Database
from tests import factories
from tests.processes import Worker

PAGES = int(os.environ.get("BENCH_PAGES", "5000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
LONG = int(os.environ.get("BENCH_LONG", "50000"))
LEAST_OF_A, LEAST_OF_B, MOST_GROWTH = 0.3, 0.6, 1.15

BARE = "update hub.page set version = version + 1 where id = %s"
UNCHECKED = """
    with written as (
        update hub.page set version = version + 1, updated_at = statement_timestamp(), updated_by = %(name)s
        where id = %(page)s returning id
    ), added as (
        insert into hub.page_tag (page_id, tag_id, job_id, added_by) select id, %(tag)s, %(job)s, %(name)s from written
    )
    update queue.job set changed = changed + 1, progressed_at = statement_timestamp(), version = version + 1,
        deadline_at = statement_timestamp() + make_interval(secs => attempt_seconds)
    where id = %(job)s
"""


@dataclass
class Bench:
    """The server, its settings, and a team to work for."""

    server: postgres.Server
    settings: Settings
    database: Database

    def course(self, pages: int) -> tuple[factories.Team, uuid.UUID, list[uuid.UUID]]:
        team = factories.make_team(self.database)
        course = factories.make_course(self.database, team, pages=pages)
        ids = factories.rows(self.database, "select id from hub.page where course_id = :c order by position", c=course)
        factories.run(self.database, "select 1")
        return team, course, [row.id for row in ids]


def main() -> int:
    """Run the bench; exit status 1 if a ratio falls short."""
    with bench_server() as bench:
        return measure(bench)


@contextmanager
def bench_server() -> Iterator[Bench]:
    """A durable server of its own with Hub's schemas."""
    with tempfile.TemporaryDirectory(prefix="hub-bench-") as folder:
        os.chmod(folder, 0o755)
        server = postgres.start(Path(folder))
        try:
            yield prepare(server, Path(folder))
        finally:
            server.stop()


def prepare(server: postgres.Server, folder: Path) -> Bench:
    schema.init(server.admin_url)
    schema.upgrade(server.url("hub_migrate"))
    settings = replace(
        config.load({}),
        database_url=server.url("hub_app"),
        data_dir=folder,
        jobs_max_pending_per_actor=1000,
        jobs_max_pending_per_workspace=1000,
    )
    return Bench(server, settings, Database(settings.database_url, application_name="bench"))


def measure(bench: Bench) -> int:
    ways: dict[str, Callable[[Bench], float]] = {"floor a": floor_a, "floor b": floor_b, "tagging": tagging}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            rates[name].append(way(bench))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"{name:8}  {rate:8,.0f} pages/s   rounds: {', '.join(f'{value:,.0f}' for value in rates[name])}")
    of_a, of_b = medians["tagging"] / medians["floor a"], medians["tagging"] / medians["floor b"]
    print(f"tagging is {of_a:.2f} of floor a (at least {LEAST_OF_A}) and {of_b:.2f} of floor b (at least {LEAST_OF_B})")
    first, last = processor_time(bench)
    growth = last / first
    print(
        f"processor time a page over {LONG:,} pages: {first:.0f} us in the first tenth, {last:.0f} us in the last:"
        f" {growth:.2f} (at most {MOST_GROWTH})"
    )
    return 0 if of_a >= LEAST_OF_A and of_b >= LEAST_OF_B and growth <= MOST_GROWTH else 1


def floor_a(bench: Bench) -> float:
    _, _, ids = bench.course(PAGES)
    with bench.database.autocommit() as connection:
        started = time.perf_counter()
        for page in ids:
            connection.execute(BARE, [page], prepare=True)
        return PAGES / (time.perf_counter() - started)


def floor_b(bench: Bench) -> float:
    team, course, ids = bench.course(PAGES)
    job = factories.start_tagging(bench.database, bench.settings, team, course, "bench").job_id
    tag = factories.row(bench.database, "select id from hub.tag where workspace_id = :w", w=team.workspace.id).id
    with bench.database.autocommit() as connection:
        started = time.perf_counter()
        for page in ids:
            values = {"page": page, "tag": tag, "job": job, "name": "bench"}
            connection.execute(UNCHECKED, values, prepare=True)
        rate = PAGES / (time.perf_counter() - started)
    # The job served its row only; no worker may run it later.
    factories.run(bench.database, "delete from queue.job where id = :id", id=job)
    return rate


def tagging(bench: Bench) -> float:
    """The rate of a real worker process, by the database's own times of the job's start and end."""
    team, course, _ = bench.course(PAGES)
    job = factories.start_tagging(bench.database, bench.settings, team, course, "bench").job_id
    worker = start_worker(bench)
    try:
        ended = wait_for_end(bench, job)
    finally:
        worker.close()
    assert ended.changed == PAGES, f"{ended.changed} of {PAGES} pages were tagged"
    return PAGES / ended.seconds


def processor_time(bench: Bench) -> tuple[float, float]:
    """Microseconds a page of worker and server together, in the first and the last tenth of a long job."""
    team, course, _ = bench.course(LONG)
    job = factories.start_tagging(bench.database, bench.settings, team, course, "bench").job_id
    samples: list[tuple[int, float]] = []
    worker = start_worker(bench)
    try:
        while not samples or samples[-1][0] < LONG:
            row = factories.row(bench.database, "select changed, finished_at from queue.job where id = :id", id=job)
            if row.finished_at:
                break
            samples.append((row.changed, cpu_seconds(bench, worker)))
            time.sleep(0.1)
        samples.append((LONG, cpu_seconds(bench, worker)))
    finally:
        worker.close()
    tenth = LONG // 10
    return per_page(samples, 0, tenth), per_page(samples, LONG - tenth, LONG)


def per_page(samples: list[tuple[int, float]], start: int, end: int) -> float:
    inside = [sample for sample in samples if start <= sample[0] <= end and sample[0] > 0]
    (p1, t1), (p2, t2) = inside[0], inside[-1]
    return (t2 - t1) / (p2 - p1) * 1e6


def cpu_seconds(bench: Bench, worker: Worker) -> float:
    """Processor time so far of the worker and of every server process but this bench's own."""
    own = factories.rows(bench.database, "select pid from pg_catalog.pg_stat_activity where application_name = 'bench'")
    children = set(children_of(parent_of(own[0].pid))) - {row.pid for row in own}
    return sum(cpu_of(pid) for pid in [*children, worker.pid])


def children_of(pid: int) -> list[int]:
    return [int(entry) for entry in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_worker(bench: Bench) -> Worker:
    environ = {"HUB_DATABASE_URL": bench.settings.database_url, "HUB_DATA_DIR": str(bench.settings.data_dir)}
    return Worker(environ, "workspace.jobs=1")


def wait_for_end(bench: Bench, job: int) -> Any:
    with psycopg.connect(bench.settings.database_url, autocommit=True) as connection:
        connection.execute("listen hub_job")
        while True:
            row = factories.row(
                bench.database,
                "select changed, extract(epoch from finished_at - started_at)::float8 as seconds, finished_at"
                " from queue.job where id = :id",
                id=job,
            )
            if row.finished_at:
                return row
            for _ in connection.notifies(timeout=5, stop_after=1):
                pass


if __name__ == "__main__":
    sys.exit(main())
