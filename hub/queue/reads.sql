-- What the pages read of the queue. Each statement rests on an index that its sentence names.

-- name: jobs
-- People's jobs by id, newest first, each with all that a page may show (primary keys).
select j.id, j.queue, j.kind, j.state::text as state, j.priority, j.attempt, j.max_attempts, j.attempt_seconds,
       j.version, j.total, j.changed, j.skipped, j.failed, j.changed + j.skipped + j.failed as done, j.done_before,
       j.bytes, j.again_at, j.deadline_at, j.cancel_requested_at, j.progressed_at, j.created_at, j.started_at, j.finished_at,
       j.closing_failed, j.subject, w.name as worker,
       r.workspace_id, r.actor_id, r.actor_name, r.subject_name, r.cancel_by_name, r.idempotency_key,
       d.args, d.result, d.code, d.error, d.failures, d.request_id,
       l.job_id is not null as dead_letter,
       statement_timestamp() as read_at
from queue.request r
join queue.job j on j.id = r.job_id
join queue.detail d on d.job_id = r.job_id
left join queue.dead_letter l on l.job_id = r.job_id
left join queue.worker w on w.id = j.claim >> 32
where r.job_id = any(:ids::bigint[])
order by r.job_id desc;

-- name: page
-- Ids of a workspace's jobs that match the filters, newest first (request_list).
select j.id
from queue.request r
join queue.job j on j.id = r.job_id
left join queue.dead_letter l on l.job_id = r.job_id
where r.workspace_id = :workspace
  and r.job_id < :before
  and (:kind::text is null or r.kind = :kind)
  and (:actor::uuid is null or r.actor_id = :actor)
  and (:words::text is null or position(lower(:words) in lower(r.subject_name)) > 0)
  and (:since::timestamptz is null or r.created_at >= :since)
  and (:until::timestamptz is null or r.created_at < :until)
  and (not :problems or j.failed > 0)
  and (:bucket::text is null or :bucket = case
        when j.state = 'queued' and j.again_at is not null and j.attempt > 0 then 'retrying'
        when j.state = 'queued' then 'waiting'
        when j.state = 'running' then 'running'
        when j.state = 'succeeded' then 'finished'
        when j.state = 'failed' and l.job_id is not null then 'needs_attention'
        when j.state = 'failed' then 'failed'
        else 'cancelled' end)
order by r.job_id desc
limit :most;

-- name: newer
-- How many of a workspace's jobs are newer than one, counted up to 100 (request_list).
select count(*) as count
from (select from queue.request r where r.workspace_id = :workspace and r.job_id > :job limit 100) as bounded;

-- name: counts
-- How many of a workspace's jobs are in which state under the filters but for that of state, counted up to a bound
-- (request_day, or request_list without a range).
select bucket, count(*) as count
from (
    select case
        when j.state = 'queued' and j.again_at is not null and j.attempt > 0 then 'retrying'
        when j.state = 'queued' then 'waiting'
        when j.state = 'running' then 'running'
        when j.state = 'succeeded' then 'finished'
        when j.state = 'failed' and l.job_id is not null then 'needs_attention'
        when j.state = 'failed' then 'failed'
        else 'cancelled' end as bucket
    from queue.request r
    join queue.job j on j.id = r.job_id
    left join queue.dead_letter l on l.job_id = r.job_id
    where r.workspace_id = :workspace
      and (:kind::text is null or r.kind = :kind)
      and (:actor::uuid is null or r.actor_id = :actor)
      and (:words::text is null or position(lower(:words) in lower(r.subject_name)) > 0)
      and (:since::timestamptz is null or r.created_at >= :since)
      and (:until::timestamptz is null or r.created_at < :until)
      and (not :problems or j.failed > 0)
    limit :most
) as bounded
group by bucket;

-- name: attempts
-- A job's attempts that ended without ending it, newest first, each with its worker (primary key).
select a.number, a.started_at, a.ended_at, a.outcome::text as outcome, a.code, a.error, a.done, w.name as worker
from queue.attempt a
left join queue.worker w on w.id = a.claim >> 32
where a.job_id = :job
order by a.ended_at desc, a.claim desc
limit 100;

-- name: active_for_subject
-- Ids of people's jobs about a subject that have not ended, newest first (job_subject).
select j.id
from queue.job j
join queue.request r on r.job_id = j.id
where j.subject = :subject and j.finished_at is null
order by j.id desc
limit 20;

-- name: latest_for_subject
-- Ids of the latest of people's jobs about a subject (request_subject).
select r.job_id as id from queue.request r where r.subject = :subject order by r.job_id desc limit :most;

-- name: unended
-- Ids of a workspace's jobs that have not ended, newest first (request_pending).
select r.job_id as id
from queue.request r
where r.workspace_id = :workspace and r.ended_as is null
order by r.job_id desc
limit :most;

-- name: ahead
-- How many fresh jobs of a queue would be taken before this one if all were one workspace's, up to 1,000 (job_fresh).
select count(*) as count
from (
    select from queue.job j
    where j.queue = :queue and j.state = 'queued' and j.again_at is null
      and (j.priority, j.id) < (:priority::smallint, :job::bigint)
    limit 1000
) as bounded;

-- name: has_worker
-- Whether a live worker has lanes for a queue (worker_live).
select true as found
from queue.worker w
where w.stopped_at is null and w.seen_at > statement_timestamp() - make_interval(secs => :silent::float8)
  and w.lanes ? :queue
limit 1;
