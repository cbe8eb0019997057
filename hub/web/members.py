"""Members of a workspace and their roles. The last admin stays."""

from __future__ import annotations

import uuid
from typing import Any

from flask import Blueprint, Response, url_for

from hub import words
from hub.errors import Malformed
from hub.models import people
from hub.models.people import Member
from hub.models.workspace import ROLES
from hub.web import auth, respond
from hub.web.auth import Place
from hub.web.state import database

bp = Blueprint("members", __name__)

YES_NO = {"true": True, "false": False}


@bp.get("/w/<slug>/members")
def index(slug: str) -> Response:
    """Members by name."""
    cursor, limit = respond.paging()
    with database().transaction() as session:
        place = auth.enter(session, slug, "members.manage")
        found = people.members(session, place.workspace.id, _after(cursor), limit + 1)
    shown, more = found[:limit], len(found) > limit
    following = respond.encode_cursor(shown[-1].name, shown[-1].person_id) if more else None
    if respond.wants_json():
        return respond.as_json({"items": [_as_data(member) for member in shown], "next": following})
    return respond.render("members/index.html", members=shown, cursor=cursor, following=following)


@bp.get("/w/<slug>/members/<uuid:person_id>")
def show(slug: str, person_id: uuid.UUID) -> Response:
    """One member, with the forms to change role and access."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "members.manage")
        member = people.member(session, place.workspace.id, person_id)
    if respond.wants_json():
        return respond.as_json(_as_data(member))
    return _page(member)


@bp.route("/w/<slug>/members/<uuid:person_id>", methods=["POST", "PATCH"])
def change(slug: str, person_id: uuid.UUID) -> Response:
    """Change a member's role or access: ``{"role": …, "enabled": …}``, each optional."""
    wanted = respond.body()
    with database().transaction() as session:
        place = auth.enter(session, slug, "members.manage")
        if not respond.wants_json() and _lowers_oneself(place, person_id, wanted):
            return _page(people.member(session, place.workspace.id, person_id), confirming=wanted, status=422)
        member = people.change_member(
            session,
            place.workspace.id,
            person_id,
            place.actor,
            role=wanted.get("role"),
            enabled=_enabled(wanted),
        )
    if respond.wants_json():
        return respond.as_json(_as_data(member))
    return respond.see_other(url_for("members.index", slug=slug), _told(member))


def _page(member: Member, confirming: dict[str, Any] | None = None, status: int = 200) -> Response:
    return respond.render("members/show.html", status, member=member, roles=ROLES, confirming=confirming, errors={})


def _lowers_oneself(place: Place, person_id: uuid.UUID, wanted: dict[str, Any]) -> bool:
    """Whether somebody is about to take their own rights away without having confirmed it."""
    if person_id != place.person.id or wanted.get("confirmed") == "yes":
        return False
    return wanted.get("role", "admin") != "admin" or wanted.get("enabled") == "false"


def _enabled(wanted: dict[str, Any]) -> object:
    value = wanted.get("enabled")
    # A form can only send text.
    return YES_NO.get(value, value) if isinstance(value, str) else value


def _told(member: Member) -> str:
    if not member.enabled:
        return words.say("members.now_disabled", name=member.name)
    return words.say("members.now", name=member.name, role=words.say(f"role.{member.role}"))


def _after(cursor: str | None) -> tuple[str, uuid.UUID] | None:
    if cursor is None:
        return None
    parts = respond.decode_cursor(cursor)
    try:
        name, person_id = parts
        return name, uuid.UUID(person_id)
    except ValueError:
        raise Malformed("bad_cursor") from None


def _as_data(member: Member) -> dict[str, Any]:
    return {
        "id": member.person_id,
        "name": member.name,
        "email": member.email,
        "role": member.role,
        "enabled": member.enabled and member.person_enabled,
        "added_by": member.added_by,
        "added_at": member.added_at,
        "active_at": member.active_at,
    }
