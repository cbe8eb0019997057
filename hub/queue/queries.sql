-- The transitions of a job: every statement that changes the queue's tables. What the pages read stands in reads.sql.
--
--   enqueue            -> queued
--   claim     queued   -> running          (a fresh job, a due retry)
--             running  -> running          (a lapsed lease: the attempt before it is recorded as lost)
--   step      running  -> running          (one item done)
--   report    running  -> running          (so much is done, of kinds without a worklist)
--   retry     running  -> queued           (the attempt failed; again after a wait)
--   snooze    running  -> queued           (the handler asked to be called again later, attempt not charged)
--   release   running  -> queued           (given back, attempt not charged)
--   unclaim   running  -> queued           (claimed ahead but never started, attempt not charged)
--   complete  running  -> succeeded        (many at once, of kinds that leave nothing else to write)
--   finish    running  -> succeeded, failed, cancelled
--   cancel    queued   -> cancelled; running keeps running with a request
--
-- Every write on a running job matches (id, claim, state = running): the fence. Locks are taken in the order
-- workspace, job rows by id, the rest. Parameters are written :name; in psql, \set them first.

-- name: enqueue
-- A new job without details, and a worker woken when it commits; no row if an exclusive twin lives, waiting or running.
insert into queue.job (
    queue, kind, priority, workspace_id, subject, live_key, max_attempts, attempt_seconds, again_at, args
) values (
    :queue, :kind, :priority, :workspace_id, :subject, :live_key, :max_attempts, :attempt_seconds,
    coalesce(:start_at, statement_timestamp() + make_interval(secs => :delay::float8)), :args::jsonb
)
on conflict (queue, live_key) where live_key is not null do nothing
returning id, pg_notify('hub_queue', queue);

-- name: enqueue_wide
-- The same for a job with details.
with job as (
    insert into queue.job (
        queue, kind, priority, workspace_id, subject, live_key, max_attempts, attempt_seconds, again_at, args
    ) values (
        :queue, :kind, :priority, :workspace_id, :subject, :live_key, :max_attempts, :attempt_seconds,
        coalesce(:start_at, statement_timestamp() + make_interval(secs => :delay::float8)), null
    )
    on conflict (queue, live_key) where live_key is not null do nothing
    returning id
), detail as (
    insert into queue.detail (job_id, args, request_id, origin_id, redrives)
    select id, :args::jsonb, :request_id, :origin_id, :redrives from job
)
select id, pg_notify('hub_queue', :queue) from job;

-- name: draw_ids
-- Numbers for so many new jobs.
select nextval('queue.job_id_seq') from generate_series(1, :count);

-- name: copy_jobs
-- Many new jobs at once; the rows follow.
copy queue.job (id, queue, kind, priority, workspace_id, subject, max_attempts, attempt_seconds, again_at, args) from stdin;

-- name: copy_details
-- The large arguments of many new jobs; the rows follow.
copy queue.detail (job_id, args) from stdin;

-- name: enqueue_keyed
-- New jobs of an exclusive kind, one for each key that has no live job; answers with the live job of every key. The keys
-- are taken in their order, so that two such statements never wait for each other.
with item as materialized (
    select key, args, wide_args, subject, workspace_id
    from unnest(:keys::text[], :args::jsonb[], :wide_args::jsonb[], :subjects::text[], :workspace_ids::uuid[])
        i(key, args, wide_args, subject, workspace_id)
    order by key
), job as (
    insert into queue.job (
        queue, kind, priority, workspace_id, subject, live_key, max_attempts, attempt_seconds, again_at, args
    )
    select :queue, :kind, :priority, coalesce(workspace_id, '00000000-0000-0000-0000-000000000000'), subject, key,
           :max_attempts, :attempt_seconds, statement_timestamp() + make_interval(secs => :delay::float8), args
    from item
    on conflict (queue, live_key) where live_key is not null do nothing
    returning id, live_key
), detail as (
    insert into queue.detail (job_id, args)
    select job.id, item.wide_args from job join item on item.key = job.live_key where item.wide_args is not null
)
select live_key, id from job;

