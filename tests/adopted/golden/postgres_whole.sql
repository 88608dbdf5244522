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
  update "Shop"."OrderItem" t set "State" = case d.state when 3 then 'completed' when 4 then 'failed' when 5 then 'failed' when 1 then 'again' when 6 then 'started' else 'queued' end, "ended" = case when d.state in (3, 4, 5) then statement_timestamp() else null end, "why" = case when d.state <> 3 then coalesce(left(d.error::text, 200), case when d.state = 4 then left((select j.failures -> -1 ->> 'error' from "dibs".jobs j where j.id = d.job)::text, 200) end, t."why") else null end, "tries" = d.attempts
  from unnest(%(written_job)s::bigint[], %(written_key)s::text[], %(written_state)s::smallint[], %(written_error)s::text[],
    %(written_attempts)s::smallint[]) d(job, key, state, error, attempts)
  where t."order" = any (array[(d.key::jsonb ->> 0)::bigint]) and t."line%%" = any (array[(d.key::jsonb ->> 1)::text]) and case when t."State" = 'started' then true else false end
    and d.job <> all ((select ids from refused)::bigint[])
    and (select j.row_key from "dibs".jobs j where j.id = d.job and j.type = 'Shop.OrderItem') = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text
  returning d.job),
resumed as (
  update "Shop"."OrderItem" t set "State" = 'started', "began" = statement_timestamp(), "who" = %(worker_name)s::text, "tries" = r.attempts, "ended" = null, "why" = case when r.attempts > 1 then t."why" else null end
  from turn r
  where r.token is not null and t."order" = any (array[(r.payload::jsonb -> 'key' ->> 0)::bigint]) and t."line%%" = any (array[(r.payload::jsonb -> 'key' ->> 1)::text])
    and (t."State" in ('queued', 'again', 'started')
      or r.rank %% 10 = 0 and r.attempts = 1 and t."State" in ('failed', 'failed'))
    and (r.finishing = 0 or r.finishing >= 100 or t."State" = 'started')
    and not (r.rank %% 10 = 9 and r.attempts = 1 and r.finishing = 0 and r.crashes = 0 and t."State" = 'started' and coalesce(case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end > statement_timestamp() - make_interval(secs => %(stuck_after)s::float8), false))
    and (r.finishing > 0 or exists (select from "Shop"."OrderItem" where "Shop"."OrderItem"."order" = t."order" and "Shop"."OrderItem"."line%%" = t."line%%" and (deleted is null
)))
  returning r.id as job, json_build_object(
    'row', row_to_json(t), 'key', json_build_array(t."order"::text, (t."line%%"::text collate "C")), 'done', exists (select from "public"."files" o where o."order" = t."order" and o."line" = t."line%%"))::text as payload),
room as materialized (
  select case when (select count(*) from written) + (select count(*) from resumed) >= 0
    and not exists (select from "dibs".queues q where q.name = 'Shop.OrderItem' and q.paused)
    then greatest(%(room)s::int - (select count(*) from turn where token is not null), 0) else 0 end as n),
picked as materialized (
    select t."order" as k0, t."line%%" as k1, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text) as job from "Shop"."OrderItem" t
    where "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked),
