"""Support's visits: staff look into a workspace only after stating why, for as long as that sign-in lasts."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import ForeignKey, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.models.base import Base, time_column

MIN_REASON = 3
MAX_REASON = 200


class SupportVisit(Base):
    """A stated reason, tied to one sign-in and one workspace."""

    __tablename__ = "support_visit"

    session_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.session.id", ondelete="CASCADE"), primary_key=True)
    workspace_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.workspace.id"), primary_key=True)
    reason: Mapped[str]
    created_at: Mapped[datetime] = time_column()


def begin(session: Session, session_id: uuid.UUID, workspace_id: uuid.UUID, reason: str) -> None:
    """Open a visit; a second reason replaces the first on the banner, and the audit trail keeps both."""
    new = insert(SupportVisit).values(session_id=session_id, workspace_id=workspace_id, reason=reason)
    session.execute(
        new.on_conflict_do_update(
            index_elements=[SupportVisit.session_id, SupportVisit.workspace_id], set_={"reason": new.excluded.reason}
        )
    )


def visit(session: Session, session_id: uuid.UUID, workspace_id: uuid.UUID) -> SupportVisit | None:
    """The visit that this sign-in has open in the workspace."""
    return session.scalar(
        select(SupportVisit).where(SupportVisit.session_id == session_id, SupportVisit.workspace_id == workspace_id)
    )
