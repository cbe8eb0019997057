"""For whoever watches the processes: is this one alive, and can it serve."""

from __future__ import annotations

from flask import Blueprint, Response

from hub import schema
from hub.errors import SchemaMismatch, Unavailable
from hub.web import auth, respond
from hub.web.state import settings

bp = Blueprint("health", __name__)


@bp.get("/healthz")
@auth.public
def alive() -> Response:
    """200 whenever this process answers at all, also while the database is away."""
    return respond.as_json({"status": "ok"})


@bp.get("/readyz")
@auth.public
def ready() -> Response:
    """200 when the database is there and fits this code, else 503 with Retry-After."""
    try:
        schema.check(settings().database_url)
    except SchemaMismatch:
        raise Unavailable("schema_mismatch") from None
    return respond.as_json({"status": "ready"})
