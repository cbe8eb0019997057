"""Changes of people, memberships and workspaces: each with its audit event, in the caller's transaction.

A workspace keeps at least one enabled admin: whoever could take the last one away locks the workspace first, so that
two such changes cannot pass each other.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from sqlalchemy import Select, func, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Conflict, Invalid, NotFound
from hub.models import audit, content, person, session, workspace
from hub.models.person import MAX_PASSWORD, MIN_PASSWORD, Person
from hub.models.session import SignIn
from hub.models.workspace import ROLES, SLUG, Membership, Workspace

EMAIL = re.compile("[^@\\s\x00-\x1f\x7f\ud800-\udfff]{1,64}@[^@\\s\x00-\x1f\x7f\ud800-\udfff]{1,190}")
STAFF = ("support", "operator")
MAX_NAME = 120


@dataclass(frozen=True)
class Member:
    """A line of the members page. `active_at` is when the person was last seen, in any workspace."""

    person_id: uuid.UUID
    name: str
    email: str
    role: str
    enabled: bool
    person_enabled: bool
    added_by: str
    added_at: datetime
    active_at: datetime | None


def add_person(
    db: Session, email: object, password_hash: str, *, actor: audit.Actor, name: object = "", staff: str | None = None
) -> Person:
    """A new person. An empty `name` becomes the part of the address before the @.

    Raises Invalid, naming the field, and Conflict("email_taken").
    """
    address = valid_email(email)
    if staff is not None and staff not in STAFF:
        raise Invalid({"staff": words.say("form.choose")})
    added = Person(
        email=address,
        name=valid_name(name or address.partition("@")[0]),
        password_hash=password_hash,
        staff=staff,
    )
    try:
        with db.begin_nested():
            db.add(added)
    except IntegrityError:
        raise Conflict("email_taken", email=address) from None
    _record_person(db, "person.added", added, actor, {"staff": staff} if staff else {})
    return added


def set_person_enabled(db: Session, target: Person, enabled: bool, actor: audit.Actor) -> bool:
    """Let a person in or keep them out of everything; disabling ends their sessions. False if nothing changed.

    Raises Conflict("last_admin").
    """
    if not enabled:
        _lock_workspaces_of_admin(db, target.id)
    changed = db.execute(
        update(Person)
        .where(Person.id == target.id, Person.enabled != enabled)
        .values(enabled=enabled, version=Person.version + 1)
        .returning(Person.id)
    ).one_or_none()
    if changed is None:
        return False
    if not enabled:
        _require_admins(db, _workspaces_of_admin(db, target.id))
        session.end_others(db, target.id, keep=None)
    _record_person(db, "person.enabled" if enabled else "person.disabled", target, actor)
    return True


def change_password(db: Session, target: Person, password: object, actor: audit.Actor, keep: uuid.UUID | None) -> int:
    """Set a new password and end all sessions but `keep`; returns how many ended. Raises Invalid."""
    hashed = person.hash_password(valid_password(password, field="new_password"))
    db.execute(update(Person).where(Person.id == target.id).values(password_hash=hashed, version=Person.version + 1))
    _record_person(db, "person.password_changed", target, actor)
    return session.end_others(db, target.id, keep)


def change_time_zone(db: Session, target: Person, name: object, actor: audit.Actor) -> bool:
    """Choose the zone of a person's pages by its IANA name; empty for the workspace's. False if nothing changed."""
    zone = valid_time_zone(name) if name else None
    before = db.scalar(select(Person.time_zone).where(Person.id == target.id).with_for_update())
    if before == zone:
        return False
    db.execute(update(Person).where(Person.id == target.id).values(time_zone=zone, version=Person.version + 1))
    _record_person(db, "person.time_zone_changed", target, actor, {"time_zone": [before, zone]})
    return True


def add_workspace(db: Session, slug: object, name: object, actor: audit.Actor) -> Workspace:
    """A new workspace. An empty `name` is the slug. Raises Invalid and Conflict("slug_taken")."""
    if not isinstance(slug, str) or not SLUG.match(slug):
        raise Invalid({"slug": words.say("people.slug.wrong")})
    added = Workspace(slug=slug, name=valid_name(name or slug))
    try:
        with db.begin_nested():
            db.add(added)
    except IntegrityError:
        raise Conflict("slug_taken", slug=slug) from None
    _record_workspace(db, "workspace.created", added, actor, {"name": added.name})
    return added


def set_workspace_enabled(db: Session, target: Workspace, enabled: bool, actor: audit.Actor) -> bool:
    """Open or close a workspace for everybody; nothing in it is lost. False if nothing changed."""
    changed = db.execute(
        update(Workspace)
        .where(Workspace.id == target.id, Workspace.enabled != enabled)
        .values(enabled=enabled, version=Workspace.version + 1)
        .returning(Workspace.id)
    ).one_or_none()
    if changed is None:
        return False
    _record_workspace(db, "workspace.enabled" if enabled else "workspace.disabled", target, actor)
    return True


def members(db: Session, workspace_id: uuid.UUID, after: tuple[str, uuid.UUID] | None, limit: int) -> list[Member]:
    """Members by name, at most `limit`, from behind `after` (name and id of the last line seen)."""
    query = _member_lines().where(Membership.workspace_id == workspace_id)
    if after is not None:
        name, last_id = after
        query = query.where(tuple_(Person.name, Person.id) > (name, last_id))
    return [Member(*row) for row in db.execute(query.order_by(Person.name, Person.id).limit(limit))]


def member(db: Session, workspace_id: uuid.UUID, person_id: uuid.UUID) -> Member:
    """One line of the members page. Raises NotFound."""
    query = _member_lines().where(Membership.workspace_id == workspace_id, Membership.person_id == person_id)
    row = db.execute(query).one_or_none()
    if row is None:
        raise NotFound
    return Member(*row)


def add_member(db: Session, target: Workspace, joining: Person, role: object, actor: audit.Actor) -> Membership:
    """Give a person a role in a workspace. Raises Invalid and Conflict("already_member")."""
    added = Membership(
        workspace_id=target.id, person_id=joining.id, role=_valid_role(role), added_by=actor.name or actor.channel
    )
    try:
        with db.begin_nested():
            db.add(added)
    except IntegrityError:
        raise Conflict("already_member", email=joining.email) from None
    _record_member(db, "member.added", target.id, joining.id, joining.name, actor, {"role": added.role})
    return added


def change_member(
    db: Session,
    workspace_id: uuid.UUID,
    person_id: uuid.UUID,
    actor: audit.Actor,
    *,
    role: object = None,
    enabled: object = None,
) -> Member:
    """Change a member's role, or keep the member out or let in again; None leaves as it is. Returns what stands then.

    One event for each that changed. Raises NotFound, Invalid and Conflict("last_admin").
    """
    wanted_role = None if role is None else _valid_role(role)
    if enabled is not None and not isinstance(enabled, bool):
        raise Invalid({"enabled": words.say("form.yes_or_no")})
    workspace.lock(db, workspace_id)
    before = member(db, workspace_id, person_id)
    after_role = wanted_role or before.role
    after_enabled = before.enabled if enabled is None else enabled
    if (after_role, after_enabled) == (before.role, before.enabled):
        return before
    db.execute(
        update(Membership)
        .where(Membership.workspace_id == workspace_id, Membership.person_id == person_id)
        .values(role=after_role, enabled=after_enabled, version=Membership.version + 1)
    )
    if before.role == "admin" and before.enabled and before.person_enabled:
        _require_admins(db, [workspace_id])
    if after_role != before.role:
        changes = {"role": [before.role, after_role]}
        _record_member(db, "member.role_changed", workspace_id, person_id, before.name, actor, changes)
    if after_enabled != before.enabled:
        action = "member.enabled" if after_enabled else "member.disabled"
        _record_member(db, action, workspace_id, person_id, before.name, actor)
    return member(db, workspace_id, person_id)


def valid_email(email: object) -> str:
    """The address as it is kept. Raises Invalid."""
    if not isinstance(email, str) or not EMAIL.fullmatch(person.normal_email(email)):
        raise Invalid({"email": words.say("people.email.wrong")})
    return person.normal_email(email)


def valid_name(name: object) -> str:
    """The name of a person or a workspace, on one line. Raises Invalid."""
    if not isinstance(name, str) or any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise Invalid({"name": words.say("form.text")})
    name = " ".join(name.split())
    if not content.has_visible(name):
        raise Invalid({"name": words.say("form.required")})
    if len(name) > MAX_NAME:
        raise Invalid({"name": words.say("form.long", most=MAX_NAME)})
    return name


def valid_password(password: object, field: str = "password") -> str:
    """The password, if it is long enough and can be kept. Raises Invalid."""
    if not isinstance(password, str) or not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise Invalid({field: words.say("people.password.length", least=MIN_PASSWORD, most=MAX_PASSWORD)})
    return password


def valid_time_zone(name: object) -> str:
    """The IANA name of a known zone. Raises Invalid."""
    if not isinstance(name, str) or name not in time_zones():
        raise Invalid({"time_zone": words.say("form.choose")})
    return ZoneInfo(name).key


@cache
def time_zones() -> tuple[str, ...]:
    """The zones to choose from, by name; without the aliases that have no region."""
    # Kept, because finding them means walking through a folder of hundreds of files.
    return (*sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/")), "UTC")


def _valid_role(role: object) -> str:
    if not isinstance(role, str) or role not in ROLES:
        raise Invalid({"role": words.say("form.choose")})
    return role


def _member_lines() -> Select[*tuple[Any, ...]]:
    seen = select(func.max(SignIn.seen_at)).where(SignIn.person_id == Person.id).correlate(Person).scalar_subquery()
    return select(
        Person.id,
        Person.name,
        Person.email,
        Membership.role,
        Membership.enabled,
        Person.enabled,
        Membership.added_by,
        Membership.created_at,
        seen,
    ).join(Membership, Membership.person_id == Person.id)


def _workspaces_of_admin(db: Session, person_id: uuid.UUID) -> list[uuid.UUID]:
    return list(
        db.scalars(
            select(Membership.workspace_id)
            .where(Membership.person_id == person_id, Membership.role == "admin", Membership.enabled)
            .order_by(Membership.workspace_id)
        )
    )


def _lock_workspaces_of_admin(db: Session, person_id: uuid.UUID) -> None:
    for workspace_id in _workspaces_of_admin(db, person_id):
        workspace.lock(db, workspace_id)


def _require_admins(db: Session, workspace_ids: Iterable[uuid.UUID]) -> None:
    if any(workspace.count_admins(db, workspace_id) == 0 for workspace_id in workspace_ids):
        raise Conflict("last_admin")


def _record_person(
    db: Session, action: str, target: Person, actor: audit.Actor, changes: dict[str, Any] | None = None
) -> None:
    audit.record(
        db, action, actor=actor, workspace_id=None, target_id=target.id, target_name=target.name, changes=changes
    )


def _record_workspace(
    db: Session, action: str, target: Workspace, actor: audit.Actor, changes: dict[str, Any] | None = None
) -> None:
    audit.record(
        db, action, actor=actor, workspace_id=target.id, target_id=target.id, target_name=target.name, changes=changes
    )


def _record_member(
    db: Session,
    action: str,
    workspace_id: uuid.UUID,
    person_id: uuid.UUID,
    name: str,
    actor: audit.Actor,
    changes: dict[str, Any] | None = None,
) -> None:
    audit.record(
        db, action, actor=actor, workspace_id=workspace_id, target_id=person_id, target_name=name, changes=changes
    )
