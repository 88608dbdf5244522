-- turn
with turn as materialized (
  select * from "dibs".turn_1(
    %(worker)s::bigint, %(claim)s::int, %(again)s::int, %(suspects)s::int, '{}'::text[],
    %(ranges_queue)s::text[], %(ranges_rank)s::smallint[], %(ranges_at)s::timestamptz[], %(ranges_id)s::bigint[],
    %(done_id)s::bigint[], %(done_token)s::bigint[], %(done_state)s::smallint[], %(done_days)s::int[],
    %(done_result)s, %(done_failure)s, %(done_hook_error)s::text[],
    %(back_id)s::bigint[], %(back_token)s::bigint[], %(back_way)s::smallint[], %(back_delay)s::float8[], %(back_failure)s,
    %(events)s, true)),
refused as materialized (
  select coalesce(array_agg(u.id::bigint), '{}') as ids from turn cross join lateral jsonb_object_keys(case when token is null then queue::jsonb end) u(id)),
written as (
  update "public"."things" t set "status" = case d.state when 3 then 'completed' when 4 then 'failed' when 5 then 'failed' when 1 then 'queued' when 6 then 'started' else 'queued' end
  from unnest(%(written_job)s::bigint[], %(written_key)s::text[], %(written_state)s::smallint[], %(written_error)s::text[],
    %(written_attempts)s::smallint[]) d(job, key, state, error, attempts)
  where t."id" = any (array[(d.key::jsonb ->> 0)::bigint]) and case when t."status" = 'started' then true else false end
    and d.job <> all ((select ids from refused)::bigint[])
    and (select j.row_key from "dibs".jobs j where j.id = d.job and j.type = 'things') = t."id"::text
  returning d.job),
resumed as (
  update "public"."things" t set "status" = 'started'
  from turn r
  where r.token is not null and t."id" = any (array[(r.payload::jsonb -> 'key' ->> 0)::bigint])
    and (t."status" in ('queued', 'queued', 'started')
      or r.rank %% 10 = 0 and r.attempts = 1 and t."status" in ('failed', 'failed'))
    and (r.finishing = 0 or r.finishing >= 100 or t."status" = 'started')
    and not (r.rank %% 10 = 9 and r.attempts = 1 and r.finishing = 0 and r.crashes = 0 and t."status" = 'started' and false)
    and (r.finishing > 0 or true)
  returning r.id as job, json_build_object(
    'row', row_to_json(t), 'key', json_build_array(t."id"::text), 'done', false)::text as payload),
room as materialized (
  select case when (select count(*) from written) + (select count(*) from resumed) >= 0
    and not exists (select from "dibs".queues q where q.name = 'things' and q.paused)
    then greatest(%(room)s::int - (select count(*) from turn where token is not null), 0) else 0 end as n),
picked as materialized (
    select t."id" as k0, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text) as job from "public"."things" t
    where "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "id" limit (select n from room) for update skip locked),
