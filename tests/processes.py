"""Hub's programs as real processes: started, watched line by line, killed."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0


class Program:
    """One process with everything it prints. `environ` is added to this process's environment."""

    def __init__(self, command: Sequence[Any], environ: Mapping[str, str], cwd: Path = ROOT) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._closed = False
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(self.lines)

    def await_line(self, pattern: str, patience: float = PATIENCE) -> str:
        """The first line, past or to come, that matches; AssertionError if none comes before the process ends."""

        def found() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._closed, patience)
            line = found()
        assert line is not None, f"no line matches {pattern!r} in:\n{self.output}"
        return line

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def wait(self, patience: float = PATIENCE) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(patience)

    def terminate(self) -> int:
        """SIGTERM, then the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL to this process alone: what it started is not told."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the process and what it left in its session."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            try:
                self.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()


class WebServer(Program):
    """Hub's web server as gunicorn runs it, on a free port of the loopback address; ready when made."""

    def __init__(self, environ: Mapping[str, str], processes: int = 1) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        bind = {"HUB_BIND": f"127.0.0.1:{self.port}", "HUB_WEB_PROCESSES": str(processes)}
        super().__init__(
            [sys.executable, "-m", "hub", "web"], {"HUB_STREAMS_PER_PROCESS": "100"} | dict(environ) | bind
        )
        until(lambda: self._answers() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class Worker(Program):
    """A `hub worker` with the given lanes; ready when made."""

    READY = "worker ready"

    def __init__(self, environ: Mapping[str, str], lanes: str = "workspace.jobs=2") -> None:
        super().__init__([sys.executable, "-m", "hub", "worker", "--lanes", lanes], environ)
        self.await_line(self.READY)


def free_port() -> int:
    """A port of the loopback address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(holds: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Ask again until an outside process has come to a state, and return the answer; AssertionError if it does not."""
    deadline = time.monotonic() + patience
    while not (answer := holds()):
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.02)
    return answer