-- name: live_twins
-- The jobs that hold exclusive keys of a queue.
select live_key, id from queue.job where queue = :queue and live_key = any(:keys);

-- name: live_twin
-- The job that holds an exclusive key.
select id from queue.job where queue = :queue and live_key = :live_key;

-- name: add_request
-- Whose wish a job is, with its idempotency key.
insert into queue.request (
    job_id, workspace_id, actor_id, actor_name, kind, subject, subject_name, idempotency_key, fingerprint
) values (
    :job_id, :workspace_id, :actor_id, :actor_name, :kind, :subject, :subject_name, :idempotency_key, :fingerprint
);

-- name: find_request
-- The job that an idempotency key already made.
select job_id, fingerprint from queue.request
where workspace_id = :workspace_id and actor_id = :actor_id and idempotency_key = :idempotency_key;

-- name: count_pending
-- Jobs not yet ended: of the workspace, and of the actor in it. Counted after the workspace row is locked.
select count(*) as workspace, count(*) filter (where actor_id = :actor_id) as actor
from queue.request where workspace_id = :workspace_id and ended_as is null;

-- name: day_wait
-- If `most` jobs or more were created in the last 24 hours: seconds until the oldest that is in the way leaves the day.
select greatest(0, extract(epoch from created_at + interval '24 hours' - statement_timestamp()))::float8 as seconds
from queue.request
where workspace_id = :workspace_id and created_at > statement_timestamp() - interval '24 hours'
order by created_at desc offset :most - 1 limit 1;

-- name: pending_wait
-- Seconds until the first pending job should end by its own speed so far; no row if none has a speed yet.
-- Only the actor's jobs if actor_id is given.
select min((j.total - j.changed - j.skipped - j.failed)
       * extract(epoch from j.progressed_at - j.started_at)
       / (j.changed + j.skipped + j.failed - j.done_before))::float8 as seconds
from queue.request r join queue.job j on j.id = r.job_id
where r.workspace_id = :workspace_id and r.ended_as is null
  and (:actor_id::uuid is null or r.actor_id = :actor_id)
  and j.state = 'running' and j.changed + j.skipped + j.failed > j.done_before
  and j.progressed_at > j.started_at;

-- name: make_worklist
-- The items of a job in chunks of 1,000, from `:items`: a query of (item uuid, place), taken in the order of place.
with numbered as (
    select item, row_number() over (order by place) - 1 as n from (:items) listed
), inserted as (
    insert into queue.worklist (job_id, chunk, items)
    select :job_id, n / 1000, array_agg(item order by n) from numbered group by n / 1000
    returning cardinality(items) as items
)
select coalesce(sum(items), 0)::integer as total from inserted;

-- name: set_total
-- How many items a job has, told in the transaction that makes it, and a place for their failures.
with detail as (
    insert into queue.detail (job_id) values (:job_id) on conflict (job_id) do nothing
)
update queue.job set total = :total where id = :job_id;

-- name: announce
-- Wake a worker of the queue; PostgreSQL sends one notification however often a transaction asks.
select pg_notify('hub_queue', :queue);

-- name: announce_progress
-- Tell watchers that these jobs moved on.
select pg_notify('hub_job', :ids);

-- name: start_worker
-- A worker process; its number is half of every claim it makes, so the row must be durable before the first claim.
insert into queue.worker (name, version, lanes) values (:name, :version, :lanes::jsonb) returning id;

-- name: beat
-- A worker's sign of life, with whether notifications reach it, and for how many seconds that has been so.
update queue.worker
set seen_at = statement_timestamp(), listening = :listening,
    listening_since = statement_timestamp() - make_interval(secs => :seconds::float8)
where id = :id;

