-- Batches: jobs that are counted together, in parts of a few hundred.

-- name: add_batch
insert into dibs.batches (name, hooks) values (:name, :hooks::jsonb) returning id, created_at;

-- name: open_batch
-- Whether it takes jobs. Whoever wants to close it waits until those are there.
select closed_at is not null, finished_at is not null from dibs.batches where id = :batch::bigint for key share;

-- name: own_job
-- A job of this batch, held by who says so. It cannot end before this transaction does, and so neither can its batch.
select j.id from dibs.jobs j
where j.id = :id::bigint and j.token = :token::bigint and j.held and (select p.batch from dibs.parts p where p.id = j.part) = :batch::bigint
for key share;

-- name: add_parts
-- Ids are drawn in the order of the rows.
with drawn as materialized (
  select nextval('dibs.job_id') as id, (n - 1) / :size::int as piece, nullif(line, 'null')::jsonb as payload
  from string_to_table(:payloads, E'\n') with ordinality l(line, n)),
made as materialized (
  select piece, min(id) as id, max(id) as last, count(*) as total from drawn group by piece),
kept as (
  insert into dibs.parts (id, batch, last, total) select id, :batch::bigint, last, total from made)
insert into dibs.jobs (id, queue, rank, type, run_at, max_attempts, tags, submits, payload, part)
select d.id, :queue, :rank::smallint, :type,
  (select greatest(coalesce(:run_at::timestamptz, statement_timestamp() + make_interval(secs => :delay::float8)), statement_timestamp())),
  :max_attempts::smallint, :tags::jsonb, :submits::boolean, d.payload, m.id
from drawn d join made m on m.piece = d.piece
order by d.id
returning id;

-- name: make_part
-- Of jobs that were added in this transaction.
with parted as (
  update dibs.jobs set part = (select min(i) from unnest(:ids::bigint[]) i) where id = any (:ids::bigint[]))
insert into dibs.parts (id, batch, last, total) select min(i), :batch::bigint, max(i), count(*) from unnest(:ids::bigint[]) i;

-- name: close_batch
select dibs.close_batch_1(:batch::bigint);

-- name: batch_of
select p.batch from dibs.jobs j join dibs.parts p on p.id = j.part where j.id = :id::bigint;

-- name: batch
-- One batch with its sums, and, in the same moment, how many of its jobs that are not final are in each state, if those are few.
select b.id, b.name, b.created_at, b.closed_at, b.finished_at, s.total, s.successful, s.failed, s.cancelled,
  case when s.total - s.successful - s.failed - s.cancelled <= :exact::int then (
    select coalesce(jsonb_object_agg(l.state, l.jobs), '{}') from (
      select dibs.shown(j.held, j.state, j.submits) as state, count(*) as jobs
      from dibs.parts p cross join lateral (
        select held, state, submits from dibs.jobs where id between p.id and p.last and part = p.id) j
      where p.batch = b.id and p.total > p.successful + p.failed + p.cancelled group by 1) l) end::text
from dibs.batches b cross join lateral (
  select coalesce(sum(total), 0)::bigint as total, coalesce(sum(successful), 0)::bigint as successful,
    coalesce(sum(failed), 0)::bigint as failed, coalesce(sum(cancelled), 0)::bigint as cancelled
  from dibs.parts p where p.batch = b.id) s
where b.id = :batch::bigint;

-- name: batches
-- Some of them with their sums: those that are named, or the newest before one.
select b.id, b.name, b.created_at, b.closed_at, b.finished_at, s.total, s.successful, s.failed, s.cancelled, null::text
from (
  (select * from dibs.batches where id = any (:ids::bigint[]))
  union all
  (select * from dibs.batches where id < :before::bigint and (not :unfinished::boolean or finished_at is null) order by id desc limit :limit::int)) b
cross join lateral (
  select coalesce(sum(total), 0)::bigint as total, coalesce(sum(successful), 0)::bigint as successful,
    coalesce(sum(failed), 0)::bigint as failed, coalesce(sum(cancelled), 0)::bigint as cancelled
  from dibs.parts p where p.batch = b.id) s
order by b.id desc;

-- name: batch_usage
-- What its submissions were charged for: the sum of each number in `usage`, or of `usage` itself where that is a number.
select e.name, sum(e.number)::float8
from dibs.parts p join dibs.submissions s on s.job between p.id and p.last and s.part = p.id
cross join lateral (
  select 'usage' as name, s.usage::numeric as number where jsonb_typeof(s.usage) = 'number'
  union all
  select f.key, f.value::numeric from jsonb_each(case when jsonb_typeof(s.usage) = 'object' then s.usage else '{}' end) f
  where jsonb_typeof(f.value) = 'number') e
where p.batch = :batch::bigint group by e.name order by e.name;

-- name: batch_jobs
-- Of its jobs that are not final: the first after that one.
select j.id
from dibs.parts p cross join lateral (
  select id from dibs.jobs where id between p.id and p.last and id > :after::bigint and part = p.id) j
where p.batch = :batch::bigint and p.last > :after::bigint and p.total > p.successful + p.failed + p.cancelled
order by p.id, j.id limit :limit::int;

-- name: batch_dead
-- Of those that ended in this state: the first after that one.
select d.id
from dibs.parts p cross join lateral (
  select id from dibs.dead where id between p.id and p.last and id > :after::bigint and part = p.id and state = :state::int) d
where p.batch = :batch::bigint and p.last > :after::bigint and p.failed + p.cancelled > 0
order by p.id, d.id limit :limit::int;

-- name: prune_parts
-- Of batches that finished so long ago, and are gone as soon as they have no part.
with old as materialized (
  select id from dibs.batches where finished_at < statement_timestamp() - make_interval(days => :days::int) order by id limit 10),
listed as materialized (
  select p.id, p.batch from old o cross join lateral (select id, batch from dibs.parts where batch = o.id limit :limit::int + 1) p limit :limit::int + 1),
gone as (
  delete from dibs.parts where id in (select id from listed limit :limit::int)),
ended as (
  delete from dibs.batches where id in (select id from old where (select count(*) from listed) <= :limit::int))
select count(*) from old;
