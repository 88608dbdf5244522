-- Adding jobs, looking them up, cancelling and retrying them. Columns of a job: see operations/rows.py.

-- name: add
insert into dibs.jobs (queue, rank, type, run_at, max_attempts, payload, tags, submits)
values (:queue, :rank::smallint, :type,
  greatest(coalesce(:run_at::timestamptz, statement_timestamp() + make_interval(secs => :delay::float8)), statement_timestamp()),
  :max_attempts::smallint, :payload::jsonb, :tags::jsonb, :submits::boolean)
returning id, created_at, run_at,
  case when run_at <= statement_timestamp() + interval '5 s' then dibs.wake_1(queue, rank, run_at) end;

-- name: add_each
-- Ids are drawn in the order of the rows. Each queue and rank is woken once.
with wanted as materialized (
  select w.*, nextval('dibs.job_id') as id
  from unnest(:jobs_queue::text[], :jobs_rank::smallint[], :jobs_type::text[], :jobs_run_at::timestamptz[], :jobs_delay::float8[],
      :jobs_max_attempts::smallint[], string_to_array(:jobs_payload, E'\n', ''), string_to_array(:jobs_tags, E'\n', ''),
      :jobs_submits::boolean[])
    w(queue, rank, type, run_at, delay, max_attempts, payload, tags, submits)),
added as (
  insert into dibs.jobs (id, queue, rank, type, run_at, max_attempts, payload, tags, submits)
  select id, queue, rank, type, greatest(coalesce(run_at, statement_timestamp() + make_interval(secs => delay)), statement_timestamp()),
    max_attempts, payload::jsonb, tags::jsonb, submits
  from wanted
  returning id, queue, rank, created_at, run_at),
woken as materialized (
  select dibs.wake_1(queue, rank, min(run_at)) from added where run_at <= statement_timestamp() + interval '5 s' group by queue, rank)
select id, created_at, run_at from added where (select count(*) from woken) >= 0 order by id;

-- name: add_many
insert into dibs.jobs (queue, rank, type, run_at, max_attempts, tags, submits, payload)
select :queue, :rank::smallint, :type,
  (select greatest(coalesce(:run_at::timestamptz, statement_timestamp() + make_interval(secs => :delay::float8)), statement_timestamp())),
  :max_attempts::smallint, :tags::jsonb, :submits::boolean, nullif(line, 'null')::jsonb
from string_to_table(:payloads, E'\n') line
returning id;

-- name: wake
-- The transaction began before any of its rows: a listener that goes back to then finds them all, however late the commit.
select dibs.wake_1(:queue, :rank::int, transaction_timestamp())
where coalesce(:run_at::timestamptz, statement_timestamp() + make_interval(secs => :delay::float8)) <= statement_timestamp() + interval '5 s';

-- name: notify
select pg_notify(:channel, :payload);

-- name: add_keyed
-- Never locks the row of a key that is held: a caller's open transaction must not block the settle of the holder.
-- Keys are taken in their own order, or two who add the same ones in different orders would wait for each other.
with wanted as materialized (
  select w.*, nextval('dibs.job_id') as id
  from unnest(:jobs_queue::text[], :jobs_rank::smallint[], :jobs_type::text[], :jobs_run_at::timestamptz[], :jobs_delay::float8[],
      :jobs_max_attempts::smallint[], string_to_array(:jobs_payload, E'\n', ''), string_to_array(:jobs_tags, E'\n', ''),
      :jobs_submits::boolean[], :jobs_key::text[], :jobs_unique_for::float8[])
    with ordinality w(queue, rank, type, run_at, delay, max_attempts, payload, tags, submits, key, unique_for, n)),
lapsed as (
  delete from dibs.unique_keys k using (select type, key from wanted order by type collate "C", key collate "C") w
  where k.type = any (array[w.type]) and k.key = any (array[w.key]) and k.until <= statement_timestamp() returning 1),
taken as (
  insert into dibs.unique_keys (type, key, job)
  select type, key, id from wanted where (select count(*) from lapsed) >= 0 order by type collate "C", key collate "C", n
  on conflict do nothing returning job),
