"""Backups of workspaces: what is kept of each, how long, and whether it was found whole.

A row is made with the job that makes the backup, and becomes `available` in the transaction that ends the job. Only
then is there a backup: `storage_key` names its file, which is whole and was read back. A file that no available row
names is nobody's and is removed by the workspace's next backup.

    making ──> available ──> expired (retention), deleted (a person)
       └──> failed, cancelled
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Select, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub import words
from hub.errors import Conflict, Invalid, NotFound
from hub.models import audit
from hub.models.base import Base, id_column, time_column, version_column
from hub.models.workspace import Workspace

STATES = ("making", "available", "failed", "cancelled", "expired", "deleted")
# Whether its file was found whole when it was last read: `ok`, an entry or the archive `damaged`, or no file at all.
CHECKS = ("ok", "damaged", "missing")
MAX_KEEP = 1000
MAX_KEEP_DAYS = 3650


class Backup(Base):
    """A backup of a workspace, or the attempt to make one. `counts` maps a kind of record to how many it holds."""

    __tablename__ = "backup"
    __table_args__ = (
        CheckConstraint("state in ('making', 'available', 'failed', 'cancelled', 'expired', 'deleted')", name="state"),
        CheckConstraint("check_result in ('ok', 'damaged', 'missing')", name="check_result"),
        CheckConstraint(
            "state <> 'available' or (storage_key is not null and bytes is not null and sha256 is not null"
            " and format_version is not null and snapshot_at is not null and finished_at is not null)",
            name="available",
        ),
        Index("backup_workspace_id_idx", "workspace_id", "id"),
        Index("backup_job_id_idx", "job_id"),
    )

    id: Mapped[uuid.UUID] = id_column()
    workspace_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.workspace.id"))
    # The queue's job that makes it; no foreign key leads into the schema `queue`.
    job_id: Mapped[int | None]
    state: Mapped[str] = mapped_column(server_default=text("'making'"))
    # Where its file is in the store; never shown.
    storage_key: Mapped[str | None]
    bytes: Mapped[int | None]
    # Of the whole file, in hexadecimal.
    sha256: Mapped[str | None]
    format_version: Mapped[int | None] = mapped_column(Integer)
    counts: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    # The moment whose state it holds.
    snapshot_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = time_column()
    created_by: Mapped[uuid.UUID]
    created_by_name: Mapped[str]
    finished_at: Mapped[datetime | None]
    checked_at: Mapped[datetime | None]
    check_result: Mapped[str | None]
    # The entry that was found damaged; null with `damaged` means the archive's own structure.
    check_entry: Mapped[str | None]
    removed_at: Mapped[datetime | None]
    removed_by: Mapped[str | None]
    version: Mapped[int] = version_column()

    @property
    def is_good(self) -> bool:
        """Whether it is there and was found whole when last read."""
        return self.state == "available" and self.check_result == "ok"

    @property
    def records(self) -> int:
        """How many records it holds."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Retention:
    """How many backups of a workspace are kept, and for how many days."""

    keep: int
    days: int


def title(backup: Backup) -> str:
    """A backup's name for people: “Backup of 2026-11-30 14:02 UTC”."""
    at = backup.snapshot_at or backup.created_at
    return words.say("backup.title", at=f"{at:%Y-%m-%d %H:%M} UTC")


def of_workspace(
    session: Session,
    workspace_id: uuid.UUID,
    *,
    states: tuple[str, ...] = ("making", "available", "failed", "cancelled"),
    before: uuid.UUID | None = None,
    limit: int = 50,
) -> list[Backup]:
    """The workspace's backups in these states, newest first, at most `limit`, those older than the backup `before`."""
    query = select(Backup).where(Backup.workspace_id == workspace_id, Backup.state.in_(states))
    if before is not None:
        query = query.where(Backup.id < before)
    return list(session.scalars(query.order_by(Backup.id.desc()).limit(limit)))


def find(session: Session, workspace_id: uuid.UUID, backup_id: uuid.UUID) -> Backup:
    """The workspace's backup of this id, in whatever state. Raises NotFound."""
    found = session.get(Backup, backup_id, populate_existing=True)
    if found is None or found.workspace_id != workspace_id:
        raise NotFound
    return found


def find_available(session: Session, workspace_id: uuid.UUID, backup_id: uuid.UUID) -> Backup:
    """The same, for reading its file. Raises NotFound also if there is none (any more, or yet)."""
    found = find(session, workspace_id, backup_id)
    if found.state != "available":
        raise NotFound("no_backup")
    return found


