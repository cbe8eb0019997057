-- The queue engine's tables. Applied as hub_owner; hub_app gets rows only.
--
-- job        the narrow, hot row: what a worker takes and a person watches
-- detail     its wide sibling: arguments, result, errors
-- request    the sibling of jobs that people asked for: who, with which key, and how it ended
-- worklist   the items a job goes through, in chunks; gone with the job's end
-- attempt    attempts that ended without ending their job; the job row itself tells of the latest one
-- dead_letter  jobs that used up their attempts
-- worker     worker processes; its number is the upper half of every claim number it draws

create type queue.state as enum ('queued', 'running', 'succeeded', 'failed', 'cancelled');
create type queue.attempt_outcome as enum ('retry', 'lost', 'interrupted');
create type queue.dead_letter_state as enum ('open', 'redriven', 'discarded');

create table queue.job (
    id                  bigint generated always as identity primary key,
    queue               text collate "C" not null,
    kind                text collate "C" not null,
    state               queue.state not null default 'queued',
    priority            smallint not null default 1 check (priority between 0 and 2),
    -- For fairness; the zero uuid stands for work of no workspace.
    workspace_id        uuid not null default '00000000-0000-0000-0000-000000000000',
    subject             text,
    -- The singleton key of an exclusive kind while the job lives.
    live_key            text,
    attempt             integer not null default 0,
    max_attempts        integer not null check (max_attempts > 0),
    -- How long an attempt may run; for kinds that step through items, the longest time without a step.
    attempt_seconds     real not null check (attempt_seconds > 0),
    -- The fence: worker number * 2^32 + that worker's own counter. Null unless running.
    claim               bigint,
    -- When a worker must look at this job again: running, the end of its lease (never past the deadline);
    -- queued, the next try or a later start; null for a fresh job and an ended one.
    again_at            timestamptz,
    deadline_at         timestamptz,
    cancel_requested_at timestamptz,
    -- Raised by one, in SQL, with every change of what a person can see.
    version             bigint not null default 1,
    -- Items: done = changed + skipped + failed is also the position in the worklist.
    total               integer,
    changed             integer not null default 0,
    skipped             integer not null default 0,
    failed              integer not null default 0,
    done_before         integer not null default 0,
    progressed_at       timestamptz,
    -- How many bytes were written so far, of kinds that report them.
    bytes               bigint check (bytes >= 0),
    closing_tries       smallint not null default 0,
    closing_failed      boolean not null default false,
    created_at          timestamptz not null default statement_timestamp(),
    started_at          timestamptz,
    finished_at         timestamptz,
    check ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    check ((state = 'running') = (claim is not null)),
    check (state <> 'running' or (again_at is not null and deadline_at is not null and started_at is not null)),
    check (finished_at is null or (again_at is null and live_key is null)),
    check (changed >= 0 and skipped >= 0 and failed >= 0),
    check (total is null or changed + skipped + failed <= total)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create index job_fresh on queue.job (queue, priority, workspace_id, id) where state = 'queued' and again_at is null;
create index job_again on queue.job (queue, again_at) where again_at is not null;
create unique index job_live_key on queue.job (queue, live_key) where live_key is not null;
create index job_subject on queue.job (subject) where subject is not null and finished_at is null;

create function queue.refuse_change_of_ended_job() returns trigger language plpgsql as $$
begin
    raise exception 'job % has ended and never changes again', old.id using errcode = 'HB001';
end
$$;
create trigger ended_jobs_never_change after update on queue.job
    for each row when (old.finished_at is not null) execute function queue.refuse_change_of_ended_job();

create table queue.detail (
    job_id     bigint primary key references queue.job on delete cascade,
    args       jsonb not null,
    result     jsonb,
    -- Why the job failed, as a key; `error` is the cleaned and bounded text for engineers.
    code       text,
    error      text,
    -- {"counts": {code: n}, "items": [{"id", "title", "code", "attempt", "at"}, … at most 100]}
    failures   jsonb not null default '{"counts": {}, "items": []}',
    request_id text
);

create table queue.request (
    job_id          bigint primary key references queue.job on delete cascade,
    workspace_id    uuid not null,
    actor_id        uuid not null,
    actor_name      text not null,
    kind            text collate "C" not null,
    subject         text,
    subject_name    text not null,
    idempotency_key text not null check (length(idempotency_key) between 1 and 200),
    fingerprint     bytea not null check (length(fingerprint) = 32),
    created_at      timestamptz not null default statement_timestamp(),
    created_xid     xid8 not null default pg_current_xact_id(),
    cancel_by_id    uuid,
    cancel_by_name  text,
    -- Null while the job is pending; how it ended afterwards.
    ended_as        queue.state check (ended_as in ('succeeded', 'failed', 'cancelled')),
    unique (workspace_id, actor_id, idempotency_key)
);
create index request_pending on queue.request (workspace_id, actor_id) where ended_as is null;
create index request_list on queue.request (workspace_id, job_id);
create index request_day on queue.request (workspace_id, created_at);
create index request_subject on queue.request (subject, job_id);

create table queue.worklist (
    job_id bigint not null references queue.job on delete cascade,
    chunk  integer not null,
    items  uuid[] not null,
    primary key (job_id, chunk)
);

create table queue.attempt (
    job_id     bigint not null references queue.job on delete cascade,
    claim      bigint not null,
    number     integer not null,
    started_at timestamptz not null,
    ended_at   timestamptz not null default clock_timestamp(),
    outcome    queue.attempt_outcome not null,
    code       text not null,
    error      text,
    done       integer not null,
    primary key (job_id, claim)
);

create table queue.dead_letter (
    job_id    bigint primary key references queue.job on delete cascade,
    queue     text collate "C" not null,
    kind      text collate "C" not null,
    code      text not null,
    state     queue.dead_letter_state not null default 'open',
    at        timestamptz not null default statement_timestamp()
);
create index dead_letter_open on queue.dead_letter (at) where state = 'open';

create table queue.worker (
    id         bigint generated always as identity primary key,
    name       text not null,
    lanes      jsonb not null,
    started_at timestamptz not null default statement_timestamp(),
    stopped_at timestamptz
);
