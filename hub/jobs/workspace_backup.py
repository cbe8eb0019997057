"""workspace.backup: write everything that a workspace holds into one file.

It reads one snapshot of the database and streams it into a draft beside the file's place, reads the draft back and
compares it, and gives it its name. It is a backup only when its row says so, in the transaction that ends the job: so
there is never one that was not checked, or that a worker has made whose claim was lost. The actor's right is checked
again before every block of records and in that last transaction. A later attempt begins again from a new snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict
from sqlalchemy import update
from sqlalchemy.orm import Session

from hub.clients.blob import Store, open_store
from hub.config import Settings
from hub.db import Database, driver
from hub.jobs import PEOPLE, backups, people
from hub.models import archive, audit, backup, records
from hub.models.archive import Writer
from hub.models.backup import Backup
from hub.models.workspace import Workspace
from hub.queue import Context, Ended, Fail, Kind, register, store


class Command(BaseModel):
    """What a person asks for: the workspace they are in."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Args(BaseModel):
    """What the handler is given; `asked` is the command, kept for "run again"."""

    backup_id: UUID
    asked: dict[str, Any]


def form(session: Session, workspace: Workspace, asked: dict[str, Any]) -> people.Form:
    """What the start page tells: how many records there are of each kind, the last good backup, how long it is kept."""
    values = {
        "counts": records.count(driver(session), workspace.id),
        "last_good": backup.last_good(session, workspace.id),
        "retention": backup.retention(session, workspace.id),
    }
    return people.Form(f"workspace:{workspace.id}", workspace.name, values)


def open_job(order: people.Order) -> people.Opening:
    """Make the backup's row, which the job's number is put into as soon as there is one."""
    made = backup.begin(order.session, order.workspace.id, order.actor)

    def link(job_id: int) -> None:
        made.job_id = job_id

    return people.Opening(
        args={"backup_id": str(made.id), "asked": {}},
        subject=f"workspace:{order.workspace.id}",
        subject_name=order.workspace.name,
        made=link,
    )


def run(context: Context, args: Args) -> dict[str, Any]:
    """Make the file and describe it in the backup's row, which the end of the job makes available."""
    with backups.failing(context):
        return Making(context, args.backup_id).run()


class Making:
    """One attempt at a backup."""

    def __init__(self, context: Context, backup_id: uuid.UUID) -> None:
        self._context = context
        self._job = context.job
        self._backup_id = backup_id
        self._actor = audit.Actor(*people.actor_of(context.connection, context.job.id))
        self._writer = Writer()
        self._told: dict[str, Any] = {}
        self._total = 0
        self._done = 0
        self._block_records = 0
        self._block_bytes = 0

    def run(self) -> dict[str, Any]:
        """Write, read back, settle, describe. Whatever stops it in between, no file is left."""
        people.require_admin(self._context.connection, self._job.workspace_id, self._actor.id)
        files = open_store(self._context.settings)
        key = backups.key_of(self._job.workspace_id, self._backup_id, self._job.claim)
        draft = files.draft(key)
        backups.sweep(self._context.database, files, self._job.workspace_id, mine=(self._backup_id, key))
        try:
            files.write(draft, self._archive())
            self._read_back(files, draft)
            people.require_admin(self._context.connection, self._job.workspace_id, self._actor.id)
            self._context.report(self._total, self._total, self._writer.size, now=True)
            files.settle(draft, key)
            self._describe(key)
        except BaseException:
            backups.discard(files, draft, key)
            raise
        return {"backup_id": str(self._backup_id), "bytes": self._writer.size, "records": self._total}

    def _archive(self) -> Iterator[bytes]:
        workspace_id = self._job.workspace_id
        with records.snapshot(self._context.settings.database_url) as connection:
            self._told = backups.manifest(connection, workspace_id, self._actor, self._job.id)
            self._total = sum(self._told["counts"].values())
            self._report(now=True)
            yield from backups.write(self._writer, connection, workspace_id, self._told, self._moved)

    def _moved(self, count: int, size: int) -> None:
        self._done += count
        self._block_records += count
        self._block_bytes += size
        if self._block_records >= backups.BLOCK_RECORDS or self._block_bytes >= backups.BLOCK_BYTES:
            self._block_records = self._block_bytes = 0
            people.require_admin(self._context.connection, self._job.workspace_id, self._actor.id)
        self._report()

    def _report(self, now: bool = False) -> None:
        # The last record counts as done when everything is written and was read back: until then it can be cancelled.
        self._context.report(min(self._done, self._total - 1), self._total, self._writer.size, now=now)

    def _read_back(self, files: Store, draft: str) -> None:
        with files.open(draft) as file:
            archive.check(file, self._writer.sha256, lambda rows: self._report())

    def _describe(self, key: str) -> None:
        """Write down what the file is, under the job's fence."""
        with self._context.database.transaction() as session:
            self._context.fence(driver(session))
            session.execute(
                update(Backup)
                .where(Backup.id == self._backup_id, Backup.state == "making")
                .values(
                    storage_key=key,
                    bytes=self._writer.size,
                    sha256=self._writer.sha256,
                    format_version=archive.VERSION,
                    counts=self._told["counts"],
                    snapshot_at=datetime.fromisoformat(self._told["created_at"]),
                )
            )


def record_end(session: Session, ended: Ended) -> None:
    """Publish the backup with the job's success, unless the actor's right was lost, and let old ones go."""
    if ended.state == "succeeded":
        asked = store.requested_by(driver(session), ended.id)
        assert asked is not None, "a job of people has a request"
        people.require_admin(driver(session), asked["workspace_id"], asked["actor_id"])
        made = backup.publish(session, ended.id)
        if made is None:
            raise Fail("backup_gone")
        told = {"bytes": made.bytes, "records": made.records}
        backup.record(session, "backup.created", made, people.HUB, told, job_id=ended.id)
        backup.expire(session, asked["workspace_id"], people.HUB)
    people.record_end(session, ended)


def close(session: Session, ended: Ended) -> None:
    """Mark the backup that will not be."""
    if ended.state != "succeeded":
        backup.give_up(session, ended.id, ended.state)


def tidy(database: Database, settings: Settings, ended: Ended) -> None:
    """Remove the files of backups that have just expired, or that this job has left."""
    with database.transaction() as session:
        workspace_id = backup.workspace_of_job(session, ended.id)
    if workspace_id is not None:
        backups.sweep(database, open_store(settings), workspace_id)


register(
    Kind(
        name="workspace.backup",
        queue=PEOPLE,
        command=Command,
        args=Args,
        run=run,
        attempts=3,
        deadline=300.0,
        steps=True,
        form=form,
        opening=open_job,
        recorded=record_end,
        closing=close,
        tidy=tidy,
    )
)
