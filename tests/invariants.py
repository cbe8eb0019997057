"""What must be true of Hub's tables however jobs ran, and a log of every transition for what only shows over time.

`check` looks at the tables when nothing is at work; `Watch` logs each change of a job and of a page while tests run, by
triggers that a superuser puts into the test's database, and checks the log afterwards. The names of the statements
(A1, B2, …) are those of the study of reliability; NAMES maps its words to our tables, here and nowhere else.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from hub.config import Settings
from hub.db import Database

NAMES = {
    "job": "queue.job",
    "request": "queue.request",
    "detail": "queue.detail",
    "job_item": "queue.worklist",
    "attempt": "queue.attempt",
    "dead_letter": "queue.dead_letter",
    "audit_event": "audit.event",
    "page": "hub.page",
    "outcome": "hub.page_tag",
    "transition": "watch.transition",
    "page_write": "watch.page_write",
    "tagged": "watch.tagged",
}
# Why a job ends after its last attempt, and so with a dead letter.
EXHAUSTED = ("handler_failed", "worker_lost", "deadline_passed")


@dataclass(frozen=True)
class Violation:
    """A broken statement: its name, what it says, and the rows that break it (at most 20)."""

    name: str
    says: str
    rows: list[dict[str, Any]] = field(compare=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.says}\n" + "\n".join(f"    {row}" for row in self.rows)


# Each query returns the rows that break the statement.
RULES: dict[str, tuple[str, str]] = {
    "A1": (
        "never more jobs of a workspace pending at once than its limit",
        """
        select r.job_id, r.workspace_id, count(*) as pending
        from $request r join $job j on j.id = r.job_id
        join $request other on other.workspace_id = r.workspace_id
        join $job o on o.id = other.job_id
            and o.created_at <= j.created_at and (o.finished_at is null or o.finished_at > j.created_at)
        group by r.job_id, r.workspace_id having count(*) > %(per_workspace)s
        """,
    ),
    "A2": (
        "never more jobs of an actor in a workspace pending at once than the limit",
        """
        select r.job_id, r.workspace_id, r.actor_id, count(*) as pending
        from $request r join $job j on j.id = r.job_id
        join $request other on other.workspace_id = r.workspace_id and other.actor_id = r.actor_id
        join $job o on o.id = other.job_id
            and o.created_at <= j.created_at and (o.finished_at is null or o.finished_at > j.created_at)
        group by r.job_id, r.workspace_id, r.actor_id having count(*) > %(per_actor)s
        """,
    ),
    "A3": (
        "never more jobs of a workspace created in 24 hours than the limit",
        """
        select * from (
            select job_id, workspace_id, count(*) over (
                partition by workspace_id order by created_at
                range between interval '24 hours' preceding and current row
            ) as in_a_day
            from $request
        ) counted where in_a_day > %(per_day)s
        """,
    ),
    "A6": (
        "one job for each workspace, actor and key, by a unique index",
        """
        select 'no unique index' as missing where not exists (
            select from pg_index i where i.indrelid = '$request'::regclass and i.indisunique and i.indisvalid
            and pg_get_indexdef(i.indexrelid) like '%%(workspace_id, actor_id, idempotency_key)'
        )
        """,
    ),
    "B1": (
        "every job of people has exactly one job.queued, and the other way round",
        """
        select r.job_id, e.job_id as told, coalesce(e.times, 0) as times
        from $request r
        full join (
            select job_id, count(*) as times from $audit_event where action = 'job.queued' group by job_id
        ) e using (job_id)
        where r.job_id is null or e.times is distinct from 1
        """,
    ),
    "B2": (
        "a job and its job.queued were written by one transaction",
        """
        select r.job_id, r.created_xid::text, e.xid::text from $request r
        join $audit_event e on e.job_id = r.job_id and e.action = 'job.queued' where e.xid <> r.created_xid
        """,
    ),
    "B3": (
        "one job.cancel_requested exactly when a cancel was requested, naming who asked",
        """
        select j.id, j.cancel_requested_at, r.cancel_by_name, coalesce(e.times, 0) as times
        from $job j join $request r on r.job_id = j.id
        left join (
            select job_id, count(*) as times from $audit_event where action = 'job.cancel_requested' group by job_id
        ) e on e.job_id = j.id
        where coalesce(e.times, 0) <> (j.cancel_requested_at is not null)::integer
           or (j.cancel_requested_at is null) <> (r.cancel_by_name is null)
        """,
    ),
    "B4": (
        "one terminal event for each ended job of people, of the kind of its state and with its counters; none before",
        """
        select j.id, j.state::text, e.actions from $job j join $request r on r.job_id = j.id
        left join (
            select job_id, array_agg(action) as actions, max(changes::text)::jsonb as changes from $audit_event
            where action in ('job.succeeded', 'job.failed', 'job.cancelled') group by job_id
        ) e on e.job_id = j.id
        where e.actions is distinct from case when j.finished_at is not null then array['job.' || j.state] end
           or (j.finished_at is not null and (e.changes->>'changed', e.changes->>'skipped', e.changes->>'failed')
               is distinct from (j.changed::text, j.skipped::text, j.failed::text))
        """,
    ),
    "C1": (
        "a request tells how its job ended, and that it has not",
        """
        select j.id, j.state::text, r.ended_as::text from $job j join $request r on r.job_id = j.id
        where r.ended_as is distinct from case when j.finished_at is not null then j.state end
        """,
    ),
    "C4": (
        "done = changed + skipped + failed, never above the total, equal to it at success; failures are told",
        """
        select j.id, j.state::text, j.total, j.changed, j.skipped, j.failed, d.failures->'counts' as counts
        from $job j left join $detail d on d.job_id = j.id
        where j.changed + j.skipped + j.failed > coalesce(j.total, 0)
           or (j.state = 'succeeded' and j.changed + j.skipped + j.failed <> coalesce(j.total, 0))
           or j.failed <> (select coalesce(sum(value::integer), 0) from jsonb_each_text(d.failures->'counts'))
           or least(j.failed, 100) <> coalesce(jsonb_array_length(d.failures->'items'), 0)
        """,
    ),
    "C7": (
        "texts of errors are bounded and of keys are keys",
        """
        select j.id, d.code, length(d.error) as error, length(d.failures::text) as failures
        from $job j join $detail d on d.job_id = j.id
        where length(d.error) > 2000 or length(d.failures::text) > 100000 or d.code !~ '^[a-z_]{1,80}$$'
        union all
        select a.job_id, a.code, length(a.error), null from $attempt a
        where length(a.error) > 2000 or a.code !~ '^[a-z_]{1,80}$$'
        """,
    ),
    "D3": (
        "a job counts each page that it tagged, and counts it once",
        """
        select j.id, j.changed, count(distinct o.page_id) as pages
        from $job j join $outcome o on o.job_id = j.id group by j.id having count(distinct o.page_id) > j.changed
        """,
    ),
    "D4": (
        "no attempt is numbered above the job's most attempts",
        """
        select j.id, j.attempt, j.max_attempts, max(a.number) as recorded
        from $job j left join $attempt a on a.job_id = j.id
        group by j.id having greatest(j.attempt, max(a.number)) > j.max_attempts
        """,
    ),
    "D6": (
        "a dead letter exactly for the jobs that used up their attempts, with the job's reason",
        """
        select j.id, j.state::text, j.attempt, j.max_attempts, d.code, l.code as dead_letter
        from $job j left join $detail d on d.job_id = j.id left join $dead_letter l on l.job_id = j.id
        where l.code is distinct from
            case when j.state = 'failed' and d.code = any(%(exhausted)s) then d.code end
           or (l.job_id is not null and j.attempt < j.max_attempts)
           or (j.state = 'failed' and d.code is null)
        """,
    ),
    "E1": (
        "an ended job has no worklist",
        """
        select j.id, j.state::text from $job j
        where j.finished_at is not null and exists (select from $job_item i where i.job_id = j.id)
        """,
    ),
    "E2": (
        "a job that has not ended has its whole worklist, if it is not one that tells by itself how far it is",
        """
        select j.id, j.total, coalesce(i.items, 0) as items from $job j
        left join (select job_id, sum(cardinality(items)) as items from $job_item group by job_id) i on i.job_id = j.id
        where j.finished_at is null and j.bytes is null and j.kind not like 'workspace.%%'
          and coalesce(i.items, 0) <> coalesce(j.total, 0)
        """,
    ),
    "row": (
        "every job has its arguments, once, and a claim exactly while it runs",
        """
        select j.id, j.state::text, j.claim from $job j left join $detail d on d.job_id = j.id
        where (j.args is null) = (d.args is null) or (j.claim is null) = (j.state = 'running')
           or (j.finished_at is not null and j.live_key is not null)
        """,
    ),
}

# Over time, by the log of Watch.
HISTORY: dict[str, tuple[str, str]] = {
    "C1": (
        "only legal transitions; an ended job never changes",
        """
        select * from $transition where (old_state, new_state) not in (
            ('queued', 'running'), ('running', 'running'), ('running', 'queued'),
            ('running', 'succeeded'), ('running', 'failed'), ('running', 'cancelled'), ('queued', 'cancelled'),
            ('queued', 'queued')
        ) or (old_state is null and new_state <> 'queued')
          or (old_state = 'queued' and new_state = 'queued' and visible and not setting_up)
        """,
    ),
    "C2": (
        "the version is raised by one with each change of what a person can see, and never falls",
        """
        select * from $transition
        where new_version - old_version <> case when visible then 1 else 0 end and not setting_up
        """,
    ),
    "C4": (
        "counters never fall, but for a later attempt that begins again",
        "select * from $transition where new_done < old_done and not (new_done = 0 and attempt > 1)",
    ),
    "C6": (
        "a cancel request stays, with its time",
        """
        select * from $transition
        where old_cancel is not null and new_cancel is distinct from old_cancel
        """,
    ),
    "D2": (
        "no claim is issued twice for a job, and what runs under a claim keeps it",
        """
        select job_id, new_claim, count(*) from $transition
        where new_state = 'running' and new_claim is distinct from old_claim
        group by job_id, new_claim having count(*) > 1
        union all
        select job_id, new_claim, 0 from $transition
        where old_state = 'running' and new_state = 'running' and new_claim = old_claim and attempt_changed
        """,
    ),
    "D3": (
        "a page is written at most once for a job",
        """
        select t.job_id, w.page_id, count(distinct w.xid) as writes
        from (select distinct xid, job_id, page_id from $tagged where job_id is not null) t
        join $page_write w on w.xid = t.xid and w.page_id = t.page_id
        group by t.job_id, w.page_id having count(distinct w.xid) > 1
        """,
    ),
    "D9": (
        "no item is done once a cancel is requested",
        "select * from $transition where old_cancel is not null and new_done > old_done",
    ),
    "D11": (
        "a job leaves title and body of a page as they are; no write overwrites another's",
        """
        select w.* from $page_write w
        where w.new_version <> w.old_version + 1
           or (w.content_changed and exists (
                select from $tagged t where t.xid = w.xid and t.page_id = w.page_id and t.job_id is not null))
        """,
    ),
    "fence": (
        "a page is written for a job only under the claim that the job has",
        "select * from $tagged where job_id is not null and claim is null",
    ),
}


def check(database: Database, settings: Settings) -> list[Violation]:
    """Everything in the tables that breaks a statement; to be called when nothing is at work."""
    values = {
        "per_workspace": settings.jobs_max_pending_per_workspace,
        "per_actor": settings.jobs_max_pending_per_actor,
        "per_day": settings.jobs_max_created_per_day,
        "exhausted": list(EXHAUSTED),
    }
    with database.autocommit() as connection:
        return _broken(connection, RULES, values)


class Watch:
    """The log of a test: every transition of a job, every write of a page, every tag put on one."""

    def __init__(self, admin_url: str) -> None:
        self._admin_url = admin_url

    def install(self) -> None:
        """Put the triggers in and begin with an empty log."""
        with psycopg.connect(self._admin_url, options="-c lock_timeout=10s") as connection:
            connection.execute(_INSTALL)

    def remove(self) -> None:
        """Take the triggers and the log away."""
        with psycopg.connect(self._admin_url, options="-c lock_timeout=10s") as connection:
            connection.execute("drop schema if exists watch cascade")

    def check(self) -> list[Violation]:
        """Everything in the log that breaks a statement."""
        with psycopg.connect(self._admin_url) as connection:
            return _broken(connection, HISTORY, {})

    def rows(self, query: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Rows of a query on the log, with our tables by their mapped names (``$transition``)."""
        with psycopg.connect(self._admin_url) as connection, connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(_named(query).encode(), values).fetchall()


