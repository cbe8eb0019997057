"""What a backup holds of a workspace: how each table is read from one snapshot, and how it is restored.

Rows go through one at a time in both directions, so neither the number of rows nor their size matters to memory. They
are read through cursors of the server, as JSON that the server makes, and written by COPY.

A restored workspace is a new one: every id in it is derived from a fresh one and the old one, which keeps what belonged
together together without remembering any. Whose right it is to see it is never widened: see `_MEMBERS`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import available_timezones

import psycopg
import pydantic
from psycopg import IsolationLevel, errors
from psycopg.rows import tuple_row

from hub import db
from hub.models import content
from hub.models.archive import Archive, Moment, Unreadable
from hub.models.backup import MAX_KEEP, MAX_KEEP_DAYS
from hub.models.tag import MAX_LENGTH, tag_key

Connection = psycopg.Connection[Any]

# Rows that a cursor is asked for at once; they are passed on as they arrive. What arrives together is held together, so
# of pages, which may have a megabyte each, that are a few.
BLOCK = 500
TOGETHER = 100
PAGES_TOGETHER = 4
# Seconds that one statement on a snapshot may take, that its transaction may wait for us, and that it waits for the
# lock of another. A frozen process must not hold the database's old rows for ever.
STATEMENT = 1800.0
IDLE = 900.0
LOCK = 60.0
MAX_NAMES = 20

TABLES = ("workspace", "members", "tags", "courses", "pages", "page_tags")
# What is not in a backup, with the key of the reason; a reader of the archive finds both in its manifest.
EXCLUDED = ("passwords", "sessions", "audit_trail", "jobs", "backups", "support_visits", "rate_limits")


# Reading


@contextmanager
def snapshot(url: str) -> Iterator[Connection]:
    """A connection that sees the database as it is now for as long as it is open, and writes nothing.

    It is one of its own, because it lives as long as the backup takes, which may be longer than anything else in a
    worker may. Meanwhile the server keeps the old versions of all rows that others change.
    """
    with db.connect(
        url, application_name="hub backup", statement_timeout=STATEMENT, lock_timeout=LOCK, idle_timeout=IDLE
    ) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        yield connection


def moment(connection: Connection) -> datetime:
    """The moment of a snapshot, which is that of its first statement: this one."""
    row = connection.execute("select statement_timestamp()").fetchone()
    assert row is not None
    at: datetime = row[0]
    return at


def count(connection: Connection, workspace_id: uuid.UUID) -> dict[str, int]:
    """How many rows each table of a workspace has."""
    row = connection.execute(_COUNT.encode(), {"workspace": workspace_id}).fetchone()
    assert row is not None
    return dict(zip(TABLES, row, strict=True))


def rows(connection: Connection, table: str, workspace_id: uuid.UUID) -> Generator[bytes, None, None]:
    """The rows of a table as JSON, in an order that does not depend on chance.

    It holds the connection until it has come to its end or is closed: whoever may stop before has to close it.
    """
    if table != "pages":
        yield from _through_cursor(connection, _READ[table], workspace_id, TOGETHER)
        return
    # Course by course, each along its index: sorting all bodies would write them to the disk once more.
    courses = connection.execute(_COURSES.encode(), [workspace_id]).fetchall()
    for (course_id,) in courses:
        yield from _through_cursor(connection, _READ["pages"], course_id, PAGES_TOGETHER)


def _through_cursor(connection: Connection, query: str, of: uuid.UUID, together: int) -> Iterator[bytes]:
    connection.execute(f"declare rows no scroll cursor for {_JSON.format(query)}".encode(), [of])
    while True:
        found = 0
        with connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            stream: Any = cursor.stream(f"fetch forward {BLOCK} from rows".encode(), size=together)
            with closing(stream):
                for (row,) in stream:
                    found += 1
                    yield row
        if found < BLOCK:
            connection.execute("close rows")
            return


# Restoring


class Row(pydantic.BaseModel):
    """A row as a backup holds it; anything else about it is refused."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