alive as materialized (
  select id from "dibs".workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
watched as materialized (
  select j.id from "dibs".jobs j where j.id = any (array(select job from picked where job is not null)) for no key update skip locked),
leased as (
  insert into "dibs".jobs as j (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select true, %(worker)s::bigint << 20 | %(claim)s::int, 1, nextval('"dibs".token') << 20 | floor(random() * 1048576)::bigint,
    1, %(max_attempts)s::smallint, 'things', 'things', p.k0::text,
    jsonb_build_object('table', 'things', 'key', jsonb_build_array(p.k0::text)), statement_timestamp()
  from picked p where exists (select from alive) and (select true from "public"."things" v where v.ctid = p.tid and v."id" = p.k0)
    and (p.job is null or p.job = any (array(select id from watched)))
  on conflict (type, row_key) where row_key is not null do update set
    held = true, worker = excluded.worker, version = j.version + 1, token = excluded.token, attempts = 1, rank = excluded.rank,
    claimed_at = excluded.claimed_at, run_at = excluded.run_at
    where (not j.held and j.claimed_at is null and j.rank %% 10 = 9)
  returning id, token, payload as key, attempts, max_attempts, rank, run_at, crashes, finishing),
taken as (
  update "public"."things" t set "status" = 'started'
  from leased l where t."id" = any (array[(l.key -> 'key' ->> 0)::bigint]) and case when t."status" = 'queued' then true else false end
  returning l.*, json_build_object('row', row_to_json(t), 'key', json_build_array(t."id"::text), 'done', false,
    'place', json_build_array(t."id"::text))::text as payload)
select id, token, type, queue, (select json_agg(job)::text from written), attempts, max_attempts, rank, run_at, crashes, finishing
from turn where token is null
union all
select t.id, t.token, t.type, t.queue, coalesce(r.payload, t.payload), t.attempts, t.max_attempts, t.rank, t.run_at, t.crashes, t.finishing
from turn t left join resumed r on r.job = t.id where t.token is not null
union all
select id, token, 'things', 'things', payload, attempts, max_attempts, rank, run_at, crashes, finishing from taken
union all
select id, token, 'things', 'things', key::text, attempts, max_attempts, rank, run_at, crashes, finishing from leased
where (select count(*) from taken) < (select count(*) from leased) and id <> all (array(select id from taken));

-- turn_after
with turn as materialized (
  select * from "dibs".turn_1(
    %(worker)s::bigint, %(claim)s::int, %(again)s::int, %(suspects)s::int, '{}'::text[],
    %(ranges_queue)s::text[], %(ranges_rank)s::smallint[], %(ranges_at)s::timestamptz[], %(ranges_id)s::bigint[],
    %(done_id)s::bigint[], %(done_token)s::bigint[], %(done_state)s::smallint[], %(done_days)s::int[],
    %(done_result)s, %(done_failure)s, %(done_hook_error)s::text[],
    %(back_id)s::bigint[], %(back_token)s::bigint[], %(back_way)s::smallint[], %(back_delay)s::float8[], %(back_failure)s,
    %(events)s, true)),
refused as materialized (
  select coalesce(array_agg(u.id::bigint), '{}') as ids from turn cross join lateral jsonb_object_keys(case when token is null then queue::jsonb end) u(id)),
written as (
  update "public"."things" t set "status" = case d.state when 3 then 'completed' when 4 then 'failed' when 5 then 'failed' when 1 then 'queued' when 6 then 'started' else 'queued' end
  from unnest(%(written_job)s::bigint[], %(written_key)s::text[], %(written_state)s::smallint[], %(written_error)s::text[],
    %(written_attempts)s::smallint[]) d(job, key, state, error, attempts)
  where t."id" = any (array[(d.key::jsonb ->> 0)::bigint]) and case when t."status" = 'started' then true else false end
    and d.job <> all ((select ids from refused)::bigint[])
    and (select j.row_key from "dibs".jobs j where j.id = d.job and j.type = 'things') = t."id"::text
  returning d.job),
resumed as (
  update "public"."things" t set "status" = 'started'
  from turn r
  where r.token is not null and t."id" = any (array[(r.payload::jsonb -> 'key' ->> 0)::bigint])
    and (t."status" in ('queued', 'queued', 'started')
      or r.rank %% 10 = 0 and r.attempts = 1 and t."status" in ('failed', 'failed'))
    and (r.finishing = 0 or r.finishing >= 100 or t."status" = 'started')
    and not (r.rank %% 10 = 9 and r.attempts = 1 and r.finishing = 0 and r.crashes = 0 and t."status" = 'started' and false)
    and (r.finishing > 0 or true)
  returning r.id as job, json_build_object(
    'row', row_to_json(t), 'key', json_build_array(t."id"::text), 'done', false)::text as payload),
room as materialized (
  select case when (select count(*) from written) + (select count(*) from resumed) >= 0
    and not exists (select from "dibs".queues q where q.name = 'things' and q.paused)
    then greatest(%(room)s::int - (select count(*) from turn where token is not null), 0) else 0 end as n),
picked as materialized (
    select t."id" as k0, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text) as job from "public"."things" t
    where ("id") > (%(place_0)s::text::bigint)
      and "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "id" limit (select n from room) for update skip locked),
alive as materialized (
  select id from "dibs".workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
watched as materialized (
  select j.id from "dibs".jobs j where j.id = any (array(select job from picked where job is not null)) for no key update skip locked),
leased as (
  insert into "dibs".jobs as j (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select true, %(worker)s::bigint << 20 | %(claim)s::int, 1, nextval('"dibs".token') << 20 | floor(random() * 1048576)::bigint,
    1, %(max_attempts)s::smallint, 'things', 'things', p.k0::text,
    jsonb_build_object('table', 'things', 'key', jsonb_build_array(p.k0::text)), statement_timestamp()
  from picked p where exists (select from alive) and (select true from "public"."things" v where v.ctid = p.tid and v."id" = p.k0)
    and (p.job is null or p.job = any (array(select id from watched)))
  on conflict (type, row_key) where row_key is not null do update set
    held = true, worker = excluded.worker, version = j.version + 1, token = excluded.token, attempts = 1, rank = excluded.rank,
    claimed_at = excluded.claimed_at, run_at = excluded.run_at
    where (not j.held and j.claimed_at is null and j.rank %% 10 = 9)
  returning id, token, payload as key, attempts, max_attempts, rank, run_at, crashes, finishing),
taken as (
  update "public"."things" t set "status" = 'started'
  from leased l where t."id" = any (array[(l.key -> 'key' ->> 0)::bigint]) and case when t."status" = 'queued' then true else false end
  returning l.*, json_build_object('row', row_to_json(t), 'key', json_build_array(t."id"::text), 'done', false,
    'place', json_build_array(t."id"::text))::text as payload)
select id, token, type, queue, (select json_agg(job)::text from written), attempts, max_attempts, rank, run_at, crashes, finishing
from turn where token is null
union all
select t.id, t.token, t.type, t.queue, coalesce(r.payload, t.payload), t.attempts, t.max_attempts, t.rank, t.run_at, t.crashes, t.finishing
from turn t left join resumed r on r.job = t.id where t.token is not null
union all
select id, token, 'things', 'things', payload, attempts, max_attempts, rank, run_at, crashes, finishing from taken
union all
select id, token, 'things', 'things', key::text, attempts, max_attempts, rank, run_at, crashes, finishing from leased
where (select count(*) from taken) < (select count(*) from leased) and id <> all (array(select id from taken));

-- due
select * from "dibs".turn_1(
    %(worker)s::bigint, %(claim)s::int, %(again)s::int, %(suspects)s::int, '{}'::text[],
    %(ranges_queue)s::text[], %(ranges_rank)s::smallint[], %(ranges_at)s::timestamptz[], %(ranges_id)s::bigint[], _rows => true);

-- first
with room as materialized (select 1 as n)
select p.k0::text from (
    select t."id" as k0, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text) as job from "public"."things" t
    where "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "id" limit (select n from room) for update skip locked) p;

-- put_off
with room as materialized (select 1 as n),
picked as materialized (
    select t."id" as k0, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text) as job from "public"."things" t
    where "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "id" limit (select n from room) for update skip locked),
watched as materialized (
  select j.id from "dibs".jobs j where j.id = any (array(select job from picked where job is not null)) for no key update skip locked)
insert into "dibs".jobs as j (run_at, max_attempts, queue, type, row_key, payload)
select statement_timestamp() + make_interval(secs => %(seconds)s::float8), %(max_attempts)s::smallint, 'things', 'things', p.k0::text,
    jsonb_build_object('table', 'things', 'key', jsonb_build_array(p.k0::text))
from picked p where p.k0::text = %(row_key)s::text and (select true from "public"."things" v where v.ctid = p.tid and v."id" = p.k0)
    and (p.job is null or p.job = any (array(select id from watched)))
on conflict (type, row_key) where row_key is not null do update set run_at = excluded.run_at, rank = excluded.rank
  where (not j.held and j.claimed_at is null and j.rank %% 10 = 9);

-- held
with d as materialized (
  select * from unnest(%(written_job)s::bigint[], %(written_key)s::text[]) d(job, key)),
free as materialized (
  select d.job from d cross join "public"."things" t where t."id" = any (array[(d.key::jsonb ->> 0)::bigint]) for no key update of t skip locked)
select d.job from d cross join "public"."things" t where t."id" = any (array[(d.key::jsonb ->> 0)::bigint]) and d.job <> all (array(select job from free));

-- mend
set local lock_timeout = '1s';
update "public"."things" t set "status" = 'queued'
from (
  select j.id, j.payload from "public"."things" t join "dibs".jobs j on j.type = 'things' and j.row_key = t."id"::text
  where t."status" = 'started' and not j.held and j.state = 1 and j.finishing = 0 and j.attempts > 0
  for update of j skip locked) j
where t."id" = any (array[(j.payload -> 'key' ->> 0)::bigint]) and case when t."status" = 'started' then true else false end
returning j.id;

-- notice
set local lock_timeout = '1s';
insert into "dibs".jobs (run_at, rank, max_attempts, queue, type, row_key, payload)
select greatest(coalesce(null::timestamptz, statement_timestamp()) + make_interval(secs => %(stuck_after)s::float8), statement_timestamp()), 9, %(max_attempts)s::smallint, 'things', 'things', t."id"::text,
  jsonb_build_object('table', 'things', 'key', json_build_array(t."id"::text))
from "public"."things" t
where "status" in ('started') and true
  and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text limit 1) is null
  and not exists (select from "dibs".dead j where j.type = 'things' and j.row_key = t."id"::text and j.hook_error = 'its row could not be written')
limit %(most)s::int
on conflict (type, row_key) where row_key is not null do nothing
returning id;

-- done
with gone as (
  delete from "dibs".jobs j using unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token)
  where j.id = any (array[d.id]) and j.token = d.token and j.held
    and case when j.type = 'things' then j.row_key is not null end
  returning j.*),
kept as (
  insert into "dibs".history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
    attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures)
  select id, run_at, created_at, claimed_at, statement_timestamp(), (statement_timestamp() at time zone 'utc')::date + %(days)s::int,
    worker, token, version + 1, rank, 3, attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures
  from gone),
written as (
  update "public"."things" t set "status" = 'completed'
  from (select id, attempts, row_key, payload from gone offset 0) g
  where (select count(*) from gone) > 0 and t."id" = any (array[(g.payload -> 'key' ->> 0)::bigint])
    and case when t."status" = 'started' then true else false end and g.row_key = t."id"::text
  returning g.id),
told as materialized (
  select pg_notify('job_events', event) from unnest(string_to_array(%(events)s, E'\n')) event)
select null::bigint, null::bigint, null,
  case when (select count(*) from gone) < cardinality(%(done_id)s::bigint[]) then (
    select t.queue from (select array_agg(d.id) as ids, array_agg(d.token) as tokens
    from unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token) where d.id not in (select id from gone)) r cross join lateral "dibs".turn_1(_done => r.ids, _done_tokens => r.tokens, _rows => true) t) end,
  case when (select count(*) from written) < cardinality(%(done_id)s::bigint[]) then (select coalesce(json_agg(id), '[]')::text from written) end,
  null::smallint, null::smallint, null::smallint, statement_timestamp(), null::smallint, null::smallint
