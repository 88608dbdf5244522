SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA dibs;
CREATE FUNCTION dibs.close_batch_1(_batch bigint) RETURNS void
    LANGUAGE plpgsql
    SET lock_timeout TO '5s'
    AS $$
begin
  perform from "dibs".batches b where b.id = _batch for update;
  update "dibs".batches set closed_at = statement_timestamp() where id = _batch and closed_at is null;
  perform "dibs".finish_batches_1(array[_batch]);
end $$;
CREATE FUNCTION dibs.count_parts_1(_parts bigint[], _states smallint[], _by integer) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare _ended bigint[];
begin
  perform from "dibs".parts p where p.id = any (_parts) order by p.id for no key update;
  with counted as (
    update "dibs".parts p set
      successful = p.successful + _by * g.successful, failed = p.failed + _by * g.failed, cancelled = p.cancelled + _by * g.cancelled
    from (
      select part, count(*) filter (where state = 3) as successful, count(*) filter (where state = 4) as failed,
        count(*) filter (where state = 5) as cancelled
      from unnest(_parts, _states) d(part, state) group by part) g
    where p.id = any (array[g.part])
    returning p.batch, p.total = p.successful + p.failed + p.cancelled as ended)
  select array_agg(batch) into _ended from counted where ended;
  if _ended is not null then perform "dibs".finish_batches_1(_ended); end if;
end $$;
CREATE FUNCTION dibs.drop_partition_1(_today date) RETURNS text
    LANGUAGE plpgsql
    SET lock_timeout TO '100ms'
    AS $_$
declare _name text;
begin
  select c.relname into _name from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent = '"dibs".history'::regclass and c.relname ~ '^history_\d{8}$' and c.relname < 'history_' || to_char(_today, 'YYYYMMDD')
  order by c.relname limit 1;
  if _name is null then return 'none'; end if;
  execute format('drop table "dibs".%I', _name);
  return 'dropped';
exception when lock_not_available then return 'busy';
end $_$;
CREATE FUNCTION dibs.finish_batch_1(_batch bigint) RETURNS void
    LANGUAGE sql
    AS $$
  update "dibs".batches set finished_at = statement_timestamp() where id = _batch;
  with added as (
    insert into "dibs".jobs (queue, rank, type, run_at, max_attempts, payload, tags, submits)
    select h.queue, h.rank, h.type,
      greatest(coalesce(to_timestamp(h.run_at), statement_timestamp() + make_interval(secs => h.delay)), statement_timestamp()),
      h.max_attempts, coalesce(h.payload::jsonb, jsonb_build_object('batch_id', _batch)), h.tags::jsonb, h.submits
    from "dibs".batches b cross join jsonb_to_recordset(b.hooks) h(
      hook text, queue text, rank smallint, type text, run_at float8, delay float8, max_attempts smallint, payload text, tags text, submits boolean)
    where b.id = _batch and h.hook in ('on_complete', case
      when exists (select from "dibs".parts p where p.batch = _batch and p.successful < p.total) then 'on_failure' else 'on_success' end)
    returning id, queue, rank, run_at),
  woken as materialized (
    select "dibs".wake_1(queue, rank, min(run_at)) from added where run_at <= statement_timestamp() + interval '5 s' group by queue, rank),
  told as materialized (
    select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text) from added having count(*) > 0)
  select (select count(*) from woken) + (select count(*) from told);
