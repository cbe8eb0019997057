"""A person's own things: time zone, colours, password, sessions."""

from __future__ import annotations

import uuid
from typing import Any

from flask import Blueprint, Response, request, url_for
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Invalid, NotFound, TooMany
from hub.models import audit, people, person, rate, session
from hub.models.session import SignIn, Visitor
from hub.web import auth, filters, respond
from hub.web.state import database, settings

bp = Blueprint("account", __name__)

THEME_KEPT = 365 * 24 * 3600


@bp.get("/account")
def show() -> Response:
    """The account page."""
    return _page({})


@bp.post("/account/time-zone")
def change_time_zone() -> Response:
    """Choose in which zone pages show times: ``{"time_zone": IANA name or empty}``."""
    visitor, form = auth.require_visitor(), respond.body()
    try:
        with database().transaction() as db_session:
            people.change_time_zone(db_session, visitor.person, form.get("time_zone"), auth.actor(visitor.person))
    except Invalid as error:
        return _invalid(error)
    return _saved(words.say("account.saved"))


@bp.post("/account/theme")
def change_theme() -> Response:
    """Choose this browser's colours: ``{"theme": "light", "dark" or empty for the system's}``."""
    auth.require_visitor()
    theme = respond.body().get("theme", "")
    if theme not in ("", *filters.THEMES):
        return _invalid(Invalid({"theme": words.say("form.choose")}))
    response = _saved(words.say("account.saved"))
    response.set_cookie(
        filters.THEME_COOKIE, theme, max_age=THEME_KEPT, httponly=True, samesite="Lax", secure=request.is_secure
    )
    return response


@bp.post("/account/password")
def change_password() -> Response:
    """Set a new password: ``{"password": present one, "new_password": …}``. All other sessions end."""
    visitor, form = auth.require_visitor(), respond.body()
    _spend_budget(visitor)
    given = form.get("password")
    try:
        if not isinstance(given, str) or not person.check_password(visitor.person, given):
            raise Invalid({"password": words.say("account.password.wrong")})
        with database().transaction() as db_session:
            actor = auth.actor(visitor.person)
            people.change_password(db_session, visitor.person, form.get("new_password"), actor, keep=None)
            signed_in = auth.start_session(db_session, visitor.person)
    except Invalid as error:
        return _invalid(error)
    auth.begin_session(signed_in)
    return _saved(words.say("account.password.changed"))


@bp.post("/account/sessions/end-others")
def end_other_sessions() -> Response:
    """Sign out everywhere else."""
    visitor = auth.require_visitor()
    with database().transaction() as db_session:
        ended = session.end_others(db_session, visitor.person.id, keep=visitor.session_id)
        if ended:
            _record_ended(db_session, visitor, ended)
    return _saved(words.say("account.sessions.ended", count=ended))


@bp.post("/account/sessions/<uuid:session_id>/end")
def end_session(session_id: uuid.UUID) -> Response:
    """Sign out one other browser."""
    visitor = auth.require_visitor()
    with database().transaction() as db_session:
        if not session.end_own(db_session, visitor.person.id, session_id):
            raise NotFound
        _record_ended(db_session, visitor, 1)
    return _saved(words.say("account.sessions.ended", count=1))


def _page(errors: dict[str, str], status: int = 200) -> Response:
    visitor = auth.require_visitor()
    with database().transaction() as db_session:
        sessions = session.of_person(db_session, visitor.person.id)
    if respond.wants_json():
        return respond.as_json(_as_data(visitor, sessions))
    return respond.render(
        "account/show.html",
        status,
        sessions=sessions,
        own_session=visitor.session_id,
        zones=people.time_zones(),
        errors=errors,
    )


def _invalid(error: Invalid) -> Response:
    if respond.wants_json():
        raise error
    return _page(error.fields, 422)


def _saved(message: str) -> Response:
    if respond.wants_json():
        return respond.as_json({"message": message})
    return respond.see_other(url_for("account.show"), message)


def _spend_budget(visitor: Visitor) -> None:
    with database().transaction() as db_session:
        verdict = rate.hit(db_session, f"password:{visitor.person.id}", limit=settings().signin_per_minute)
    if not verdict.allowed:
        raise TooMany("rate_limited", retry_after=verdict.retry_after)


def _record_ended(db_session: Session, visitor: Visitor, count: int) -> None:
    audit.record(
        db_session,
        "session.ended",
        actor=auth.actor(visitor.person),
        workspace_id=None,
        target_id=visitor.person.id,
        target_name=visitor.person.name,
        changes={"sessions": count},
    )


def _as_data(visitor: Visitor, sessions: list[SignIn]) -> dict[str, Any]:
    return {
        "id": visitor.person.id,
        "email": visitor.person.email,
        "name": visitor.person.name,
        "staff": visitor.person.staff,
        "time_zone": visitor.person.time_zone,
        "sessions": [
            {
                "id": row.id,
                "current": row.id == visitor.session_id,
                "started_at": row.created_at,
                "seen_at": row.seen_at,
                "address": row.address,
                "user_agent": row.user_agent,
            }
            for row in sessions
        ],
    }
