"""A person's own things: time zone, password, sessions, colours."""

from __future__ import annotations

from flask import Blueprint, Response

from hub.web import auth, respond

bp = Blueprint("account", __name__)


@bp.get("/account")
def show() -> Response:
    """The account page."""
    auth.require_visitor()
    return respond.render("account/show.html")