def last_good(session: Session, workspace_id: uuid.UUID) -> Backup | None:
    """The newest backup that is there and was found whole."""
    return session.scalar(_good(workspace_id).order_by(Backup.id.desc()).limit(1))


def is_only_good(session: Session, found: Backup) -> bool:
    """Whether it is good and its workspace has no other good one."""
    others = _good(found.workspace_id).where(Backup.id != found.id)
    return found.is_good and session.scalar(others.limit(1)) is None


def _good(workspace_id: uuid.UUID) -> Select[Backup]:
    return select(Backup).where(
        Backup.workspace_id == workspace_id, Backup.state == "available", Backup.check_result == "ok"
    )


def begin(session: Session, workspace_id: uuid.UUID, actor: audit.Actor) -> Backup:
    """A row for a backup that is about to be made."""
    assert actor.id is not None, "a backup is made for a person"
    added = Backup(workspace_id=workspace_id, created_by=actor.id, created_by_name=actor.name)
    session.add(added)
    session.flush()
    return added


def publish(session: Session, job_id: int) -> Backup | None:
    """Make the job's backup available, as its handler has described it; None if it is not being made any more."""
    published = session.scalar(
        update(Backup)
        .where(Backup.job_id == job_id, Backup.state == "making", Backup.storage_key.is_not(None))
        .values(
            state="available",
            finished_at=func.statement_timestamp(),
            checked_at=func.statement_timestamp(),
            check_result="ok",
            version=Backup.version + 1,
        )
        .returning(Backup)
        .execution_options(populate_existing=True)
    )
    return published


def give_up(session: Session, job_id: int, state: str) -> None:
    """The job's backup will not be made: `state` is failed or cancelled."""
    session.execute(
        update(Backup)
        .where(Backup.job_id == job_id, Backup.state == "making")
        .values(state=state, finished_at=func.statement_timestamp(), storage_key=None, version=Backup.version + 1)
    )


def mark_checked(
    session: Session, backup: Backup, result: str, actor: audit.Actor, *, entry: str | None = None
) -> Backup:
    """Note what reading a backup's file has found: one of CHECKS, with the damaged entry if one could be named."""
    found = session.scalar(
        update(Backup)
        .where(Backup.id == backup.id, Backup.state == "available")
        .values(
            checked_at=func.statement_timestamp(),
            check_result=result,
            check_entry=entry,
            version=Backup.version + 1,
        )
        .returning(Backup)
        .execution_options(populate_existing=True)
    )
    if found is None:
        raise NotFound("no_backup")
    told = {"result": words.say(f"backup.check.{result}")} | ({"entry": entry} if entry else {})
    record(session, "backup.verified", found, actor, told, outcome="done" if result == "ok" else "failed")
    return found


def delete(session: Session, workspace_id: uuid.UUID, backup_id: uuid.UUID, actor: audit.Actor) -> str:
    """Delete a backup; returns the key of its file, which the caller removes once this has committed.

    Raises NotFound, also for one that is gone already, and Conflict("backup_in_work") for one that is being made.
    """
    found = session.scalar(
        select(Backup).where(Backup.id == backup_id, Backup.workspace_id == workspace_id).with_for_update()
    )
    if found is None:
        raise NotFound
    if found.state == "making":
        raise Conflict("backup_in_work")
    if found.state != "available":
        raise NotFound("no_backup")
    assert found.storage_key is not None
    session.execute(
        update(Backup)
        .where(Backup.id == found.id)
        .values(
            state="deleted",
            removed_at=func.statement_timestamp(),
            removed_by=actor.name,
            version=Backup.version + 1,
        )
    )
    record(session, "backup.deleted", found, actor, {"bytes": found.bytes})
    return found.storage_key


def retention(session: Session, workspace_id: uuid.UUID) -> Retention:
    """How long the workspace's backups are kept."""
    row = session.execute(
        select(Workspace.backup_keep, Workspace.backup_keep_days).where(Workspace.id == workspace_id)
    ).one()
    return Retention(row[0], row[1])


