"""What the tests of people's jobs share."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from hub.config import Settings
from hub.db import Database
from hub.jobs.cancel import cancel
from hub.jobs.create import Created, create
from hub.models import audit
from hub.queue.testing import drain
from tests import factories
from tests.factories import Team, row, rows
from tests.invariants import assert_holds, check, watch
from tests.processes import until

__all__ = ["watch"]


WAITING = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@dataclass
class Desk:
    """Where the people of one team start and cancel jobs, and a worker does them."""

    database: Database
    settings: Settings
    team: Team

    def course(self, pages: int = 3) -> uuid.UUID:
        """A fresh course of the team."""
        return factories.make_course(self.database, self.team, pages)

    def start(
        self,
        course: uuid.UUID | None = None,
        *tags: str,
        pages: str = "all",
        key: str | None = None,
        actor: audit.Actor | None = None,
    ) -> int:
        """A committed course.tag job."""
        course = course or self.course()
        return factories.start_tagging(
            self.database, self.settings, self.team, course, *tags, pages=pages, key=key, actor=actor
        ).job_id

    def create(self, *, team: Team | None = None, actor: audit.Actor | None = None, **order: Any) -> Created:
        """Admission itself, committed: `kind`, `args`, `key`."""
        team = team or self.team
        with self.database.transaction() as session:
            return create(session, self.settings, workspace=team.workspace, actor=actor or team.actor, **order)

    def member(self, role: str = "admin") -> audit.Actor:
        """Another person of the team, as an actor."""
        person = factories.add_member(self.database, self.team, role)
        return audit.Actor(id=person.id, name=person.name)

    def cancel(self, job_id: int, actor: audit.Actor | None = None) -> None:
        """A person's request for the job's end, committed."""
        with self.database.transaction() as session:
            cancel(session, job_id=job_id, actor=actor or self.team.actor)

    def work(self) -> None:
        """Run what is due until nothing is."""
        drain(self.database, self.settings, "workspace.jobs")

    @contextmanager
    def working_at(self, position: int) -> Iterator[psycopg.Connection[Any]]:
        """A worker at work that waits for the row of the page at this position, which the connection given has locked.

        When the block is left, the lock goes and the worker finishes all there is to do.
        """
        worker = threading.Thread(target=self.work)
        with psycopg.connect(self.database.url, application_name="holder") as holder:
            holder.execute("select from hub.page where position = %s for update", [position])
            worker.start()
            until(lambda: rows(self.database, WAITING))
            yield holder
        worker.join(60)
        assert not worker.is_alive()

    def job(self, job_id: int) -> Any:
        """The job's row with its detail and request."""
        return row(
            self.database,
            """
            select j.*, j.state::text as state, d.code, d.failures, d.args, r.cancel_by_name, r.subject_name
            from queue.job j join queue.detail d on d.job_id = j.id join queue.request r on r.job_id = j.id
            where j.id = :id
            """,
            id=job_id,
        )

    def outcome(self, job_id: int) -> tuple[str, int, int, int]:
        """(state, changed, skipped, failed) of the job."""
        job = self.job(job_id)
        return job.state, job.changed, job.skipped, job.failed

    def events(self, job_id: int) -> list[str]:
        """The actions told of the job, in order."""
        told = rows(self.database, "select action from audit.event where job_id = :id order by id", id=job_id)
        return [event.action for event in told]

    def image(self) -> list[Any]:
        """Everything of jobs, tags, pages and the trail."""
        tables = [f"queue.{name}" for name in ("job", "detail", "request", "worklist", "attempt", "dead_letter")]
        tables += ["hub.tag", "hub.page_tag", "hub.page", "audit.event"]
        return [rows(self.database, f"select t::text from {table} t order by 1") for table in tables]


@pytest.fixture
def desk(database: Database, settings: Settings) -> Iterator[Desk]:
    """A desk of a fresh team; the tables are checked, by its limits, when the test is over."""
    desk = Desk(database, settings, factories.make_team(database))
    yield desk
    assert_holds(check(database, desk.settings))


@pytest.fixture
def limited(desk: Desk) -> Callable[..., Desk]:
    """The desk with other limits: ``limited(jobs_max_pending_per_actor=1)``."""

    def limit(**limits: Any) -> Desk:
        desk.settings = factories.with_limits(desk.settings, **limits)
        return desk

    return limit
