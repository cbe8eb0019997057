"""Tags of a workspace, and where they stand."""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ForeignKey, Index, delete, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.models import content
from hub.models.base import Base, id_column, new_id, time_column

MAX_LENGTH = 80
MAX_ON_PAGE = 100


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


@dataclass(frozen=True)
class TagLine:
    """A tag and the number of pages that carry it."""

    id: uuid.UUID
    name: str
    key: str
    pages: int


def of_workspace(
    session: Session, workspace_id: uuid.UUID, *, after: str | None = None, limit: int = 50
) -> list[TagLine]:
    """The workspace's tags by key, each with the number of pages that carry it; those behind the key `after`."""
    rows = session.execute(_OF_WORKSPACE, {"workspace": workspace_id, "after": after, "limit": limit})
    return [TagLine(**row._mapping) for row in rows]


def of_course(session: Session, course_id: uuid.UUID, limit: int = 50) -> list[TagLine]:
    """The tags in use in the course, those on most pages first."""
    rows = session.execute(_OF_COURSE, {"course": course_id, "limit": limit})
    return [TagLine(**row._mapping) for row in rows]


def ensure_tags(session: Session, workspace_id: uuid.UUID, names: Iterable[str]) -> list[Tag]:
    """The tags of these (valid) names, made where the workspace has none of that identity; by key.

    To be called before pages are locked. New tags commit with the caller; they are inserted in the order of their keys,
    so that two callers with the same tags cannot wait for each other.
    """
    by_key: dict[str, str] = {}
    for name in names:
        by_key.setdefault(tag_key(name), name)
    tags = _find(session, workspace_id, list(by_key))
    missing = sorted(by_key.keys() - {tag.key for tag in tags})
    if missing:
        rows = [{"id": new_id(), "workspace_id": workspace_id, "name": by_key[key], "key": key} for key in missing]
        session.execute(upsert(Tag).on_conflict_do_nothing(index_elements=["workspace_id", "key"]), rows)
        tags = _find(session, workspace_id, list(by_key))
    return tags


def put_on(session: Session, page_id: uuid.UUID, tags: Sequence[Tag], added_by: str) -> None:
    """Put tags on a page that has none of them, on a person's behalf. The caller raises the page's version."""
    if tags:
        session.execute(insert(PageTag), [{"page_id": page_id, "tag_id": tag.id, "added_by": added_by} for tag in tags])


def take_off(session: Session, page_id: uuid.UUID, tag_ids: Sequence[uuid.UUID]) -> None:
    """Take tags off a page. The caller raises the page's version."""
    if tag_ids:
        session.execute(delete(PageTag).where(PageTag.page_id == page_id, PageTag.tag_id.in_(tag_ids)))


def tag_key(name: str) -> str:
    """The identity of a tag: letter case, ways to compose a character, and amounts of white space do not count."""
    folded = unicodedata.normalize("NFD", name).casefold()
    return " ".join(unicodedata.normalize("NFC", folded).split())


def tag_name(value: object, field: str = "tags") -> str:
    """One tag name in NFC with single spaces, 1 to 80 characters. Raises Invalid naming `field`."""
    given = content.plain_text(value, field)
    if content.has_control(given):
        raise content.invalid(field, "tag_control")
    name = " ".join(unicodedata.normalize("NFC", given).split())
    if not content.has_visible(name):
        raise content.invalid(field, "tag_empty")
    if len(name) > MAX_LENGTH:
        raise content.invalid(field, "tag_long", most=MAX_LENGTH)
    return name


def tag_names(value: object, field: str = "tags") -> list[str]:
    """Tag names, each once by identity, in the order given; at most 100. Raises Invalid naming `field`."""
    if not isinstance(value, (list, tuple)):
        raise content.invalid(field, "not_list")
    by_key: dict[str, str] = {}
    for item in value:
        name = tag_name(item, field)
        by_key.setdefault(tag_key(name), name)
    if len(by_key) > MAX_ON_PAGE:
        raise content.invalid(field, "tag_many", most=MAX_ON_PAGE)
    return list(by_key.values())


def _find(session: Session, workspace_id: uuid.UUID, keys: list[str]) -> list[Tag]:
    if not keys:
        return []
    found = session.scalars(select(Tag).where(Tag.workspace_id == workspace_id, Tag.key.in_(keys)))
    return sorted(found, key=lambda tag: tag.key)


_OF_WORKSPACE = text("""
    select tag.id, tag.name, tag.key, (select count(*) from hub.page_tag where tag_id = tag.id) as pages
    from hub.tag
    where workspace_id = :workspace and (cast(:after as text) is null or key > cast(:after as text))
    order by key
    limit :limit
""")

_OF_COURSE = text("""
    select tag.id, tag.name, tag.key, count(*) as pages
    from hub.page
    join hub.page_tag on page_tag.page_id = page.id
    join hub.tag on tag.id = page_tag.tag_id
    where page.course_id = :course
    group by tag.id
    order by pages desc, tag.key
    limit :limit
""")
