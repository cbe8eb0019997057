"""A kind's closing hook, wherever a job ends: it marks the subject where people see it, in the ending transaction.

A hook that keeps raising must not keep the job from ending: after three tries the job ends without it, marked
`closing_failed`.
"""

from __future__ import annotations

import logging
from uuid import UUID

from sqlalchemy.orm import Session

from hub.db import driver, is_conflict, is_connection_loss
from hub.queue import kind, store
from hub.queue.job import Ended
from hub.queue.kind import Kind

log = logging.getLogger(__name__)

TRIES = 3


class ClosingFailed(Exception):
    """A closing hook raised."""


def close(declared: Kind, session: Session, ended: Ended) -> None:
    """Call the kind's closing hook, if it has one, in a savepoint. Raises ClosingFailed if it raises."""
    if declared.closing is None:
        return
    try:
        with session.begin_nested():
            declared.closing(session, ended)
    except Exception as error:
        if is_connection_loss(error) or is_conflict(error):
            raise
        raise ClosingFailed from error


def cancel(session: Session, job_id: int, by_id: UUID | None, by_name: str) -> Ended | None:
    """Ask for a job's end in the caller's transaction; a waiting one ends at once, with its closing hook.

    None if it has ended or was asked before; else the job as it stands after the request.
    """
    for _ in range(TRIES):
        try:
            with session.begin_nested():
                return _cancel(session, job_id, by_id, by_name)
        except ClosingFailed:
            log.exception("the closing hook failed", extra={"job_id": job_id})
    return store.cancel(driver(session), job_id, by_id, by_name, closing_failed=True)


def _cancel(session: Session, job_id: int, by_id: UUID | None, by_name: str) -> Ended | None:
    row = store.cancel(driver(session), job_id, by_id, by_name)
    declared = kind.find(row.kind) if row else None
    if row is not None and declared is not None and row.state == "cancelled":
        close(declared, session, row)
    return row