-- name: stop_worker
-- The worker has drained.
update queue.worker set stopped_at = statement_timestamp() where id = :id and stopped_at is null;

-- name: pause
-- Stop a queue from claiming, until resumed or `until`; no row if it is paused already.
insert into queue.pause as p (queue, reason, by_id, by_name, until) values (:queue, :reason, :by_id, :by_name, :until)
on conflict (queue) do update set
    reason = excluded.reason, by_id = excluded.by_id, by_name = excluded.by_name, until = excluded.until,
    paused_at = statement_timestamp()
where p.until <= statement_timestamp()
returning queue, pg_notify('hub_queue', queue);

-- name: resume
-- Let a paused queue claim again; no row if it was not paused.
delete from queue.pause where queue = :queue and (until is null or until > statement_timestamp())
returning queue, pg_notify('hub_queue', queue);

-- name: claim
-- Take up to :lanes jobs of a queue: first those whose time has come (a lapsed lease, a passed deadline, a retry), then
-- up to :fresh fresh ones by priority, then from the workspace with the fewest running jobs, then by age. Between
-- workspaces that have equally few, the claimer goes round: those that come after the one it served last (:after) come
-- first, or a single lane would serve the one with the oldest jobs until it has none left. Of a paused queue only what
-- must be closed is taken. The limits are written in as literals, because a parameter there makes the generic plan read
-- the whole table; ids are given as arrays beside joins, because a join alone could be planned to read all of an index
-- while the table is small.
with recursive paused as materialized (
    select from queue.pause where queue = :queue and (until is null or until > statement_timestamp())
), due as materialized (
    select id, state, claim, attempt, max_attempts, started_at, changed + skipped + failed as done,
           cancel_requested_at is not null and (total is null or changed + skipped + failed < total) as cancelled,
           -- Renewal keeps a lease up to the deadline; a lease that ended before it was renewed no more.
           case when again_at >= deadline_at then 'deadline_passed' when state = 'running' then 'worker_lost' end as cause
    from queue.job
    where queue = :queue and again_at <= statement_timestamp() and kind = any(:kinds)
      and (not exists (select from paused) or attempt >= max_attempts or cancel_requested_at is not null)
    order by again_at
    limit :lanes
    for no key update skip locked
), lost as (
    insert into queue.attempt (job_id, claim, number, started_at, ended_at, outcome, code, done)
    select id, claim, attempt, started_at, statement_timestamp(), 'lost', cause, done
    from due where state = 'running'
), line as (
    -- Every (priority, workspace) that has fresh jobs, found by jumps through the index job_fresh.
    (
        select priority, workspace_id from queue.job
        where queue = :queue and state = 'queued' and again_at is null and not exists (select from paused)
        order by priority, workspace_id limit 1
    )
    union all
    select next.priority, next.workspace_id
    from line, lateral (
        select j.priority, j.workspace_id from queue.job j
        where j.queue = :queue and j.state = 'queued' and j.again_at is null
          and (j.priority, j.workspace_id) > (line.priority, line.workspace_id)
        order by j.priority, j.workspace_id limit 1
    ) next
), busy as (
    select workspace_id, count(*) as jobs from queue.job
    where queue = :queue and again_at is not null and state = 'running' group by workspace_id
), candidate as materialized (
    select c.id, line.priority,
           coalesce(busy.jobs, 0) + row_number() over (partition by line.workspace_id order by line.priority, c.id)
               as turn,
           row(line.workspace_id <= :after, case when :after::uuid is not null then line.workspace_id end) as round
    from line
    cross join lateral (
        select j.id from queue.job j
        where j.queue = :queue and j.state = 'queued' and j.again_at is null
          -- Ranges, not equalities: with those the order would be the primary key's too, and that could be walked.
          and j.priority between line.priority and line.priority
          and j.workspace_id between line.workspace_id and line.workspace_id and j.kind = any(:kinds)
        order by j.priority, j.workspace_id, j.id limit :fresh
    ) c
    left join busy on busy.workspace_id = line.workspace_id
    order by line.priority, turn, round, c.id
    limit :fresh
), fresh as materialized (
    select id from queue.job
    where id = any(array(select id from candidate)) and coalesce(state = 'queued' and again_at is null, false)
    for no key update skip locked
), chosen as (
    select id, cause, attempt >= max_attempts as used_up, cancelled, -1 as priority, 0 as turn, null as round from due
    union all
    select id, null, false, false, c.priority, c.turn, c.round from fresh join candidate c using (id)
    order by priority, turn, round, id
    limit :lanes
), claimed as (
    update queue.job j set
        state = 'running',
        claim = :claim,
        attempt = j.attempt + case when c.used_up or c.cancelled then 0 else 1 end,
        closing_tries = least(j.closing_tries + case when c.used_up or c.cancelled then 1 else 0 end, 1000),
        started_at = statement_timestamp(),
        done_before = j.changed + j.skipped + j.failed,
        progressed_at = null,
        deadline_at = statement_timestamp() + make_interval(secs => j.attempt_seconds),
        again_at = statement_timestamp() + make_interval(secs => least(:lease, j.attempt_seconds)),
        version = j.version + 1
    from chosen c where j.id = c.id and j.id = any(array(select id from chosen))
    returning j.id, j.queue, j.kind, j.priority, j.workspace_id, j.subject, j.attempt, j.max_attempts, j.claim, j.total,
              j.changed, j.skipped, j.failed, j.closing_tries, c.used_up, c.cancelled, c.cause, j.args,
              j.attempt_seconds, extract(epoch from j.again_at - statement_timestamp())::float8 as good_for
), told as materialized (
    -- A notification has room for 8,000 bytes.
    select pg_notify('hub_job', string_agg(id::text, ','))
    from (select id, row_number() over () / 300 as part from claimed) numbered group by part
)
select id, queue, kind, workspace_id, subject, attempt, max_attempts, claim, total, changed, skipped, failed,
       closing_tries, used_up, cancelled, cause, good_for,
       coalesce(args, (select d.args from queue.detail d where d.job_id = claimed.id)) as args,
       case when args is null then (select d.request_id from queue.detail d where d.job_id = claimed.id) end,
       attempt_seconds