added as (
  insert into dibs.jobs (id, queue, rank, type, run_at, max_attempts, payload, tags, submits, unique_key, unique_for)
  select w.id, w.queue, w.rank, w.type,
    greatest(coalesce(w.run_at, statement_timestamp() + make_interval(secs => w.delay)), statement_timestamp()),
    w.max_attempts, w.payload::jsonb, w.tags::jsonb, w.submits, w.key, w.unique_for
  from taken t join wanted w on w.id = t.job
  returning id, type, unique_key, created_at, run_at)
select w.n, coalesce(a.id, k.job), a.id is not null and a.id = w.id, a.created_at, a.run_at
from wanted w
left join added a on a.type = w.type and a.unique_key = w.key
left join dibs.unique_keys k on k.type = w.type and k.key = w.key
order by w.n;

-- name: begin_request
-- Waits for another with the same key to be done.
insert into dibs.requests (key, fingerprint) values (:key, :fingerprint) on conflict do nothing returning key;

-- name: request
select fingerprint, job from dibs.requests where key = :key;

-- name: end_request
update dibs.requests set job = :id::bigint where key = :key;

-- name: get
-- JSON as text: on the caller's own connection the driver would read it in a way of its own.
select j.id, j.type, j.queue, j.payload::text, dibs.shown(j.held, j.state, j.submits), j.rank, j.attempts, j.max_attempts, null::text, j.failures::text,
  j.progress::text, j.tags::text, j.unique_key, n.name, j.created_at, j.run_at, j.claimed_at, null::timestamptz, j.version, j.submits
from dibs.jobs j left join dibs.worker_names n on n.id = j.worker >> 20 where j.id = any (:ids::bigint[])
union all
select j.id, j.type, j.queue, j.payload::text, j.state, j.rank, j.attempts, j.max_attempts, null, j.failures::text,
  j.progress::text, j.tags::text, j.unique_key, n.name, j.created_at, j.run_at, j.claimed_at, j.finished_at, j.version, j.submits
from dibs.dead j left join dibs.worker_names n on n.id = j.worker >> 20 where j.id = any (:ids::bigint[])
union all
select j.id, j.type, j.queue, j.payload::text, j.state, j.rank, j.attempts, j.max_attempts, j.result::text, j.failures::text,
  j.progress::text, j.tags::text, j.unique_key, n.name, j.created_at, j.run_at, j.claimed_at, j.finished_at, j.version, j.submits
from dibs.history j left join dibs.worker_names n on n.id = j.worker >> 20 where j.id = any (:ids::bigint[]);

-- name: page_floor
-- How far down a page may read: the id of the `reach`-th row below `before` in the table where that comes first.
select greatest(
  (select id from dibs.jobs where :live::boolean and id < :before::bigint order by id desc offset :reach::int - 1 limit 1),
  (select id from dibs.dead where :dead::boolean and id < :before::bigint order by id desc offset :reach::int - 1 limit 1),
  (select id from dibs.history where :history::boolean and id < :before::bigint order by id desc offset :reach::int - 1 limit 1),
  0);

