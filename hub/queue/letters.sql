-- Dead letters: what operators read of them, and what becomes of them. A letter is written where a job ends, by
-- `finish` in queries.sql. Each statement rests on an index that its sentence names.

-- name: groups
-- Open letters by kind and reason, the latest first: how many (counted up to a bound), since when and until when. The
-- groups are found by jumps (dead_letter_open).
with recursive found as (
    (select kind, code from queue.dead_letter where state = 'open' order by kind, code limit 1)
    union all
    select next.kind, next.code
    from found, lateral (
        select l.kind, l.code from queue.dead_letter l
        where l.state = 'open' and (l.kind, l.code) > (found.kind, found.code)
        order by l.kind, l.code limit 1
    ) next
)
select found.kind, found.code, counted.count, counted.of_people, first.at as first_at, last.at as last_at
from found
cross join lateral (
    select count(*) as count, bool_or(of_people) as of_people
    from (
        select l.of_people from queue.dead_letter l
        where l.state = 'open' and l.kind = found.kind and l.code = found.code limit :most
    ) as bounded
) counted
cross join lateral (
    select l.at from queue.dead_letter l
    where l.state = 'open' and l.kind = found.kind and l.code = found.code order by l.at, l.job_id limit 1
) first
cross join lateral (
    select l.at from queue.dead_letter l
    where l.state = 'open' and l.kind = found.kind and l.code = found.code order by l.at desc, l.job_id desc limit 1
) last
order by last.at desc, found.kind, found.code;

-- name: page
-- Open letters of one kind and reason, newest first, those older than a time and job (dead_letter_open).
select l.job_id
from queue.dead_letter l
where l.state = 'open' and l.kind = :kind and l.code = :code and (l.at, l.job_id) < (:at, :job_id)
order by l.at desc, l.job_id desc
limit :most;

-- name: batch
-- Open letters of one kind and reason, oldest first, those newer than a time and job, up to a time (dead_letter_open).
select l.job_id, l.at
from queue.dead_letter l
where l.state = 'open' and l.kind = :kind and l.code = :code
  and (l.at, l.job_id) > (:at, :job_id) and l.at <= :until
order by l.at, l.job_id
limit :most;

-- name: these
-- Letters by their jobs, whatever became of them (primary keys).
select l.job_id, l.queue, l.kind, l.code, l.live_key, l.of_people, l.state::text as state, l.at, l.decided_at,
       l.decided_by_name, l.reason, l.redriven_as, j.workspace_id, j.subject, j.attempt, j.created_at, d.error,
       d.origin_id, coalesce(d.redrives, 0) as redrives
from queue.dead_letter l
join queue.job j on j.id = l.job_id
left join queue.detail d on d.job_id = l.job_id
where l.job_id = any(:ids);

-- name: lock
-- Letters with what a redrive needs, so that nobody else decides about them; in one order, so that two acts on some of
-- the same letters wait for each other at most (primary keys).
select l.job_id, l.kind, l.live_key, l.of_people, l.state::text as state, l.redriven_as,
       j.priority, j.workspace_id, j.subject, coalesce(j.args, d.args) as args, coalesce(d.redrives, 0) as redrives
from queue.dead_letter l
join queue.job j on j.id = l.job_id
left join queue.detail d on d.job_id = l.job_id
where l.job_id = any(:ids)
order by l.job_id
for update of l;

-- name: decide
-- What became of letters; each with the job that was made from it, if one was.
update queue.dead_letter l set
    state = :state::queue.dead_letter_state, decided_at = statement_timestamp(), decided_by_id = :by_id,
    decided_by_name = :by_name, reason = :reason, redriven_as = made.id
from unnest(:ids::bigint[], :made::bigint[]) made (job_id, id)
where l.job_id = made.job_id and l.state = 'open';

-- name: now
-- The database's time.
select statement_timestamp() as now;