from claimed
where (select count(*) from told) > 0
order by priority, id;

-- name: claim_ahead
-- Take fresh jobs of a queue ahead of its lanes, of every workspace that waits up to :most, :most in all, the most urgent
-- first. What is taken so is short and unwatched: nobody is told, and the commit need not wait for the disk. Whose turn it
-- is is drawn by lot: in a fixed order a workspace that never runs dry would keep all behind it waiting for ever.
with recursive line as (
    (
        select priority, workspace_id from queue.job
        where queue = :queue and state = 'queued' and again_at is null
          and not exists (
              select from queue.pause where queue = :queue and (until is null or until > statement_timestamp())
          )
        order by priority, workspace_id limit 1
    )
    union all
    select next.priority, next.workspace_id
    from line, lateral (
        select j.priority, j.workspace_id from queue.job j
        where j.queue = :queue and j.state = 'queued' and j.again_at is null
          and (j.priority, j.workspace_id) > (line.priority, line.workspace_id)
        order by j.priority, j.workspace_id limit 1
    ) next
), chosen as materialized (
    select c.id
    from (select priority, workspace_id from line order by priority, random()) drawn
    cross join lateral (
        select j.id from queue.job j
        where j.queue = :queue and j.state = 'queued' and j.again_at is null
          and j.priority between drawn.priority and drawn.priority
          and j.workspace_id between drawn.workspace_id and drawn.workspace_id and j.kind = any(:kinds)
        order by j.priority, j.workspace_id, j.id limit :most
        for no key update skip locked
    ) c
    limit :most
)
update queue.job j set
    state = 'running',
    claim = :claim,
    attempt = j.attempt + 1,
    started_at = statement_timestamp(),
    deadline_at = statement_timestamp() + make_interval(secs => j.attempt_seconds),
    again_at = statement_timestamp() + make_interval(secs => least(:lease, j.attempt_seconds)),
    version = j.version + 1
