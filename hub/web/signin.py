"""Signing in and out."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Response, request, url_for
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Invalid, TooMany
from hub.models import audit, person, rate, session, workspace
from hub.models.person import Person
from hub.web import address, auth, respond
from hub.web.state import database, settings

bp = Blueprint("signin", __name__)

# A path of this site: one slash, then anything that no browser takes for another host or a control character.
LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")
MAX_PATH = 2000


@bp.get("/sign-in")
@auth.public
def show() -> Response:
    """The form; somebody already signed in goes on."""
    visitor = auth.current()
    if visitor is not None:
        return respond.see_other(_landing(visitor.person, local_path(request.args.get("next"))))
    return _form(local_path(request.args.get("next")))


@bp.post("/sign-in")
@auth.public
def sign_in() -> Response:
    """Check e-mail and password, and begin a session. 422 for a wrong pair, 429 for too many tries."""
    form = respond.body()
    email, password = _text(form, "email"), _text(form, "password")
    target = local_path(_text(form, "next"))
    _spend_budgets(email)
    with database().transaction() as db_session:
        found = person.find(db_session, email)
    # Outside any transaction: the hash takes its time, and holds no connection meanwhile.
    if not person.check_password(found, password) or found is None or not found.enabled:
        return _refused(found, email, target)
    replaced = auth.current()
    with database().transaction() as db_session:
        if replaced is not None:
            session.end(db_session, replaced.session_id)
            _record(db_session, "session.ended", replaced.person)
        signed_in = auth.start_session(db_session, found)
        person.refresh_hash(db_session, found, password)
        _record(db_session, "session.signed_in", found)
        # What has run out is removed here, by whoever comes next.
        session.forget_expired(db_session)
        rate.forget_old(db_session)
    auth.begin_session(signed_in)
    if respond.wants_json():
        return respond.as_json({"id": found.id, "email": found.email, "name": found.name})
    return respond.see_other(_landing(found, target))


@bp.post("/sign-out")
def sign_out() -> Response:
    """End this session for good."""
    visitor = auth.require_visitor()
    with database().transaction() as db_session:
        session.end(db_session, visitor.session_id)
        _record(db_session, "session.ended", visitor.person)
    auth.end_session()
    if respond.wants_json():
        return respond.as_json({})
    return respond.see_other(url_for("signin.show"), words.say("signin.signed_out"))


@bp.get("/")
def home() -> Response:
    """Wherever the visitor works."""
    return respond.see_other(_landing(auth.require_visitor().person, None))


def local_path(text: str | None) -> str | None:
    """`text` if it is a path within this site, byte for byte; else None."""
    return text if text and len(text) <= MAX_PATH and LOCAL_PATH.fullmatch(text) else None


def _form(target: str | None, email: str = "", errors: dict[str, str] | None = None, status: int = 200) -> Response:
    return respond.render("signin/show.html", status, next=target, email=email, errors=errors or {})


def _text(form: dict[str, Any], name: str) -> str:
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def _spend_budgets(email: str) -> None:
    limit = settings().signin_per_minute
    keys = (
        f"signin:address:{address.budget_key(request.remote_addr)}",
        f"signin:account:{person.normal_email(email)[:200]}",
    )
    for key in keys:
        with database().transaction() as db_session:
            verdict = rate.hit(db_session, key, limit=limit)
        if not verdict.allowed:
            raise TooMany("rate_limited", retry_after=verdict.retry_after)


def _refused(found: Person | None, email: str, target: str | None) -> Response:
    reason = "unknown" if found is None else "password" if found.enabled else "disabled"
    with database().transaction() as db_session:
        # Not what was typed: people type passwords into the wrong field.
        audit.record(
            db_session,
            "session.refused",
            actor=auth.actor(None),
            workspace_id=None,
            target_id=found.id if found else None,
            target_name=found.name if found else "",
            outcome="refused",
            changes={"reason": reason},
        )
    errors = {"email": words.say("signin.wrong_pair")}
    if respond.wants_json():
        raise Invalid(errors, "wrong_pair")
    return _form(target, email, errors, 422)


def _record(db_session: Session, action: str, found: Person) -> None:
    audit.record(
        db_session,
        action,
        actor=auth.actor(found),
        workspace_id=None,
        target_id=found.id,
        target_name=found.name,
    )


def _landing(found: Person, target: str | None) -> str:
    if target:
        return target
    with database().transaction() as db_session:
        places = workspace.of_person(db_session, found.id)
    if len(places) == 1 and not found.staff:
        return url_for("dashboard.show", slug=places[0][0].slug)
    return url_for("workspaces.index")
