"""Who is asking, and what they may do here.

Every address needs a session unless its view is marked `public`. `enter` is the guard of everything in a workspace.
Sessions are rows (`hub.models.session`); the browser's signed cookie holds the random token; flask-login carries it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import flask
from flask import Flask, Response, current_app, g, request
from flask.sessions import SecureCookieSessionInterface
from flask_login import LoginManager, UserMixin, current_user, login_user
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Forbidden, NotFound, Unauthenticated
from hub.models import audit, permission, session, support, workspace
from hub.models.person import Person
from hub.models.session import Visitor
from hub.models.workspace import Workspace
from hub.web import headers
from hub.web.state import database, settings

COOKIE = "hub"

View = TypeVar("View", bound=Callable[..., Any])


def public(view: View) -> View:
    """Mark a view that needs no session."""
    view.public = True  # type: ignore[attr-defined]
    return view


def passive(view: View) -> View:
    """Mark a view that pages fetch by themselves: it keeps no session alive, and answers 401 instead of redirecting."""
    view.passive = True  # type: ignore[attr-defined]
    return view


@dataclass(frozen=True)
class Place:
    """A workspace that the visitor may be in, and as what: `role` is admin, member, viewer or support."""

    workspace: Workspace
    role: str
    person: Person
    session_id: uuid.UUID
    zone: ZoneInfo
    zone_name: str
    actor: audit.Actor
    support_reason: str | None = None

    def may(self, action: str) -> bool:
        """Whether the visitor may do `action` here."""
        return permission.may(self.role, action)


class SignedIn(UserMixin):
    """flask-login's user: a live session. Its id is the session's token."""

    def __init__(self, token: str, visitor: Visitor) -> None:
        self.id = token
        self.visitor = visitor


def install(app: Flask) -> None:
    """Load sessions for `app` and let nobody through without one, but to public views."""
    app.session_interface = CookieSessions()
    manager = LoginManager()
    manager.init_app(app, add_context_processor=False)
    # Sessions are judged by their rows; flask-login's own protection would drop them when an address changes.
    manager.session_protection = None
    manager.user_loader(_load)
    app.before_request(_require_session)


def current() -> Visitor | None:
    """The visitor with a live session, or None."""
    if g.get("nobody_can_be_known"):
        return None
    return current_user.visitor if current_user.is_authenticated else None


def without_database() -> None:
    """For the rest of this request, look nobody up: the page that tells of an outage must not need the database."""
    g.nobody_can_be_known = True


def require_visitor() -> Visitor:
    """The visitor. Raises Unauthenticated."""
    visitor = current()
    if visitor is None:
        raise Unauthenticated
    return visitor


def enter(db_session: Session, slug: str, action: str) -> Place:
    """The workspace `slug` for doing `action` in it, in at most two statements; also kept as ``g.place``.

    Raises NotFound for strangers and for what is disabled, Forbidden for a role that does not suffice, and for support
    staff who have not said yet why they come.
    """
    visitor = require_visitor()
    found, membership = workspace.find_for(db_session, slug, visitor.person.id)
    if found is None or not found.enabled:
        raise NotFound
    reason = None
    if membership is not None and membership.enabled:
        role = membership.role
    elif visitor.person.staff == "support":
        role, reason = "support", _stated_reason(db_session, visitor, found)
    else:
        raise NotFound
    # A rollback, as after any refusal, would empty the row, and the error's own page shows the workspace's name.
    db_session.expunge(found)
    g.place = place = _place(visitor, found, role, reason)
    if not place.may(action):
        raise Forbidden(what=words.say(f"action.{action}"), workspace=found.name)
    return place


def actor(person: Person | None, kind: str = "person") -> audit.Actor:
    """The current request's actor for the audit trail; without a person, somebody unknown."""
    return audit.Actor(
        id=person.id if person else None,
        name=person.name if person else "",
        kind=kind,
        address=request.remote_addr,
        request_id=headers.request_id(),
    )


def zone_of(person: Person | None, found: Workspace | None = None) -> ZoneInfo:
    """The person's time zone, else the workspace's, else UTC."""
    name = (person.time_zone if person else None) or (found.time_zone if found else None) or "UTC"
    return ZoneInfo(name)


class CookieSessions(SecureCookieSessionInterface):
    """Flask's signed cookie, with the ``__Host-`` prefix and Secure wherever it must not travel in the clear."""

    def get_cookie_name(self, app: Flask) -> str:
        """``__Host-hub`` over https and in production, ``hub`` on plain http."""
        return f"__Host-{COOKIE}" if self.get_cookie_secure(app) else COOKIE

    def get_cookie_secure(self, app: Flask) -> bool:
        """Whether the cookie is for https alone."""
        return request.is_secure or app.extensions["hub"].settings.env == "production"


def _place(visitor: Visitor, found: Workspace, role: str, reason: str | None) -> Place:
    zone = zone_of(visitor.person, found)
    return Place(
        workspace=found,
        role=role,
        person=visitor.person,
        session_id=visitor.session_id,
        zone=zone,
        zone_name=zone.key,
        actor=actor(visitor.person, "support" if role == "support" else "person"),
        support_reason=reason,
    )


def _stated_reason(db_session: Session, visitor: Visitor, found: Workspace) -> str:
    visit = support.visit(db_session, visitor.session_id, found.id)
    if visit is None:
        raise Forbidden("support_reason_required", slug=found.slug)
    return visit.reason


def _load(token: str) -> SignedIn | None:
    with database().transaction() as db_session:
        visitor = session.find(db_session, token)
        if visitor is None:
            return None
        if not is_passive() and visitor.now - visitor.seen_at >= session.TOUCH_EVERY:
            session.touch(db_session, visitor.session_id)
    return SignedIn(token, visitor)


def _require_session() -> Response | None:
    # An address that does not exist answers "not found" to everybody.
    if request.endpoint is None or request.endpoint == "static" or _marked("public"):
        return None
    require_visitor()
    return None


def _marked(mark: str) -> bool:
    view = current_app.view_functions.get(request.endpoint or "")
    return getattr(view, mark, False)


def is_passive() -> bool:
    """Whether a page fetches this by itself: by the view's mark, or by what live.js says of a part it fetches anew."""
    return _marked("passive") or "Hub-Live" in request.headers


def start_session(db_session: Session, person: Person) -> SignedIn:
    """A new session row for this browser; `begin_session` hands it over once the row is committed."""
    token, row = session.start(
        db_session,
        person,
        idle=settings().session_idle,
        absolute=settings().session_absolute,
        address=request.remote_addr or "",
        user_agent=request.headers.get("User-Agent", ""),
    )
    visitor = session.get(db_session, row.id)
    if visitor is None:
        # Disabled a moment ago.
        raise Unauthenticated
    return SignedIn(token, visitor)


def begin_session(signed_in: SignedIn) -> None:
    """Give the browser this session, and nothing from before: a fresh CSRF token too."""
    end_session()
    flask.session.permanent = True
    login_user(signed_in)


def end_session() -> None:
    """Take everything from the browser's cookie."""
    flask.session.clear()
    g.pop("csrf_token", None)
