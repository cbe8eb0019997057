-- What need not be kept, removed in small batches by every worker. A round goes through the jobs by their numbers, up to
-- the first that is too young; the next goes on from there, and once a day one begins with the oldest again, for what
-- had not ended when it was passed. So completing a job costs no index for this. Jobs of people are never removed, nor
-- are those whose dead letter is open.

-- name: begin
-- The row that tells how far the round has come.
insert into queue.retention default values on conflict do nothing;

-- name: prune_jobs
-- Look at the next thousand jobs and remove those of machines that ended more than `days` ago, with all that hangs on
-- them. Answers with how many were looked at and removed, and whether more are to be looked at now; no row if another
-- worker is at it. (Primary keys.)
with round as materialized (
    select after_id from queue.retention where the_only_row for no key update skip locked
), looked as materialized (
    select j.id, j.created_at < statement_timestamp() - make_interval(days => :days) as old,
           j.finished_at < statement_timestamp() - make_interval(days => :days) as over
    from round cross join lateral (
        select id, created_at, finished_at from queue.job where id > round.after_id order by id limit 1000
    ) j
), removed as (
    delete from queue.job where id = any(array(
        select id from queue.job
        where id = any(array(
            select id from looked where over
              and (select r.created_at from queue.request r where r.job_id = looked.id) is null
              and (select l.state from queue.dead_letter l where l.job_id = looked.id) is distinct from 'open'
        ))
        for update skip locked
    ))
    returning id
), come as (
    select count(*) as looked,
           coalesce((select min(id) - 1 from looked where not old), max(id)) as up_to,
           count(*) = 1000 and bool_and(old) as more
    from looked
)
update queue.retention r set
    after_id = case when not come.more and r.began_at < statement_timestamp() - interval '1 day' then 0
               else coalesce(come.up_to, r.after_id) end,
    began_at = case when not come.more and r.began_at < statement_timestamp() - interval '1 day'
               then statement_timestamp() else r.began_at end,
    looked_at = statement_timestamp(), error = null, failed_at = null
from round, come
where r.the_only_row
returning come.looked, (select count(*) from removed) as removed, come.more;

-- name: prune_ticks
-- Remove ticks from before so many days, a thousand of each schedule, but never its latest. (Primary key.)
delete from queue.tick where ctid = any(array(
    select t.ctid
    from queue.schedule s cross join lateral (
        select ctid from queue.tick
        where schedule = s.name
          and due_at < least(s.ticked_at, statement_timestamp() - make_interval(days => :days))
        order by due_at limit 1000
        for update skip locked
    ) t
));

-- name: prune_workers
-- Remove worker processes that gave no sign of life for 90 days. (Primary key.)
delete from queue.worker where id = any(array(
    select id from (select id, seen_at from queue.worker order by id limit 1000) w
    where seen_at < statement_timestamp() - interval '90 days'
))
returning id;

-- name: fail
-- Why nothing can be removed.
update queue.retention set error = :error, failed_at = statement_timestamp() where the_only_row;

-- name: state
-- What is wrong with the removal.
select error, failed_at from queue.retention where the_only_row;
