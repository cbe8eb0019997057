"""Courses and their pages, and the rules on them.

Every change of a page's title, body or tags raises its `version` by one, in SQL; the strong ETag is made of id and
version. Whoever stores what was computed from a read compares the version: a miss means somebody was faster.

Locks come in one order: rows of `hub.tag` (by key), the course, the pages. No editor locks the workspace's row.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, delete, func, insert, select, text, update
from sqlalchemy.engine import Row
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.errors import Invalid, NotFound, PreconditionRequired, Stale
from hub.models import audit, content
from hub.models.base import Base, id_column, new_id, time_column, version_column
from hub.models.tag import Tag, ensure_tags, put_on, tag_key, tag_names, take_off


class Course(Base):
    """A course: an ordered set of pages."""

    __tablename__ = "course"
    __table_args__ = (Index("course_workspace_id_title_idx", "workspace_id", text("lower(title)"), "id"),)

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


@dataclass(frozen=True)
class CourseLine:
    """A course as a list shows it. `changed_at` is the latest change of the course or one of its pages."""

    id: uuid.UUID
    title: str
    updated_by: str
    changed_at: datetime
    pages: int
    tagged: int
    sort_key: str


@dataclass(frozen=True)
class TagOnPage:
    """A tag that a page carries, and who put it there: a person, or a job on a person's behalf."""

    id: uuid.UUID
    name: str
    added_by: str
    added_at: datetime
    job_id: int | None


@dataclass(frozen=True)
class PageLine:
    """A page without its body, as a list shows it; `tags` by key."""

    id: uuid.UUID
    course_id: uuid.UUID
    position: int
    title: str
    version: int
    updated_at: datetime
    updated_by: str
    tags: tuple[TagOnPage, ...]

    @property
    def etag(self) -> str:
        """The strong ETag of what was read."""
        return etag(self.id, self.version)

    @property
    def tag_names(self) -> list[str]:
        """The names of the tags, by key."""
        return [tag.name for tag in self.tags]


@dataclass(frozen=True)
class PageView(PageLine):
    """A page with its body (Markdown)."""

    body: str


@dataclass(frozen=True)
class PageLink:
    """What a link to a page needs."""

    id: uuid.UUID
    course_id: uuid.UUID
    title: str


# Courses


def list_courses(
    session: Session,
    workspace_id: uuid.UUID,
    *,
    query: str = "",
    after: tuple[str, uuid.UUID] | None = None,
    limit: int = 50,
) -> list[CourseLine]:
    """Courses by title, in one statement: at most `limit`, those behind `after` (a sort key and an id).

    `query` keeps the courses with these words in their title, in any letter case.
    """
    position, last = after or (None, None)
    rows = session.execute(
        _COURSES,
        {"workspace": workspace_id, "query": query.lower(), "after": position, "last": last, "limit": limit},
    )
    return [CourseLine(**row._mapping) for row in rows]


def find_course(session: Session, workspace_id: uuid.UUID, course_id: uuid.UUID) -> Course:
    """The course, if it is this workspace's; raises NotFound."""
    course = session.scalar(select(Course).where(Course.id == course_id, Course.workspace_id == workspace_id))
    if course is None:
        raise NotFound()
    return course


def existing_courses(session: Session, ids: Iterable[uuid.UUID]) -> set[uuid.UUID]:
    """Which of these courses, whatever their workspace, have not been deleted."""
    return set(session.scalars(select(Course.id).where(Course.id.in_(list(ids)))))


def count_pages(session: Session, course_id: uuid.UUID) -> tuple[int, int]:
    """How many pages the course has, and how many of them carry a tag."""
    row = session.execute(_COUNT_PAGES, {"course": course_id}).one()
    return row.pages, row.tagged


def create_course(session: Session, workspace_id: uuid.UUID, title: object, actor: audit.Actor) -> Course:
    """Make an empty course; raises Invalid for the title."""
    course = Course(
        id=new_id(), workspace_id=workspace_id, title=content.title(title), version=1, updated_by=actor.name
    )
    session.add(course)
    session.flush()
    audit.record(
        session,
        "course.created",
        actor=actor,
        workspace_id=workspace_id,
        target_id=course.id,
        target_name=course.title,
        changes={"title": course.title},
    )
    return course


def rename_course(
    session: Session, workspace_id: uuid.UUID, course_id: uuid.UUID, title: object, actor: audit.Actor
) -> Course:
    """Give the course another title; the one it has already changes nothing. Raises NotFound, Invalid."""
    new = content.title(title)
    course = session.scalar(
        select(Course)
        .where(Course.id == course_id, Course.workspace_id == workspace_id)
        .with_for_update(key_share=True)
    )
    if course is None:
        raise NotFound()
    if new == course.title:
        return course
    old = course.title
    session.execute(
        update(Course)
        .where(Course.id == course_id)
        .values(title=new, version=Course.version + 1, updated_at=func.statement_timestamp(), updated_by=actor.name)
    )
    session.refresh(course)
    audit.record(
        session,
        "course.renamed",
        actor=actor,
        workspace_id=workspace_id,
        target_id=course_id,
        target_name=new,
        changes={"title": [old, new]},
    )
    return course


