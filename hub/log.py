"""Logging: one JSON object a line, with the request and job it belongs to.

Anything logged inside `context(request_id=…)` or `context(job_id=…)` carries these, in whatever thread set them.
"""

from __future__ import annotations

import contextvars
import json
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

_fields: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("hub_log_fields", default=None)
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, logger, message, context, extras, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _fields.get() or {}
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[1]:
            line["traceback"] = _traceback(record.exc_info[1])
        return json.dumps(line, ensure_ascii=True, default=str)


def _traceback(error: BaseException) -> str:
    """Where an exception and its causes came from, and what they say.

    An error of the database says only its class: its message may repeat a row, and so what people wrote.
    """
    told = "".join(traceback.format_tb(error.__traceback__)) + _told(error)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{_traceback(cause)}\n\n{told}" if cause else told


def _told(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__.startswith(("psycopg", "sqlalchemy")):
        return f"{kind.__name__} {getattr(error, 'sqlstate', None) or ''}".strip()
    return "".join(traceback.format_exception_only(error)).strip()


def setup(level: int = logging.INFO) -> None:
    """Send everything from `level` up to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Alembic narrates every step at info; the command prints the outcome itself.
    logging.getLogger("alembic").setLevel(logging.WARNING)


@contextmanager
def context(**values: Any) -> Iterator[None]:
    """Add fields to every line that this thread logs inside the block."""
    token = _fields.set((_fields.get() or {}) | values)
    try:
        yield
    finally:
        _fields.reset(token)
