"""The soak's kinds of jobs, and the tables in which their handlers note what they did.

``python -m tests.soak.kinds LANES`` is a worker process that knows these kinds beside Hub's own.
"""

from __future__ import annotations

import sys
import time
from uuid import UUID

import pydantic

from hub import config, log
from hub import jobs as jobs
from hub.db import driver
from hub.queue import EXCLUSIVE, Context, Fail, Kind, Snooze, register, worker

REFUSED = "soak_refused"
SNOOZE_SECONDS = 0.2
LANES = "soak.plain=4,soak.exclusive=4,soak.ahead=4,soak.steps=2,workspace.jobs=2"

# A span is an attempt, as far as it came: both ends are noted under the fence, at moments drawn from a sequence, which
# no step of a clock puts out of order. Its line is what may have one span at a time: the exclusive key, else the job.
# A job's token is what its caller knows it by before it has a number: of people's jobs it is the idempotency key.
TABLES = """
drop schema if exists soak cascade;
create schema soak;
create sequence soak.moment;
create table soak.effect (job_id bigint not null, claim bigint not null, item uuid);
create index on soak.effect (job_id);
create table soak.span (
    id bigint generated always as identity primary key, job_id bigint not null, claim bigint not null,
    line text not null, began bigint not null default nextval('soak.moment'), ended bigint
);
create table soak.acknowledged (token text not null, job_id bigint not null, created boolean not null, key text);
create index on soak.span (job_id, claim);
create view soak.job as
    select j.id, j.kind, j.state, j.attempt, j.max_attempts, j.changed, j.failed, j.total, d.code, made.args,
           coalesce(made.args->>'token', r.idempotency_key) as token, made.args->>'key' as key
    from queue.job j
    left join queue.detail d on d.job_id = j.id
    left join queue.request r on r.job_id = j.id
    cross join lateral (select coalesce(j.args, d.args) as args) made;
grant usage on schema soak to hub_app;
grant all on all tables in schema soak to hub_app;
grant all on all sequences in schema soak to hub_app;
"""


class Work(pydantic.BaseModel):
    """How a job shall go: its handler snoozes so often, fails in so many attempts, and then is refused or succeeds.

    before, after: how many seconds it takes until it writes, and from there to its return.
    """

    token: str
    key: str | None = None
    before: float = 0.0
    after: float = 0.0
    snoozes: int = 0
    failures: int = 0
    refused: bool = False


class Steps(pydantic.BaseModel):
    """A job that goes through a worklist of so many items."""

    token: str
    items: int


def work(context: Context, args: Work) -> None:
    """Note when the attempt begins and ends; with the end, write the job's effect if it is to succeed."""
    span = _begin(context, args.key or f"job {context.job.id}")
    time.sleep(args.before)
    trouble = _trouble(context, args)
    _end(context, span, succeeds=trouble is None)
    time.sleep(args.after)
    if trouble:
        raise trouble


def _trouble(context: Context, args: Work) -> Exception | None:
    if _snoozes_so_far(context) < args.snoozes:
        return Snooze(SNOOZE_SECONDS, "soak_throttled")
    if context.job.attempt <= args.failures:
        return RuntimeError("fails as told")
    return Fail(REFUSED) if args.refused else None


def _snoozes_so_far(context: Context) -> int:
    query = "select count(*) from queue.attempt where job_id = %s and outcome = 'snoozed'"
    row = context.connection.execute(query, [context.job.id]).fetchone()
    assert row
    return int(row[0])


def _begin(context: Context, line: str) -> int:
    with context.database.transaction() as session:
        connection = driver(session)
        context.fence(connection)
        statement = "insert into soak.span (job_id, claim, line) values (%s, %s, %s) returning id"
        row = connection.execute(statement, [context.job.id, context.job.claim, line]).fetchone()
    assert row
    return int(row[0])


def _end(context: Context, span: int, *, succeeds: bool) -> None:
    """Under the fence nobody else can write for the job, so an effect that is not there yet is written once."""
    job = context.job
    with context.database.transaction() as session:
        connection = driver(session)
        context.fence(connection)
        connection.execute("update soak.span set ended = nextval('soak.moment') where id = %s", [span])
        if succeeds:
            connection.execute(
                "insert into soak.effect (job_id, claim) select %(job)s, %(claim)s"
                " where not exists (select from soak.effect where job_id = %(job)s)",
                {"job": job.id, "claim": job.claim},
            )


# Unlike `work` it does not look whether the effect is there: that each item is done once is the engine's promise.
STEP = """
made as (
    insert into soak.effect (job_id, claim, item) select %(id)s, %(claim)s, %(item)s from fence
), outcome as materialized (
    select 1 as changed, 0 as skipped, null::text as problem, ''::text as title from fence
)
"""


def steps(context: Context, args: Steps) -> None:
    """Write an effect for each item, but for a few that fail."""
    for item in context.items():
        if fails(item):
            context.fail_item(item, "", REFUSED)
        else:
            context.step(STEP, item=item)


def fails(item: UUID) -> bool:
    """Whether an item is one of those that fail: one in sixteen."""
    return item.int % 16 == 0


PLAIN = register(Kind(name="soak.plain", run=work, args=Work, deadline=30.0))
ALONE = register(Kind(name="soak.exclusive", run=work, args=Work, policy=EXCLUSIVE, deadline=30.0))
AHEAD = register(Kind(name="soak.ahead", run=work, args=Work, prefetch=True, deadline=30.0))
STEPPED = register(Kind(name="soak.steps", run=steps, args=Steps, steps=True, deadline=30.0))

if __name__ == "__main__":
    log.setup()
    sys.exit(worker.main(config.load(), config.parse_lanes(sys.argv[1])))