def change_retention(
    session: Session, workspace: Workspace, keep: object, days: object, actor: audit.Actor
) -> Retention:
    """Keep the newest `keep` backups of a workspace, for `days` days; what is beyond goes with the next backup.

    Raises Invalid, naming the fields.
    """
    wanted = _valid_retention(keep, days)
    before = session.execute(
        select(Workspace.backup_keep, Workspace.backup_keep_days).where(Workspace.id == workspace.id).with_for_update()
    ).one()
    if (wanted.keep, wanted.days) == (before[0], before[1]):
        return wanted
    session.execute(
        update(Workspace)
        .where(Workspace.id == workspace.id)
        .values(backup_keep=wanted.keep, backup_keep_days=wanted.days, version=Workspace.version + 1)
    )
    changed = {"keep": [before[0], wanted.keep], "keep_days": [before[1], wanted.days]}
    audit.record(
        session,
        "backup.retention_changed",
        actor=actor,
        workspace_id=workspace.id,
        target_id=workspace.id,
        target_name=workspace.name,
        changes={name: values for name, values in changed.items() if values[0] != values[1]},
    )
    return wanted


def expire(session: Session, workspace_id: uuid.UUID, actor: audit.Actor) -> int:
    """Take away the backups that retention no longer keeps, but never the newest good one; returns how many.

    Good ones and others are counted apart, so that damaged backups never push good ones out.
    """
    gone = session.scalars(
        select(Backup).from_statement(_EXPIRE),
        {"workspace": workspace_id},
        execution_options={"populate_existing": True},
    ).all()
    for one in gone:
        record(session, "backup.expired", one, actor, {"bytes": one.bytes})
    return len(gone)


def will_expire(session: Session, workspace_id: uuid.UUID) -> int:
    """How many of the backups that are there go with the next good one, by the retention as it is now."""
    count: int = session.scalars(_WILL_EXPIRE, {"workspace": workspace_id}).one()
    return count


def claimed_keys(session: Session, workspace_id: uuid.UUID) -> set[str]:
    """The keys of the files that the workspace's available backups name."""
    query = select(Backup.storage_key).where(Backup.workspace_id == workspace_id, Backup.state == "available")
    return {key for key in session.scalars(query) if key is not None}


def in_making(session: Session, workspace_id: uuid.UUID) -> set[uuid.UUID]:
    """The ids of the workspace's backups that jobs are at work on or will be."""
    return set(session.scalars(select(Backup.id).where(Backup.workspace_id == workspace_id, Backup.state == "making")))


def workspace_of_job(session: Session, job_id: int) -> uuid.UUID | None:
    """The workspace whose backup the job was to make."""
    return session.scalar(select(Backup.workspace_id).where(Backup.job_id == job_id))


def record(
    session: Session,
    action: str,
    backup: Backup,
    actor: audit.Actor,
    changes: dict[str, Any] | None = None,
    *,
    outcome: str = "done",
    job_id: int | None = None,
) -> None:
    """Write an event about a backup."""
    audit.record(
        session,
        action,
        actor=actor,
        workspace_id=backup.workspace_id,
        target_id=backup.id,
        target_name=title(backup),
        outcome=outcome,
        job_id=job_id,
        changes=changes,
    )


def _valid_retention(keep: object, days: object) -> Retention:
    wrong = {}
    if not isinstance(keep, int) or isinstance(keep, bool) or not 1 <= keep <= MAX_KEEP:
        wrong["keep"] = words.say("backup.error.keep", most=MAX_KEEP)
    if not isinstance(days, int) or isinstance(days, bool) or not 1 <= days <= MAX_KEEP_DAYS:
        wrong["days"] = words.say("backup.error.days", most=MAX_KEEP_DAYS)
    if wrong:
        raise Invalid(wrong)
    assert isinstance(keep, int) and isinstance(days, int)
    return Retention(keep, days)


# The backups that are there, numbered from the newest: the good ones and the others apart.
_RANKED = """
    select b.id, b.snapshot_at, b.check_result = 'ok' as good,
           row_number() over (partition by b.check_result = 'ok' order by b.id desc) as place
    from hub.backup b
    where b.workspace_id = :workspace and b.state = 'available'
"""
_TOO_OLD = "ranked.snapshot_at < statement_timestamp() - make_interval(days => w.backup_keep_days::integer)"

# The next backup is a good one, so every good one moves down a place.
_WILL_EXPIRE = text(f"""
    select count(*) from ({_RANKED}) ranked join hub.workspace w on w.id = :workspace
    where ranked.place + ranked.good::integer > w.backup_keep or {_TOO_OLD}
""")

_EXPIRE = text(f"""
    update hub.backup set
        state = 'expired', removed_at = statement_timestamp(), removed_by = 'Hub', version = backup.version + 1
    from ({_RANKED}) ranked join hub.workspace w on w.id = :workspace
    where backup.id = ranked.id and backup.state = 'available'
      and not (ranked.good and ranked.place = 1)
      and (ranked.place > w.backup_keep or {_TOO_OLD})
    returning backup.*
""")
