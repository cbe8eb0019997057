"""Courses and their pages.

Every change of a page's title, body or tags raises its `version` by one, in SQL; the strong ETag is made of id and
version. Whoever stores what was computed from a read compares the version: a miss means somebody was faster.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from hub.models.base import Base, id_column, time_column, version_column

MAX_TITLE = 300
MAX_BODY = 1_000_000
MAX_TAG = 80
MAX_TAGS = 100


class Course(Base):
    """A course: an ordered set of pages."""

    __tablename__ = "course"
    __table_args__ = (Index("course_workspace_id_title_idx", "workspace_id", "title", "id"),)

    id: Mapped[uuid.UUID] = id_column()
    workspace_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.workspace.id"))
    title: Mapped[str]
    version: Mapped[int] = version_column()
    created_at: Mapped[datetime] = time_column()
    updated_at: Mapped[datetime] = time_column()
    updated_by: Mapped[str]


class Page(Base):
    """A page: title and Markdown body, with line ends as LF."""

    __tablename__ = "page"
    __table_args__ = (
        Index("page_course_id_position_idx", "course_id", "position", "id"),
        {"postgresql_with": {"fillfactor": "85"}},
    )

    id: Mapped[uuid.UUID] = id_column()
    course_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.course.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(Integer)
    title: Mapped[str]
    body: Mapped[str]
    version: Mapped[int] = version_column()
    created_at: Mapped[datetime] = time_column()
    updated_at: Mapped[datetime] = time_column()
    updated_by: Mapped[str]


class Tag(Base):
    """A tag of a workspace. `key` is its identity: NFC, case-folded, single-spaced; `name` as first written."""

    __tablename__ = "tag"
    __table_args__ = (Index("tag_workspace_id_key_key", "workspace_id", "key", unique=True),)

    id: Mapped[uuid.UUID] = id_column()
    workspace_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.workspace.id"))
    name: Mapped[str]
    key: Mapped[str]
    created_at: Mapped[datetime] = time_column()


class PageTag(Base):
    """A tag on a page, with the person or the job that put it there."""

    __tablename__ = "page_tag"
    __table_args__ = (Index("page_tag_tag_id_idx", "tag_id"),)

    page_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.page.id", ondelete="CASCADE"), primary_key=True)
    tag_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.tag.id"), primary_key=True)
    # The queue's job, if one did it; no foreign key leads into the schema `queue`.
    job_id: Mapped[int | None]
    added_by: Mapped[str] = mapped_column(server_default=text("''"))
    added_at: Mapped[datetime] = time_column()


def etag(page_id: uuid.UUID, version: int) -> str:
    """The strong ETag of a page at a version, quotes included."""
    return f'"{page_id}.{version}"'
