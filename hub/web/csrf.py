"""Every change carries a token of its session and comes from our own pages.

The check runs after the session's, so that somebody signed out is told to sign in. The token alone does not suffice
where the browser says that another site sent the request.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import Flask, request
from flask_wtf.csrf import generate_csrf, validate_csrf
from wtforms.validators import ValidationError

from hub.errors import Malformed

SAFE = ("GET", "HEAD", "OPTIONS")
HEADER = "X-CSRFToken"
FIELD = "csrf_token"
DEFAULT_PORTS = {"http": 80, "https": 443}


def install(app: Flask) -> None:
    """Check all changing requests of `app`; templates get ``csrf_token()``."""
    app.before_request(_check)
    app.jinja_env.globals["csrf_token"] = generate_csrf


def _check() -> None:
    if request.method in SAFE or request.endpoint is None:
        return
    _check_origin()
    # The header first: reading the form field means reading the whole body.
    token = request.headers.get(HEADER) or request.form.get(FIELD)
    try:
        validate_csrf(token)
    except ValidationError:
        raise Malformed("csrf_failed") from None


def _check_origin() -> None:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Malformed("cross_site")
        return
    origin = request.headers.get("Origin")
    if origin is not None and _parts(origin) != _parts(f"{request.scheme}://{request.host}"):
        raise Malformed("cross_site")


def _parts(origin: str) -> tuple[str, str, int | None]:
    try:
        split = urlsplit(origin)
        return split.scheme, split.hostname or "", split.port or DEFAULT_PORTS.get(split.scheme)
    except ValueError:
        return "", "", None
