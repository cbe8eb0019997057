"""For tests: run what waits, here and now, through the same steps as a worker."""

from __future__ import annotations

import time

from hub.config import Settings
from hub.db import Database
from hub.queue import kind, store
from hub.queue.execute import Execution
from hub.queue.lease import LeaseKeeper


def drain(database: Database, settings: Settings, queue: str, most: int = 100) -> int:
    """Claim and run due jobs of `queue` one after the other until none is due; returns how many attempts ran."""
    keeper = LeaseKeeper(settings.database_url, lease=settings.queue_lease, renew=settings.queue_renew)
    keeper.start()
    try:
        with database.autocommit() as connection:
            number = store.start_worker(connection, "tests", {queue: 1})
        for counter in range(most):
            claimed_at = time.monotonic()
            with database.autocommit() as connection:
                jobs = store.claim(
                    connection,
                    queue,
                    list(kind.of_queue(queue)),
                    claim=(number << 32) | (counter + 1),
                    lanes=1,
                    lease=settings.queue_lease,
                )
            if not jobs:
                return counter
            declared = kind.of_queue(queue)[jobs[0].kind]
            Execution(jobs[0], keeper.hold(jobs, claimed_at), declared, database, keeper, settings).run()
        return most
    finally:
        keeper.stop()