alive as materialized (
  select id from "dibs".workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
watched as materialized (
  select j.id from "dibs".jobs j where j.id = any (array(select job from picked where job is not null)) for no key update skip locked),
leased as (
  insert into "dibs".jobs as j (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select true, %(worker)s::bigint << 20 | %(claim)s::int, 1, nextval('"dibs".token') << 20 | floor(random() * 1048576)::bigint,
    1, %(max_attempts)s::smallint, 'Shop.OrderItem', 'Shop.OrderItem', json_build_array(p.k0::text, (p.k1::text collate "C"))::text,
    jsonb_build_object('table', 'Shop.OrderItem', 'key', jsonb_build_array(p.k0::text, (p.k1::text collate "C"))), statement_timestamp()
  from picked p where exists (select from alive) and (select true from "Shop"."OrderItem" v where v.ctid = p.tid and v."order" = p.k0 and v."line%%" = p.k1)
    and (p.job is null or p.job = any (array(select id from watched)))
  on conflict (type, row_key) where row_key is not null do update set
    held = true, worker = excluded.worker, version = j.version + 1, token = excluded.token, attempts = 1, rank = excluded.rank,
    claimed_at = excluded.claimed_at, run_at = excluded.run_at
    where (not j.held and j.claimed_at is null and j.rank %% 10 = 9)
  returning id, token, payload as key, attempts, max_attempts, rank, run_at, crashes, finishing),
taken as (
  update "Shop"."OrderItem" t set "State" = 'started', "began" = statement_timestamp(), "who" = %(worker_name)s::text, "tries" = 1, "ended" = null, "why" = null
  from leased l where t."order" = any (array[(l.key -> 'key' ->> 0)::bigint]) and t."line%%" = any (array[(l.key -> 'key' ->> 1)::text]) and case when t."State" = 'queued' then true else false end
  returning l.*, json_build_object('row', row_to_json(t), 'key', json_build_array(t."order"::text, (t."line%%"::text collate "C")), 'done', exists (select from "public"."files" o where o."order" = t."order" and o."line" = t."line%%"),
    'place', json_build_array(t."weight"::text, t."made"::text, t."order"::text, t."line%%"::text))::text as payload)
select id, token, type, queue, (select json_agg(job)::text from written), attempts, max_attempts, rank, run_at, crashes, finishing
from turn where token is null
union all
select t.id, t.token, t.type, t.queue, coalesce(r.payload, t.payload), t.attempts, t.max_attempts, t.rank, t.run_at, t.crashes, t.finishing
from turn t left join resumed r on r.job = t.id where t.token is not null
union all
select id, token, 'Shop.OrderItem', 'Shop.OrderItem', payload, attempts, max_attempts, rank, run_at, crashes, finishing from taken
union all
select id, token, 'Shop.OrderItem', 'Shop.OrderItem', key::text, attempts, max_attempts, rank, run_at, crashes, finishing from leased
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
  update "Shop"."OrderItem" t set "State" = case d.state when 3 then 'completed' when 4 then 'failed' when 5 then 'failed' when 1 then 'again' when 6 then 'started' else 'queued' end, "ended" = case when d.state in (3, 4, 5) then statement_timestamp() else null end, "why" = case when d.state <> 3 then coalesce(left(d.error::text, 200), case when d.state = 4 then left((select j.failures -> -1 ->> 'error' from "dibs".jobs j where j.id = d.job)::text, 200) end, t."why") else null end, "tries" = d.attempts
  from unnest(%(written_job)s::bigint[], %(written_key)s::text[], %(written_state)s::smallint[], %(written_error)s::text[],
    %(written_attempts)s::smallint[]) d(job, key, state, error, attempts)
  where t."order" = any (array[(d.key::jsonb ->> 0)::bigint]) and t."line%%" = any (array[(d.key::jsonb ->> 1)::text]) and case when t."State" = 'started' then true else false end
    and d.job <> all ((select ids from refused)::bigint[])
    and (select j.row_key from "dibs".jobs j where j.id = d.job and j.type = 'Shop.OrderItem') = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text
  returning d.job),
resumed as (
  update "Shop"."OrderItem" t set "State" = 'started', "began" = statement_timestamp(), "who" = %(worker_name)s::text, "tries" = r.attempts, "ended" = null, "why" = case when r.attempts > 1 then t."why" else null end
  from turn r
  where r.token is not null and t."order" = any (array[(r.payload::jsonb -> 'key' ->> 0)::bigint]) and t."line%%" = any (array[(r.payload::jsonb -> 'key' ->> 1)::text])
    and (t."State" in ('queued', 'again', 'started')
      or r.rank %% 10 = 0 and r.attempts = 1 and t."State" in ('failed', 'failed'))
    and (r.finishing = 0 or r.finishing >= 100 or t."State" = 'started')
    and not (r.rank %% 10 = 9 and r.attempts = 1 and r.finishing = 0 and r.crashes = 0 and t."State" = 'started' and coalesce(case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end > statement_timestamp() - make_interval(secs => %(stuck_after)s::float8), false))
    and (r.finishing > 0 or exists (select from "Shop"."OrderItem" where "Shop"."OrderItem"."order" = t."order" and "Shop"."OrderItem"."line%%" = t."line%%" and (deleted is null
)))
  returning r.id as job, json_build_object(
    'row', row_to_json(t), 'key', json_build_array(t."order"::text, (t."line%%"::text collate "C")), 'done', exists (select from "public"."files" o where o."order" = t."order" and o."line" = t."line%%"))::text as payload),
room as materialized (
  select case when (select count(*) from written) + (select count(*) from resumed) >= 0
    and not exists (select from "dibs".queues q where q.name = 'Shop.OrderItem' and q.paused)
    then greatest(%(room)s::int - (select count(*) from turn where token is not null), 0) else 0 end as n),
picked as materialized (
    select k0, k1, tid, job from (select k0, k1, tid, job from (select t."order" as k0, t."line%%" as k1, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text) as job from "Shop"."OrderItem" t
    where "weight" = %(place_0)s::text::bigint and ("made", "order", "line%%") > (%(place_1)s::text::timestamp with time zone, %(place_2)s::text::bigint, %(place_3)s::text::text)
      and "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked) same
    union all select k0, k1, tid, job from (select t."order" as k0, t."line%%" as k1, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text) as job from "Shop"."OrderItem" t
    where "weight" < %(place_0)s::text::bigint
      and "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked) lower) x limit (select n from room)),
alive as materialized (
  select id from "dibs".workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
watched as materialized (
  select j.id from "dibs".jobs j where j.id = any (array(select job from picked where job is not null)) for no key update skip locked),
leased as (
  insert into "dibs".jobs as j (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select true, %(worker)s::bigint << 20 | %(claim)s::int, 1, nextval('"dibs".token') << 20 | floor(random() * 1048576)::bigint,
    1, %(max_attempts)s::smallint, 'Shop.OrderItem', 'Shop.OrderItem', json_build_array(p.k0::text, (p.k1::text collate "C"))::text,
    jsonb_build_object('table', 'Shop.OrderItem', 'key', jsonb_build_array(p.k0::text, (p.k1::text collate "C"))), statement_timestamp()
  from picked p where exists (select from alive) and (select true from "Shop"."OrderItem" v where v.ctid = p.tid and v."order" = p.k0 and v."line%%" = p.k1)
    and (p.job is null or p.job = any (array(select id from watched)))
  on conflict (type, row_key) where row_key is not null do update set
    held = true, worker = excluded.worker, version = j.version + 1, token = excluded.token, attempts = 1, rank = excluded.rank,
    claimed_at = excluded.claimed_at, run_at = excluded.run_at
    where (not j.held and j.claimed_at is null and j.rank %% 10 = 9)
  returning id, token, payload as key, attempts, max_attempts, rank, run_at, crashes, finishing),
taken as (
  update "Shop"."OrderItem" t set "State" = 'started', "began" = statement_timestamp(), "who" = %(worker_name)s::text, "tries" = 1, "ended" = null, "why" = null
  from leased l where t."order" = any (array[(l.key -> 'key' ->> 0)::bigint]) and t."line%%" = any (array[(l.key -> 'key' ->> 1)::text]) and case when t."State" = 'queued' then true else false end
  returning l.*, json_build_object('row', row_to_json(t), 'key', json_build_array(t."order"::text, (t."line%%"::text collate "C")), 'done', exists (select from "public"."files" o where o."order" = t."order" and o."line" = t."line%%"),
    'place', json_build_array(t."weight"::text, t."made"::text, t."order"::text, t."line%%"::text))::text as payload)
select id, token, type, queue, (select json_agg(job)::text from written), attempts, max_attempts, rank, run_at, crashes, finishing
from turn where token is null
union all
select t.id, t.token, t.type, t.queue, coalesce(r.payload, t.payload), t.attempts, t.max_attempts, t.rank, t.run_at, t.crashes, t.finishing
from turn t left join resumed r on r.job = t.id where t.token is not null
union all
select id, token, 'Shop.OrderItem', 'Shop.OrderItem', payload, attempts, max_attempts, rank, run_at, crashes, finishing from taken
union all
select id, token, 'Shop.OrderItem', 'Shop.OrderItem', key::text, attempts, max_attempts, rank, run_at, crashes, finishing from leased
where (select count(*) from taken) < (select count(*) from leased) and id <> all (array(select id from taken));

-- due
select * from "dibs".turn_1(
    %(worker)s::bigint, %(claim)s::int, %(again)s::int, %(suspects)s::int, '{}'::text[],
    %(ranges_queue)s::text[], %(ranges_rank)s::smallint[], %(ranges_at)s::timestamptz[], %(ranges_id)s::bigint[], _rows => true);

-- first
with room as materialized (select 1 as n)
select json_build_array(p.k0::text, (p.k1::text collate "C"))::text from (
    select t."order" as k0, t."line%%" as k1, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text) as job from "Shop"."OrderItem" t
    where "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked) p;

-- put_off
with room as materialized (select 1 as n),
picked as materialized (
    select t."order" as k0, t."line%%" as k1, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text) as job from "Shop"."OrderItem" t
    where "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked),
watched as materialized (
  select j.id from "dibs".jobs j where j.id = any (array(select job from picked where job is not null)) for no key update skip locked)
insert into "dibs".jobs as j (run_at, max_attempts, queue, type, row_key, payload)
select statement_timestamp() + make_interval(secs => %(seconds)s::float8), %(max_attempts)s::smallint, 'Shop.OrderItem', 'Shop.OrderItem', json_build_array(p.k0::text, (p.k1::text collate "C"))::text,
    jsonb_build_object('table', 'Shop.OrderItem', 'key', jsonb_build_array(p.k0::text, (p.k1::text collate "C")))
from picked p where json_build_array(p.k0::text, (p.k1::text collate "C"))::text = %(row_key)s::text and (select true from "Shop"."OrderItem" v where v.ctid = p.tid and v."order" = p.k0 and v."line%%" = p.k1)
    and (p.job is null or p.job = any (array(select id from watched)))
on conflict (type, row_key) where row_key is not null do update set run_at = excluded.run_at, rank = excluded.rank
  where (not j.held and j.claimed_at is null and j.rank %% 10 = 9);

-- held
with d as materialized (
  select * from unnest(%(written_job)s::bigint[], %(written_key)s::text[]) d(job, key)),
free as materialized (
  select d.job from d cross join "Shop"."OrderItem" t where t."order" = any (array[(d.key::jsonb ->> 0)::bigint]) and t."line%%" = any (array[(d.key::jsonb ->> 1)::text]) for no key update of t skip locked)
select d.job from d cross join "Shop"."OrderItem" t where t."order" = any (array[(d.key::jsonb ->> 0)::bigint]) and t."line%%" = any (array[(d.key::jsonb ->> 1)::text]) and d.job <> all (array(select job from free));

-- mend
set local lock_timeout = '1s';
update "Shop"."OrderItem" t set "State" = 'again'
from (
  select j.id, j.payload from "Shop"."OrderItem" t join "dibs".jobs j on j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text
  where t."State" = 'started' and not j.held and j.state = 1 and j.finishing = 0 and j.attempts > 0
  for update of j skip locked) j
where t."order" = any (array[(j.payload -> 'key' ->> 0)::bigint]) and t."line%%" = any (array[(j.payload -> 'key' ->> 1)::text]) and case when t."State" = 'started' then true else false end
returning j.id;

-- notice
set local lock_timeout = '1s';
insert into "dibs".jobs (run_at, rank, max_attempts, queue, type, row_key, payload)
select greatest(coalesce(case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end, statement_timestamp()) + make_interval(secs => %(stuck_after)s::float8), statement_timestamp()), 9, %(max_attempts)s::smallint, 'Shop.OrderItem', 'Shop.OrderItem', json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text,
  jsonb_build_object('table', 'Shop.OrderItem', 'key', json_build_array(t."order"::text, (t."line%%"::text collate "C")))
from "Shop"."OrderItem" t
where "State" in ('started', 'again') and (deleted is null
)
  and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text limit 1) is null
  and not exists (select from "dibs".dead j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and j.hook_error = 'its row could not be written')
limit %(most)s::int
on conflict (type, row_key) where row_key is not null do nothing
returning id;

-- done
with gone as (
  delete from "dibs".jobs j using unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token)
  where j.id = any (array[d.id]) and j.token = d.token and j.held
    and case when j.type = 'Shop.OrderItem' then j.row_key is not null end
  returning j.*),
kept as (
  insert into "dibs".history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
    attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures)
  select id, run_at, created_at, claimed_at, statement_timestamp(), (statement_timestamp() at time zone 'utc')::date + %(days)s::int,
    worker, token, version + 1, rank, 3, attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures
  from gone),
written as (
  update "Shop"."OrderItem" t set "State" = 'completed', "ended" = statement_timestamp(), "why" = null, "tries" = g.attempts
  from (select id, attempts, row_key, payload from gone offset 0) g
  where (select count(*) from gone) > 0 and t."order" = any (array[(g.payload -> 'key' ->> 0)::bigint]) and t."line%%" = any (array[(g.payload -> 'key' ->> 1)::text])
    and case when t."State" = 'started' then true else false end and g.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text
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
    and case when j.type = 'Shop.OrderItem' then j.row_key is not null end
  returning j.*),
kept as (
  insert into "dibs".history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
    attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures)
  select id, run_at, created_at, claimed_at, statement_timestamp(), (statement_timestamp() at time zone 'utc')::date + %(days)s::int,
    worker, token, version + 1, rank, 3, attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures
  from gone),
written as (
  update "Shop"."OrderItem" t set "State" = 'completed', "ended" = statement_timestamp(), "why" = null, "tries" = g.attempts
  from (select id, attempts, row_key, payload from gone offset 0) g
  where (select count(*) from gone) > 0 and t."order" = any (array[(g.payload -> 'key' ->> 0)::bigint]) and t."line%%" = any (array[(g.payload -> 'key' ->> 1)::text])
    and case when t."State" = 'started' then true else false end and g.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text
  returning g.id),
told as materialized (
  select pg_notify('job_events', event) from unnest(string_to_array(%(events)s, E'\n')) event),
room as materialized (
  select case when (select count(*) from written) >= 0
    and not exists (select from "dibs".queues q where q.name = 'Shop.OrderItem' and q.paused) then %(room)s::int else 0 end as n),
picked as materialized (
    select k0, k1, tid from (select k0, k1, tid from (select t."order" as k0, t."line%%" as k1, t.ctid as tid from "Shop"."OrderItem" t
    where "weight" = %(place_0)s::text::bigint and ("made", "order", "line%%") > (%(place_1)s::text::timestamp with time zone, %(place_2)s::text::bigint, %(place_3)s::text::text)
      and "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked) same
    union all select k0, k1, tid from (select t."order" as k0, t."line%%" as k1, t.ctid as tid from "Shop"."OrderItem" t
    where "weight" < %(place_0)s::text::bigint
      and "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked) lower) x limit (select n from room)),
alive as materialized (
  select id from "dibs".workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
taken as (
  update "Shop"."OrderItem" t set "State" = 'started', "began" = statement_timestamp(), "who" = %(worker_name)s::text, "tries" = 1, "ended" = null, "why" = null
  from picked p where exists (select from alive) and t.ctid = p.tid and t."order" = p.k0 and t."line%%" = p.k1 and case when t."State" = 'queued' then true else false end
  returning nextval('"dibs".job_id') as job, nextval('"dibs".token') << 20 | floor(random() * 1048576)::bigint as token,
    json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text as key, t."weight" as o0, t."made" as o1, t."order" as o2, t."line%%" as o3,
    '{"row":' || row_to_json(t)::text || ',"key":' || json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text || ',"done":' || (exists (select from "public"."files" o where o."order" = t."order" and o."line" = t."line%%"))::text || '}' as payload),
leased as (
  insert into "dibs".jobs (id, held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select job, true, %(worker)s::bigint << 20 | %(claim)s::int, 1, token, 1, %(max_attempts)s::smallint, 'Shop.OrderItem', 'Shop.OrderItem', key,
    ('{"table": "Shop.OrderItem", "key": ' || key || '}')::jsonb, statement_timestamp()
  from taken)
select (select count(*) from picked), null::bigint, (select jsonb_agg(name)::text from "dibs".queues where paused),
  case when (select count(*) from gone) < cardinality(%(done_id)s::bigint[]) then (
    select t.queue from (select array_agg(d.id) as ids, array_agg(d.token) as tokens
    from unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token) where d.id not in (select id from gone)) r cross join lateral "dibs".turn_1(_done => r.ids, _done_tokens => r.tokens, _rows => true) t) end,
  case when (select count(*) from written) < cardinality(%(done_id)s::bigint[]) then (select coalesce(json_agg(id), '[]')::text from written) end,
  null::smallint, null::smallint, null::smallint, statement_timestamp(), null::smallint, null::smallint
where (select count(*) from told) >= 0
union all
select job, token, 'Shop.OrderItem', 'Shop.OrderItem',
  case when job = (select max(job) from taken) then left(payload, -1) || ',"place":' || json_build_array(o0::text, o1::text, o2::text, o3::text)::text || '}' else payload end,
  1::smallint, %(max_attempts)s::smallint, 4::smallint, statement_timestamp(), 0::smallint, 0::smallint from taken;

-- waiting
set local lock_timeout = '1s';
select 1 from "Shop"."OrderItem" t where "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null limit 1;

-- count
set local lock_timeout = '1s';
select (select count(*) from (select from "Shop"."OrderItem" t where "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null limit %(most)s::int) x),
  (select count(*) from (select from "Shop"."OrderItem" t where "State" = 'started' limit %(most)s::int) x);

-- look
select t."State"::text, row_to_json(t)::text,
  (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text)
from "Shop"."OrderItem" t where t."order" = any (array[(%(key_0)s::text)::bigint]) and t."line%%" = any (array[(%(key_1)s::text)::text]);

-- glimpse
select d.n - 1, t."State"::text, t."tries"::text, t."why"::text,
  (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9)), json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text
from jsonb_array_elements(%(keys)s::text::jsonb) with ordinality d(key, n) cross join "Shop"."OrderItem" t where t."order" = any (array[(d.key ->> 0)::bigint]) and t."line%%" = any (array[(d.key ->> 1)::text]);

-- ended
select j.id, (j.payload -> 'key')::text from "dibs".history j
where j.id > greatest((select max(id) from "dibs".history), (select max(id) from "dibs".dead)) - 1000 and j.type = 'Shop.OrderItem'
union all
select j.id, (j.payload -> 'key')::text from "dibs".dead j
where j.id > greatest((select max(id) from "dibs".history), (select max(id) from "dibs".dead)) - 1000 and j.type = 'Shop.OrderItem';

-- explain
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_hashjoin = off;
set local enable_mergejoin = off;
explain with room as materialized (select 5 as n)
select t."order" as k0, t."line%%" as k1, t.ctid as tid, (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text) as job from "Shop"."OrderItem" t
    where "State" = 'queued' and (deleted is null
)
      and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text and not (not j.held and j.claimed_at is null and j.rank %% 10 = 9) limit 1) is null
    order by "weight" desc nulls last, "made", "order", "line%%" limit (select n from room) for update skip locked;

-- unknown
select "State"::text, count(*) from "Shop"."OrderItem" t
where ("State" is null or "State" not in ('queued', 'started', 'completed', 'failed', 'again')) and (deleted is null
) group by 1 order by 2 desc limit 20;

-- stuck
select json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text from "Shop"."OrderItem" t
where "State" = 'started' and not coalesce(case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end > statement_timestamp() - make_interval(secs => %(stuck_after)s::float8), false) and (deleted is null
)
  and not exists (select from "dibs".jobs j left join "dibs".workers w on w.id = j.worker >> 20
    where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%%"::text collate "C"))::text
      and case when j.held then abs(extract(epoch from statement_timestamp() - w.beat_at)) <= w.lease else j.run_at > statement_timestamp() - make_interval(secs => %(stuck_after)s::float8) end) limit 1000;

-- duplicates
select "order", "line", count(*) from "public"."files" where "order" is not null and "line" is not null
group by "order", "line" having count(*) > 1 order by count(*) desc limit 1000;

-- plan
create index concurrently if not exists "OrderItem_dibs_waiting" on "Shop"."OrderItem" ("weight" desc nulls last, "made", "order", "line%") where "State" = 'queued';

-- plan
create index concurrently if not exists "OrderItem_dibs_running" on "Shop"."OrderItem" ("order", "line%") where "State" = 'started';

-- plan
create unique index concurrently if not exists "files_dibs_once" on "public"."files" ("order", "line");

-- wake
create or replace function "dibs"."wake Shop.OrderItem"() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $dibs$
begin
  if exists (select from dibs_changed where "State"::text = 'queued') then
    perform "dibs".wake_1('Shop.OrderItem', 4, statement_timestamp());
  end if;
  return null;
end
$dibs$;

-- wake
create or replace trigger dibs_wake_insert after insert on "Shop"."OrderItem" referencing new table as dibs_changed
for each statement execute function "dibs"."wake Shop.OrderItem"();

-- wake
create or replace trigger dibs_wake_update after update on "Shop"."OrderItem" referencing new table as dibs_changed
for each statement execute function "dibs"."wake Shop.OrderItem"();

-- functions
select proname::text, prosrc from pg_proc where proname in ('wake Shop.OrderItem', 'recover Shop.OrderItem')
and pronamespace = (select pronamespace from pg_proc where oid = '"dibs".wake_1'::regproc) order by 1;

-- cron
create or replace function "dibs"."recover Shop.OrderItem"() returns bigint language plpgsql
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
    update "Shop"."OrderItem" t set "State" = 'again'
from (
  select j.id, j.payload from "Shop"."OrderItem" t join "dibs".jobs j on j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%"::text collate "C"))::text
  where t."State" = 'started' and not j.held and j.state = 1 and j.finishing = 0 and j.attempts > 0
  for update of j skip locked) j
where t."order" = any (array[(j.payload -> 'key' ->> 0)::bigint]) and t."line%" = any (array[(j.payload -> 'key' ->> 1)::text]) and case when t."State" = 'started' then true else false end
returning j.id)
  select count(*) into freed from mended;
  update "Shop"."OrderItem" t set "State" = 'completed', "ended" = statement_timestamp(), "why" = null where t."State" in ('started', 'again') and case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end is not null
    and not coalesce(case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end > statement_timestamp() - make_interval(secs => 300::float8), false) and (deleted is null
)
    and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%"::text collate "C"))::text limit 1) is null
    and not exists (select from "dibs".dead j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%"::text collate "C"))::text and j.hook_error = 'its row could not be written') and exists (select from "public"."files" o where o."order" = t."order" and o."line" = t."line%");
  get diagnostics completed = row_count;
  update "Shop"."OrderItem" t set "State" = 'queued' where t."State" in ('started', 'again') and case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end is not null
    and not coalesce(case when t."began" between timestamptz 'epoch' and statement_timestamp() + interval '86400 s' then t."began"::timestamptz end > statement_timestamp() - make_interval(secs => 300::float8), false) and (deleted is null
)
    and (select j.id from "dibs".jobs j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%"::text collate "C"))::text limit 1) is null
    and not exists (select from "dibs".dead j where j.type = 'Shop.OrderItem' and j.row_key = json_build_array(t."order"::text, (t."line%"::text collate "C"))::text and j.hook_error = 'its row could not be written');
  get diagnostics left_behind = row_count;
  return freed + completed + left_behind;
end
$dibs$;
