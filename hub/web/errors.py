"""Whatever is raised becomes an answer: a page, a fragment for htmx, or JSON. The one place for status codes.

Refusals that tell of somebody's wish (403, 409, a full capacity) leave one `request.refused` event in the audit trail.
"""

from __future__ import annotations

import logging
from urllib.parse import quote

import psycopg
from flask import Flask, Response, g, request, url_for
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from werkzeug.exceptions import HTTPException

from hub import db, words
from hub.errors import (
    Forbidden,
    Invalid,
    Malformed,
    NotFound,
    Refusal,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WrongType,
)
from hub.models import audit, rate, workspace
from hub.web import auth, headers, respond
from hub.web.state import database

log = logging.getLogger(__name__)


class MethodNotAllowed(Refusal):
    """An address that exists, but not for this method."""

    status = 405
    default_code = "method_not_allowed"


class Unexpected(Refusal):
    """A fault of ours."""

    status = 500
    default_code = "unexpected"


def install(app: Flask) -> None:
    """Answer everything that `app` raises."""
    app.before_request(_refuse_nul)
    app.register_error_handler(Refusal, _answer)
    app.register_error_handler(HTTPException, lambda error: _from_http(error))
    app.register_error_handler(Exception, lambda error: _answer(_translated(error)))


def message(error: Refusal) -> str:
    """The sentence that tells a person what happened."""
    return _say(f"error.{error.code}", f"error.status.{error.status}", error)


def _refuse_nul() -> None:
    if "\x00" in request.path or "%00" in request.query_string.decode("latin-1"):
        raise Malformed("bad_characters")


def _from_http(error: HTTPException) -> Response:
    # Werkzeug raises these while routing and while reading a request.
    known: dict[int, Refusal] = {
        404: NotFound(),
        405: MethodNotAllowed(),
        413: TooLarge(),
        415: WrongType(),
    }
    code = error.code or 500
    response = _answer(known.get(code) or (Malformed() if code < 500 else Unexpected()))
    if code == 405 and error.get_response().headers.get("Allow"):
        response.headers["Allow"] = error.get_response().headers["Allow"]
    return response


def _translated(error: Exception) -> Refusal:
    if isinstance(error, PoolTimeout):
        return Unavailable()
    if isinstance(error, (SQLAlchemyError, psycopg.Error)):
        cause = error.orig if isinstance(error, DBAPIError) else error
        if db.is_connection_loss(error):
            log.warning("the database is away: %s", type(cause).__name__)
            return Unavailable()
        if isinstance(cause, (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)):
            return Unavailable()
        if isinstance(cause, (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)):
            return Unavailable(retry_after=1)
    log.error("unexpected error", exc_info=error)
    return Unexpected()


def _answer(error: Refusal) -> Response:
    if error.status >= 500:
        auth.without_database()
    record_refusal(error)
    response = _redirect(error) or _json(error) or _html(error)
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


def _redirect(error: Refusal) -> Response | None:
    if respond.wants_json() or respond.wants_fragment() or auth.is_passive():
        return None
    if isinstance(error, Unauthenticated):
        return respond.see_other(url_for("signin.show", next=_return_path()))
    if error.code == "support_reason_required":
        return respond.see_other(url_for("support.show", slug=error.data["slug"], next=_return_path()))
    return None


def _return_path() -> str | None:
    if request.method not in ("GET", "HEAD"):
        return None
    if request.path == "/":
        return None
    query = request.query_string.decode("latin-1")
    return quote(request.path, safe="/~:@!$&'()*+,;=") + (f"?{query}" if query else "")


def _json(error: Refusal) -> Response | None:
    if not respond.wants_json():
        return None
    content: dict[str, object] = {
        "code": error.code,
        "message": message(error),
        "request_id": headers.request_id(),
    }
    if isinstance(error, Invalid):
        content["fields"] = error.fields
    if hasattr(error, "retry_after"):
        content["retry_after"] = error.retry_after
    return respond.as_json({"error": content}, error.status)


def _html(error: Refusal) -> Response:
    template = "_error.html" if respond.wants_fragment() or auth.is_passive() else "error.html"
    context = {
        "error": error,
        "title": _say(f"error.{error.code}.title", f"error.status.{error.status}.title", error),
        "message": message(error),
        "admins": _admins(error),
    }
    return respond.render(template, error.status, **context)


def _say(key: str, fallback: str, error: Refusal) -> str:
    """The words of `key` with the error's data, or of `fallback` where there are none or the data do not fill them."""
    try:
        return words.say(key if words.has(key) else fallback, **error.data)
    except KeyError:
        return words.say(fallback)


def _admins(error: Refusal) -> list[str]:
    """Up to three people who could help with a missing right."""
    place = g.get("place")
    if not isinstance(error, Forbidden) or place is None:
        return []
    with database().transaction() as session:
        return workspace.admin_names(session, place.workspace.id, limit=3)


def record_refusal(error: Refusal) -> None:
    """Leave one event of a refusal that tells of somebody's wish; for views that show a refusal in their own page."""
    capacity = error.status == 429 and error.code != "rate_limited"
    if error.status not in (403, 409) and not capacity:
        return
    visitor = auth.current()
    if visitor is None:
        return
    place = g.get("place")
    try:
        with database().transaction() as session:
            # One event per actor, reason and minute: a script that keeps trying does not flood the trail.
            if rate.hit(session, f"refused:{visitor.person.id}:{error.code}", limit=1).allowed:
                audit.record(
                    session,
                    "request.refused",
                    actor=place.actor if place else auth.actor(visitor.person),
                    workspace_id=place.workspace.id if place else None,
                    # What the person was told, so that the trail can be read without knowing addresses.
                    target_name=message(error),
                    outcome="refused",
                    changes={"code": error.code, "attempted": f"{request.method} {request.url_rule}"},
                )
    except Exception:
        # The refusal stands whether or not it could be written down.
        log.exception("a refusal could not be audited")
