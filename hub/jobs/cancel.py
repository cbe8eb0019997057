"""Ask for a job's end, with the event, in one transaction."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from hub.db import driver
from hub.jobs import people
from hub.models import audit
from hub.queue import closing, store


def cancel(session: Session, *, job_id: int, actor: audit.Actor) -> None:
    """Cancel a job of people: a waiting one ends at once, a running one stops before its next item.

    A repeated request, and one for a job that has ended, change nothing and write no event. The caller has checked
    that the job is in the workspace and that the actor may cancel it.
    """
    assert isinstance(actor.id, UUID)
    connection = driver(session)
    row = closing.cancel(session, job_id, actor.id, actor.name)
    if row is None:
        return
    asked = store.requested_by(connection, job_id)
    assert asked is not None, "only jobs of people are cancelled here"
    changes: dict[str, Any] = {"changed": row.changed, "total": row.total}
    audit.record(
        session,
        "job.cancel_requested",
        actor=actor,
        workspace_id=asked["workspace_id"],
        target_id=job_id,
        target_name=people.title(row.kind, asked["subject_name"]),
        job_id=job_id,
        changes=changes,
    )
    if row.state == "cancelled":
        people.record_end(session, row)
