"""``python -m tests.queue.entry LANES``: a worker process that knows kinds made for tests beside Hub's own.

A handler of ``test.act`` does what its argument `act` names.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Literal

import pydantic

from hub import config, log
from hub import jobs as jobs
from hub.queue import EXCLUSIVE, Context, Kind, register, worker

# How a process ends whose handler ends it.
EXIT = 7
_meeting = threading.Barrier(2)


class Act(pydantic.BaseModel):
    """What the handler shall do."""

    act: Literal["return", "raise", "die", "exit", "hang", "stall", "meet"] = "return"


def act(context: Context, args: Act) -> None:
    """Do it."""
    if args.act == "raise":
        raise ValueError("as told")
    if args.act == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.act == "exit":
        os._exit(EXIT)
    if args.act == "hang" or (args.act == "stall" and context.job.attempt == 1):
        threading.Event().wait()
    if args.act == "meet":
        # Returns only when two handlers are at work at once.
        _meeting.wait(30)


ACT = register(Kind(name="test.act", run=act, args=Act, attempts=3))
SHORT = register(Kind(name="test.short", run=act, args=Act, attempts=1, deadline=2.0))
AHEAD = register(Kind(name="test.ahead", run=act, args=Act, attempts=3, prefetch=True))
ALONE = register(Kind(name="test.alone", run=act, args=Act, policy=EXCLUSIVE))

if __name__ == "__main__":
    log.setup()
    sys.exit(worker.main(config.load(), config.parse_lanes(sys.argv[1])))
