"""workspace.restore: make a new workspace of a backup. It never changes one that is there.

The file is read twice: first all of it is compared with its manifest and its hashes, then its rows are put into the
database in one transaction, as a workspace that is not enabled. The transaction that ends the job enables it, if the
actor still has the right. So it appears whole or not at all; what a killed worker has left is removed by the next
attempt, or when the job ends.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Annotated, Any
from uuid import UUID

from psycopg import errors
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import text
from sqlalchemy.orm import Session

from hub import words
from hub.clients.blob import open_store
from hub.config import Settings
from hub.db import Database, driver
from hub.errors import Conflict, Invalid, NotFound
from hub.jobs import PEOPLE, backups, people
from hub.models import archive, audit, backup, records, workspace
from hub.models import people as members
from hub.models.archive import Archive
from hub.models.backup import Backup
from hub.models.person import Person
from hub.models.records import Restored, Restoring
from hub.models.workspace import Workspace
from hub.queue import Context, Ended, Fail, Kind, reads, register, store


class Command(BaseModel):
    """What a person asks for: a backup of the workspace they are in, and what the new workspace is called."""

    model_config = ConfigDict(extra="forbid", strict=True)

    backup_id: Annotated[UUID, Field(strict=False)]
    name: Annotated[str, BeforeValidator(members.valid_name)]


class Args(BaseModel):
    """What the handler is given; `asked` is the command, kept for "run again"."""

    backup_id: UUID
    name: str
    asked: dict[str, Any]


def form(session: Session, workspace: Workspace, asked: dict[str, Any]) -> people.Form:
    """What the start page tells of the backup. Raises NotFound for one of another workspace, or that is gone."""
    try:
        backup_id = UUID(str(asked.get("backup_id")))
    except ValueError:
        raise NotFound from None
    found = backup.find_available(session, workspace.id, backup_id)
    return people.Form(f"backup:{found.id}", backup.title(found), {"backup": found, "workspace": workspace})


def open_job(order: people.Order) -> people.Opening:
    """Find the backup; nothing of the new workspace is made yet."""
    command: Command = order.args
    try:
        found = backup.find_available(order.session, order.workspace.id, command.backup_id)
    except NotFound:
        raise Invalid({"backup_id": words.say("jobs.error.backup_id")}) from None
    return people.Opening(
        args={"backup_id": str(found.id), "name": command.name, "asked": command.model_dump(mode="json")},
        subject=f"backup:{found.id}",
        subject_name=backup.title(found),
    )


def run(context: Context, args: Args) -> dict[str, Any]:
    """Compare the backup with itself, then put it into the database."""
    with backups.failing(context):
        return Attempt(context, args).run()


class Attempt:
    """One attempt at restoring a stored backup."""

    def __init__(self, context: Context, args: Args) -> None:
        self._context = context
        self._job = context.job
        self._args = args
        self._actor = audit.Actor(*people.actor_of(context.connection, context.job.id))
        self._total = 0
        self._done = 0

    def run(self) -> dict[str, Any]:
        """Everything; what an attempt before this has left goes first."""
        self._require_right()
        remove_unfinished(self._context.settings, self._job.id)
        found = self._find()
        assert found.storage_key is not None
        self._total = found.records
        self._report(now=True)
        with open_store(self._context.settings).open(found.storage_key) as file:
            archive.check(file, found.sha256, lambda rows: self._report())
            with long_transaction(self._context.settings) as session:
                restored, slug = self._restore(session, Archive(file))
        return told(restored, self._args.name, slug)

    def _restore(self, session: Session, found: Archive) -> tuple[Restored, str]:
        connection = driver(session)
        seed = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._job.id}/{self._job.claim}")
        restored = Restoring(connection, found, seed, self._restored).run(self._job.id)
        assert self._actor.id is not None
        make_admin(connection, restored.workspace_id, self._actor.id, self._actor.name)
        self._context.report(self._total, self._total, now=True)
        slug = give_name(connection, restored.workspace_id, self._args.name)
        self._require_right()
        self._context.fence(connection)
        return restored, slug

    def _find(self) -> Backup:
        with self._context.database.transaction() as session:
            try:
                return backup.find_available(session, self._job.workspace_id, self._args.backup_id)
            except NotFound:
                raise Fail("backup_missing") from None

    def _restored(self, records_so_far: int) -> None:
        self._done = records_so_far
        if records_so_far % backups.BLOCK_RECORDS == 0:
            self._require_right()
        self._report()

    def _report(self, now: bool = False) -> None:
        # The last record counts as done when everything is there: until then it can be cancelled.
        self._context.report(min(self._done, self._total - 1), self._total, now=now)

    def _require_right(self) -> None:
        people.require_admin(self._context.connection, self._job.workspace_id, self._actor.id)


@contextmanager
def long_transaction(settings: Settings) -> Iterator[Session]:
    """A transaction that may take longer than any other, on a connection of its own."""
    database = Database(
        settings.database_url,
        application_name="hub restore",
        size=1,
        statement_timeout=records.STATEMENT,
        lock_timeout=records.LOCK,
        idle_timeout=records.IDLE,
    )
    try:
        with database.transaction() as session:
            yield session
    finally:
        database.close()


def make_admin(connection: records.Connection, workspace_id: UUID, person_id: UUID, added_by: str) -> None:
    """Whoever restores a workspace can get into it, whatever they were when the backup was made."""
    connection.execute(_MAKE_ADMIN, {"workspace": workspace_id, "person": person_id, "added_by": added_by})


def give_name(connection: records.Connection, workspace_id: UUID, name: str) -> str:
    """Name the workspace, with the first free address that looks like the name; returns that."""
    base = slug_of(name)
    numbered = [base, *(f"{base}-{number}" for number in range(2, 100)), f"{base}-{workspace_id.hex[:12]}"]
    for slug in numbered:
        try:
            with connection.transaction():
                connection.execute(_GIVE_NAME, {"id": workspace_id, "name": name, "slug": slug})
            return slug
        except errors.UniqueViolation:
            continue
    raise Conflict("slug_taken", slug=base)


def slug_of(name: str) -> str:
    """An address made of the letters and digits of a name."""
    plain = unicodedata.normalize("NFKD", name.replace("đ", "d").replace("Đ", "D")).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:40].strip("-") or "restored"


def remove_unfinished(settings: Settings, job_id: int) -> None:
    """Remove what a job has restored without coming to its end. For that job alone, and never once it has succeeded."""
    with long_transaction(settings) as session:
        found = session.scalars(_UNFINISHED, {"job": job_id}).all()
        for statement in _REMOVE if found else ():
            session.execute(statement, {"workspaces": found})


def record_end(session: Session, ended: Ended) -> None:
    """Let the workspace appear with the job's success, unless the actor's right was lost."""
    if ended.state == "succeeded":
        asked = store.requested_by(driver(session), ended.id)
        assert asked is not None, "a job of people has a request"
        people.require_admin(driver(session), asked["workspace_id"], asked["actor_id"])
        made = session.scalars(_APPEAR, {"job": ended.id}).all()
        if len(made) != 1:
            raise Fail("restore_gone")
        _record(session, ended, made[0])
    people.record_end(session, ended)


def _record(session: Session, ended: Ended, workspace_id: UUID) -> None:
    (job,) = reads.these(driver(session), [ended.id])
    assert job.result is not None
    found = backup.find(session, job.workspace_id, UUID(job.args["backup_id"]))
    backup.record(
        session,
        "backup.restored",
        found,
        people.HUB,
        {"name": job.result["name"], "workspace": job.result["slug"]},
        job_id=ended.id,
    )
    record_restored(
        session,
        people.HUB,
        workspace_id,
        job.result["name"],
        source=backup.title(found),
        records=job.result["records"],
        left_out=job.result["people_left_out"],
    )


def record_restored(
    session: Session,
    actor: audit.Actor,
    workspace_id: UUID,
    name: str,
    *,
    source: str,
    records: int,
    left_out: list[str],
) -> None:
    """Write the first event of a restored workspace."""
    changes: dict[str, Any] = {"name": name, "source": source, "records": records}
    if left_out:
        changes["left_out"] = left_out
    audit.record(
        session,
        "workspace.restored",
        actor=actor,
        workspace_id=workspace_id,
        target_id=workspace_id,
        target_name=name,
        changes=changes,
    )


def tidy(database: Database, settings: Settings, ended: Ended) -> None:
    """Remove what a job that did not come to its end has restored."""
    if ended.state != "succeeded":
        remove_unfinished(settings, ended.id)


def restore_file(
    settings: Settings, file: IO[bytes], name: object, actor: audit.Actor, admin: Person | None = None
) -> dict[str, Any]:
    """Restore a backup from a file that somebody brings, at once and in one transaction; for operators.

    `admin` becomes an admin of the new workspace. Raises archive.Unreadable, and Invalid if the name will not do or
    nobody who is known here would be an admin.
    """
    named = members.valid_name(name)
    manifest = archive.check(file)
    with long_transaction(settings) as session:
        connection = driver(session)
        restored = Restoring(connection, Archive(file), uuid.uuid4()).run()
        if admin is not None:
            make_admin(connection, restored.workspace_id, admin.id, actor.name)
        if workspace.count_admins(session, restored.workspace_id) == 0:
            raise Invalid({"admin": words.say("backup.error.no_admin")})
        slug = give_name(connection, restored.workspace_id, named)
        session.execute(_ENABLE, {"id": restored.workspace_id})
        record_restored(
            session,
            actor,
            restored.workspace_id,
            named,
            source=f"{manifest.workspace.name}, {manifest.created_at:%Y-%m-%d %H:%M} UTC",
            records=restored.records,
            left_out=restored.names,
        )
    return told(restored, named, slug)


def told(restored: Restored, name: str, slug: str) -> dict[str, Any]:
    """What was made, and what was left out: for the job's result and the command."""
    return {
        "workspace_id": str(restored.workspace_id),
        "slug": slug,
        "name": name,
        "records": restored.records,
        "left_out": restored.left_out,
        "people_left_out": restored.names,
    }