where (select count(*) from told) >= 0;

-- new_after
with gone as (
  delete from "dibs".jobs j using unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token)
  where j.id = any (array[d.id]) and j.token = d.token and j.held
    and case when j.type = 'things' then j.row_key is not null end
  returning j.*),
kept as (
  insert into "dibs".history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
    attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures)
  select id, run_at, created_at, claimed_at, statement_timestamp(), (statement_timestamp() at time zone 'utc')::date + %(days)s::int,
    worker, token, version + 1, rank, 3, attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures
  from gone),
written as (
  update "public"."things" t set "status" = 'completed'
  from (select id, attempts, row_key, payload from gone offset 0) g
  where (select count(*) from gone) > 0 and t."id" = any (array[(g.payload -> 'key' ->> 0)::bigint])
    and case when t."status" = 'started' then true else false end and g.row_key = t."id"::text
  returning g.id),
told as materialized (
  select pg_notify('job_events', event) from unnest(string_to_array(%(events)s, E'\n')) event),
room as materialized (
  select case when (select count(*) from written) >= 0
    and not exists (select from "dibs".queues q where q.name = 'things' and q.paused) then %(room)s::int else 0 end as n),
picked as materialized (
    select t."id" as k0, t.ctid as tid from "public"."things" t
    where ("id") > (%(place_0)s::text::bigint)
      and "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text limit 1) is null
    order by "id" limit (select n from room) for update skip locked),