def delete_course(session: Session, workspace_id: uuid.UUID, course_id: uuid.UUID, actor: audit.Actor) -> int:
    """Remove the course with all its pages; returns how many those were. Raises NotFound."""
    # The lock comes first, in a statement of its own, so that the next one sees pages of whoever was adding one.
    course = session.scalar(
        select(Course).where(Course.id == course_id, Course.workspace_id == workspace_id).with_for_update()
    )
    if course is None:
        raise NotFound()
    session.execute(_DELETE_TAGS_OF_COURSE, {"course": course_id})
    pages: int = session.execute(_DELETE_PAGES_OF_COURSE, {"course": course_id}).scalar_one()
    session.execute(delete(Course).where(Course.id == course_id))
    audit.record(
        session,
        "course.deleted",
        actor=actor,
        workspace_id=workspace_id,
        target_id=course_id,
        target_name=course.title,
        changes={"pages": pages},
    )
    return pages


# Pages


def list_pages(
    session: Session,
    course_id: uuid.UUID,
    *,
    tag: str = "",
    untagged: bool = False,
    after: tuple[int, uuid.UUID] | None = None,
    limit: int = 50,
) -> list[PageLine]:
    """A course's pages with their tags, in one statement: at most `limit`, those behind `after` (position, id).

    `tag` keeps those with this tag, `untagged` those with none.
    """
    position, last = after or (None, None)
    rows = session.execute(
        _PAGES,
        {
            "course": course_id,
            "tag": tag_key(tag) if tag else None,
            "untagged": untagged,
            "after": position,
            "last": last,
            "limit": limit,
        },
    )
    return [PageLine(**_page_values(row)) for row in rows]


def read_page(session: Session, workspace_id: uuid.UUID, course_id: uuid.UUID, page_id: uuid.UUID) -> PageView:
    """The page with body and tags, if it is of this workspace and course; raises NotFound."""
    values = {"workspace": workspace_id, "course": course_id, "page": page_id}
    row = session.execute(_PAGE, values).one_or_none()
    if row is None:
        raise NotFound()
    return PageView(**_page_values(row), body=row.body)


def beside_page(session: Session, page: PageLine) -> tuple[PageLink | None, PageLink | None]:
    """The page before and the page after in the course's order; None at its ends."""
    values = {"course": page.course_id, "position": page.position, "page": page.id}
    found = {row.side: PageLink(row.id, row.course_id, row.title) for row in session.execute(_BESIDE, values)}
    return found.get("before"), found.get("after")


def find_pages(session: Session, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, PageLink]:
    """Where these pages are, whatever their workspace; those that no longer exist are left out."""
    query = select(Page.id, Page.course_id, Page.title).where(Page.id.in_(list(ids)))
    return {row.id: PageLink(row.id, row.course_id, row.title) for row in session.execute(query)}


def create_page(
    session: Session,
    workspace_id: uuid.UUID,
    course_id: uuid.UUID,
    *,
    title: object,
    body: object = "",
    tags: object = (),
    actor: audit.Actor,
) -> PageView:
    """Add a page at the end of the course. Raises NotFound; Invalid, naming each wrong field."""
    checked = _valid_fields({"title": title, "body": body, "tags": tags})
    wanted = ensure_tags(session, workspace_id, checked["tags"])
    # Key share keeps the course from being deleted under the new page, and nobody else from editing.
    course = session.scalar(
        select(Course.id)
        .where(Course.id == course_id, Course.workspace_id == workspace_id)
        .with_for_update(read=True, key_share=True)
    )
    if course is None:
        raise NotFound()
    page_id = new_id()
    last = select(func.coalesce(func.max(Page.position), 0)).where(Page.course_id == course_id).scalar_subquery()
    session.execute(
        insert(Page).values(
            id=page_id,
            course_id=course_id,
            position=last + 1,
            title=checked["title"],
            body=checked["body"],
            updated_by=actor.name,
        )
    )
    put_on(session, page_id, wanted, actor.name)
    audit.record(
        session,
        "page.created",
        actor=actor,
        workspace_id=workspace_id,
        target_id=page_id,
        target_name=checked["title"],
        changes={"title": checked["title"], "tags": [tag.name for tag in wanted]},
    )
    return read_page(session, workspace_id, course_id, page_id)