-- name: page
select p.* from (
  (select j.id, j.type, j.queue, j.payload, dibs.shown(j.held, j.state, j.submits), j.rank, j.attempts, j.max_attempts, null::jsonb as result,
     j.failures, j.progress, j.tags, j.unique_key, (select n.name from dibs.worker_names n where n.id = j.worker >> 20), j.created_at, j.run_at,
     j.claimed_at, null::timestamptz as finished_at, j.version, j.submits
   from dibs.jobs j
   where :live::boolean and j.id < :before::bigint and j.id >= :floor::bigint
     and (:state::int is null or dibs.shown(j.held, j.state, j.submits) = :state::int)
     and (:type::text is null or j.type = :type::text) and (:queue::text is null or j.queue = :queue::text)
     and (:tag::text is null or j.tags ? :tag::text)
   order by j.id desc limit :limit::int)
  union all
  (select j.id, j.type, j.queue, j.payload, j.state, j.rank, j.attempts, j.max_attempts, null,
     j.failures, j.progress, j.tags, j.unique_key, (select n.name from dibs.worker_names n where n.id = j.worker >> 20), j.created_at, j.run_at,
     j.claimed_at, j.finished_at, j.version, j.submits
   from dibs.dead j
   where :dead::boolean and j.id < :before::bigint and j.id >= :floor::bigint and (:state::int is null or j.state = :state::int)
     and (:type::text is null or j.type = :type::text) and (:queue::text is null or j.queue = :queue::text)
     and (:tag::text is null or j.tags ? :tag::text)
   order by j.id desc limit :limit::int)
  union all
  (select j.id, j.type, j.queue, j.payload, j.state, j.rank, j.attempts, j.max_attempts, j.result,
     j.failures, j.progress, j.tags, j.unique_key, (select n.name from dibs.worker_names n where n.id = j.worker >> 20), j.created_at, j.run_at,
     j.claimed_at, j.finished_at, j.version, j.submits
   from dibs.history j
   where :history::boolean and j.id < :before::bigint and j.id >= :floor::bigint
     and (:type::text is null or j.type = :type::text) and (:queue::text is null or j.queue = :queue::text)
     and (:tag::text is null or j.tags ? :tag::text)
   order by j.id desc limit :limit::int)) p
order by p.id desc limit :limit::int;

-- name: count
-- Of those that a person could cancel or retry.
select count(*) from (
  (select 1 from dibs.jobs j
   where (:state::int is null or dibs.shown(j.held, j.state, j.submits) = :state::int)
     and (:type::text is null or j.type = :type::text) and (:queue::text is null or j.queue = :queue::text)
     and (:tag::text is null or j.tags ? :tag::text)
   limit :most::int)
  union all
  (select 1 from dibs.dead j
   where (:state::int is null or j.state = :state::int)
     and (:type::text is null or j.type = :type::text) and (:queue::text is null or j.queue = :queue::text)
     and (:tag::text is null or j.tags ? :tag::text)
   limit :most::int)) x;

-- name: cancel
-- From any state that is not final; the token is forgotten, so that the owner's write-back is refused.
-- It never waits for a row while it has others: a claim, too, waits at times, in spite of SKIP LOCKED (docs/design/schema.md),
-- and the two would wait for each other. Rows that are busy are named, to be waited for and asked for again.
-- The job of an adopted row is marked, and becomes CANCELLED by whoever knows that table: its row says so in the same moment.
-- So is one that a provider works on, by whoever can tell the provider.
-- The parts of batches come first, for one may have to wait for those.
with parted as materialized (
  select id from dibs.parts where id = any (array(select part from dibs.jobs where id = any (:ids::bigint[]) and part is not null))
  order by id for no key update),
wanted as materialized (
  select id from dibs.jobs where id = any (:ids::bigint[]) and (select count(*) from parted) >= 0 order by id for update skip locked),
marked as (
  update dibs.jobs j set held = false, worker = null, token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, finishing = 100,
    run_at = statement_timestamp(), rank = j.rank % 10 + 10
  from wanted w where j.id = any (array[w.id]) and (j.row_key is not null or j.finishing < 0 or j.finishing >= 100) returning j.id, j.queue, j.rank, j.run_at),
gone as (
  delete from dibs.jobs j using wanted w where j.id = any (array[w.id]) and j.row_key is null and j.finishing between 0 and 99 returning j.*),
buried as (
  insert into dibs.dead (id, run_at, created_at, claimed_at, finished_at, worker, token, version, rank, state,
    attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress, failures, row_key,
    submits, part)
  select id, run_at, created_at, claimed_at, statement_timestamp(), worker, null, version + 1, rank, 5,
    attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress, failures, row_key, submits, part from gone),
freed as materialized (
  select dibs.free_keys_1(array_agg(id), array_agg(type), array_agg(unique_key), array_agg(unique_for)) from gone where unique_key is not null),
counted as materialized (
  select dibs.count_parts_1(array_agg(part), array_agg(5::smallint), 1) from gone where part is not null having count(*) > 0),