Id = Annotated[uuid.UUID, pydantic.Field(strict=False)]
Text = Annotated[str, pydantic.Field(max_length=1000)]
Version = Annotated[int, pydantic.Field(ge=1, lt=2**62)]
AnyRow = TypeVar("AnyRow", bound=Row)


class WorkspaceRow(Row):
    """The workspace itself."""

    id: Id
    name: Text
    slug: Text
    time_zone: Text
    backup_keep: Annotated[int, pydantic.Field(ge=1, le=MAX_KEEP)]
    backup_keep_days: Annotated[int, pydantic.Field(ge=1, le=MAX_KEEP_DAYS)]
    created_at: Moment

    @pydantic.field_validator("time_zone")
    @classmethod
    def _time_zone_is_known(cls, name: str) -> str:
        # No page of a workspace can be shown without its zone.
        if name not in available_timezones():
            raise ValueError("unknown here")
        return name


class MemberRow(Row):
    """A person's place in it."""

    email: Text
    name: Text
    role: Literal["admin", "member", "viewer"]
    enabled: bool
    added_by: Text
    created_at: Moment


class TagRow(Row):
    """A tag; its key follows from its name."""

    id: Id
    name: Annotated[str, pydantic.Field(max_length=MAX_LENGTH)]
    key: Text
    created_at: Moment

    @pydantic.model_validator(mode="after")
    def _key_is_of_name(self) -> TagRow:
        if self.key != tag_key(self.name):
            raise ValueError("not the key of the name")
        return self


class CourseRow(Row):
    """A course."""

    id: Id
    title: Annotated[str, pydantic.Field(max_length=content.MAX_TITLE)]
    version: Version
    created_at: Moment
    updated_at: Moment
    updated_by: Text


class PageRow(CourseRow):
    """A page."""

    course_id: Id
    position: Annotated[int, pydantic.Field(ge=-(2**31), lt=2**31)]
    body: str

    @pydantic.field_validator("body")
    @classmethod
    def _body_is_not_larger_than_any(cls, body: str) -> str:
        if len(body.encode()) > content.MAX_BODY:
            raise ValueError("too large")
        return body


class PageTagRow(Row):
    """A tag on a page."""

    page_id: Id
    tag_id: Id
    added_by: Text
    added_at: Moment


