"""The workspaces of a person."""

from __future__ import annotations

from flask import Blueprint, Response

from hub.models import workspace
from hub.web import auth, respond
from hub.web.state import database

bp = Blueprint("workspaces", __name__)


@bp.get("/workspaces")
def index() -> Response:
    """Where the visitor can go."""
    visitor = auth.require_visitor()
    with database().transaction() as session:
        places = workspace.of_person(session, visitor.person.id)
    if respond.wants_json():
        items = [{"slug": found.slug, "name": found.name, "role": role} for found, role in places]
        return respond.as_json({"items": items, "next": None})
    return respond.render("workspaces/index.html", places=places)
