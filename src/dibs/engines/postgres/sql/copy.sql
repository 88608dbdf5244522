-- Many jobs at once, on connections of our own. SQLite needs no such thing: its add_many is as fast.

-- name: new_ids
-- For jobs that COPY adds: their ids, in order; and their times by this clock, where they are to run later.
select string_agg(nextval('dibs.job_id')::text, ','), statement_timestamp()::text,
  (select greatest(coalesce(:run_at::timestamptz, statement_timestamp() + make_interval(secs => :delay::float8)), statement_timestamp())::text)
from generate_series(1, :count::int);

-- name: new_parts
-- The same for jobs of a batch, and their parts.
with drawn as materialized (
  select nextval('dibs.job_id') as id, n from generate_series(1, :count::int) n),
made as (
  insert into dibs.parts (id, batch, last, total)
  select min(id), :batch::bigint, max(id), count(*) from drawn group by (n - 1) / :size::int)
select string_agg(id::text, ','), statement_timestamp()::text,
  (select greatest(coalesce(:run_at::timestamptz, statement_timestamp() + make_interval(secs => :delay::float8)), statement_timestamp())::text)
from drawn;

-- name: copy
-- The times are the table's defaults: to read them takes as long as all the rest.
copy dibs.jobs (id, payload, queue, rank, type, max_attempts, tags) from stdin;

-- name: copy_later
copy dibs.jobs (id, payload, queue, rank, type, max_attempts, tags, created_at, run_at) from stdin;

-- name: copy_parts
copy dibs.jobs (id, payload, part, queue, rank, type, max_attempts, tags) from stdin;

-- name: copy_parts_later
copy dibs.jobs (id, payload, part, queue, rank, type, max_attempts, tags, created_at, run_at) from stdin;
