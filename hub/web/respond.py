"""Reading requests and making answers: page or JSON, 303 with a message, paging, times."""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from flask import Flask, Response, current_app, flash, redirect, render_template, request

from hub.errors import Malformed, WrongType

MAX_CURSOR = 2000
MAX_DEPTH = 20
SURROGATE = re.compile("[\ud800-\udfff]")
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")

View = TypeVar("View", bound=Callable[..., Any])


def takes(max_bytes: int) -> Callable[[View], View]:
    """Mark a view whose requests may be larger than usual, as uploads are."""

    def mark(view: View) -> View:
        view.max_bytes = max_bytes  # type: ignore[attr-defined]
        return view

    return mark


def install(app: Flask) -> None:
    """Let views that are marked by `takes` read larger requests."""
    app.before_request(_allow_size)


def wants_json() -> bool:
    """Whether the caller asks for JSON: by Accept, or by sending JSON without preferring anything."""
    accept = request.accept_mimetypes
    if "text/html" in accept.values():
        return accept.best_match(["text/html", "application/json"]) == "application/json"
    return "application/json" in accept.values() or request.is_json


def wants_fragment() -> bool:
    """Whether htmx asks, for a part of the page."""
    return request.headers.get("HX-Request") == "true"


def render(template: str, status: int = 200, **context: Any) -> Response:
    """The page or fragment of a template."""
    return Response(render_template(template, **context), status, mimetype="text/html")


def as_json(data: Any, status: int = 200, **headers: str) -> Response:
    """`data` as JSON. Times become RFC 3339 UTC, ids text. Headers: ``as_json(data, ETag=etag)``."""
    text = json.dumps(data, ensure_ascii=False, default=_plain)
    response = Response(text, status, mimetype="application/json")
    for name, value in headers.items():
        response.headers[name.replace("_", "-")] = value
    return response


def see_other(url: str, message: str | None = None) -> Response:
    """303 to a page of Hub, which shows `message` once in its message area."""
    if message:
        flash(message, "success")
    return Response(status=303, headers={"Location": redirect(url).location})


def created(url: str, data: Any, message: str | None = None) -> Response:
    """A new thing at `url`: JSON 201 with Location, or 303 for a browser's form."""
    return as_json(data, 201, Location=url) if wants_json() else see_other(url, message)


def body() -> dict[str, Any]:
    """The request's JSON object or form, without its CSRF token.

    A form's field is text, or a list of texts if it is repeated. Raises Malformed for what cannot be read: no object,
    bad JSON or encoding, NUL, lone surrogates, too deep; WrongType for another type of content.
    """
    if request.mimetype == "application/json" or request.mimetype.endswith("+json"):
        data = _json_object()
    elif request.mimetype in FORMS:
        data = {name: texts if len(texts) > 1 else texts[0] for name, texts in request.form.lists()}
    elif not request.content_length and "Transfer-Encoding" not in request.headers:
        data = {}
    else:
        raise WrongType("wrong_content_type")
    refuse_unstorable(data)
    data.pop("csrf_token", None)
    return data


def refuse_unstorable(value: Any, depth: int = 0) -> None:
    """Raise Malformed for text that PostgreSQL cannot hold, anywhere inside `value`, and for absurd nesting."""
    if depth > MAX_DEPTH:
        raise Malformed("too_deep")
    if isinstance(value, str):
        if "\x00" in value or SURROGATE.search(value):
            raise Malformed("bad_characters")
    elif isinstance(value, dict):
        for key, item in value.items():
            refuse_unstorable(key, depth + 1)
            refuse_unstorable(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            refuse_unstorable(item, depth + 1)


def paging(default: int = 50, most: int = 200) -> tuple[str | None, int]:
    """The list parameters `cursor` and `limit` (at most `most`). Raises Malformed for values that are none."""
    raw = request.args.get("limit", "")
    if raw and not re.fullmatch(r"[0-9]{1,6}", raw):
        raise Malformed("bad_limit")
    limit = min(int(raw), most) if raw else default
    if limit < 1:
        raise Malformed("bad_limit")
    cursor = request.args.get("cursor") or None
    if cursor and len(cursor) > MAX_CURSOR:
        raise Malformed("bad_cursor")
    return cursor, limit


def encode_cursor(*parts: object) -> str:
    """A cursor from the last row's sort values."""
    text = json.dumps([_plain(part) if isinstance(part, (datetime, uuid.UUID)) else str(part) for part in parts])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(text: str) -> tuple[str, ...]:
    """The texts that `encode_cursor` was given. Raises Malformed for anything it did not make."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        parts = json.loads(raw)
    except (binascii.Error, ValueError, RecursionError):
        raise Malformed("bad_cursor") from None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise Malformed("bad_cursor")
    refuse_unstorable(parts)
    return tuple(parts)


def iso(moment: datetime | None) -> str | None:
    """A time as RFC 3339 in UTC: ``2026-11-30T14:02:11.123456Z``."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _allow_size() -> None:
    view = current_app.view_functions.get(request.endpoint or "")
    max_bytes = getattr(view, "max_bytes", None)
    if max_bytes is not None:
        request.max_content_length = max_bytes


def _json_object() -> dict[str, Any]:
    try:
        data = json.loads(request.get_data(), parse_constant=_refuse_constant, object_pairs_hook=_refuse_doubles)
    except (ValueError, RecursionError):
        raise Malformed("bad_json") from None
    if not isinstance(data, dict):
        raise Malformed("not_an_object")
    return data


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Which of two values for one name is meant, nobody can tell.
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name is given twice")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    # NaN and the infinities are no JSON, and no PostgreSQL number either.
    raise ValueError(name)


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"cannot be JSON: {type(value)}")