alive as materialized (
  select id from "dibs".workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
taken as (
  update "public"."things" t set "status" = 'started'
  from picked p where exists (select from alive) and t.ctid = p.tid and t."id" = p.k0 and case when t."status" = 'queued' then true else false end
  returning nextval('"dibs".job_id') as job, nextval('"dibs".token') << 20 | floor(random() * 1048576)::bigint as token,
    t."id"::text as key, t."id" as o0,
    '{"row":' || row_to_json(t)::text || ',"key":' || '[' || to_json(t."id"::text)::text || ']' || '}' as payload),
leased as (
  insert into "dibs".jobs (id, held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select job, true, %(worker)s::bigint << 20 | %(claim)s::int, 1, token, 1, %(max_attempts)s::smallint, 'things', 'things', key,
    ('{"table": "things", "key": ' || '[' || to_json(key)::text || ']' || '}')::jsonb, statement_timestamp()
  from taken)
select (select count(*) from picked), null::bigint, (select jsonb_agg(name)::text from "dibs".queues where paused),
  case when (select count(*) from gone) < cardinality(%(done_id)s::bigint[]) then (
    select t.queue from (select array_agg(d.id) as ids, array_agg(d.token) as tokens
    from unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token) where d.id not in (select id from gone)) r cross join lateral "dibs".turn_1(_done => r.ids, _done_tokens => r.tokens, _rows => true) t) end,
  case when (select count(*) from written) < cardinality(%(done_id)s::bigint[]) then (select coalesce(json_agg(id), '[]')::text from written) end,
  null::smallint, null::smallint, null::smallint, statement_timestamp(), null::smallint, null::smallint
where (select count(*) from told) >= 0
union all
select job, token, 'things', 'things',
  case when job = (select max(job) from taken) then left(payload, -1) || ',"place":' || json_build_array(o0::text)::text || '}' else payload end,
  1::smallint, %(max_attempts)s::smallint, 4::smallint, statement_timestamp(), 0::smallint, 0::smallint from taken;

-- waiting
set local lock_timeout = '1s';
select 1 from "public"."things" t where "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null limit 1;

-- count
set local lock_timeout = '1s';
select (select count(*) from (select from "public"."things" t where "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null limit %(most)s::int) x),
  (select count(*) from (select from "public"."things" t where "status" = 'started' limit %(most)s::int) x);

-- look
select t."status"::text, row_to_json(t)::text,
  (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text)
from "public"."things" t where t."id" = any (array[(%(key_0)s::text)::bigint]);

-- glimpse
select d.n - 1, t."status"::text, null, null,
  (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9)), json_build_array(t."id"::text)::text
from jsonb_array_elements(%(keys)s::text::jsonb) with ordinality d(key, n) cross join "public"."things" t where t."id" = any (array[(d.key ->> 0)::bigint]);

-- ended
select j.id, (j.payload -> 'key')::text from "dibs".history j
where j.id > greatest((select max(id) from "dibs".history), (select max(id) from "dibs".dead)) - 1000 and j.type = 'things'
union all
select j.id, (j.payload -> 'key')::text from "dibs".dead j
where j.id > greatest((select max(id) from "dibs".history), (select max(id) from "dibs".dead)) - 1000 and j.type = 'things';

-- explain
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_hashjoin = off;
set local enable_mergejoin = off;
explain with room as materialized (select 5 as n)
select t."id" as k0, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text) as job from "public"."things" t
    where "status" = 'queued' and true
      and (select j.id from "dibs".jobs j where j.type = 'things' and j.row_key = t."id"::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "id" limit (select n from room) for update skip locked;

-- unknown
select "status"::text, count(*) from "public"."things" t
where ("status" is null or "status" not in ('queued', 'started', 'completed', 'failed')) and true group by 1 order by 2 desc limit 20;

-- stuck
select t."id"::text from "public"."things" t
where "status" = 'started' and not false and true
  and not exists (select from "dibs".jobs j left join "dibs".workers w on w.id = j.worker >> 20
    where j.type = 'things' and j.row_key = t."id"::text
      and case when j.held then abs(extract(epoch from statement_timestamp() - w.beat_at)) <= w.lease else j.run_at > statement_timestamp() - make_interval(secs => %(stuck_after)s::float8) end) limit 1000;

-- plan
create index concurrently if not exists "things_dibs_waiting" on "public"."things" ("id") where "status" = 'queued';

-- plan
create index concurrently if not exists "things_dibs_running" on "public"."things" ("id") where "status" = 'started';

-- wake
create or replace function "dibs"."wake things"() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $dibs$
begin
  if exists (select from dibs_changed where "status"::text = 'queued') then
    perform "dibs".wake_1('things', 4, statement_timestamp());
  end if;
  return null;
end
$dibs$;

-- wake
create or replace trigger dibs_wake_insert after insert on "public"."things" referencing new table as dibs_changed
for each statement execute function "dibs"."wake things"();

-- wake
create or replace trigger dibs_wake_update after update on "public"."things" referencing new table as dibs_changed
for each statement execute function "dibs"."wake things"();

-- functions
select proname::text, prosrc from pg_proc where proname in ('wake things', 'recover things')
and pronamespace = (select pronamespace from pg_proc where oid = '"dibs".wake_1'::regproc) order by 1;

-- cron
create or replace function "dibs"."recover things"() returns bigint language plpgsql
set search_path from current as $dibs$
declare
  silent bigint[]; beats timestamptz[]; freed bigint; completed bigint := 0; left_behind bigint;
begin
  select array_agg(id), array_agg(beat_at) into silent, beats from "dibs".workers
  where abs(extract(epoch from clock_timestamp() - beat_at)) > 2 * lease;
  if silent is not null then
    perform pg_sleep(5);
    perform "dibs".recover_1(0, '{}', silent, beats);
  end if;
  with mended as (
    update "public"."things" t set "status" = 'queued'
from (
  select j.id, j.payload from "public"."things" t join "dibs".jobs j on j.type = 'things' and j.row_key = t."id"::text
  where t."status" = 'started' and not j.held and j.state = 1 and j.finishing = 0 and j.attempts > 0
  for update of j skip locked) j
where t."id" = any (array[(j.payload -> 'key' ->> 0)::bigint]) and case when t."status" = 'started' then true else false end
returning j.id)
  select count(*) into freed from mended;
  left_behind := 0;
  return freed + completed + left_behind;
end
$dibs$;
