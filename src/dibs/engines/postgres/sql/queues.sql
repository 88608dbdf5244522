-- Queues: which there are, pausing, and counts for people that never scan history.

-- name: queue_names
-- A loose scan of the claim index: one step for each queue, however many jobs it has.
with recursive found as (
  (select queue from dibs.jobs where queue >= '' order by queue limit 1)
  union all
  select (select queue from dibs.jobs where queue > f.queue order by queue limit 1) from found f where f.queue is not null)
select queue from found where queue is not null
union select name from dibs.queues
order by 1;

-- name: pause
insert into dibs.queues (name, paused) values (:queue, true) on conflict (name) do update set paused = true;

-- name: resume
with resumed as (update dibs.queues set paused = false where name = :queue and paused returning name)
select dibs.wake_1(name, null, null) from resumed;

-- name: queue_counts
-- Exact up to `exact` jobs of a queue; above that `total` is the planner's estimate, as old as the last ANALYZE.
with recursive found as (
  (select queue from dibs.jobs where queue >= '' order by queue limit 1)
  union all
  select (select queue from dibs.jobs where queue > f.queue order by queue limit 1) from found f where f.queue is not null),
gone as (
  (select queue from dibs.dead order by queue limit 1)
  union all
  select (select queue from dibs.dead where queue > g.queue order by queue limit 1) from gone g where g.queue is not null),
names as (
  select queue as name from found where queue is not null union select queue from gone where queue is not null union select name from dibs.queues),
spread as (
  select f.value, f.frequency from pg_stats s,
    unnest(s.most_common_vals::text::text[], s.most_common_freqs) f(value, frequency)
  where s.schemaname = :schema and s.tablename = 'jobs' and s.attname = 'queue'),
analyzed as (
  select greatest(last_analyze, last_autoanalyze) as at from pg_stat_user_tables where relid = 'dibs.jobs'::regclass)
select n.name, coalesce((select paused from dibs.queues q where q.name = n.name), false),
  c.waiting, c.later, c.retry, c.running, b.failed, b.cancelled, o.run_at,
  case when c.total > :exact::int then greatest(c.total, round((select reltuples from pg_class where oid = 'dibs.jobs'::regclass)
    * coalesce((select frequency from spread where value = n.name), 0)))::bigint end,
  case when c.total > :exact::int then (select at from analyzed) end, c.processing
from names n
cross join lateral (
  select count(*) as total, count(*) filter (where not held and state = 0 and run_at <= statement_timestamp()) as waiting,
    count(*) filter (where not held and state = 0 and run_at > statement_timestamp()) as later,
    count(*) filter (where not held and state = 1) as retry, count(*) filter (where held and state <> 2) as running, count(*) filter (where state = 2) as processing
  from (select held, state, run_at from dibs.jobs where queue = n.name limit :exact::int + 1) j) c
cross join lateral (
  select count(*) filter (where state = 4) as failed, count(*) filter (where state = 5) as cancelled
  from (select state from dibs.dead where queue = n.name limit :exact::int + 1) d) b
left join lateral (
  select min(f.run_at) as run_at from generate_series(0, 29) r(rank)
  cross join lateral (select run_at from dibs.jobs where queue = n.name and rank = r.rank and not held order by run_at, id limit 1) f
  where f.run_at <= statement_timestamp()) o on true
order by n.name;

-- name: available
-- How many jobs could be claimed now, up to `most`.
select count(*) from (
  select from unnest(:queues::text[]) q(name) cross join generate_series(0, 29) r(rank)
  join dibs.jobs j on j.queue = q.name collate "C" and j.rank = r.rank and j.run_at <= statement_timestamp() and not j.held
  where not exists (select from dibs.queues p where p.name = q.name collate "C" and p.paused)
  limit :most::int) x;
