"""A backup against what PostgreSQL and zip do by themselves with the same rows, interleaved on one durable server.

floor     ``copy … to stdout`` of all tables of the workspace into a deflated zip file: no JSON, nothing hashed or read
          back
backup    a job of a real worker, from its start to its end: read, hashed, packed, flushed, read back, published

Times are medians of five rounds; their ratio is the result.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from hub import postgres
from hub.jobs.create import create
from tests import factories
from tests.bench import tagging
from tests.bench.tagging import Bench
from tests.factories import Team

PAGES = int(os.environ.get("BENCH_BACKUP_PAGES", "30000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
LEAST = 0.4

# About a kilobyte of text a page, of 4,000 words, which packs about as well as prose. Words are made where they stand:
# PostgreSQL goes through an array of them from its start for each.
BODIES = """
    update hub.page set body = (
        select string_agg(left(md5(word::text), 3 + word % 7), ' ')
        from generate_series(1, 160) n
        cross join lateral (select 1 + (hashint4(n * 7919 + page.position) & 4095) % 4000 as word) w
    )
"""
TAGS = """
    with tags as (
        insert into hub.tag (id, workspace_id, name, key)
        select gen_random_uuid(), :workspace, 'tag ' || n, 'tag ' || n from generate_series(1, 5) n returning id
    )
    insert into hub.page_tag (page_id, tag_id) select page.id, tags.id from hub.page, tags where page.position % 2 = 0
"""
TABLES = {
    "workspace": "select * from hub.workspace where id = '{0}'",
    "members": "select m.*, p.email, p.name from hub.membership m join hub.person p on p.id = m.person_id"
    " where m.workspace_id = '{0}'",
    "tags": "select * from hub.tag where workspace_id = '{0}'",
    "courses": "select * from hub.course where workspace_id = '{0}'",
    "pages": "select p.* from hub.page p join hub.course c on c.id = p.course_id where c.workspace_id = '{0}'",
    "page_tags": "select t.* from hub.page_tag t join hub.page p on p.id = t.page_id"
    " join hub.course c on c.id = p.course_id where c.workspace_id = '{0}'",
}


def main() -> int:
    """Run the bench; exit status 1 if the ratio falls short."""
    with tempfile.TemporaryDirectory(prefix="hub-bench-") as folder:
        os.chmod(folder, 0o755)
        server = postgres.start(Path(folder))
        try:
            return measure(tagging.prepare(server, Path(folder)), Path(folder))
        finally:
            server.stop()


def measure(bench: Bench, folder: Path) -> int:
    team, _, _ = bench.course(PAGES)
    factories.run(bench.database, BODIES)
    factories.run(bench.database, TAGS, workspace=team.workspace.id)
    seconds: dict[str, list[float]] = {"floor": [], "backup": []}
    for number in range(ROUNDS):
        seconds["floor"].append(floor(bench, team, folder / "floor.zip"))
        seconds["backup"].append(backup(bench, team, number))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:8}  {median:6.2f} s   rounds: {', '.join(f'{value:.2f}' for value in seconds[name])}")
    ratio = medians["floor"] / medians["backup"]
    print(f"a backup of {PAGES:,} pages runs at {ratio:.2f} of the floor's speed (at least {LEAST})")
    return 0 if ratio >= LEAST else 1


def floor(bench: Bench, team: Team, path: Path) -> float:
    started = time.perf_counter()
    with (
        bench.database.autocommit() as connection,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
    ):
        for table, query in TABLES.items():
            statement = f"copy ({query.format(team.workspace.id)}) to stdout"
            with (
                file.open(table, "w", force_zip64=True) as entry,
                connection.cursor() as cursor,
                cursor.copy(statement.encode()) as rows,
            ):
                for piece in rows:
                    entry.write(piece)
    return time.perf_counter() - started


def backup(bench: Bench, team: Team, number: int) -> float:
    """Seconds of a real worker process, by the database's own times of the job's start and end."""
    order: dict[str, Any] = {"kind": "workspace.backup", "args": {}, "key": f"bench-{number}"}
    with bench.database.transaction() as session:
        job = create(session, bench.settings, workspace=team.workspace, actor=team.actor, **order).job_id
    worker = tagging.start_worker(bench)
    try:
        ended = tagging.wait_for_end(bench, job)
    finally:
        worker.close()
    counts = factories.row(bench.database, "select counts from hub.backup where job_id = :id", id=job).counts
    assert counts["pages"] == PAGES, counts
    return float(ended.seconds)


if __name__ == "__main__":
    sys.exit(main())
