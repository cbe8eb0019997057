"""Rows for tests: people, workspaces, courses of many pages, jobs."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from hub.config import Settings
from hub.db import Database
from hub.jobs.create import Created, create
from hub.models import audit
from hub.models.base import new_id
from hub.models.person import Person
from hub.models.workspace import Membership, Workspace

_numbers = itertools.count(1)
# Nobody signs in with a password that was never hashed; tests of signing in make their own people.
NO_PASSWORD = "none"


@dataclass(frozen=True)
class Team:
    """A workspace with its admin."""

    workspace: Workspace
    admin: Person

    @property
    def actor(self) -> audit.Actor:
        """The admin, as the audit trail names them."""
        return audit.Actor(id=self.admin.id, name=self.admin.name)


def make_person(database: Database, **columns: Any) -> Person:
    """An enabled person; `password_hash` and the like by `columns`."""
    number = next(_numbers)
    values = {
        "email": f"person{number}@hub.example",
        "name": f"Person {number}",
        "password_hash": NO_PASSWORD,
    } | columns
    with database.transaction() as session:
        person = Person(id=new_id(), enabled=True, **values)
        session.add(person)
    return person


def make_team(database: Database, **columns: Any) -> Team:
    """A fresh workspace with one admin."""
    admin = make_person(database)
    number = next(_numbers)
    with database.transaction() as session:
        values = {"slug": f"team-{number}", "name": f"Team {number}"} | columns
        workspace = Workspace(id=new_id(), time_zone="UTC", **values)
        session.add(workspace)
        session.flush()
        session.add(Membership(workspace_id=workspace.id, person_id=admin.id, role="admin"))
    return Team(workspace, admin)


def add_member(database: Database, team: Team, role: str, **columns: Any) -> Person:
    """Another person in the team's workspace."""
    person = make_person(database, **columns)
    with database.transaction() as session:
        session.add(Membership(workspace_id=team.workspace.id, person_id=person.id, role=role))
    return person


def make_course(database: Database, team: Team, pages: int = 3, title: str = "Introduction to Biology") -> uuid.UUID:
    """A course of `pages` pages, made by one statement, however many."""
    course_id = new_id()
    with database.transaction() as session:
        session.execute(
            text("insert into hub.course (id, workspace_id, title, updated_by) values (:id, :workspace, :title, '')"),
            {"id": course_id, "workspace": team.workspace.id, "title": title},
        )
        session.execute(
            text("""
                insert into hub.page (id, course_id, position, title, body, updated_by)
                select gen_random_uuid(), :course, n, 'Page ' || n, 'Text of page ' || n || E'\\n', ''
                from generate_series(1, :pages) n
            """),
            {"course": course_id, "pages": pages},
        )
    return course_id


def tag_command(course_id: uuid.UUID, *tags: str, pages: str = "all") -> dict[str, Any]:
    """The arguments of course.tag."""
    return {"course_id": str(course_id), "tags": list(tags or ("biology",)), "pages": pages}


def start_tagging(
    database: Database,
    settings: Settings,
    team: Team,
    course_id: uuid.UUID,
    *tags: str,
    pages: str = "all",
    key: str | None = None,
    actor: audit.Actor | None = None,
) -> Created:
    """Create a course.tag job through admission, and commit."""
    with database.transaction() as session:
        return create(
            session,
            settings,
            workspace=team.workspace,
            actor=actor or team.actor,
            kind="course.tag",
            args=tag_command(course_id, *tags, pages=pages),
            key=key or f"key-{next(_numbers)}",
        )


def rows(database: Database, query: str, **values: Any) -> list[Any]:
    """Rows of a query, each with its columns as attributes."""
    with database.transaction() as session:
        return list(session.execute(text(query), values))


def row(database: Database, query: str, **values: Any) -> Any:
    """The one row of a query."""
    (only,) = rows(database, query, **values)
    return only


def run(database: Database, statement: str, **values: Any) -> None:
    """Execute and commit a statement."""
    with database.transaction() as session:
        session.execute(text(statement), values)


def with_limits(settings: Settings, **limits: Any) -> Settings:
    """The settings with other limits, as ``jobs_max_pending_per_actor=1``."""
    return dataclasses.replace(settings, **limits)
