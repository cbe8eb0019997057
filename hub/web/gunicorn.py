"""Gunicorn's hooks: when a process is told to stop, its open streams say so and end, instead of being waited for."""

from __future__ import annotations

from typing import Any

from hub.web import stream


def post_worker_init(worker: Any) -> None:
    """Called in each web process once its app is loaded."""
    app = worker.wsgi
    with app.test_request_context():
        stream.streams().is_ending = lambda: not worker.alive
