-- Retention: partitions made ahead and dropped when past, rows deleted in small steps.

-- name: make_partition
select dibs.make_partition_1((statement_timestamp() at time zone 'utc')::date + :day::int);

-- name: drop_partition
select dibs.drop_partition_1((statement_timestamp() at time zone 'utc')::date);

-- name: expired_history
-- Only what no partition took: the rest goes with its partition.
select id from dibs.history_rest where expires < (statement_timestamp() at time zone 'utc')::date limit :limit::int;

-- name: forget_history
delete from dibs.history_rest where id = any (:ids::bigint[]) returning id;

-- name: expired_dead
select id from dibs.dead where finished_at < statement_timestamp() - make_interval(days => :days::int) order by id limit :limit::int;

-- name: forget_dead
delete from dibs.dead where id = any (:ids::bigint[]) returning id;

-- name: prune_keys
delete from dibs.unique_keys where (type, key) in (
  select type, key from dibs.unique_keys where until <= statement_timestamp() limit :limit::int) returning key;

-- name: prune_names
delete from dibs.worker_names n where seen_at < clock_timestamp() - make_interval(days => :days::int)
  and not exists (select from dibs.workers w where w.id = n.id) returning id;

-- name: prune_requests
with gone as (
  delete from dibs.requests where key in (select key from dibs.requests where at < statement_timestamp() - interval '1 day' limit :limit::int) returning 1)
select count(*) from gone;
