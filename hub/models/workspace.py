"""Workspaces and who belongs to them."""

from __future__ import annotations

import re
import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, and_, func, select, text, tuple_
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.models.base import Base, id_column, time_column, version_column
from hub.models.person import Person

SLUG = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")
ROLES = ("admin", "member", "viewer")


class Workspace(Base):
    """A tenant: everything a person sees in Hub lies in one."""

    __tablename__ = "workspace"
    __table_args__ = (
        CheckConstraint("backup_keep between 1 and 1000", name="backup_keep"),
        CheckConstraint("backup_keep_days between 1 and 3650", name="backup_keep_days"),
        Index("workspace_slug_key", "slug", unique=True),
        Index("workspace_restored_by_job_idx", "restored_by_job", postgresql_where=text("restored_by_job is not null")),
    )

    id: Mapped[uuid.UUID] = id_column()
    slug: Mapped[str]
    name: Mapped[str]
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    time_zone: Mapped[str] = mapped_column(server_default=text("'UTC'"))
    # How many backups are kept, and for how many days.
    backup_keep: Mapped[int] = mapped_column(Integer, server_default=text("10"))
    backup_keep_days: Mapped[int] = mapped_column(Integer, server_default=text("90"))
    # The queue's job that restored it from a backup. Until that job has succeeded it is neither enabled nor anybody's.
    restored_by_job: Mapped[int | None]
    version: Mapped[int] = version_column()
    created_at: Mapped[datetime] = time_column()


class Membership(Base):
    """A person's place and role in a workspace."""

    __tablename__ = "membership"
    __table_args__ = (
        CheckConstraint("role in ('admin', 'member', 'viewer')", name="role"),
        Index("membership_person_id_idx", "person_id"),
    )

    workspace_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.workspace.id"), primary_key=True)
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.person.id"), primary_key=True)
    role: Mapped[str]
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    added_by: Mapped[str] = mapped_column(server_default=text("''"))
    version: Mapped[int] = version_column()
    created_at: Mapped[datetime] = time_column()


def find(session: Session, slug: str) -> Workspace | None:
    """The workspace of this slug, enabled or not."""
    return session.scalar(select(Workspace).where(Workspace.slug == slug)) if SLUG.match(slug) else None


def find_for(session: Session, slug: str, person_id: uuid.UUID) -> tuple[Workspace | None, Membership | None]:
    """The workspace of this slug with the person's membership in it, each enabled or not, in one statement."""
    if not SLUG.match(slug):
        return None, None
    row = session.execute(
        select(Workspace, Membership)
        .outerjoin(Membership, and_(Membership.workspace_id == Workspace.id, Membership.person_id == person_id))
        .where(Workspace.slug == slug)
    ).one_or_none()
    return (row[0], row[1]) if row else (None, None)


def lock(session: Session, workspace_id: uuid.UUID) -> Workspace:
    """Take the workspace's row until the transaction ends: the first lock of the one order of locks.

    FOR NO KEY UPDATE, because FOR UPDATE would block every insert that points at the workspace.
    """
    return session.scalars(select(Workspace).where(Workspace.id == workspace_id).with_for_update(key_share=True)).one()


def membership(session: Session, workspace_id: uuid.UUID, person_id: uuid.UUID) -> Membership | None:
    """The person's membership, enabled or not."""
    return session.get(Membership, (workspace_id, person_id))


def is_admin(session: Session, workspace_id: uuid.UUID, person_id: uuid.UUID) -> bool:
    """Whether person, membership and workspace are enabled and the role is admin: who may start and run jobs."""
    return (
        session.scalar(
            select(Membership.role)
            .join(Person, Person.id == Membership.person_id)
            .join(Workspace, Workspace.id == Membership.workspace_id)
            .where(
                Membership.workspace_id == workspace_id,
                Membership.person_id == person_id,
                Membership.role == "admin",
                Membership.enabled,
                Person.enabled,
                Workspace.enabled,
            )
        )
        is not None
    )


def count_admins(session: Session, workspace_id: uuid.UUID) -> int:
    """How many enabled admins the workspace has; the last one stays."""
    return (
        session.scalar(
            select(func.count())
            .select_from(Membership)
            .join(Person, Person.id == Membership.person_id)
            .where(
                Membership.workspace_id == workspace_id,
                Membership.role == "admin",
                Membership.enabled,
                Person.enabled,
            )
        )
        or 0
    )


def admin_names(session: Session, workspace_id: uuid.UUID, limit: int) -> list[str]:
    """Names of enabled admins, longest there first."""
    query = (
        select(Person.name)
        .join(Membership, Membership.person_id == Person.id)
        .where(Membership.workspace_id == workspace_id, Membership.role == "admin", Membership.enabled, Person.enabled)
        .order_by(Membership.created_at, Person.id)
        .limit(limit)
    )
    return list(session.scalars(query))


def of_person(session: Session, person_id: uuid.UUID) -> list[tuple[Workspace, str]]:
    """The enabled workspaces that the person is an enabled member of, by name, each with the role."""
    rows = session.execute(
        select(Workspace, Membership.role)
        .join(Membership, Membership.workspace_id == Workspace.id)
        .where(Membership.person_id == person_id, Membership.enabled, Workspace.enabled)
        .order_by(Workspace.name, Workspace.id)
    )
    return [(workspace, role) for workspace, role in rows]


def not_of_person(session: Session, person_id: uuid.UUID, after: tuple[str, str] | None, limit: int) -> list[Workspace]:
    """Enabled workspaces that the person is no enabled member of, by name, from behind `after` (name and slug)."""
    inside = select(Membership.workspace_id).where(Membership.person_id == person_id, Membership.enabled)
    query = select(Workspace).where(Workspace.enabled, Workspace.id.not_in(inside))
    if after is not None:
        query = query.where(tuple_(Workspace.name, Workspace.slug) > after)
    return list(session.scalars(query.order_by(Workspace.name, Workspace.slug).limit(limit)))