def edit_page(
    session: Session,
    workspace_id: uuid.UUID,
    course_id: uuid.UUID,
    page_id: uuid.UUID,
    *,
    if_match: str | None,
    fields: dict[str, object],
    actor: audit.Actor,
) -> PageView:
    """Change a page's `title`, `body` or `tags`, whichever `fields` has; returns the page as it then is.

    `if_match` is the header's text: the ETag that the edit is based on. What stays as it is is not written, tags that
    stay keep who put them there, and an edit without a difference writes nothing at all.

    Raises PreconditionRequired without `if_match`; Stale, whose data carries the present `page`, if the page has
    changed since; NotFound; Invalid, naming each wrong field.
    """
    require_condition(if_match)
    new = _valid_fields({name: value for name, value in fields.items() if name in ("title", "body", "tags")})
    wanted = ensure_tags(session, workspace_id, new["tags"]) if "tags" in new else None
    page = _read_matching(session, workspace_id, course_id, page_id, if_match)
    edit = _difference(page, new, wanted)
    if not edit.is_empty:
        _write(session, page, edit, actor)
        audit.record(
            session,
            "page.edited",
            actor=actor,
            workspace_id=workspace_id,
            target_id=page_id,
            target_name=str(new.get("title", page.title)),
            changes=edit.told,
        )
    return read_page(session, workspace_id, course_id, page_id)


def delete_page(
    session: Session,
    workspace_id: uuid.UUID,
    course_id: uuid.UUID,
    page_id: uuid.UUID,
    *,
    if_match: str | None,
    actor: audit.Actor,
) -> PageView:
    """Remove the page; returns it as it was. Raises PreconditionRequired, Stale (with the present `page`), NotFound."""
    require_condition(if_match)
    page = _read_matching(session, workspace_id, course_id, page_id, if_match)
    gone = session.execute(
        delete(Page).where(Page.id == page_id, Page.version == page.version).returning(Page.id)
    ).one_or_none()
    if gone is None:
        raise Stale(page=read_page(session, workspace_id, course_id, page_id))
    audit.record(
        session, "page.deleted", actor=actor, workspace_id=workspace_id, target_id=page_id, target_name=page.title
    )
    return page


def etag(page_id: uuid.UUID, version: int) -> str:
    """The strong ETag of a page at a version, quotes included."""
    return f'"{page_id}.{version}"'


def require_condition(if_match: str | None) -> None:
    """Raise PreconditionRequired unless an If-Match header says anything."""
    if if_match is None or not if_match.strip():
        raise PreconditionRequired()


def matches(if_match: str, present: str) -> bool:
    """Whether an If-Match header names the ETag `present`: as ``*``, or in a list by strong comparison (RFC 9110)."""
    if if_match.strip() == "*":
        return True
    return any(not weak and tag == present for weak, tag in _ENTITY_TAG.findall(if_match))


# Steps of the above


@dataclass(frozen=True)
class _Edit:
    """What of a page changes: columns, tags to add and to remove, and what the audit trail tells of it."""

    columns: dict[str, str]
    added: list[Tag]
    removed: list[uuid.UUID]
    told: dict[str, Any]

    @property
    def is_empty(self) -> bool:
        return not (self.columns or self.added or self.removed)


def _read_matching(
    session: Session, workspace_id: uuid.UUID, course_id: uuid.UUID, page_id: uuid.UUID, if_match: str | None
) -> PageView:
    if if_match is not None and if_match.strip() == "*":
        # Whoever says "whatever is there" must not lose to a writer between the read and the write.
        session.execute(
            select(Page.id).where(Page.id == page_id, Page.course_id == course_id).with_for_update(key_share=True)
        )
    page = read_page(session, workspace_id, course_id, page_id)
    if not matches(if_match or "", page.etag):
        raise Stale(page=page)
    return page


def _difference(page: PageView, new: dict[str, Any], wanted: Sequence[Tag] | None) -> _Edit:
    present: dict[str, str] = {"title": page.title, "body": page.body}
    columns = {name: new[name] for name, old in present.items() if name in new and new[name] != old}
    told: dict[str, Any] = {}
    if "title" in columns:
        told["title"] = [page.title, columns["title"]]
    if "body" in columns:
        told["body_characters"] = [len(page.body), len(columns["body"])]
    if wanted is None:
        return _Edit(columns, [], [], told)
    carried, chosen = {tag.id for tag in page.tags}, {tag.id for tag in wanted}
    added = [tag for tag in wanted if tag.id not in carried]
    removed = [tag for tag in page.tags if tag.id not in chosen]
    if added or removed:
        told["tags"] = [page.tag_names, [tag.name for tag in wanted]]
    return _Edit(columns, added, [tag.id for tag in removed], told)