$$;
CREATE FUNCTION dibs.finish_batches_1(_batches bigint[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare _batch bigint;
begin
  perform from "dibs".batches b where b.id = any (_batches) order by b.id for no key update;
  update "dibs".batches b set closed_at = b.closed_at where b.id = any (_batches);
  for _batch in
    select b.id from "dibs".batches b where b.id = any (_batches) and b.closed_at is not null and b.finished_at is null order by b.id
  loop
    -- Jobs are run in the order of their ids, so the last parts are open longest.
    perform from "dibs".parts p where p.batch = _batch and p.total > p.successful + p.failed + p.cancelled order by p.id desc limit 1;
    if not found then perform "dibs".finish_batch_1(_batch); end if;
  end loop;
end $$;
CREATE FUNCTION dibs.free_keys_1(_jobs bigint[], _types text[], _keys text[], _keeps double precision[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
  delete from "dibs".unique_keys k
  using (select * from unnest(_jobs, _types, _keys, _keeps) x(job, type, key, keep) order by type collate "C", key collate "C") g
  where k.type = any (array[g.type]) and k.key = any (array[g.key]) and k.job = g.job and g.keep is null;
  update "dibs".unique_keys k set until = statement_timestamp() + make_interval(secs => g.keep)
  from (select * from unnest(_jobs, _types, _keys, _keeps) x(job, type, key, keep) order by type collate "C", key collate "C") g
  where k.type = any (array[g.type]) and k.key = any (array[g.key]) and k.job = g.job and g.keep is not null;
end $$;
CREATE FUNCTION dibs.hand_back_1(_workers bigint[], _claims bigint[], _held bigint[]) RETURNS SETOF bigint
    LANGUAGE plpgsql
    AS $$
begin
  perform from "dibs".workers w where w.id = any (_workers) order by w.id for update;
  return query
  with taken as materialized (
    select j.id from "dibs".jobs j
    where j.held and j.token <> all (_held)
      and (j.worker = any (_claims) or (_claims is null and j.worker >> 20 = any (_workers)))
    order by j.id for no key update),
  back as (
    update "dibs".jobs j set
      held = false, worker = null, token = null, version = j.version + 1,
      attempts = j.attempts - (j.finishing = 0)::int, finishing = j.finishing - (j.finishing > 0)::int
    from taken where j.id = any (array[taken.id])
    returning j.id, j.queue, j.rank, j.run_at),
  woken as materialized (
    select "dibs".wake_1(queue, rank, min(run_at))
    from back group by queue, rank),
  told as materialized (
    select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text)
    from (select id, row_number() over (order by id) / 300 as part from back) b group by part)
  select id from back where (select count(*) from woken) + (select count(*) from told) >= 0;
end $$;
CREATE FUNCTION dibs.make_partition_1(_day date) RETURNS text
    LANGUAGE plpgsql
    SET lock_timeout TO '100ms'
    AS $$
declare _name text := 'history_' || to_char(_day, 'YYYYMMDD');
begin
  if to_regclass(format('"dibs".%I', _name)) is not null then return 'there'; end if;
  execute format('create table "dibs".%I partition of "dibs".history for values from (%L) to (%L)', _name, _day, _day + 1);
  return 'made';
exception
  when lock_not_available then return 'busy';
  when check_violation or duplicate_table then return 'there';   -- that day's rows lie in history_rest already
end $$;
CREATE FUNCTION dibs.recover_1(_judge bigint, _known bigint[], _silent bigint[], _beats timestamp with time zone[]) RETURNS TABLE(job bigint, worker bigint, dead boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare _dead bigint[]; _careful boolean;
begin
  _careful := exists (select from "dibs".workers w where w.id = _judge
    and w.beat_at - w.steady_since >= make_interval(secs => w.lease)
    and abs(extract(epoch from clock_timestamp() - w.beat_at)) <= 2 * w.beat);
  select array_agg(id) into _dead from (
    select w.id from "dibs".workers w
    where w.id = any (_known)
      or exists (select from unnest(_silent, _beats) s(id, beat_at) where s.id = w.id and s.beat_at = w.beat_at)
      or (_careful and abs(extract(epoch from clock_timestamp() - w.beat_at)) > w.lease)
    order by w.id for update skip locked) x;
  if _dead is null then return; end if;
  -- A statement of its own, so that it sees the claims that were in flight when their worker's row was locked.
  return query
  with lost as materialized (
    select j.id, j.worker >> 20 as number from "dibs".jobs j
    where j.held and j.worker >> 20 = any (_dead) order by j.id for no key update skip locked),
  back as (
    update "dibs".jobs j set
      held = false, worker = null, token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1,
      finishing = case when j.finishing = 0 and j.attempts >= j.max_attempts then 1 else j.finishing end,
      rank = j.rank % 10 + 20,
      run_at = statement_timestamp() + make_interval(secs => random() + case when j.finishing > 0 then least(2 ^ (j.finishing % 100), 300) else 0 end),
      failures = "dibs".with_failure(j.failures, jsonb_build_object(
        'attempt', j.attempts, 'error', 'the worker died', 'worker', w.name,
        'started_at', extract(epoch from j.claimed_at), 'finished_at', extract(epoch from statement_timestamp())))
    from lost join "dibs".workers w on w.id = lost.number
    where j.id = any (array[lost.id])
    returning j.id, lost.number, j.queue, j.rank, j.run_at),
  woken as materialized (
    select "dibs".wake_1(queue, rank, min(run_at))
    from back group by queue, rank),
  told as materialized (
    select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text)
    from (select id, row_number() over (order by id) / 300 as part from back) b group by part)
  select id, number, false from back where (select count(*) from woken) + (select count(*) from told) >= 0;
  -- A row goes only when no job carries its name: one may be committing its own transaction.
  return query
  delete from "dibs".workers w where w.id = any (_dead) and not exists (select from "dibs".jobs j where j.held and j.worker >> 20 = w.id)
  returning null::bigint, w.id, true;
end $$;
CREATE FUNCTION dibs.recover_orphans_1() RETURNS SETOF bigint
    LANGUAGE sql
    AS $$
  with seen as materialized (
    select j.id, j.worker from "dibs".jobs j where j.held and not exists (select from "dibs".workers w where w.id = j.worker >> 20)),
  orphans as materialized (
    select j.id from seen s join "dibs".jobs j on j.id = any (array[s.id]) and j.worker = s.worker
    where j.held order by j.id for no key update of j skip locked)
  update "dibs".jobs j set
    held = false, worker = null, token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1,
    finishing = case when j.finishing = 0 and j.attempts >= j.max_attempts then 1 else j.finishing end,
    rank = j.rank % 10 + 20, run_at = statement_timestamp(),
    failures = "dibs".with_failure(j.failures, jsonb_build_object(
      'attempt', j.attempts, 'error', 'the worker vanished', 'worker', (select n.name from "dibs".worker_names n where n.id = j.worker >> 20),
      'started_at', extract(epoch from j.claimed_at), 'finished_at', extract(epoch from statement_timestamp())))
  from orphans o where j.id = any (array[o.id])
  returning j.id;
$$;
CREATE FUNCTION dibs.shown(_held boolean, _state smallint, _submits boolean) RETURNS integer
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN ((NOT _held) OR (_state = 2)) THEN (_state)::integer WHEN _submits THEN 7 ELSE 6 END;
CREATE FUNCTION dibs.turn_1(_worker bigint DEFAULT 0, _claim integer DEFAULT 0, _n integer DEFAULT 0, _suspects integer DEFAULT 0, _unknown text[] DEFAULT '{}'::text[], _queues text[] DEFAULT '{}'::text[], _ranks smallint[] DEFAULT '{}'::smallint[], _ats timestamp with time zone[] DEFAULT '{}'::timestamp with time zone[], _ids bigint[] DEFAULT '{}'::bigint[], _done bigint[] DEFAULT '{}'::bigint[], _done_tokens bigint[] DEFAULT '{}'::bigint[], _done_states smallint[] DEFAULT '{}'::smallint[], _done_days integer[] DEFAULT '{}'::integer[], _done_results text DEFAULT NULL::text, _done_failures text DEFAULT NULL::text, _done_hook_errors text[] DEFAULT '{}'::text[], _back bigint[] DEFAULT '{}'::bigint[], _back_tokens bigint[] DEFAULT '{}'::bigint[], _back_ways smallint[] DEFAULT '{}'::smallint[], _back_delays double precision[] DEFAULT '{}'::double precision[], _back_failures text DEFAULT NULL::text, _events text DEFAULT NULL::text, _rows boolean DEFAULT false) RETURNS TABLE(id bigint, token bigint, type text, queue text, payload text, attempts smallint, max_attempts smallint, rank smallint, run_at timestamp with time zone, crashes smallint, finishing smallint)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
declare
  _settled bigint[] := '{}'; _returned bigint[] := '{}';
  _key_jobs bigint[]; _key_types text[]; _keys text[]; _keeps float8[];
  _parts bigint[]; _outcomes smallint[];
  _unsettled jsonb;
begin
  -- Own jobs are locked in the order of their ids, as a cancel does, or the two would wait for each other: deadlock. One
  -- statement does so by itself (they are sent in that order); where there are several, it is done before them.
  if cardinality(_back) > 0 or _done_states && '{4,5}' then
    perform from "dibs".jobs j
    where j.id = any (_done || _back) and j.token = any (_done_tokens || _back_tokens) and j.held order by j.id for update;
  end if;
  -- 1. Successful jobs go to history, others to dead. Most are plainly successful, and nothing more is said of them.
  if cardinality(_done) > 0 then
    with gone as (
      delete from "dibs".jobs j
      using unnest(_done, _done_tokens, _done_states, _done_days, string_to_array(_done_results, E'\n', '')) d(id, token, state, days, result)
      where j.id = any (array[d.id]) and j.token = d.token and j.held and coalesce(d.state, 3) = 3
      returning j.*, coalesce(d.days, 7) as days, d.result),
    kept as (
      insert into "dibs".history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
        attempts, max_attempts, crashes, queue, type, unique_key, payload, tags, progress, failures, result,
        submits, part)
      select id, run_at, created_at, claimed_at, statement_timestamp(), (statement_timestamp() at time zone 'utc')::date + days,
        worker, token, version + 1, rank, 3, attempts, max_attempts, crashes, queue, type, unique_key, payload, tags, progress, failures,
        result::jsonb, submits, part
      from gone)
    select coalesce(array_agg(id), '{}'), array_agg(id) filter (where unique_key is not null),
      array_agg(type) filter (where unique_key is not null), array_agg(unique_key) filter (where unique_key is not null),
      array_agg(unique_for) filter (where unique_key is not null),
      array_agg(part) filter (where part is not null), array_agg(3) filter (where part is not null)
    into _settled, _key_jobs, _key_types, _keys, _keeps, _parts, _outcomes from gone;
  end if;
  if _done_states && '{4,5}' then
    with gone as (
      delete from "dibs".jobs j
      using unnest(_done, _done_tokens, _done_states, string_to_array(_done_failures, E'\n', ''), _done_hook_errors)
            d(id, token, state, failure, hook_error)
      where j.id = any (array[d.id]) and j.token = d.token and j.held and d.state <> 3
      returning j.*, d.state as outcome, d.failure, d.hook_error),
    buried as (
      insert into "dibs".dead (id, run_at, created_at, claimed_at, finished_at, worker, token, version, rank, state,
        attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress, failures, hook_error, row_key,
        submits, part)
      select id, run_at, created_at, claimed_at, statement_timestamp(), worker, token, version + 1, rank, outcome,
        attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress,
        "dibs".with_failure(failures, failure::jsonb || jsonb_build_object(
          'started_at', extract(epoch from claimed_at), 'finished_at', extract(epoch from statement_timestamp()))), hook_error, row_key,
        submits, part
      from gone)
    select _settled || array_agg(id), _key_jobs || array_agg(id) filter (where unique_key is not null),
      _key_types || array_agg(type) filter (where unique_key is not null), _keys || array_agg(unique_key) filter (where unique_key is not null),
      _keeps || array_agg(unique_for) filter (where unique_key is not null),
      _parts || array_agg(part) filter (where part is not null), _outcomes || array_agg(outcome) filter (where part is not null)
    into _settled, _key_jobs, _key_types, _keys, _keeps, _parts, _outcomes from gone;
  end if;
  if _key_jobs is not null then
    perform "dibs".free_keys_1(_key_jobs, _key_types, _keys, _keeps);
  end if;
  -- 2. Others go back to waiting: 1 retry, 2 snooze, 3 release, 4 finish (to be claimed once more only to be finished), 5 to
  -- ask the provider later (claimed for that alone, which is no attempt).
  if cardinality(_back) > 0 then
    with returned as (
      update "dibs".jobs j set
        held = false, worker = null, version = j.version + 1,
        state = case when d.way = 2 then 0 when d.way = 3 or j.finishing >= 100 then j.state when d.way = 5 then 2 else 1 end,
        attempts = j.attempts - case when d.way in (2, 3) and j.finishing = 0 then 1 else 0 end,
        finishing = case d.way when 5 then -1 when 4 then greatest(j.finishing, 1) when 3 then j.finishing - (j.finishing > 0)::int
          else greatest(j.finishing, 0) end,
        run_at = case when d.way = 3 and d.delay = 0 then j.run_at else statement_timestamp() + make_interval(secs => d.delay) end,
        rank = case
          when d.way = 3 then j.rank
          when d.way = 5 then j.rank % 10
          when d.way = 4 or j.attempts - (d.way = 2)::int >= j.max_attempts - 1 then j.rank % 10 + 10
          else j.rank % 10 end,
        failures = "dibs".with_failure(j.failures, d.failure::jsonb || jsonb_build_object(
          'started_at', extract(epoch from j.claimed_at), 'finished_at', extract(epoch from statement_timestamp())))
      from unnest(_back, _back_tokens, _back_ways, _back_delays, string_to_array(_back_failures, E'\n', '')) d(id, token, way, delay, failure)
      where j.id = any (array[d.id]) and j.token = d.token and j.held
      returning j.id, j.queue, j.rank, j.run_at, d.way),
    woken as materialized (
      select "dibs".wake_1(queue, rank, min(run_at))
      from returned where way = 3 group by queue, rank)
    select coalesce(array_agg(id), '{}') into _returned from returned where (select count(*) from woken) >= 0;
  end if;
  -- 3. An id that did not come back was settled before (a settle sent twice) or is lost.
  if cardinality(_settled) + cardinality(_returned) < cardinality(_done) + cardinality(_back) then
    _unsettled := "dibs".unsettled_1(_done || _back, _done_tokens || _back_tokens, _settled || _returned);
  end if;
  if _events is not null then
    perform pg_notify('job_events', event) from unnest(string_to_array(_events, E'\n')) event;
  end if;
  -- 4. The claim, with a snapshot of its own. One element of the arrays per range (queue, rank), in the order wanted.
  -- A row that another claimed and gave back since the snapshot is picked and not claimed. So the head row says how many were
  -- picked: who went by the rows alone would take a claim that came short for the end of what waits. It says so in the columns
  -- of a job, and has no token: id: how many were picked, type: the queues that are paused, queue: what was not settled, run_at: the clock.
  if _n = 0 then
    if _parts is not null then perform "dibs".count_parts_1(_parts, _outcomes, 1); end if;
    return query select null::bigint, null::bigint, null, _unsettled::text, null, null::smallint, null::smallint, null::smallint,
      statement_timestamp(), null::smallint, null::smallint;
    return;
  end if;
  return query
  with suspect as materialized (
    select j.tid from unnest(_queues, _ranks) r(queue, rank)
    cross join lateral (
      select ctid as tid from "dibs".jobs
      where queue = r.queue collate "C" and rank = r.rank + 20 and run_at <= statement_timestamp() and not held and type <> all (_unknown)
        and (row_key is not null) = _rows
      order by run_at, id limit 1 for no key update skip locked) j
    where _suspects > 0 and r.rank < 10
      and not exists (select from "dibs".queues q where q.name = r.queue collate "C" and q.paused)
    limit _suspects),
  picked as materialized (
    select tid from suspect
    union all (
      select j.tid from unnest(_queues, _ranks, _ats, _ids) r(queue, rank, at, id)
      cross join lateral (
        select ctid as tid from "dibs".jobs
        where queue = r.queue collate "C" and rank = r.rank and (run_at, id) > (r.at, r.id)
          and run_at <= statement_timestamp() and not held and type <> all (_unknown) and (row_key is not null) = _rows
        order by run_at, id limit _n for no key update skip locked) j
      where not exists (select from "dibs".queues q where q.name = r.queue collate "C" and q.paused)
      limit _n - (select count(*) from suspect))),
  alive as materialized (                       -- after picked and only if there is something: an empty claim writes nothing
    select id from "dibs".workers where id = _worker and (select count(*) from picked) > 0 for key share skip locked),
  claimed as (
    update "dibs".jobs j set
      held = true, worker = _worker << 20 | _claim, version = version + 1,
      token = nextval('"dibs".token') << 20 | floor(random() * 1048576)::bigint,
      attempts = attempts + (finishing = 0)::int, finishing = finishing + (finishing > 0)::int,
      claimed_at = statement_timestamp()
    from picked where j.ctid = picked.tid and exists (select from alive)
    returning j.id, j.token, j.type, j.queue, j.payload::text, j.attempts, j.max_attempts, j.rank, j.run_at, j.crashes, j.finishing)
  select (select count(*) from picked), null::bigint, (select jsonb_agg(name)::text from "dibs".queues where paused), _unsettled::text,
    null, null::smallint, null::smallint, null::smallint, statement_timestamp(), null::smallint, null::smallint
  union all
  select * from claimed;
  -- 5. Batches are counted last: their locks are held for the commit alone, and nobody who has one waits for a job.
  if _parts is not null then perform "dibs".count_parts_1(_parts, _outcomes, 1); end if;
end $$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE dibs.dead (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    unique_for double precision,
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    hook_error text,
    row_key text COLLATE pg_catalog."C",
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
)
PARTITION BY RANGE (expires);
CREATE SEQUENCE dibs.job_id
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE dibs.jobs (
    id bigint DEFAULT nextval('dibs.job_id'::regclass) NOT NULL,
    run_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    claimed_at timestamp with time zone,
    worker bigint,
    token bigint,
    version integer DEFAULT 0 NOT NULL,
    rank smallint DEFAULT 4 NOT NULL,
    held boolean DEFAULT false NOT NULL,
    submits boolean DEFAULT false NOT NULL,
    state smallint DEFAULT 0 NOT NULL,
    attempts smallint DEFAULT 0 NOT NULL,
    max_attempts smallint DEFAULT 3 NOT NULL,
    crashes smallint DEFAULT 0 NOT NULL,
    finishing smallint DEFAULT 0 NOT NULL,
    queue text DEFAULT 'default'::text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    unique_for double precision,
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    row_key text COLLATE pg_catalog."C",
    part bigint
)
WITH (fillfactor='35', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0', autovacuum_vacuum_insert_scale_factor='0', autovacuum_vacuum_insert_threshold='50000', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='50000');
CREATE FUNCTION dibs.unsettled_1(_jobs bigint[], _tokens bigint[], _settled bigint[]) RETURNS jsonb
    LANGUAGE sql STABLE
    RETURN (SELECT jsonb_object_agg(d.id, COALESCE((SELECT h.state FROM dibs.history h WHERE ((h.id = d.id) AND (h.token = d.token)) LIMIT 1), (SELECT g.state FROM dibs.dead g WHERE ((g.id = d.id) AND (g.token = d.token))), (SELECT j.state FROM dibs.jobs j WHERE ((j.id = ANY (ARRAY[d.id])) AND (j.token = d.token) AND (NOT j.held))))) AS jsonb_object_agg FROM UNNEST(unsettled_1._jobs, unsettled_1._tokens) d(id, token) WHERE (d.id <> ALL (unsettled_1._settled)));
CREATE FUNCTION dibs.wake_1(_queue text, _rank integer, _run_at timestamp with time zone) RETURNS void
    LANGUAGE sql
    AS $$
  select pg_notify('dibs_wake', json_build_object('queue', _queue, 'rank', _rank, 'runAt', _run_at)::text);
$$;
CREATE FUNCTION dibs.with_failure(_failures jsonb, _entry jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN (_entry IS NULL) THEN _failures WHEN (jsonb_array_length(_failures) >= 10) THEN ((_failures - 0) || jsonb_build_array(_entry)) ELSE (COALESCE(_failures, '[]'::jsonb) || jsonb_build_array(_entry)) END;
CREATE VIEW dibs.all_jobs AS
 SELECT jobs.id,
    jobs.type,
    jobs.queue,
    (ARRAY['PENDING'::text, 'RETRY'::text, 'PROCESSING'::text, ''::text, ''::text, ''::text, 'RUNNING'::text, 'SUBMITTING'::text])[(dibs.shown(jobs.held, jobs.state, jobs.submits) + 1)] AS state,
    (9 - ((jobs.rank)::integer % 10)) AS priority,
    jobs.attempts,
    jobs.max_attempts,
    jobs.payload,
    NULL::jsonb AS result,
    ((jobs.failures -> '-1'::integer) ->> 'error'::text) AS error,
    jobs.progress,
    jobs.tags,
    jobs.unique_key,
    (jobs.worker >> 20) AS worker,
    jobs.created_at,
    jobs.run_at,
    jobs.claimed_at AS started_at,
    NULL::timestamp with time zone AS finished_at
   FROM dibs.jobs
UNION ALL
 SELECT dead.id,
    dead.type,
    dead.queue,
        CASE dead.state
            WHEN 4 THEN 'FAILED'::text
            ELSE 'CANCELLED'::text
        END AS state,
    (9 - ((dead.rank)::integer % 10)) AS priority,
    dead.attempts,
    dead.max_attempts,
    dead.payload,
    NULL::jsonb AS result,
    ((dead.failures -> '-1'::integer) ->> 'error'::text) AS error,
    dead.progress,
    dead.tags,
    dead.unique_key,
    (dead.worker >> 20) AS worker,
    dead.created_at,
    dead.run_at,
    dead.claimed_at AS started_at,
    dead.finished_at
   FROM dibs.dead
UNION ALL
 SELECT history.id,
    history.type,
    history.queue,
    'SUCCESSFUL'::text AS state,
    (9 - ((history.rank)::integer % 10)) AS priority,
    history.attempts,
    history.max_attempts,
    history.payload,
    history.result,
    ((history.failures -> '-1'::integer) ->> 'error'::text) AS error,
    history.progress,
    history.tags,
    history.unique_key,
    (history.worker >> 20) AS worker,
    history.created_at,
    history.run_at,
    history.claimed_at AS started_at,
    history.finished_at
   FROM dibs.history;
CREATE TABLE dibs.batches (
    id bigint NOT NULL,
    name text,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    closed_at timestamp with time zone,
    finished_at timestamp with time zone,
    hooks jsonb
)
WITH (fillfactor='50');
ALTER TABLE dibs.batches ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dibs.batches_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE dibs.history_20261119 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261120 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261121 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261122 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261123 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261124 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261125 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261126 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261127 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261128 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_20261129 (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.history_rest (
    id bigint NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    claimed_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    expires date NOT NULL,
    worker bigint,
    token bigint,
    version integer NOT NULL,
    rank smallint NOT NULL,
    state smallint NOT NULL,
    attempts smallint NOT NULL,
    max_attempts smallint NOT NULL,
    crashes smallint NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    payload jsonb,
    tags jsonb,
    progress jsonb,
    failures jsonb,
    result jsonb,
    submits boolean DEFAULT false NOT NULL,
    part bigint
);
CREATE TABLE dibs.migrations (
    number integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE dibs.parts (
    id bigint NOT NULL,
    batch bigint NOT NULL,
    last bigint NOT NULL,
    total integer NOT NULL,
    successful integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    cancelled integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE dibs.queues (
    name text NOT NULL COLLATE pg_catalog."C",
    paused boolean DEFAULT false NOT NULL
);
CREATE TABLE dibs.requests (
    key text NOT NULL COLLATE pg_catalog."C",
    fingerprint text NOT NULL,
    job bigint,
    at timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);
CREATE TABLE dibs.secrets (
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);
CREATE TABLE dibs.stats (
    minute timestamp with time zone NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    successful integer NOT NULL,
    failed integer NOT NULL,
    retried integer NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE dibs.submissions (
    job bigint NOT NULL,
    round integer DEFAULT 1 NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    tried boolean DEFAULT false NOT NULL,
    begun_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    task_id text,
    digest text COLLATE pg_catalog."C",
    accepted_at timestamp with time zone,
    others jsonb,
    answer jsonb,
    answered_at timestamp with time zone,
    outcome text,
    usage jsonb,
    finished_at timestamp with time zone,
    expires timestamp with time zone,
    part bigint
);
CREATE SEQUENCE dibs.token
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE dibs.tokens (
    name text NOT NULL COLLATE pg_catalog."C",
    hash text NOT NULL,
    scopes text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE dibs.unique_keys (
    type text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    job bigint NOT NULL,
    until timestamp with time zone
);
CREATE TABLE dibs.worker_names (
    id bigint NOT NULL,
    name text NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE dibs.workers (
    id bigint NOT NULL,
    name text NOT NULL,
    lease double precision NOT NULL,
    beat double precision NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    beat_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    steady_since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    asking boolean DEFAULT true NOT NULL,
    claims integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='10');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261119 FOR VALUES FROM ('2026-11-19') TO ('2026-11-20');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261120 FOR VALUES FROM ('2026-11-20') TO ('2026-11-21');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261121 FOR VALUES FROM ('2026-11-21') TO ('2026-11-22');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261122 FOR VALUES FROM ('2026-11-22') TO ('2026-11-23');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261123 FOR VALUES FROM ('2026-11-23') TO ('2026-11-24');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261124 FOR VALUES FROM ('2026-11-24') TO ('2026-11-25');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261125 FOR VALUES FROM ('2026-11-25') TO ('2026-11-26');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261126 FOR VALUES FROM ('2026-11-26') TO ('2026-11-27');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261127 FOR VALUES FROM ('2026-11-27') TO ('2026-11-28');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261128 FOR VALUES FROM ('2026-11-28') TO ('2026-11-29');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_20261129 FOR VALUES FROM ('2026-11-29') TO ('2026-11-30');
ALTER TABLE ONLY dibs.history ATTACH PARTITION dibs.history_rest DEFAULT;
INSERT INTO dibs.batches OVERRIDING SYSTEM VALUE VALUES (1, 'batched', '2026-11-20 04:35:26.985539+05:45', '2026-11-20 04:35:26.99016+05:45', NULL, '[{"hook": "on_complete", "rank": 4, "tags": null, "type": "done", "delay": 0, "queue": "hooks", "run_at": null, "payload": null, "submits": false, "max_attempts": 3}]');
INSERT INTO dibs.dead VALUES (9, '2026-11-20 04:35:26.969996+05:45', '2026-11-20 04:35:26.968644+05:45', '2026-11-20 04:35:26.971942+05:45', '2026-11-20 04:35:26.972444+05:45', 1485974245885345796, 4309602, 4, 4, 4, 2, 3, 0, 'failed', 'task', 'free', NULL, '{"name": "failed", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, '[{"error": "first", "attempt": 1, "started_at": 1795128626.969415, "finished_at": 1795128626.969996}, {"error": "second", "attempt": 2, "started_at": 1795128626.971942, "finished_at": 1795128626.972444}]', NULL, NULL, false, NULL);
INSERT INTO dibs.dead VALUES (10, '2026-11-20 04:35:26.973775+05:45', '2026-11-20 04:35:26.973775+05:45', NULL, '2026-11-20 04:35:26.975638+05:45', NULL, NULL, 1, 9, 5, 0, 3, 0, 'cancelled', 'task', NULL, NULL, '{"name": "cancelled", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO dibs.history_20261126 VALUES (7, '2026-11-20 04:35:26.958617+05:45', '2026-11-20 04:35:26.958617+05:45', '2026-11-20 04:35:26.959355+05:45', '2026-11-20 04:35:26.964066+05:45', '2026-11-26', 1485974245885345793, 2074636, 3, 4, 3, 1, 3, 0, 'successful', 'task', NULL, '{"name": "successful", "text": "naïve ☃ \\ '' \"\n"}', NULL, '{"percent": 90}', NULL, '{"sent": true}', false, NULL);
INSERT INTO dibs.history_20261126 VALUES (8, '2026-11-20 04:35:26.966022+05:45', '2026-11-20 04:35:26.966022+05:45', '2026-11-20 04:35:26.966796+05:45', '2026-11-20 04:35:26.967328+05:45', '2026-11-26', 1485974245885345794, 2713869, 2, 4, 3, 1, 3, 0, 'successful for long', 'task', 'held on', '{"name": "successful for long", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO dibs.history_20261126 VALUES (18, '2026-11-20 04:35:26.987864+05:45', '2026-11-20 04:35:26.987864+05:45', '2026-11-20 04:35:26.988426+05:45', '2026-11-20 04:35:26.988894+05:45', '2026-11-26', 1485974245885345801, 11707573, 2, 4, 3, 1, 3, 0, 'first of its batch', 'task', NULL, '{"name": "batched"}', NULL, NULL, NULL, NULL, false, 18);
INSERT INTO dibs.history_20261126 VALUES (21, '2026-11-20 04:35:26.998646+05:45', '2026-11-20 04:35:26.99659+05:45', '2026-11-20 04:35:26.999033+05:45', '2026-11-20 04:35:27.000124+05:45', '2026-11-26', 1485974245885345805, 16664546, 4, 4, 3, 1, 3, 0, 'provided', 'task', NULL, '{"name": "provided", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, '"short"', true, NULL);
INSERT INTO dibs.jobs VALUES (1, '2026-11-20 04:35:26.953066+05:45', '2026-11-20 04:35:26.953066+05:45', NULL, NULL, NULL, 0, 4, false, false, 0, 0, 3, 0, 0, 'waiting', 'task', NULL, NULL, '{"name": "waiting", "text": "naïve ☃ \\ '' \"\n"}', '["a", "b"]', NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (2, '2026-11-20 04:35:26.95382+05:45', '2026-11-20 04:35:26.95382+05:45', NULL, NULL, NULL, 0, 0, false, false, 0, 0, 3, 0, 0, 'urgent', 'task', NULL, NULL, '{"name": "urgent", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (3, '2099-01-01 05:45:00+05:45', '2026-11-20 04:35:26.954117+05:45', NULL, NULL, NULL, 0, 4, false, false, 0, 0, 3, 0, 0, 'later', 'task', NULL, NULL, '{"name": "later", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (4, '2026-11-20 04:35:26.954367+05:45', '2026-11-20 04:35:26.954367+05:45', NULL, NULL, NULL, 0, 14, false, false, 0, 0, 1, 0, 0, 'once', 'task', NULL, NULL, '{"name": "once", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (5, '2026-11-20 04:35:26.956491+05:45', '2026-11-20 04:35:26.956491+05:45', NULL, NULL, NULL, 0, 4, false, false, 0, 0, 3, 0, 0, 'keyed', 'task', 'held', NULL, '{"name": "keyed", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (6, '2026-11-20 04:35:26.957825+05:45', '2026-11-20 04:35:26.957825+05:45', NULL, NULL, NULL, 0, 4, false, false, 0, 0, 3, 0, 0, 'paused', 'task', NULL, NULL, '{"name": "paused", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (15, '2026-11-20 04:35:27.196397+05:45', '2026-11-20 04:35:26.981267+05:45', '2026-11-20 04:35:26.981924+05:45', NULL, NULL, 2, 24, false, false, 1, 1, 3, 1, 0, 'suspect', 'task', NULL, NULL, '{"name": "suspect", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, '[{"error": "the worker died", "worker": "worker-43ca97", "attempt": 1, "started_at": 1795128626.981924, "finished_at": 1795128626.982869}]', NULL, NULL);
INSERT INTO dibs.jobs VALUES (11, '2026-11-20 04:36:26.97759+05:45', '2026-11-20 04:35:26.976709+05:45', '2026-11-20 04:35:26.977035+05:45', NULL, 5331972, 2, 4, false, false, 1, 1, 5, 0, 0, 'retried', 'task', NULL, NULL, '{"name": "retried", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, '[{"error": "boom", "attempt": 1, "started_at": 1795128626.977035, "finished_at": 1795128626.977590}]', NULL, NULL);
INSERT INTO dibs.jobs VALUES (16, '2026-11-20 04:35:27.33805+05:45', '2026-11-20 04:35:26.981442+05:45', '2026-11-20 04:35:26.981924+05:45', NULL, NULL, 2, 24, false, false, 1, 1, 1, 1, 1, 'finishing', 'task', NULL, NULL, '{"name": "finishing", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, '[{"error": "the worker died", "worker": "worker-43ca97", "attempt": 1, "started_at": 1795128626.981924, "finished_at": 1795128626.982869}]', NULL, NULL);
INSERT INTO dibs.jobs VALUES (12, '2026-11-20 04:35:26.97871+05:45', '2026-11-20 04:35:26.977993+05:45', '2026-11-20 04:35:26.978286+05:45', NULL, 6450594, 2, 14, false, false, 1, 1, 2, 0, 0, 'on its last attempt', 'task', NULL, NULL, '{"name": "on its last attempt", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, '[{"error": "boom", "attempt": 1, "started_at": 1795128626.978286, "finished_at": 1795128626.978710}]', NULL, NULL);
INSERT INTO dibs.jobs VALUES (17, '2026-11-20 04:35:26.98693+05:45', '2026-11-20 04:35:26.98693+05:45', NULL, NULL, NULL, 0, 4, false, false, 0, 0, 3, 0, 0, 'batched', 'task', NULL, NULL, '{"name": "batched"}', NULL, NULL, NULL, NULL, 17);
INSERT INTO dibs.jobs VALUES (13, '2026-11-20 04:35:26.979639+05:45', '2026-11-20 04:35:26.979052+05:45', '2026-11-20 04:35:26.979273+05:45', NULL, 7528528, 2, 4, false, false, 0, 0, 3, 0, 0, 'snoozed', 'task', NULL, NULL, '{"name": "snoozed", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (14, '2026-11-20 04:35:26.979987+05:45', '2026-11-20 04:35:26.979987+05:45', '2026-11-20 04:35:26.980225+05:45', NULL, 8922279, 2, 4, false, false, 0, 0, 3, 0, 0, 'released', 'task', NULL, NULL, '{"name": "released", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (19, '2026-11-20 04:35:26.990678+05:45', '2026-11-20 04:35:26.990678+05:45', '2026-11-20 04:35:26.990936+05:45', 1485974245885345802, 13065218, 1, 4, true, true, 0, 1, 3, 0, 0, 'submitting', 'task', NULL, NULL, '{"name": "submitting", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (20, '2027-11-20 04:35:26.996267+05:45', '2026-11-20 04:35:26.993009+05:45', '2026-11-20 04:35:26.993308+05:45', NULL, 14244918, 2, 4, false, true, 2, 1, 3, 0, -1, 'processing', 'task', NULL, NULL, '{"name": "processing", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.jobs VALUES (22, '2026-11-20 04:35:27.000576+05:45', '2026-11-20 04:35:27.000576+05:45', '2026-11-20 04:35:27.000844+05:45', 1485974245885345806, 17124841, 1, 4, true, false, 0, 1, 3, 0, 0, 'running', 'task', NULL, NULL, '{"name": "running", "text": "naïve ☃ \\ '' \"\n"}', NULL, NULL, NULL, NULL, NULL);
INSERT INTO dibs.migrations VALUES (1, 'initial', '2026-11-20 04:35:26.944464+05:45');
INSERT INTO dibs.parts VALUES (17, 1, 17, 1, 0, 0, 0);
INSERT INTO dibs.parts VALUES (18, 1, 18, 1, 1, 0, 0);
INSERT INTO dibs.queues VALUES ('paused', true);
INSERT INTO dibs.submissions VALUES (19, 1, 'task', 'key-submitting', true, '2026-11-20 04:35:26.992561+05:45', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '2027-12-25 04:35:26.992561+05:45', NULL);
INSERT INTO dibs.submissions VALUES (20, 1, 'task', 'key-processing', true, '2026-11-20 04:35:26.994366+05:45', 'task-processing', '2ead4d73489cf14810f6503ea2097a1d25ef66c88c193350e9938d0a98a05ab7', '2026-11-20 04:35:26.995537+05:45', NULL, NULL, NULL, NULL, NULL, NULL, '2027-12-25 04:35:26.995537+05:45', NULL);
INSERT INTO dibs.submissions VALUES (21, 1, 'task', 'key-provided', true, '2026-11-20 04:35:26.997734+05:45', 'task-provided', 'bf4a6dc2f7eeb94e24efc5d93453e31b4e0559c66328b9596982160726c2da5b', '2026-11-20 04:35:26.998306+05:45', NULL, NULL, NULL, 'done', '{"tokens": 12}', '2026-11-20 04:35:26.999891+05:45', '2027-02-18 04:35:26.999891+05:45', NULL);
INSERT INTO dibs.unique_keys VALUES ('task', 'held', 5, NULL);
INSERT INTO dibs.unique_keys VALUES ('task', 'held on', 8, '2126-10-27 04:35:26.967328+05:45');
INSERT INTO dibs.worker_names VALUES (1417135473142, 'worker-03a4e1', '2026-11-20 04:35:26.951668+05:45');
INSERT INTO dibs.worker_names VALUES (2946469959221, 'worker-43ca97', '2026-11-20 04:35:26.981096+05:45');
INSERT INTO dibs.workers VALUES (1417135473142, 'worker-03a4e1', 15, 3, '2026-11-20 04:35:26.951544+05:45', '2026-11-20 04:35:26.951544+05:45', '2026-11-20 04:35:26.951544+05:45', true, 0);
SELECT pg_catalog.setval('dibs.batches_id_seq', 1, true);
SELECT pg_catalog.setval('dibs.job_id', 22, true);
SELECT pg_catalog.setval('dibs.token', 16, true);
ALTER TABLE ONLY dibs.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dibs.dead
    ADD CONSTRAINT dead_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dibs.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dibs.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY dibs.parts
    ADD CONSTRAINT parts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dibs.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (name);
ALTER TABLE ONLY dibs.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (key);
ALTER TABLE ONLY dibs.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (name);
ALTER TABLE ONLY dibs.stats
    ADD CONSTRAINT stats_pkey PRIMARY KEY (minute, queue);
ALTER TABLE ONLY dibs.submissions
    ADD CONSTRAINT submissions_pkey PRIMARY KEY (job, round);
ALTER TABLE ONLY dibs.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (name);
ALTER TABLE ONLY dibs.unique_keys
    ADD CONSTRAINT unique_keys_pkey PRIMARY KEY (type, key);
ALTER TABLE ONLY dibs.worker_names
    ADD CONSTRAINT worker_names_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dibs.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);
CREATE INDEX claim_order ON dibs.jobs USING btree (queue, rank, run_at, id) WHERE (queue IS NOT NULL);
CREATE INDEX dead_queue ON dibs.dead USING btree (queue, state);
CREATE INDEX dead_row ON dibs.dead USING btree (type, row_key) WHERE (row_key IS NOT NULL);
CREATE INDEX expired_submissions ON dibs.submissions USING btree (expires) WHERE (expires IS NOT NULL);
CREATE INDEX history_id ON ONLY dibs.history USING btree (id);
CREATE INDEX history_20261119_id_idx ON dibs.history_20261119 USING btree (id);
CREATE INDEX history_20261120_id_idx ON dibs.history_20261120 USING btree (id);
CREATE INDEX history_20261121_id_idx ON dibs.history_20261121 USING btree (id);
CREATE INDEX history_20261122_id_idx ON dibs.history_20261122 USING btree (id);
CREATE INDEX history_20261123_id_idx ON dibs.history_20261123 USING btree (id);
CREATE INDEX history_20261124_id_idx ON dibs.history_20261124 USING btree (id);
CREATE INDEX history_20261125_id_idx ON dibs.history_20261125 USING btree (id);
CREATE INDEX history_20261126_id_idx ON dibs.history_20261126 USING btree (id);
CREATE INDEX history_20261127_id_idx ON dibs.history_20261127 USING btree (id);
CREATE INDEX history_20261128_id_idx ON dibs.history_20261128 USING btree (id);
CREATE INDEX history_20261129_id_idx ON dibs.history_20261129 USING btree (id);
CREATE INDEX history_rest_id_idx ON dibs.history_rest USING btree (id);
CREATE UNIQUE INDEX one_submission ON dibs.submissions USING btree (type, digest) WHERE (digest IS NOT NULL);
CREATE INDEX parts_of_batch ON dibs.parts USING btree (batch, id);
CREATE INDEX requests_at_idx ON dibs.requests USING btree (at);
CREATE UNIQUE INDEX row_lease ON dibs.jobs USING btree (type, row_key) WHERE (row_key IS NOT NULL);
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261119_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261120_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261121_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261122_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261123_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261124_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261125_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261126_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261127_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261128_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_20261129_id_idx;
ALTER INDEX dibs.history_id ATTACH PARTITION dibs.history_rest_id_idx;