@pytest.fixture
def invariants(database: Database, settings: Settings) -> Iterator[None]:
    """Nothing that the test left in the tables may break a statement."""
    yield
    assert_holds(check(database, settings))


@pytest.fixture
def watch(database: Database, admin_url: str) -> Iterator[Watch]:
    """The log of the test, checked at its end."""
    watch = Watch(admin_url)
    watch.install()
    try:
        yield watch
        assert_holds(watch.check())
    finally:
        watch.remove()


def assert_holds(violations: list[Violation]) -> None:
    """Fail with every violation told."""
    assert not violations, "\n".join(map(str, violations))


def _broken(
    connection: psycopg.Connection[Any], rules: dict[str, tuple[str, str]], values: dict[str, Any]
) -> list[Violation]:
    found = []
    with connection.cursor(row_factory=dict_row) as cursor:
        for name, (says, query) in rules.items():
            rows = cursor.execute(_named(query).encode(), values).fetchmany(20)
            if rows:
                found.append(Violation(name, says, rows))
    return found


def _named(query: str) -> str:
    return string.Template(query).substitute(NAMES)


# The functions run as their owner, so hub_app needs no right on the log. What a creating transaction does to its own
# new row (its total) is setting up, not a transition. Page writes and tags meet by their transaction.
_INSTALL = """
drop schema if exists watch cascade;
create schema watch;

create table watch.transition (
    seq bigint generated always as identity, at timestamptz not null default clock_timestamp(),
    xid xid8 not null default pg_current_xact_id(), pid integer not null default pg_backend_pid(),
    application text not null default current_setting('application_name'),
    job_id bigint not null, old_state text, new_state text not null, old_version bigint, new_version bigint not null,
    old_done integer, new_done integer not null, old_claim bigint, new_claim bigint, attempt integer not null,
    attempt_changed boolean not null, old_cancel timestamptz, new_cancel timestamptz, visible boolean not null,
    setting_up boolean not null
);
create table watch.page_write (
    seq bigint generated always as identity, at timestamptz not null default clock_timestamp(),
    xid xid8 not null default pg_current_xact_id(), pid integer not null default pg_backend_pid(),
    application text not null default current_setting('application_name'),
    page_id uuid not null, old_version bigint not null, new_version bigint not null, content text not null,
    content_changed boolean not null
);
create table watch.tagged (
    seq bigint generated always as identity, at timestamptz not null default clock_timestamp(),
    xid xid8 not null default pg_current_xact_id(), page_id uuid not null, tag_id uuid not null, job_id bigint,
    claim bigint
);

create function watch.job() returns trigger language plpgsql security definer set search_path = pg_catalog as $f$
begin
    insert into watch.transition (
        job_id, old_state, new_state, old_version, new_version, old_done, new_done, old_claim, new_claim, attempt,
        attempt_changed, old_cancel, new_cancel, visible, setting_up
    ) values (
        new.id, old.state, new.state, old.version, new.version, old.changed + old.skipped + old.failed,
        new.changed + new.skipped + new.failed, old.claim, new.claim, new.attempt,
        new.attempt is distinct from old.attempt, old.cancel_requested_at, new.cancel_requested_at,
        (new.state, new.claim, new.changed, new.skipped, new.failed, new.total, new.bytes, new.cancel_requested_at,
         new.attempt)
            is distinct from
        (old.state, old.claim, old.changed, old.skipped, old.failed, old.total, old.bytes, old.cancel_requested_at,
         old.attempt),
        old.total is null and new.total is not null and new.state = 'queued'
    );
    return null;
end $f$;
create trigger watch_job after insert or update on queue.job for each row execute function watch.job();

create function watch.page() returns trigger language plpgsql security definer set search_path = pg_catalog as $f$
begin
    insert into watch.page_write (page_id, old_version, new_version, content, content_changed) values (
        new.id, old.version, new.version, md5(new.title || chr(10) || new.body),
        (new.title, new.body) is distinct from (old.title, old.body)
    );
    return null;
end $f$;
create trigger watch_page after update on hub.page for each row execute function watch.page();

create function watch.tag() returns trigger language plpgsql security definer set search_path = pg_catalog as $f$
begin
    insert into watch.tagged (page_id, tag_id, job_id, claim) values (
        new.page_id, new.tag_id, new.job_id, (select claim from queue.job where id = new.job_id)
    );
    return null;
end $f$;
create trigger watch_tag after insert on hub.page_tag for each row execute function watch.tag();
"""
