"""Backups of large workspaces under edits, and of workers that are killed at any moment."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import threading
import time
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from hub.clients.blob import open_store
from hub.jobs.create import create
from hub.models import archive, course
from tests.factories import Team, make_course, run
from tests.limits.harness import Site, Timer, freeze, measured, rss, scaled, thaw
from tests.processes import until

PAGES = scaled(100_000, 5_000)
KILLS = scaled(10, 3)
LEASE = {"HUB_QUEUE_LEASE": "3", "HUB_QUEUE_RENEW": "1"}
BODIES = """
    update hub.page set body = (
        select string_agg(md5(page.id::text || n), E'\\n' order by n) from generate_series(1, 30) n
    )
"""
_keys = itertools.count(1)


def start(hub: Site, team: Team, kind: str = "workspace.backup", **args: Any) -> int:
    """A committed job."""
    with hub.database.transaction() as session:
        return create(
            session,
            hub.settings,
            workspace=team.workspace,
            actor=team.actor,
            kind=kind,
            args=args,
            key=f"b-{next(_keys)}",
        ).job_id


def path_of(hub: Site, key: str) -> Path:
    """Where a backup's file is."""
    folder = open_store(hub.settings).folder
    assert folder is not None
    return folder / key


def image(hub: Site) -> dict[str, tuple[Any, ...]]:
    """Every page with a digest of its body and its tags."""
    query = """
        select p.id::text, p.title, p.version, p.position, md5(p.body) as body,
               array(select tag_id::text from hub.page_tag t where t.page_id = p.id order by 1) as tags
        from hub.page p
    """
    return {page.id: (page.title, page.version, page.position, page.body, page.tags) for page in hub.rows(query)}


def image_of(path: Path) -> dict[str, tuple[Any, ...]]:
    """The same of a backup."""
    tags: dict[str, list[str]] = {}
    pages: dict[str, tuple[Any, ...]] = {}
    with zipfile.ZipFile(path) as file:
        with file.open("data/page_tags.jsonl") as lines:
            for row in map(json.loads, lines):
                tags.setdefault(row["page_id"], []).append(row["tag_id"])
        with file.open("data/pages.jsonl") as lines:
            for row in map(json.loads, lines):
                body = hashlib.md5(row["body"].encode()).hexdigest()
                pages[row["id"]] = (
                    row["title"],
                    row["version"],
                    row["position"],
                    body,
                    sorted(tags.get(row["id"], [])),
                )
    return pages


class Editor(threading.Thread):
    """Edits, tags and deletes pages, each only once, until it is told to stop; knows the longest that one took."""

    def __init__(self, hub: Site, team: Team, course_id: uuid.UUID, pages: list[str]) -> None:
        super().__init__(daemon=True)
        self._hub, self._team, self._course = hub, team, course_id
        self._pages = iter(pages)
        self.slowest = 0.0
        self.done = 0
        self.stop = threading.Event()

    def run(self) -> None:
        """Work through the pages."""
        for number, page in enumerate(self._pages):
            if self.stop.is_set():
                return
            timer = Timer()
            with self._hub.database.transaction() as session:
                self._change(session, uuid.UUID(page), number)
            self.slowest = max(self.slowest, timer.seconds)
            self.done += 1

    def _change(self, session: Session, page: uuid.UUID, number: int) -> None:
        place = (session, self._team.workspace.id, self._course, page)
        if number % 5 == 0:
            course.delete_page(*place, if_match="*", actor=self._team.actor)
        else:
            changed: dict[str, Any] = {"tags": ["changed"]} if number % 5 == 1 else {"title": f"Changed {number}"}
            course.edit_page(*place, if_match="*", fields=changed, actor=self._team.actor)


def test_a_large_backup_is_its_snapshot_while_pages_change_and_memory_stays_flat(site: Callable[..., Site]) -> None:
    hub = site(replicas=0, workers=1)
    team = hub.team()
    course_id = make_course(hub.database, team, PAGES)
    run(hub.database, BODIES)
    before = image(hub)
    worker = hub.workers[0]
    idle = highest = rss(worker.pid)
    timer = Timer()
    job_id = start(hub, team)
    until(lambda: hub.job(job_id).total)
    # The snapshot is taken: from here on, pages change. At first while the backup stands still, which hinders nobody.
    freeze(worker)
    editor = Editor(hub, team, course_id, list(before))
    editor.start()
    until(lambda: editor.done >= 50)
    measured("slowest edit while the backup stands still, s", round(editor.slowest, 3))
    thaw(worker)
    while hub.job(job_id).finished_at is None:
        highest = max(highest, rss(worker.pid))
        time.sleep(0.01)
    measured(f"backup of {PAGES} pages under edits, s", round(timer.seconds, 1))
    editor.stop.set()
    editor.join()
    measured("edits meanwhile", editor.done)
    measured("slowest edit, s", round(editor.slowest, 3))
    measured("growth of the worker's memory, MB", round((highest - idle) / 1e6, 1))
    assert hub.job(job_id).state == "succeeded"
    assert highest - idle < 40_000_000
    (made,) = hub.rows("select * from hub.backup")
    assert image_of(path_of(hub, made.storage_key)) == before
    assert image(hub) != before
    _restore(hub, team, made, before)


