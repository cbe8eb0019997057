"""``python -m tests.queue.signals``: sends SIGTERM to a worker at each line of Python that its main thread runs.

A worker without lanes waits and wakes as one with lanes does, and needs no database.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import signal
import sys
from types import FrameType
from typing import Any

from hub import config
from hub.queue.worker import Worker

PATIENCE = 10.0


def run_worker(moment: int, told: int) -> None:
    """Run a worker that gets SIGTERM at this line, counted from where it minds signals; says in `told` that it did."""
    lines = 0
    worker = Worker(config.load(), {})

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        minded = signal.getsignal(signal.SIGTERM) != signal.SIG_DFL and not worker._stopping
        if event == "line" and minded and frame.f_code.co_name != "_on_signal":
            lines += 1
            if lines == moment:
                os.write(told, b"x")
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    sys.settrace(trace)
    os._exit(worker.run())


def try_moment(moment: int) -> tuple[bool, bool]:
    """Whether a worker comes to this line before it waits for ever, and whether it stops for its signal."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        run_worker(moment, told)
    comes = bool(select.select([heard], [], [], 2.0)[0])
    if not comes:
        os.kill(child, signal.SIGTERM)
    ended = os.pidfd_open(child)
    stops = bool(select.select([ended], [], [], PATIENCE)[0])
    if not stops:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    for file in (heard, told, ended):
        os.close(file)
    return comes, stops and status == 0


if __name__ == "__main__":
    logging.disable()
    failed = []
    for moment in itertools.count(1):
        comes, stops = try_moment(moment)
        if not stops:
            failed.append(moment)
        if not comes:
            break
    print(f"did not stop at lines {failed}" if failed else f"stopped at each of {moment - 1} lines and while it waited")
    sys.exit(bool(failed))
