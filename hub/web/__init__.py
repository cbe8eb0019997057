"""HTTP: pages, fragments and JSON at the same addresses. The only package that imports Flask.

`create_app` puts the parts together. What happens to each request, in order: effective address (`address`), request id
(`headers`), session, CSRF and origin (`auth`, `csrf`), then the view: load, guard, act, answer. Whatever is raised
becomes an answer in `errors`.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from pathlib import Path

import psycopg
from flask import Flask

from hub import config, db, schema
from hub.config import Settings
from hub.errors import ConfigError
from hub.web import address, auth, converters, csrf, errors, filters, headers, navigation, respond
from hub.web.state import State

ROOT = Path(__file__).parent.parent.parent
# A page's body is at most 1 MB of text, which a form's encoding makes up to three times as long. Views that take
# uploads say so themselves (`respond.takes`).
MAX_BODY = 4 * 1024 * 1024
POOL_SIZE = 16

log = logging.getLogger(__name__)


def create_app(settings: Settings | None = None) -> Flask:
    """The application on the database of `settings` (by default of the environment).

    Raises ConfigError without a database address, and SchemaMismatch if the database is there but does not fit.
    """
    settings = settings or config.load()
    if not settings.database_url:
        raise ConfigError("HUB_DATABASE_URL: the web server needs a database; `hub up` brings its own")
    _check_schema(settings)
    app = Flask("hub", root_path=str(ROOT), template_folder="templates", static_folder="static")
    app.config.update(_flask_settings(settings))
    app.extensions["hub"] = State(
        settings, db.Database(settings.database_url, application_name="hub web", size=POOL_SIZE)
    )
    app.wsgi_app = address.EffectiveAddress(app.wsgi_app, settings.trusted_proxies)  # type: ignore[method-assign]
    converters.install(app)
    # The order of these four is the order in which a request meets them.
    headers.install(app)
    auth.install(app)
    respond.install(app)
    csrf.install(app)
    errors.install(app)
    filters.install(app)
    navigation.install(app)
    for module in pkgutil.iter_modules(__path__):
        blueprint = getattr(importlib.import_module(f"{__name__}.{module.name}"), "bp", None)
        if blueprint is not None:
            app.register_blueprint(blueprint)
    return app


def _check_schema(settings: Settings) -> None:
    try:
        schema.check(settings.database_url)
    except psycopg.OperationalError:
        # A web server that starts before its database answers 503 until the database is there.
        log.warning("the database is not reachable yet")


def _flask_settings(settings: Settings) -> dict[str, object]:
    return {
        "SECRET_KEY": settings.secret_key or config.kept_secret(settings.data_dir, "secret.key"),
        "MAX_CONTENT_LENGTH": MAX_BODY,
        "MAX_FORM_MEMORY_SIZE": MAX_BODY,
        "MAX_FORM_PARTS": 1000,
        "PERMANENT_SESSION_LIFETIME": settings.session_absolute,
        "SESSION_REFRESH_EACH_REQUEST": False,
        "SESSION_COOKIE_HTTPONLY": True,
        "SESSION_COOKIE_SAMESITE": "Lax",
        # A page may stay open for days and must still work: the token lives as long as the session.
        "WTF_CSRF_TIME_LIMIT": None,
    }
