"""What gunicorn is told beyond its command line: whom to believe, how to log, how open streams end."""

from __future__ import annotations

import os
from typing import Any

from hub import log
from hub.web import stream

# Who is asking is decided in `hub.web.address` alone, by HUB_TRUSTED_PROXIES. Gunicorn would otherwise believe
# X-Forwarded-Proto and SCRIPT_NAME from any loopback or unix-socket peer.
forwarded_allow_ips = ""
secure_scheme_headers: dict[str, str] = {}
forwarder_headers = ""


def post_fork(_server: Any, _worker: Any) -> None:
    """Log as the rest of Hub does."""
    log.setup()


def post_worker_init(worker: Any) -> None:
    """When this process is told to stop, its open streams say so and end, instead of being waited for."""
    app = worker.wsgi
    with app.test_request_context():
        # A process whose master was killed ends too, but nobody tells it so.
        stream.streams().is_ending = lambda: not worker.alive or os.getppid() != worker.ppid
