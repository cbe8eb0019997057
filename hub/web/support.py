"""Support staff look into a workspace only after saying why; the reason is in its audit trail."""

from __future__ import annotations

from flask import Blueprint, Response, request, url_for
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Invalid, NotFound
from hub.models import audit, content, support, workspace
from hub.models.session import Visitor
from hub.models.workspace import Workspace
from hub.web import auth, respond
from hub.web.signin import local_path
from hub.web.state import database

bp = Blueprint("support", __name__)


@bp.get("/support/<slug>")
def show(slug: str) -> Response:
    """The form that asks why."""
    with database().transaction() as session:
        _, found = _workspace(session, slug)
    return _form(found, local_path(request.args.get("next")))


@bp.post("/support/<slug>")
def visit(slug: str) -> Response:
    """Begin the visit, for as long as this sign-in lasts: ``{"reason": …}``."""
    form = respond.body()
    target = local_path(form["next"]) if isinstance(form.get("next"), str) else None
    with database().transaction() as session:
        visitor, found = _workspace(session, slug)
        try:
            reason = _reason(form.get("reason"))
        except Invalid as error:
            if respond.wants_json():
                raise
            return _form(found, target, form.get("reason", ""), error.fields)
        support.begin(session, visitor.session_id, found.id, reason)
        audit.record(
            session,
            "support.visited",
            actor=auth.actor(visitor.person, "support"),
            workspace_id=found.id,
            target_id=found.id,
            target_name=found.name,
            changes={"reason": reason},
        )
    return respond.created(target or url_for("dashboard.show", slug=slug), {"workspace": slug, "reason": reason})


def _workspace(session: Session, slug: str) -> tuple[Visitor, Workspace]:
    visitor = auth.require_visitor()
    found = workspace.find(session, slug) if visitor.person.staff == "support" else None
    if found is None or not found.enabled:
        raise NotFound
    return visitor, found


def _form(found: Workspace, target: str | None, reason: object = "", errors: dict[str, str] | None = None) -> Response:
    return respond.render(
        "support/show.html",
        422 if errors else 200,
        workspace=found,
        next=target,
        reason=reason if isinstance(reason, str) else "",
        errors=errors or {},
    )


def _reason(reason: object) -> str:
    text = " ".join(reason.split()) if isinstance(reason, str) else ""
    fits = support.MIN_REASON <= len(text) <= support.MAX_REASON
    if not fits or not content.has_visible(text) or content.has_control(text):
        limits = {"least": support.MIN_REASON, "most": support.MAX_REASON}
        raise Invalid({"reason": words.say("support.reason.length", **limits)})
    return text
