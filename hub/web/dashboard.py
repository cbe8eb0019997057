"""A workspace's first page: what needs somebody, what runs, what there is."""

from __future__ import annotations

from flask import Blueprint, Response

from hub.web import auth, respond
from hub.web.state import database

bp = Blueprint("dashboard", __name__)


@bp.get("/w/<slug>/")
def show(slug: str) -> Response:
    """The dashboard."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
    if respond.wants_json():
        return respond.as_json({"slug": place.workspace.slug, "name": place.workspace.name, "role": place.role})
    return respond.render("dashboard/show.html")