def _write(session: Session, page: PageView, edit: _Edit, actor: audit.Actor) -> None:
    won = session.execute(
        update(Page)
        .where(Page.id == page.id, Page.version == page.version)
        .values(**edit.columns, version=Page.version + 1, updated_at=func.statement_timestamp(), updated_by=actor.name)
        .returning(Page.id)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if won is None:
        raise Stale(page=_read_again(session, page))
    take_off(session, page.id, edit.removed)
    put_on(session, page.id, edit.added, actor.name)


def _read_again(session: Session, page: PageView) -> PageView:
    workspace_id = session.scalar(select(Course.workspace_id).where(Course.id == page.course_id))
    if workspace_id is None:
        raise NotFound()
    return read_page(session, workspace_id, page.course_id, page.id)


def _page_values(row: Row[Any]) -> dict[str, Any]:
    tags = tuple(
        TagOnPage(
            id=uuid.UUID(tag["id"]),
            name=tag["name"],
            added_by=tag["added_by"],
            added_at=datetime.fromisoformat(tag["added_at"]),
            job_id=tag["job_id"],
        )
        for tag in row.tags
    )
    names = ("id", "course_id", "position", "title", "version", "updated_at", "updated_by")
    return {name: getattr(row, name) for name in names} | {"tags": tags}


def _valid_fields(fields: dict[str, object]) -> dict[str, Any]:
    """The checked fields; raises one Invalid that names all the wrong ones."""
    checks: dict[str, Callable[[object], Any]] = {"title": content.title, "body": content.body, "tags": tag_names}
    checked: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, value in fields.items():
        try:
            checked[name] = checks[name](value)
        except Invalid as error:
            wrong |= error.fields
    if wrong:
        raise Invalid(wrong)
    return checked


_ENTITY_TAG = re.compile(r'(W/)?("[^"]*")')

_COURSES = text("""
    select c.id, c.title, c.updated_by, lower(c.title) as sort_key, p.pages, p.tagged,
           greatest(c.updated_at, p.changed_at) as changed_at
    from (
        select * from hub.course
        where workspace_id = :workspace
          and (:query = '' or position(:query in lower(title)) > 0)
          and (cast(:after as text) is null or (lower(title), id) > (cast(:after as text), cast(:last as uuid)))
        order by lower(title), id
        limit :limit
    ) c
    cross join lateral (
        select count(*) as pages, max(page.updated_at) as changed_at,
               count(*) filter (where exists (select from hub.page_tag where page_id = page.id)) as tagged
        from hub.page where course_id = c.id
    ) p
    order by lower(c.title), c.id
""")

_COUNT_PAGES = text("""
    select count(*) as pages,
           count(*) filter (where exists (select from hub.page_tag where page_id = page.id)) as tagged
    from hub.page where course_id = :course
""")

_DELETE_TAGS_OF_COURSE = text("""
    delete from hub.page_tag using hub.page where page.course_id = :course and page_tag.page_id = page.id
""")

_DELETE_PAGES_OF_COURSE = text("""
    with gone as (delete from hub.page where course_id = :course returning 1) select count(*) from gone
""")

_TAGS_OF_PAGE = """
    coalesce((
        select jsonb_agg(jsonb_build_object(
                   'id', tag.id, 'name', tag.name, 'added_by', page_tag.added_by, 'added_at', page_tag.added_at,
                   'job_id', page_tag.job_id) order by tag.key)
        from hub.page_tag join hub.tag on tag.id = page_tag.tag_id
        where page_tag.page_id = page.id
    ), '[]')
"""

_PAGES = text(f"""
    select id, course_id, position, title, version, updated_at, updated_by, {_TAGS_OF_PAGE} as tags
    from hub.page
    where course_id = :course
      and (cast(:after as integer) is null
           or (position, id) > (cast(:after as integer), cast(:last as uuid)))
      and (not :untagged or not exists (select from hub.page_tag where page_id = page.id))
      and (cast(:tag as text) is null
           or exists (select from hub.page_tag join hub.tag on tag.id = page_tag.tag_id
                      where page_tag.page_id = page.id and tag.key = :tag))
    order by position, id
    limit :limit
""")

_PAGE = text(f"""
    select page.id, page.course_id, page.position, page.title, page.body, page.version, page.updated_at,
           page.updated_by, {_TAGS_OF_PAGE} as tags
    from hub.page join hub.course on course.id = page.course_id
    where page.id = :page and page.course_id = :course and course.workspace_id = :workspace
""")

_BESIDE = text("""
    (select 'before' as side, id, course_id, title from hub.page
     where course_id = :course and (position, id) < (:position, :page) order by position desc, id desc limit 1)
    union all
    (select 'after', id, course_id, title from hub.page
     where course_id = :course and (position, id) > (:position, :page) order by position, id limit 1)
""")
