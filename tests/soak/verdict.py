"""What must be true at the end of a soak, beside tests.invariants: queries that return what breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hub.config import Settings
from hub.db import Database
from tests import invariants
from tests.invariants import Violation, Watch
from tests.soak.callers import Acknowledged
from tests.soak.kinds import REFUSED

RULES: dict[str, tuple[str, str]] = {
    "lost": (
        "every acknowledged enqueue has its job, or the one that held its key",
        """
        select a.token, a.job_id, a.created from soak.acknowledged a
        left join soak.job asked on asked.token = a.token and asked.id = a.job_id
        left join soak.job twin on not a.created and twin.id = a.job_id and twin.key = a.key
        where coalesce(asked.id, twin.id) is null
        """,
    ),
    "enqueued": (
        "every job was acknowledged as made, and made once",
        """
        select j.token, count(*) as jobs, count(a.token) as acknowledged from soak.job j
        left join soak.acknowledged a on a.token = j.token and a.created and a.job_id = j.id
        group by j.token having count(*) <> 1 or count(a.token) <> 1 or j.token is null
        """,
    ),
    "key": (
        "never two live jobs of an exclusive key",
        """
        select * from (
            select job.key, t.job_id, t.new_state,
                   lag(t.new_state) over (partition by job.key order by t.seq) as before
            from $transition t join soak.job job on job.id = t.job_id
            where job.key is not null and (t.old_state is null or t.new_state in ('succeeded', 'failed', 'cancelled'))
        ) turns where (new_state = 'queued') = coalesce(before = 'queued', false)
        """,
    ),
    "effect": (
        "no effect twice; one of every job that succeeded, and of every item that it counts",
        """
        select j.id, j.kind, j.state::text, j.changed, count(e.job_id) as effects, count(distinct e.item) as items
        from soak.job j left join soak.effect e on e.job_id = j.id
        where j.kind like 'soak.%%'
        group by j.id, j.kind, j.state, j.changed
        having case
            when j.kind = 'soak.steps' then (count(e.job_id), count(distinct e.item)) is distinct from
                (j.changed::bigint, j.changed::bigint)
            else count(e.job_id) > 1 or (j.state = 'succeeded' and count(e.job_id) <> 1)
        end
        """,
    ),
    "overlap": (
        "no attempt at a job, or at one of its exclusive key, begins while another is at work",
        """
        select s.line, s.job_id, s.claim, s.began, s.ended, o.job_id as other, o.claim as other_claim, o.began as begins
        from soak.span s join soak.span o on o.line = s.line and o.id <> s.id and o.began between s.began and s.ended
        """,
    ),
    "accepted": (
        "what becomes of an attempt was told under its own claim, after its handler had come to the end",
        """
        select t.job_id, t.new_state, t.old_claim, j.code, a.outcome::text from $transition t
        join soak.job j on j.id = t.job_id
        left join $attempt a on a.job_id = t.job_id and a.claim = t.old_claim
        where j.kind in ('soak.plain', 'soak.exclusive', 'soak.ahead') and t.old_state = 'running'
          and (t.new_state = 'succeeded' or (t.new_state = 'failed' and j.code in ('handler_failed', %(refused)s))
               or (t.new_state = 'queued' and a.outcome in ('retry', 'snoozed')))
          and not exists (
              select from soak.span s where s.job_id = t.job_id and s.claim = t.old_claim and s.ended is not null
          )
        """,
    ),
    "attempts": (
        "a job is charged for at most as many attempts as it may have, and for as many as it counts",
        """
        select j.id, j.attempt, j.max_attempts, c.charged from soak.job j join (
            select job_id, count(*) filter (where new_state = 'running' and attempt_changed)
                - count(*) filter (where old_state = 'running' and new_state = 'queued' and attempt_changed) as charged
            from $transition group by job_id
        ) c on c.job_id = j.id
        where c.charged > j.max_attempts or c.charged <> j.attempt
        """,
    ),
    "dead": (
        "a dead letter exactly for jobs each of whose attempts came to nothing",
        """
        select j.id, j.state::text, j.code, j.max_attempts, spent.attempts, l.code as letter from soak.job j
        left join $dead_letter l on l.job_id = j.id
        cross join lateral (
            select count(distinct number) as attempts from (
                select number from $attempt where job_id = j.id and outcome in ('retry', 'lost')
                union all
                select j.attempt where j.code = 'handler_failed'
            ) numbers
        ) spent
        where (l.job_id is not null) <> (j.state = 'failed' and spent.attempts = j.max_attempts)
        """,
    ),
    "fate": (
        "a job ends as it was told to, or failed because its last attempt was lost",
        """
        select j.id, j.kind, j.state::text, j.code, j.attempt, j.args, seen.snoozes, seen.last_lost from soak.job j
        cross join lateral (
            select count(*) filter (where outcome = 'snoozed') as snoozes,
                   coalesce(bool_or(outcome = 'lost' and number = j.max_attempts), false) as last_lost
            from $attempt where job_id = j.id
        ) seen
        where j.kind like 'soak.%%' and j.state in ('succeeded', 'failed', 'cancelled') and not coalesce(case
            when j.state = 'succeeded' and j.kind = 'soak.steps' then j.total = (j.args->>'items')::integer
            when j.state = 'succeeded' then
                seen.snoozes = coalesce((j.args->>'snoozes')::integer, 0)
                and j.attempt > coalesce((j.args->>'failures')::integer, 0)
                and not coalesce((j.args->>'refused')::boolean, false)
            when j.code = 'handler_failed' then (j.args->>'failures')::integer >= j.max_attempts
            when j.code = %(refused)s then (j.args->>'refused')::boolean
            when j.state = 'failed' then seen.last_lost
            else false
        end, false)
        """,
    ),
    "ended": (
        "every job has ended, once",
        """
        select j.id, j.kind, j.state::text, coalesce(t.ends, 0) as ends from soak.job j left join (
            select job_id, count(*) as ends from $transition
            where new_state in ('succeeded', 'failed', 'cancelled') group by job_id
        ) t on t.job_id = j.id
        where j.state not in ('succeeded', 'failed', 'cancelled') or t.ends is distinct from 1
        """,
    ),
}


def check(
    database: Database, settings: Settings, watch: Watch, acknowledged: Sequence[Acknowledged]
) -> list[Violation]:
    """Everything that breaks a rule, once nothing is at work. `watch` has seen the whole soak."""
    _store(database, acknowledged)
    own = [
        Violation(name, says, rows[:20])
        for name, (says, query) in RULES.items()
        if (rows := watch.rows(query, {"refused": REFUSED}))
    ]
    return own + invariants.check(database, settings) + watch.check()


def jobs_by_end(database: Database) -> list[tuple[str, str, str, int]]:
    """(kind, state, code, jobs), in that order."""
    return _rows(
        database,
        "select kind, state::text, coalesce(code, ''), count(*) from soak.job group by 1, 2, 3 order by 1, 2, 3",
    )


def attempts_by_outcome(database: Database) -> list[tuple[str, int]]:
    """(outcome, attempts) of those that did not end their job."""
    return _rows(database, "select outcome::text, count(*) from queue.attempt group by outcome order by 1")


def _store(database: Database, acknowledged: Sequence[Acknowledged]) -> None:
    with database.autocommit() as connection, connection.transaction(), connection.cursor() as cursor:
        cursor.execute("delete from soak.acknowledged")
        with cursor.copy("copy soak.acknowledged from stdin") as rows:
            for one in acknowledged:
                rows.write_row(one)


def _rows(database: Database, query: str) -> list[Any]:
    with database.autocommit() as connection:
        return connection.execute(query.encode()).fetchall()