_MAKE_ADMIN = b"""
    insert into hub.membership (workspace_id, person_id, role, added_by)
    values (%(workspace)s, %(person)s, 'admin', %(added_by)s)
    on conflict (workspace_id, person_id) do update set role = 'admin', enabled = true
"""

_GIVE_NAME = b"update hub.workspace set name = %(name)s, slug = %(slug)s where id = %(id)s"

_ENABLE = text("update hub.workspace set enabled = true where id = :id")

_APPEAR = text("""
    update hub.workspace set enabled = true, version = version + 1
    where restored_by_job = :job and not enabled
    returning id
""")

_UNFINISHED = text("select id from hub.workspace where restored_by_job = :job and not enabled for update")

_REMOVE = [
    text("""
        delete from hub.page_tag where page_id in (
            select p.id from hub.course c join hub.page p on p.course_id = c.id where c.workspace_id = any(:workspaces)
        )
    """),
    text("""
        delete from hub.page
        where course_id in (select id from hub.course where workspace_id = any(:workspaces))
    """),
    text("delete from hub.course where workspace_id = any(:workspaces)"),
    text("delete from hub.tag where workspace_id = any(:workspaces)"),
    text("delete from hub.membership where workspace_id = any(:workspaces)"),
    text("delete from hub.workspace where id = any(:workspaces)"),
]

register(
    Kind(
        name="workspace.restore",
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
        tidy=tidy,
    )
)
