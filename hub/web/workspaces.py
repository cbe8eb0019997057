"""Where a person can go: their workspaces, and for support staff all others."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from hub.errors import Malformed
from hub.models import workspace
from hub.web import auth, respond
from hub.web.state import database

bp = Blueprint("workspaces", __name__)


@bp.get("/workspaces")
def index() -> Response:
    """The visitor's workspaces by name; for support staff then the others, in pages."""
    visitor = auth.require_visitor()
    cursor, limit = respond.paging()
    others, following = [], None
    with database().transaction() as session:
        own = workspace.of_person(session, visitor.person.id)
        if visitor.person.staff == "support":
            others = workspace.not_of_person(session, visitor.person.id, _after(cursor), limit + 1)
    if len(others) > limit:
        others = others[:limit]
        following = respond.encode_cursor(others[-1].name, others[-1].slug)
    if respond.wants_json():
        items = [_as_data(found, role) for found, role in own if cursor is None]
        items += [_as_data(found, "support") for found in others]
        return respond.as_json({"items": items, "next": following})
    return respond.render("workspaces/index.html", own=own, others=others, cursor=cursor, following=following)


def _after(cursor: str | None) -> tuple[str, str] | None:
    if cursor is None:
        return None
    parts = respond.decode_cursor(cursor)
    if len(parts) != 2:
        raise Malformed("bad_cursor")
    return parts[0], parts[1]


def _as_data(found: workspace.Workspace, role: str) -> dict[str, Any]:
    return {"slug": found.slug, "name": found.name, "role": role}