where j.id = any(array(select id from chosen))
returning j.id, j.kind, j.priority, j.workspace_id, j.subject, j.attempt, j.max_attempts, j.attempt_seconds,
          coalesce(j.args, (select d.args from queue.detail d where d.job_id = j.id)) as args,
          case when j.args is null then (select d.request_id from queue.detail d where d.job_id = j.id) end;

-- name: look
-- For each queue: seconds until its next job is due (a retry, or the end of a lease, anybody's) or its pause ends, and
-- whether fresh jobs wait. Of a paused queue only what must be closed counts.
select q.name as queue,
       least(
           (
               select extract(epoch from again_at - statement_timestamp())::float8 from queue.job
               where queue = q.name and again_at is not null and kind = any(:kinds)
                 and (p.queue is null or attempt >= max_attempts or cancel_requested_at is not null)
               order by again_at limit 1
           ),
           extract(epoch from p.until - statement_timestamp())::float8
       ) as due_in,
       p.queue is null and coalesce((
           select true from queue.job
           where queue = q.name and state = 'queued' and again_at is null and kind = any(:kinds) limit 1
       ), false) as fresh
from unnest(:queues::text[]) q(name)
left join lateral (
    select queue, until from queue.pause
    where queue = q.name and (until is null or until > statement_timestamp()) limit 1
) p on true;

-- name: renew
-- Extend a lease, never past the deadline; answers for how many seconds it is good. No row if the claim is lost or the
-- deadline has passed.
update queue.job
set again_at = least(statement_timestamp() + make_interval(secs => :lease), deadline_at)
where id = :id and claim = :claim and state = 'running' and deadline_at > statement_timestamp()
returning extract(epoch from again_at - statement_timestamp())::float8 as good_for;

-- name: renew_many
-- Extend the leases of jobs claimed together; those that another transaction holds locked are left for the next time.
update queue.job j
set again_at = least(statement_timestamp() + make_interval(secs => :lease), j.deadline_at)
where j.id = any(array(
    select id from queue.job
    where id = any(:ids) and claim = :claim and deadline_at > statement_timestamp()
    order by id
    for no key update skip locked
))
returning extract(epoch from j.again_at - statement_timestamp())::float8 as good_for;

-- name: held
-- What stands of a claimed job now, and whether a cancel request came while items were left; no row if the claim is lost.
select changed, skipped, failed, total,
       cancel_requested_at is not null and (total is null or changed + skipped + failed < total) as cancelled
from queue.job where id = :id and claim = :claim and state = 'running';

-- name: worklist_chunk
-- A thousand items of a job.
select items from queue.worklist where job_id = :id and chunk = :chunk;

-- name: step
-- One item of a job in one transaction and one round trip: the fence, the kind's own work, the counters. `:item` is the
-- kind's part: CTEs that read `fence`, the last of them `outcome (changed, skipped, problem, title)` with one row if the
-- fence holds. An outcome that changed or skipped nothing counts nothing: its problem is the handler's to judge.
with fence as materialized (
    select id from queue.job
    where id = :id and claim = :claim and state = 'running' and cancel_requested_at is null
      and changed + skipped + failed = :position
    for no key update
),
:item,
counted as (
    update queue.job j set
        changed = j.changed + outcome.changed,
        skipped = j.skipped + outcome.skipped,
        progressed_at = statement_timestamp(),
        deadline_at = statement_timestamp() + make_interval(secs => j.attempt_seconds),
        version = j.version + 1
    from outcome where j.id = :id and outcome.changed + outcome.skipped = 1
)
select changed, skipped, problem, title from outcome;

-- name: fail_item
-- Record an item's failure: the counter, a count for each code, and the first 100 with id and title.
with counted as (
    update queue.job set
        failed = failed + 1,
        progressed_at = statement_timestamp(),
        deadline_at = statement_timestamp() + make_interval(secs => attempt_seconds),
        version = version + 1
    where id = :id and claim = :claim and state = 'running' and cancel_requested_at is null
      and changed + skipped + failed = :position
    returning id, attempt
)
update queue.detail d set failures = jsonb_build_object(
    'counts', d.failures->'counts'
        || jsonb_build_object(:code::text, coalesce((d.failures->'counts'->>:code)::integer, 0) + 1),
    'items', case when jsonb_array_length(d.failures->'items') >= 100 then d.failures->'items'
        else d.failures->'items' || jsonb_build_object(
            'id', :item_id::text, 'title', :title::text, 'code', :code::text, 'attempt', counted.attempt,
            'at', to_char(statement_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
        end)
from counted where d.job_id = :id
returning d.job_id;

-- name: report
-- How far a job without a worklist has come: of `total`, `done`, and bytes written. A later attempt begins again at 0. A
-- report that says nothing new still shows that the handler moves on. No row if the claim is lost or a cancel requested.
update queue.job set
    changed = :done::integer, total = :total, bytes = :bytes,
    done_before = least(done_before, :done::integer),
    progressed_at = statement_timestamp(),
    deadline_at = statement_timestamp() + make_interval(secs => attempt_seconds),
    version = version + ((changed, total, bytes) is distinct from (:done::integer, :total::integer, :bytes::bigint))::integer
where id = :id and claim = :claim and state = 'running' and cancel_requested_at is null
returning id;

-- name: fence
-- Hold a claim until the transaction ends: nobody else can take the job before what is written in it has committed. No
-- row if the claim is lost or a cancel requested.
select id from queue.job
where id = :id and claim = :claim and state = 'running' and cancel_requested_at is null
for no key update;

-- name: retry
-- The attempt failed and is not the last: wait, then be tried again. A cancel request takes precedence: then no row.
with again as (
    update queue.job set
        state = 'queued', claim = null, deadline_at = null,
        again_at = statement_timestamp() + make_interval(secs => :wait),
        version = version + 1
    where id = :id and claim = :claim and state = 'running' and cancel_requested_at is null
    returning id, queue, attempt, started_at, changed + skipped + failed as done
), recorded as (
    insert into queue.attempt (job_id, claim, number, started_at, outcome, code, error, done)
    select id, :claim, attempt, started_at, 'retry', :code, :error, done from again
)
select id, pg_notify('hub_job', id::text), pg_notify('hub_queue', queue) from again;

-- name: snooze
-- The handler asked to be called again after a wait, which costs no attempt. A cancel request takes precedence.
with again as (
    update queue.job set
        state = 'queued', claim = null, deadline_at = null,
        again_at = statement_timestamp() + make_interval(secs => :wait),
        attempt = attempt - 1, version = version + 1
    where id = :id and claim = :claim and state = 'running' and cancel_requested_at is null
    returning id, queue, attempt + 1 as number, started_at, changed + skipped + failed as done
), recorded as (
    insert into queue.attempt (job_id, claim, number, started_at, outcome, code, done)
    select id, :claim, number, started_at, 'snoozed', :code, done from again
)
select id, pg_notify('hub_job', id::text), pg_notify('hub_queue', queue) from again;

-- name: unclaim
-- Give back jobs that were claimed ahead and never started, as if they had not been claimed; a job that was asked to end
-- is left to lapse.
update queue.job set
    state = 'queued', claim = null, deadline_at = null, again_at = null, started_at = null,
    attempt = attempt - 1, version = version + 1
where id = any(:ids) and claim = :claim and cancel_requested_at is null
returning id, pg_notify('hub_queue', queue);

-- name: complete
-- The success of jobs claimed together whose kind has no more to write. A claim is not null exactly while a job runs, so
-- it alone is the fence: naming the state here would let the planner walk the running jobs.
update queue.job set
    state = 'succeeded', claim = null, again_at = null, live_key = null, deadline_at = null,
    finished_at = statement_timestamp(), version = version + 1
where id = any(:ids) and claim = :claim;

-- name: release
-- Give a job back unfinished without charging the attempt; it is due at once. A cancel request takes precedence.
with given as (
    update queue.job set
        state = 'queued', claim = null, deadline_at = null, again_at = statement_timestamp(),
        attempt = attempt - 1, version = version + 1
    where id = :id and claim = :claim and state = 'running' and cancel_requested_at is null
    returning id, queue, attempt + 1 as number, started_at, changed + skipped + failed as done
), recorded as (
    insert into queue.attempt (job_id, claim, number, started_at, outcome, code, done)
    select id, :claim, number, started_at, 'interrupted', 'worker_stopped', done from given
)
select id, pg_notify('hub_job', id::text), pg_notify('hub_queue', queue) from given;

-- name: finish
-- The end of a running job: final state, reason, result; the request closed, the worklist gone, a dead letter if the
-- attempts are used up.
with ended as (
    update queue.job set
        state = :state::queue.state, claim = null, again_at = null, live_key = null, deadline_at = null,
        finished_at = statement_timestamp(), closing_failed = :closing_failed, version = version + 1
    where id = :id and claim = :claim and state = 'running'
    returning id, queue, kind, state, workspace_id, subject, total, changed, skipped, failed
), detailed as (
    insert into queue.detail (job_id, result, code, error)
    select id, :result::jsonb, :code, :error from ended where :told
    on conflict (job_id) do update set result = excluded.result, code = excluded.code, error = excluded.error
), closed as (
    update queue.request set ended_as = :state::queue.state where job_id = (select id from ended)
), cleared as (
    delete from queue.worklist where job_id = (select id from ended)
), buried as (
    -- The key is read as it was before this statement, which frees it.
    insert into queue.dead_letter (job_id, queue, kind, code, live_key, of_people)
    select id, queue, kind, :code, (select live_key from queue.job j where j.id = ended.id),
           exists (select from queue.request r where r.job_id = ended.id)
    from ended where :dead
)
select ended.*, pg_notify('hub_job', id::text) from ended;

-- name: cancel
-- Ask for a job's end: a queued one ends at once, a running one keeps the request. No row if it has ended or was asked
-- before: the first request stands. Everything is judged by the one row that is updated: a state read apart from it could
-- be newer than the row's other columns, and the table's checks see the two together before the row is read again.
with changed as (
    update queue.job j set
        cancel_requested_at = statement_timestamp(),
        state = case when j.state = 'queued' then 'cancelled' else j.state end,
        again_at = case when j.state = 'queued' then null else j.again_at end,
        live_key = case when j.state = 'queued' then null else j.live_key end,
        finished_at = case when j.state = 'queued' then statement_timestamp() end,
        closing_failed = j.state = 'queued' and :closing_failed,
        version = j.version + 1
    where j.id = :id and j.state in ('queued', 'running') and j.cancel_requested_at is null
    returning j.id, j.queue, j.kind, j.state, j.workspace_id, j.subject, j.total, j.changed, j.skipped, j.failed
), asked as (
    update queue.request r set
        cancel_by_id = :by_id, cancel_by_name = :by_name,
        ended_as = case when changed.state = 'cancelled' then 'cancelled'::queue.state end
    from changed where r.job_id = :id
), cleared as (
    delete from queue.worklist where job_id = (select id from changed where state = 'cancelled')
)
select changed.*, pg_notify('hub_job', id::text) from changed;

-- name: requested_by
-- Who asked for a job: for the right that the worker checks and for its last event.
select workspace_id, actor_id, actor_name, subject_name from queue.request where job_id = :id;