told as materialized (
  select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text)
  from (select id, row_number() over (order by id) / 300 as part from gone) b group by part),
woken as materialized (
  select dibs.wake_1(queue, rank, min(run_at)) from marked group by queue, rank)
select id, true from gone where (select count(*) from freed) + (select count(*) from counted) + (select count(*) from told) >= 0
union all
select id, true from marked where (select count(*) from woken) >= 0
union all
select id, false from dibs.jobs where id = any (:ids::bigint[]) and id not in (select id from wanted);

-- name: wait_for_row
select id from dibs.jobs where id = :id::bigint for update;

-- name: retry
-- Back from the dead, attempts and crashes anew, if the unique key can be had again: one of each key, its holder first.
-- An adopted row has one job at most: if it has another by now, that one counts; of several, the youngest.
with wanted as materialized (
  select * from dibs.dead where id = any (:ids::bigint[]) order by id for update),
retaken as (
  insert into dibs.unique_keys as k (type, key, job)
  select distinct on (w.type, w.unique_key) w.type, w.unique_key, w.id
  from wanted w left join dibs.unique_keys h on h.type = w.type and h.key = w.unique_key and h.until > statement_timestamp()
  where w.unique_key is not null order by w.type, w.unique_key, h.job is not distinct from w.id desc, w.id
  on conflict (type, key) do update set job = excluded.job, until = null
  where k.job = excluded.job or k.until <= statement_timestamp()
  returning job),
gone as (
  delete from dibs.dead d using wanted w
  where d.id = any (array[w.id]) and (w.unique_key is null or w.id in (select job from retaken))
    and (w.row_key is null or not exists (select from dibs.jobs l where l.type = w.type and l.row_key = w.row_key)
      and not exists (select from wanted o where o.type = w.type and o.row_key = w.row_key and o.id > w.id))
  returning d.*),
back as (
  insert into dibs.jobs (id, run_at, created_at, version, rank, attempts, max_attempts, queue, type, unique_key, unique_for, payload, tags, failures, row_key,
    submits, part)
  select id, statement_timestamp(), created_at, version + 1,
    case when row_key is null then rank % 10 else 0 end + case when max_attempts = 1 then 10 else 0 end, 0, max_attempts, queue, type,
    unique_key, unique_for, payload, tags, failures, row_key, submits, part from gone
  on conflict (type, row_key) where row_key is not null do nothing
  returning id, queue, rank, run_at),
counted as materialized (
  select dibs.count_parts_1(array_agg(part), array_agg(state), -1) from gone where part is not null having count(*) > 0),
woken as materialized (
  select dibs.wake_1(queue, rank, min(run_at)) from back group by queue, rank),
told as materialized (
  select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text)
  from (select id, row_number() over (order by id) / 300 as part from back) b group by part)
select w.id, b.id is not null, coalesce(k.job, (select l.id from dibs.jobs l where l.type = w.type and l.row_key = w.row_key))
from wanted w left join back b on b.id = w.id left join dibs.unique_keys k on k.type = w.type and k.key = w.unique_key
where (select count(*) from counted) + (select count(*) from woken) + (select count(*) from told) >= 0
order by w.id;

-- name: matching_dead
select id from dibs.dead
where id > :after::bigint and (:state::int is null or state = :state::int)
  and (:type::text is null or type = :type::text) and (:queue::text is null or queue = :queue::text)
  and (:tag::text is null or tags ? :tag::text)
order by id limit :limit::int;

-- name: matching_live
select id from dibs.jobs
where id > :after::bigint and (:state::int is null or dibs.shown(held, state, submits) = :state::int)
  and (:type::text is null or type = :type::text) and (:queue::text is null or queue = :queue::text)
  and (:tag::text is null or tags ? :tag::text)
order by id limit :limit::int;

-- name: progress
with written as (
  update dibs.jobs set progress = :progress::jsonb, version = version + 1
  where id = :id::bigint and token = :token::bigint and held returning id)
select id, pg_notify('job_events', jsonb_build_object('jobId', id)::text) from written;
