"""``python -m tests.queue.clock_entry LANES``: a worker whose kinds have schedules, by the second.

TEST_CLOCK_OFF in the environment is by how many seconds this process's own clock is wrong.
"""

from __future__ import annotations

import datetime
import os
import sys
import time

OFF = float(os.environ.get("TEST_CLOCK_OFF", "0"))
_time = time.time


class WrongDatetime(datetime.datetime):
    """A clock on the wall that is wrong."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        """The wrong time."""
        return cls.fromtimestamp(time.time(), tz)


# Before anything of Hub is imported, so that nothing in this process knows better.
time.time = lambda: _time() + OFF
time.time_ns = lambda: int((_time() + OFF) * 1e9)
datetime.datetime = WrongDatetime  # type: ignore[misc]

from hub import config, log  # noqa: E402
from hub import jobs as jobs  # noqa: E402
from hub.queue import EXCLUSIVE, Kind, register, schedule, worker  # noqa: E402
from hub.queue.schedule import ALL, ALLOW, Schedule  # noqa: E402
from tests.queue import entry  # noqa: E402

# With seconds in front.
schedule.FIELDS = (5, 6)
EVERY_SECOND = "* * * * * *"

TICKED = Kind(
    name="test.ticked",
    run=entry.act,
    args=entry.Act,
    attempts=1,
    schedule=Schedule(EVERY_SECOND, overlap=ALLOW, missed=ALL),
)
SWEPT = Kind(name="test.swept", run=entry.act, args=entry.Act, policy=EXCLUSIVE, schedule=Schedule(EVERY_SECOND))

if __name__ == "__main__":
    for kind in (TICKED, SWEPT):
        register(kind)
    log.setup()
    sys.exit(worker.main(config.load(), config.parse_lanes(sys.argv[1])))
