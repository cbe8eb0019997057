"""Durable background jobs on PostgreSQL. Knows no kind of job, no model of the product, and no web.

Why Hub has an engine of its own: a job here is one row that a worker takes and a person watches, with persisted
progress that is fenced like every other write. docs/decisions.md says what else was weighed.
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