def _restore(hub: Site, team: Team, made: Any, before: dict[str, tuple[Any, ...]]) -> None:
    worker = hub.workers[0]
    idle = highest = rss(worker.pid)
    timer = Timer()
    job_id = start(hub, team, "workspace.restore", backup_id=str(made.id), name="Copy")
    while hub.job(job_id).finished_at is None:
        highest = max(highest, rss(worker.pid))
        time.sleep(0.01)
    measured(f"restoring {PAGES} pages, s", round(timer.seconds, 1))
    measured("growth of the worker's memory, MB", round((highest - idle) / 1e6, 1))
    assert hub.job(job_id).state == "succeeded"
    assert highest - idle < 40_000_000
    query = """
        select p.position, p.title, md5(p.body) as body from hub.page p
        join hub.course c on c.id = p.course_id join hub.workspace w on w.id = c.workspace_id
        where w.slug = 'copy' order by p.position
    """
    restored = [tuple(page) for page in hub.rows(query)]
    assert restored == sorted((position, title, body) for title, _, position, body, _ in before.values())


# Killed at any moment


def test_a_worker_that_is_killed_at_any_moment_leaves_whole_backups_and_in_the_end_nothing_else(
    site: Callable[..., Site],
) -> None:
    hub = site(replicas=0, workers=0, **LEASE)
    team = hub.team()
    make_course(hub.database, team, scaled(20_000, 4_000))
    run(hub.database, BODIES)
    chance = random.Random(scaled(7, 3))
    hub.add_worker()
    timer = Timer()
    job_id = start(hub, team)
    hub.await_jobs()
    usual = timer.seconds
    for _ in range(KILLS):
        job_id = start(hub, team)
        until(lambda: hub.job(job_id).state == "running")  # noqa: B023
        time.sleep(chance.uniform(0, usual))
        hub.workers[-1].kill()
        _all_published_are_whole(hub)
        hub.add_worker()
    hub.await_jobs()
    last = start(hub, team)
    hub.await_jobs()
    assert hub.job(last).state == "succeeded"
    published = _all_published_are_whole(hub)
    # Ten are kept; older ones went, with their files.
    assert len(published) == min(KILLS + 2, 10)
    kept = {path.name for path in path_of(hub, published[0]).parent.iterdir()}
    assert kept == {key.rpartition("/")[2] for key in published}


def _all_published_are_whole(hub: Site) -> list[str]:
    found = hub.rows("select storage_key, sha256, bytes from hub.backup where state = 'available'")
    for made in found:
        path = path_of(hub, made.storage_key)
        assert path.stat().st_size == made.bytes
        with path.open("rb") as file:
            archive.check(file, made.sha256)
    return [made.storage_key for made in found]


def test_a_worker_that_is_killed_while_it_restores_leaves_a_whole_workspace_or_none(site: Callable[..., Site]) -> None:
    hub = site(replicas=0, workers=1, **LEASE)
    team = hub.team()
    pages = scaled(20_000, 4_000)
    make_course(hub.database, team, pages)
    start(hub, team)
    hub.await_jobs()
    (made,) = hub.rows("select id from hub.backup")
    chance = random.Random(scaled(5, 2))
    for number in range(1, scaled(10, 2) + 1):
        timer = Timer()
        job_id = start(hub, team, "workspace.restore", backup_id=str(made.id), name=f"Copy {number}")
        until(lambda: hub.job(job_id).state == "running")  # noqa: B023
        time.sleep(chance.uniform(0, scaled(2.0, 0.5)))
        hub.workers[-1].kill()
        _all_visible_are_whole(hub, pages)
        hub.add_worker()
        hub.await_jobs()
        measured("restored after a kill, s", round(timer.seconds, 1))
        assert _all_visible_are_whole(hub, pages) == number + 1
        assert hub.count("select count(*) from hub.workspace") == number + 1


def _all_visible_are_whole(hub: Site, pages: int) -> int:
    query = """
        select count(p.id) as pages from hub.workspace w
        left join hub.course c on c.workspace_id = w.id left join hub.page p on p.course_id = c.id
        where w.enabled group by w.id
    """
    counts = [found.pages for found in hub.rows(query)]
    assert set(counts) == {pages}
    return len(counts)
