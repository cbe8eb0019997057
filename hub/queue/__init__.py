"""Durable background jobs on PostgreSQL. Knows no kind of job, no model of the product, and no web.

Why Hub has an engine of its own: a job here is one row that a worker takes and a person watches, with persisted
progress that is fenced like every other write. docs/decisions.md says what else was weighed.

What becomes of a job when
- its worker dies, or its handler hangs: see `worker`;
- it is cancelled: one that waits ends at once, in the transaction that cancels it. A running one keeps the request;
  its handler's next step, report or check finds it and raises, and the attempt ends the job as cancelled. If its worker
  dies first, the claim that takes the job closes it. A job whose last item is done has succeeded, whatever came later;
- it fails for the last time: it ends failed, with the reason as a key and the cleaned error, its closing hook runs, and
  the statement that ends it leaves a dead letter, all in one transaction; see `letters`. What a handler fails for good
  (`Fail`) ends at once and leaves none: another attempt would find the same.

Where the statements are: queries.sql has every change of a job, sent by `store`; reads.sql what pages read (`reads`),
overview.sql what operators read (`overview`), letters.sql dead letters (`letters`), schedules.sql the clock's ledger
(`ledger`), retention.sql what is removed (`retention`). The tables are described in revisions/. `sql` loads them.
"""

from hub.queue.context import Context
from hub.queue.job import Claimed, Ended, Enqueued, Fail, Snooze
from hub.queue.kind import EXCLUSIVE, STANDARD, Kind, register
from hub.queue.store import Item, enqueue, enqueue_many

__all__ = [
    "EXCLUSIVE",
    "STANDARD",
    "Claimed",
    "Context",
    "Ended",
    "Enqueued",
    "Fail",
    "Item",
    "Kind",
    "Snooze",
    "enqueue",
    "enqueue_many",
    "register",
]
