"""What every answer carries: request id, security headers, cache rules; and one access line in the log."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

from flask import Flask, Response, g, request
from werkzeug.routing import RequestRedirect

from hub import log

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: browsers then send `Origin: null` with forms, and the origin check would refuse them.
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HSTS = "max-age=31536000; includeSubDomains"

access = logging.getLogger("hub.access")


def install(app: Flask) -> None:
    """Let all requests of `app` begin and end here."""
    app.before_request(_begin)
    app.after_request(_finish)
    app.teardown_request(_forget)


def request_id() -> str:
    """The current request's reference, as people may quote it."""
    reference: str = g.request_id
    return reference


def _begin() -> None:
    g.request_id = secrets.token_hex(8)
    g.began = time.monotonic()
    g.log_context = ExitStack()
    g.log_context.enter_context(log.context(request_id=g.request_id))


def _finish(response: Response) -> Response:
    response.headers["X-Request-ID"] = request_id()
    for name, value in SECURITY.items():
        response.headers.setdefault(name, value)
    if request.is_secure:
        response.headers["Strict-Transport-Security"] = HSTS
    if request.endpoint == "static" and "v" in request.args and response.status_code == 200:
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    elif request.endpoint != "static":
        response.headers.setdefault("Cache-Control", "no-store")
        response.vary.update(("Accept", "Cookie", "HX-Request"))
    if isinstance(request.routing_exception, RequestRedirect):
        # Made a path of this site, like all our redirects: the host that a request names is not to be believed.
        split = urlsplit(request.routing_exception.new_url)
        response.headers["Location"] = split._replace(scheme="", netloc="").geturl()
    access.info(
        "request",
        extra={
            "method": request.method,
            "path": request.path,
            "status": response.status_code,
            "ms": round((time.monotonic() - g.began) * 1000, 1),
            "address": request.remote_addr,
        },
    )
    return response


def _forget(_error: BaseException | None) -> None:
    context = g.pop("log_context", None)
    if context is not None:
        context.close()
