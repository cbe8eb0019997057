"""A desk for backups: a team with courses, its backups and their files."""

from __future__ import annotations

import io
import itertools
import json
import uuid
import zipfile
from pathlib import Path
from typing import Any

from hub.clients.blob import Store, open_store
from hub.models import archive, backup
from hub.models.archive import Manifest
from hub.models.backup import Backup
from hub.models.base import new_id
from hub.models.tag import ensure_tags, put_on
from tests.factories import rows, run
from tests.jobs.conftest import Desk

_numbers = itertools.count(1)


class Vault:
    """The backups of a desk's team."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.database = desk.database
        self.workspace_id = desk.team.workspace.id

    @property
    def store(self) -> Store:
        """Where the files are."""
        return open_store(self.desk.settings)

    def start(self, **order: Any) -> int:
        """A committed backup job."""
        order = {"kind": "workspace.backup", "args": {}, "key": f"backup-{next(_numbers)}"} | order
        return self.desk.create(**order).job_id

    def make(self) -> Backup:
        """A finished backup."""
        job_id = self.start()
        self.desk.work()
        job = self.desk.job(job_id)
        assert job.state == "succeeded", job.code
        return self.of_job(job_id)

    def restore(self, made: Backup, name: str = "Restored", **order: Any) -> int:
        """A committed job that restores a backup."""
        args = {"backup_id": str(made.id), "name": name}
        order = {"kind": "workspace.restore", "args": args, "key": f"restore-{next(_numbers)}"} | order
        return self.desk.create(**order).job_id

    def of_job(self, job_id: int) -> Backup:
        """The backup that a job makes or made."""
        (found,) = rows(self.database, "select id from hub.backup where job_id = :id", id=job_id)
        with self.database.transaction() as session:
            return backup.find(session, self.workspace_id, found.id)

    def files(self) -> list[str]:
        """The names of all files, finished or not."""
        return [key.rpartition("/")[2] for key in self.store.keys(f"backups/{self.workspace_id}")]

    def path(self, made: Backup) -> Path:
        """A backup's file in the folder."""
        assert self.store.folder is not None and made.storage_key is not None
        return self.store.folder / made.storage_key

    def content(self, made: Backup) -> bytes:
        """A backup's file."""
        assert made.storage_key is not None
        return b"".join(self.store.read(made.storage_key))

    def manifest(self, made: Backup) -> Manifest:
        """The manifest of a backup, after everything was compared."""
        return archive.check(io.BytesIO(self.content(made)), made.sha256)

    def tables(self, made: Backup) -> dict[str, list[dict[str, Any]]]:
        """What a backup holds, by table."""
        with zipfile.ZipFile(io.BytesIO(self.content(made))) as file:
            return {
                name[5:-6]: [json.loads(line) for line in file.read(name).splitlines()]
                for name in file.namelist()
                if name.startswith("data/")
            }


def without_ids(tables: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What a backup holds, with what identifies things instead of their ids; of the workspace only its settings."""
    courses = {row["id"]: (row["title"], row["created_at"]) for row in tables["courses"]}
    pages = {row["id"]: (courses[row["course_id"]], row["position"], row["title"]) for row in tables["pages"]}
    tags = {row["id"]: row["key"] for row in tables["tags"]}
    named = {"course_id": courses, "page_id": pages, "tag_id": tags}

    def plain(row: dict[str, Any]) -> str:
        kept = {name: named[name][value] if name in named else value for name, value in row.items() if name != "id"}
        return json.dumps(kept, sort_keys=True)

    told: dict[str, Any] = {name: sorted(plain(row) for row in tables[name]) for name in tables if name != "workspace"}
    (workspace,) = tables["workspace"]
    told["workspace"] = {name: workspace[name] for name in ("time_zone", "backup_keep", "backup_keep_days")}
    return told


def add_page(desk: Desk, course: uuid.UUID, position: int, title: str, body: str, *tags: str) -> uuid.UUID:
    """A page with tags, as it is stored, whatever the text."""
    page = new_id()
    run(
        desk.database,
        "insert into hub.page (id, course_id, position, title, body, updated_by, version)"
        " values (:id, :course, :position, :title, :body, 'Ann', :version)",
        id=page,
        course=course,
        position=position,
        title=title,
        body=body,
        version=position % 7 + 1,
    )
    with desk.database.transaction() as session:
        put_on(session, page, ensure_tags(session, desk.team.workspace.id, tags), "Ann")
    return page
