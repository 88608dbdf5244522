-- Queues: which there are, pausing, and counts for people that never scan history.

-- name: queue_names
-- A loose scan of the claim index: one step for each queue, however many jobs it has. (A queue all of whose jobs are
-- held has nothing to claim, and is not found.)
with recursive found (queue) as (
  select min(queue) from dibs.jobs where held = 0
  union all
  select (select min(j.queue) from dibs.jobs j where j.held = 0 and j.queue > f.queue) from found f where f.queue is not null)
select queue from found where queue is not null
union select name from dibs.queues
order by 1;

-- name: pause
insert into dibs.queues (name, paused) values (:queue, 1) on conflict (name) do update set paused = 1;

-- name: resume
update dibs.queues set paused = 0 where name = :queue;

-- name: queue_counts
-- Exact: SQLite counts a million rows in the time that PostgreSQL takes for the estimate. :exact and :schema are unused.
with counted as (
  select j.queue as name, sum(j.held = 0 and j.state = 0 and j.run_at <= c.now) as waiting, sum(j.held = 0 and j.state = 0 and j.run_at > c.now) as later,
    sum(j.held = 0 and j.state = 1) as retry, sum(j.held and j.state <> 2) as running, sum(j.state = 2) as processing,
    min(case when j.held = 0 and j.run_at <= c.now then j.run_at end) as oldest
  from dibs.clock c cross join dibs.jobs j group by j.queue),
buried as (
  select queue as name, sum(state = 4) as failed, sum(state = 5) as cancelled from dibs.dead group by queue),
names as (select name from counted union select name from buried union select name from dibs.queues)
select n.name, coalesce(q.paused, 0), coalesce(c.waiting, 0), coalesce(c.later, 0), coalesce(c.retry, 0), coalesce(c.running, 0),
  coalesce(b.failed, 0), coalesce(b.cancelled, 0), c.oldest, null, null, coalesce(c.processing, 0)
from names n left join dibs.queues q on q.name = n.name left join counted c on c.name = n.name left join buried b on b.name = n.name
where :exact is not null and :schema is not null
order by n.name;

-- name: available
-- How many jobs could be claimed now, up to `most`.
with recursive ranks (rank) as (values (0) union all select rank + 1 from ranks where rank < 29)
select count(*) from (
  select 1 from json_each(:queues) q cross join ranks r cross join dibs.jobs j indexed by dibs.claim_order
    on j.queue = q.value and j.rank = r.rank and j.run_at <= (select now from dibs.clock) and j.held = 0
  where not exists (select 1 from dibs.queues p where p.name = q.value and p.paused)
  limit :most);
