"""nginx in front of Hub, as a deployment has it: default buffering, everything compressed."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.processes import Program, free_port, until

CONFIGURATION = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 500; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    gzip_types *;
    gzip_proxied any;
    gzip_min_length 0;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {target};
            proxy_set_header Host $http_host;
        }}
    }}
}}
"""


class Nginx(Program):
    """A running nginx that passes everything on to `target`; `url` is its address."""

    def __init__(self, folder: Path, target: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # As root, its processes stay root's: the folder is nobody else's.
        values = {"folder": folder, "port": self.port, "target": target}
        values["user"] = "user root;" if os.geteuid() == 0 else ""
        configuration = folder / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(**values))
        super().__init__([_program(), "-p", folder, "-e", "stderr", "-c", configuration], {})
        until(lambda: self._answers() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True


def _program() -> str:
    """Where nginx is. Without it the test is skipped, or fails if HUB_REQUIRE_NGINX is 1."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        (pytest.fail if os.environ.get("HUB_REQUIRE_NGINX") == "1" else pytest.skip)(
            "there is no nginx here: install the package nginx"
        )
    return program