@dataclass
class Restored:
    """What was made of a backup. `left_out` counts by reason who was not restored; `names` are the first of them."""

    workspace_id: uuid.UUID
    records: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def leave_out(self, reason: str, name: str) -> None:
        """One more who was not restored."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        if len(self.names) < MAX_NAMES:
            self.names.append(name)


class Restoring:
    """Puts a backup's rows into the database, in the caller's transaction, as a workspace that is not enabled.

    `seed` is fresh for each try. `moved` is called for each row with how many there were, for progress and for whatever
    may stop it. Raises Unreadable, naming the table, for rows that cannot be what Hub has written.
    """

    def __init__(
        self, connection: Connection, archive: Archive, seed: uuid.UUID, moved: Callable[[int], None] = lambda n: None
    ) -> None:
        self._connection = connection
        self._archive = archive
        self._seed = seed
        self._moved = moved
        self._source = archive.manifest.workspace.id
        self.result = Restored(self._fresh(self._source))

    def run(self, job_id: int | None = None) -> Restored:
        """Restore everything; `job_id` marks the workspace as unfinished until its job has succeeded."""
        found = self._archive.tables()
        for missing in set(TABLES) - set(found):
            raise Unreadable("missing_part", f"data/{missing}.jsonl")
        for unknown in set(found) - set(TABLES):
            raise Unreadable("unknown_part", f"data/{unknown}.jsonl")
        for path in self._archive.files():
            # No kind of record refers to files yet.
            raise Unreadable("unknown_part", path)
        for table, write in self._writers(job_id).items():
            path = f"data/{table}.jsonl"
            try:
                write()
            except (errors.UniqueViolation, errors.ForeignKeyViolation) as error:
                raise Unreadable("contradiction", path) from error
            except (errors.DataError, psycopg.DataError, UnicodeError) as error:
                raise Unreadable("record", path) from error
        return self.result

    def _writers(self, job_id: int | None) -> dict[str, Callable[[], None]]:
        return {
            "workspace": lambda: self._workspace(job_id),
            "members": self._members,
            "tags": self._tags,
            "courses": self._courses,
            "pages": self._pages,
            "page_tags": self._page_tags,
        }

    def _workspace(self, job_id: int | None) -> None:
        only = list(self._rows("workspace", WorkspaceRow))
        if len(only) != 1 or only[0].id != self._source:
            raise Unreadable("record", "data/workspace.jsonl")
        values = only[0].model_dump() | {"id": self.result.workspace_id, "job": job_id}
        # It gets its own name when it is finished; until then none that anybody could want.
        self._connection.execute(_WORKSPACE, values | {"slug": str(self.result.workspace_id)})

    def _members(self) -> None:
        for row in self._rows("members", MemberRow):
            values = row.model_dump() | {"workspace": self.result.workspace_id, "source": self._source}
            told = self._connection.execute(_MEMBERS, values).fetchone()
            assert told is not None
            known, allowed = told
            if not known:
                self.result.leave_out("unknown_people", row.name)
            elif not allowed:
                self.result.leave_out("people_without_right", row.name)

    def _tags(self) -> None:
        with self._copy(_COPY_TAGS, "uuid", "uuid", "text", "text", "timestamptz") as write:
            for row in self._rows("tags", TagRow):
                write((self._fresh(row.id), self.result.workspace_id, row.name, row.key, row.created_at))

    def _courses(self) -> None:
        types = ("uuid", "uuid", "text", "int8", "timestamptz", "timestamptz", "text")
        with self._copy(_COPY_COURSES, *types) as write:
            for row in self._rows("courses", CourseRow):
                dates = (row.version, row.created_at, row.updated_at, row.updated_by)
                write((self._fresh(row.id), self.result.workspace_id, row.title, *dates))

    def _pages(self) -> None:
        types = ("uuid", "uuid", "int4", "text", "text", "int8", "timestamptz", "timestamptz", "text")
        with self._copy(_COPY_PAGES, *types) as write:
            for row in self._rows("pages", PageRow):
                dates = (row.version, row.created_at, row.updated_at, row.updated_by)
                write((self._fresh(row.id), self._fresh(row.course_id), row.position, row.title, row.body, *dates))

    def _page_tags(self) -> None:
        with self._copy(_COPY_PAGE_TAGS, "uuid", "uuid", "text", "timestamptz") as write:
            for row in self._rows("page_tags", PageTagRow):
                write((self._fresh(row.page_id), self._fresh(row.tag_id), row.added_by, row.added_at))

    @contextmanager
    def _copy(self, statement: str, *types: str) -> Iterator[Callable[[tuple[Any, ...]], None]]:
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.set_types(types)
            yield copy.write_row

    def _rows(self, table: str, model: type[AnyRow]) -> Iterator[AnyRow]:
        for line in self._archive.rows(table):
            try:
                row = model.model_validate_json(line)
            except pydantic.ValidationError as error:
                raise Unreadable("record", f"data/{table}.jsonl") from error
            yield row
            self.result.records += 1
            self._moved(self.result.records)

    def _fresh(self, old: uuid.UUID) -> uuid.UUID:
        return uuid.uuid5(self._seed, old.hex)


# Times are in UTC to the microsecond, and columns in alphabetical order, so that equal rows make equal bytes.
_JSON = "select convert_to(row_to_json(r)::text, 'UTF8') from ({}) r"
_AT = """to_char({0} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as {0}"""

_READ = {
    "workspace": f"""
        select backup_keep, backup_keep_days, {_AT.format("created_at")}, id, name, slug, time_zone
        from hub.workspace where id = %s
    """,
    "members": f"""
        select added_by, {_AT.format("created_at")}, email, enabled, name, role
        from (
            select m.added_by, m.created_at, p.email, m.enabled, p.name, m.role
            from hub.membership m join hub.person p on p.id = m.person_id
            where m.workspace_id = %s
        ) m order by email
    """,
    "tags": f"select {_AT.format('created_at')}, id, key, name from hub.tag where workspace_id = %s order by id",
    "courses": f"""
        select {_AT.format("created_at")}, id, title, {_AT.format("updated_at")}, updated_by, version
        from hub.course where workspace_id = %s order by id
    """,
    "pages": f"""
        select body, course_id, {_AT.format("created_at")}, id, position, title, {_AT.format("updated_at")},
               updated_by, version
        from hub.page where course_id = %s order by hub.page.position, hub.page.id
    """,
    "page_tags": f"""
        select {_AT.format("added_at")}, added_by, page_id, tag_id
        from (
            select t.added_at, t.added_by, t.page_id, t.tag_id
            from hub.course c join hub.page p on p.course_id = c.id join hub.page_tag t on t.page_id = p.id
            where c.workspace_id = %s
        ) t order by page_id, tag_id
    """,
}

_COURSES = "select id from hub.course where workspace_id = %s order by id"

_COUNT = """
    select
        (select count(*) from hub.workspace where id = %(workspace)s),
        (select count(*) from hub.membership where workspace_id = %(workspace)s),
        (select count(*) from hub.tag where workspace_id = %(workspace)s),
        (select count(*) from hub.course where workspace_id = %(workspace)s),
        (select count(*) from hub.course c join hub.page p on p.course_id = c.id where c.workspace_id = %(workspace)s),
        (
            select count(*) from hub.course c join hub.page p on p.course_id = c.id
            join hub.page_tag t on t.page_id = p.id where c.workspace_id = %(workspace)s
        )
"""

_WORKSPACE = """
    insert into hub.workspace (id, slug, name, enabled, time_zone, backup_keep, backup_keep_days, restored_by_job)
    values (%(id)s, %(slug)s, %(name)s, false, %(time_zone)s, %(backup_keep)s, %(backup_keep_days)s, %(job)s)
"""

# People are known by their addresses. Where the workspace of the backup is still here, nobody gets more than they have
# there now: not those who were let go since, nor a role that was taken from them. Answers whether such a person is
# known, and whether they still belong.
_MEMBERS = """
    with known as (
        select p.id, source.id is null as elsewhere, now.person_id is not null as belongs,
               case when now.role is null then %(role)s
                    when 'viewer' in (now.role, %(role)s) then 'viewer'
                    when 'member' in (now.role, %(role)s) then 'member'
                    else 'admin' end as role,
               %(enabled)s and coalesce(now.enabled, true) as enabled
        from hub.person p
        left join hub.workspace source on source.id = %(source)s
        left join hub.membership now on now.workspace_id = source.id and now.person_id = p.id
        where p.email = %(email)s
    ), added as (
        insert into hub.membership (workspace_id, person_id, role, enabled, added_by, created_at)
        select %(workspace)s, id, role, enabled, %(added_by)s, %(created_at)s from known where elsewhere or belongs
        returning person_id
    )
    select exists (select from known), exists (select from added)
"""

_COPY_TAGS = "copy hub.tag (id, workspace_id, name, key, created_at) from stdin (format binary)"
_COPY_COURSES = """
    copy hub.course (id, workspace_id, title, version, created_at, updated_at, updated_by) from stdin (format binary)
"""
_COPY_PAGES = """
    copy hub.page (id, course_id, position, title, body, version, created_at, updated_at, updated_by)
    from stdin (format binary)
"""
_COPY_PAGE_TAGS = "copy hub.page_tag (page_id, tag_id, added_by, added_at) from stdin (format binary)"
