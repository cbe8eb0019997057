-- The schedules and the ledger of their ticks. A schedule's row is locked before its ticks and its jobs are written, so
-- one worker decides at a time; that a due time has one row in the ledger holds whatever else goes wrong.

-- name: declare
-- Make known which schedules there are. One that is new, or has another expression than before, begins now; an empty
-- expression means that it is off. Rows that say so already are not touched, so that nobody waits for their locks.
insert into queue.schedule as s (name, cron, time_zone)
select name, cron, time_zone
from unnest(:names::text[], :crons::text[], :time_zones::text[]) d(name, cron, time_zone)
where not exists (
    select from queue.schedule k where k.name = d.name and (k.cron, k.time_zone) = (d.cron, d.time_zone)
)
order by name
on conflict (name) do update set
    cron = excluded.cron, time_zone = excluded.time_zone, ticked_at = greatest(s.ticked_at, statement_timestamp())
where (s.cron, s.time_zone) <> (excluded.cron, excluded.time_zone);

-- name: ensure
-- A row for a schedule that no worker made known yet.
insert into queue.schedule (name, cron, time_zone) values (:name, :cron, :time_zone) on conflict (name) do nothing;

-- name: look
-- How far some schedules are decided, and what time it is (primary key).
select name, cron, time_zone, ticked_at, paused_at, job_id, error, statement_timestamp() as now
from queue.schedule where name = any(:names);

-- name: hold
-- The same of one schedule, which nobody else decides until the transaction ends; no row if somebody does.
select name, cron, time_zone, ticked_at, paused_at, job_id, error, statement_timestamp() as now
from queue.schedule where name = :name
for no key update skip locked;

-- name: await
-- The same, waiting for whoever decides it.
select name, cron, time_zone, ticked_at, paused_at, job_id, error, statement_timestamp() as now
from queue.schedule where name = :name
for no key update;

-- name: record
-- Enter due times into the ledger; answers with those that nobody entered before.
insert into queue.tick (schedule, due_at, through_at, outcome, reason, worker_id)
select :schedule, due_at, through_at, outcome::queue.tick_outcome, reason, :worker_id
from unnest(:due_at::timestamptz[], :through_at::timestamptz[], :outcomes::text[], :reasons::text[])
    t(due_at, through_at, outcome, reason)
on conflict (schedule, due_at) do nothing
returning due_at;

-- name: record_manual
-- Enter a start by hand; no row if a tick was due at this very moment.
insert into queue.tick (schedule, due_at, outcome, job_id, by_name)
values (:schedule, clock_timestamp(), 'manual', :job_id, :by_name)
on conflict (schedule, due_at) do nothing
returning due_at;

-- name: set_job
-- Which job a tick started, or which one was in its way.
update queue.tick set job_id = :job_id, outcome = :outcome::queue.tick_outcome, reason = :reason
where schedule = :schedule and due_at = :due_at;

-- name: lives
-- Whether a job has not ended.
select from queue.job where id = :id and finished_at is null;

-- name: advance
-- Every due time up to `until` is decided.
update queue.schedule set
    ticked_at = greatest(ticked_at, :until), job_id = coalesce(:job_id, job_id), error = null, failed_at = null
where name = :name;

-- name: started
-- The job that was started last.
update queue.schedule set job_id = :job_id where name = :name;

-- name: fail
-- Why the due times of some schedules cannot be decided.
update queue.schedule set error = :error, failed_at = statement_timestamp() where name = any(:names);

-- name: recover
-- They can.
update queue.schedule set error = null, failed_at = null where name = any(:names);

-- name: pause
-- From now on ticks are skipped; no row if that is so already.
update queue.schedule set
    paused_at = statement_timestamp(), paused_by_id = :by_id, paused_by_name = :by_name, paused_reason = :reason
where name = :name and paused_at is null
returning name;

-- name: resume
-- Ticks fire again; no row if they do already.
update queue.schedule set paused_at = null, paused_by_id = null, paused_by_name = null, paused_reason = null
where name = :name and paused_at is not null
returning name;

-- name: overview
-- Some schedules, each with its last tick and that tick's job; of one that no worker knew yet only the name and the time
-- it is (primary keys).
select n.name, s.cron, s.time_zone, s.ticked_at, s.paused_at, s.paused_by_name, s.paused_reason, s.error, s.failed_at,
       t.due_at, t.through_at, t.outcome::text as outcome, t.reason, t.job_id, t.by_name,
       (select j.state::text from queue.job j where j.id = t.job_id) as job_state, statement_timestamp() as now
from unnest(:names::text[]) n(name)
left join queue.schedule s on s.name = n.name
left join lateral (
    select due_at, through_at, outcome, reason, job_id, by_name from queue.tick
    where schedule = s.name order by due_at desc limit 1
) t on true;

-- name: ticks
-- The ledger of one schedule, newest first, from before a time (primary key).
select due_at, through_at, outcome::text as outcome, reason, job_id, by_name, at
from queue.tick
where schedule = :name and due_at < coalesce(:before, 'infinity'::timestamptz)
order by due_at desc limit :most;
