"""``python -m tests.bench.noop LANES``: a worker process that knows one kind, which does nothing.

With BENCH_STAMPS it writes the time at which each handler began to that file.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from pydantic import BaseModel

from hub import config, log
from hub.queue import Context, Kind, register, worker

_stamps = os.open(os.environ["BENCH_STAMPS"], os.O_WRONLY | os.O_APPEND) if "BENCH_STAMPS" in os.environ else None


class Args(BaseModel):
    """One number, so that jobs can be told apart."""

    seq: int = 0


def run(context: Context, args: Args) -> None:
    """Nothing."""
    if _stamps is not None:
        os.write(_stamps, struct.pack("<d", time.time()))


NOOP = register(Kind(name="bench.noop", run=run, args=Args, prefetch=True))

if __name__ == "__main__":
    log.setup()
    sys.exit(worker.main(config.load(), config.parse_lanes(sys.argv[1])))
