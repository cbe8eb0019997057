"""Support's visits: staff look into a workspace only after stating why, for as long as that sign-in lasts."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import ForeignKey, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.models.base import Base, time_column


class SupportVisit(Base):
    """A stated reason, tied to one sign-in and one workspace."""

    __tablename__ = "support_visit"

    session_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.session.id", ondelete="CASCADE"), primary_key=True)
    workspace_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.workspace.id"), primary_key=True)
    reason: Mapped[str]
    created_at: Mapped[datetime] = time_column()


def visit(session: Session, session_id: uuid.UUID, workspace_id: uuid.UUID) -> SupportVisit | None:
    """The visit that this sign-in has open in the workspace."""
    return session.scalar(
        select(SupportVisit).where(SupportVisit.session_id == session_id, SupportVisit.workspace_id == workspace_id)
    )
