-- What operators read of the queue: jobs of every kind, queues, workers. Each statement rests on an index that its
-- sentence names, and looks at a bounded number of rows.

-- name: jobs
-- Jobs by id, newest first, each with what an operator may see: of people's jobs no arguments (primary keys).
select j.id, j.queue, j.kind, j.state::text as state, j.priority, j.attempt, j.max_attempts, j.attempt_seconds,
       j.version, j.total, j.changed, j.skipped, j.failed, j.again_at, j.deadline_at, j.cancel_requested_at,
       j.created_at, j.started_at, j.finished_at, j.closing_failed, j.workspace_id, j.subject, j.live_key,
       w.name as worker, r.actor_name as asked_by, r.cancel_by_name,
       case when r.job_id is null then coalesce(j.args, d.args) end as args, d.result, d.code, d.error, d.origin_id,
       coalesce(d.redrives, 0) as redrives, l.state::text as letter, statement_timestamp() as read_at
from queue.job j
left join queue.detail d on d.job_id = j.id
left join queue.request r on r.job_id = j.id
left join queue.dead_letter l on l.job_id = j.id
left join queue.worker w on w.id = j.claim >> 32
where j.id = any(:ids::bigint[])
order by j.id desc;

-- name: newest
-- Ids of jobs older than one that match, newest first, among the next so many by number; with the last one looked at, if
-- there may be more behind it (primary key).
with looked as materialized (
    select id, queue, kind, state from queue.job where id < :before order by id desc limit :look
)
select array(
           select id from looked
           where (:queue::text is null or queue = :queue) and (:kind::text is null or kind = :kind)
             and (:state::text is null or state = :state::queue.state)
           order by id desc limit :most
       ) as ids,
       (select min(id) from looked having count(*) = :look) as behind;

-- name: running
-- Ids of running jobs older than one that match, newest first (job_again; no lease is longer than an hour).
select id from queue.job
where again_at <= statement_timestamp() + interval '1 hour' and state = 'running' and id < :before
  and (:queue::text is null or queue = :queue) and (:kind::text is null or kind = :kind)
order by id desc
limit :most;

-- name: failed
-- Ids of failed jobs older than one that match, newest first (job_failed).
select id from queue.job
where state = 'failed' and id < :before
  and (:queue::text is null or queue = :queue) and (:kind::text is null or kind = :kind)
order by id desc
limit :most;

-- name: queue_names
-- Every queue that has jobs to do, is paused, or has lanes in a live worker, by jumps (job_fresh, job_again).
with recursive fresh as (
    (select queue from queue.job where state = 'queued' and again_at is null order by queue limit 1)
    union all
    select next.queue
    from fresh, lateral (
        select j.queue from queue.job j
        where j.state = 'queued' and j.again_at is null and j.queue > fresh.queue order by j.queue limit 1
    ) next
), again as (
    (select queue from queue.job where again_at is not null order by queue limit 1)
    union all
    select next.queue
    from again, lateral (
        select j.queue from queue.job j where j.again_at is not null and j.queue > again.queue order by j.queue limit 1
    ) next
)
select queue from fresh
union select queue from again
union select queue from queue.pause
union
select lanes.queue
from queue.worker w cross join lateral jsonb_object_keys(w.lanes) lanes (queue)
where w.stopped_at is null and w.seen_at > statement_timestamp() - make_interval(secs => :silent);

-- name: queues
-- For each queue: how many jobs wait, are due, run and are for later, each counted up to a bound; since when the first
-- waits; its pause; lanes and workers that live; kinds not known here among the jobs that wait (job_fresh, job_again).
select q.name as queue, least(fresh.count + ready.count, :most) as waiting, due.count as due, running.count as running,
       later.count as later, later.next_at, least(oldest.at, ready.oldest_at) as oldest_at,
       statement_timestamp() as read_at, coalesce(crew.lanes, 0) as lanes, crew.workers,
       p.queue is not null as paused, p.reason as paused_because, p.by_name as paused_by, p.paused_at, p.until,
       fresh.unknown
from unnest(:queues::text[]) q (name)
cross join lateral (
    select count(*) as count, coalesce(array_agg(distinct kind) filter (where kind <> all(:kinds::text[])), '{}') as unknown
    from (
        select kind from queue.job where queue = q.name and state = 'queued' and again_at is null limit :most
    ) as bounded
) fresh
cross join lateral (
    select count(*) as count, min(again_at) as oldest_at
    from (
        select again_at from queue.job
        where queue = q.name and again_at <= statement_timestamp() and state = 'queued' order by again_at limit :most
    ) as bounded
) ready
cross join lateral (
    select count(*) as count
    from (select from queue.job where queue = q.name and again_at <= statement_timestamp() limit :most) as bounded
) due
cross join lateral (
    select count(*) as count
    from (
        select from queue.job
        where queue = q.name and again_at <= statement_timestamp() + interval '1 hour' and state = 'running' limit :most
    ) as bounded
) running
cross join lateral (
    select count(*) as count, min(again_at) as next_at
    from (
        select again_at from queue.job
        where queue = q.name and again_at > statement_timestamp() and state = 'queued' order by again_at limit :most
    ) as bounded
) later
cross join lateral (
    -- The oldest of each (priority, workspace), found by jumps as the claim finds them.
    with recursive line as (
        (
            select priority, workspace_id, created_at from queue.job
            where queue = q.name and state = 'queued' and again_at is null
            order by priority, workspace_id, id limit 1
        )
        union all
        select next.priority, next.workspace_id, next.created_at
        from line, lateral (
            select j.priority, j.workspace_id, j.created_at from queue.job j
            where j.queue = q.name and j.state = 'queued' and j.again_at is null
              and (j.priority, j.workspace_id) > (line.priority, line.workspace_id)
            order by j.priority, j.workspace_id, j.id limit 1
        ) next
    )
    select min(created_at) as at from line
) oldest
cross join lateral (
    select sum((w.lanes->>q.name)::integer) as lanes, count(*) as workers
    from queue.worker w
    where w.stopped_at is null and w.seen_at > statement_timestamp() - make_interval(secs => :silent)
      and w.lanes ? q.name
) crew
left join queue.pause p on p.queue = q.name and (p.until is null or p.until > statement_timestamp())
order by q.name;

-- name: workers
-- Workers that have not stopped and gave a sign of life in the last day, the latest started first (worker_live).
select id, name, version, lanes, started_at, seen_at, listening, listening_since,
       seen_at < statement_timestamp() - make_interval(secs => :silent) as silent, statement_timestamp() as read_at
from queue.worker
where stopped_at is null and seen_at > statement_timestamp() - interval '1 day'
order by id desc
limit 1000;
