-- The first schema. Read docs/design/schema.md beside it.
--
-- States: 0 PENDING, 1 RETRY, 2 PROCESSING, 3 SUCCESSFUL, 4 FAILED, 5 CANCELLED; a held job shows as RUNNING, or as SUBMITTING.
-- rank = level + 10 * class: level 0..9 = 9 - priority; class 0 plain, 1 on its last attempt, 2 suspect.
-- worker = number of the worker << 20 | number of the claim.   token = counter << 20 | 20 random bits.

create sequence dibs.job_id;
create sequence dibs.token;                     -- cache 1 (the default), or tokens would not grow across sessions

create table dibs.jobs (
  id bigint primary key default nextval('dibs.job_id'),
  run_at timestamptz not null default statement_timestamp(),
  created_at timestamptz not null default statement_timestamp(),
  claimed_at timestamptz,
  worker bigint,
  token bigint,
  version int not null default 0,               -- grows with every change that people can see
  rank smallint not null default 4,
  held boolean not null default false,          -- held, state and worker are in no index: so a claim is a HOT update
  submits boolean not null default false,       -- it is handed to a provider: held, it shows as SUBMITTING
  state smallint not null default 0,
  attempts smallint not null default 0,
  max_attempts smallint not null default 3,
  crashes smallint not null default 0,
  finishing smallint not null default 0,        -- claimed only to be finished: how often, and 1; -1: only to ask the provider
  queue text collate "C" not null default 'default',
  type text collate "C" not null,
  unique_key text collate "C",
  unique_for float8,
  payload jsonb,
  tags jsonb,
  progress jsonb,
  failures jsonb,
  row_key text collate "C",                     -- of the row that it stands for, in an adopted table named like its type
  part bigint                                   -- of a batch: the id of that part's first job
) with (
  fillfactor = 35,     -- room on the page for every claim, and for a fifth to fail and be claimed again: all claims are HOT
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
-- It knows nothing of held: so a claim is a HOT update. Its condition is always true, and PostgreSQL takes it as met
-- only where a statement names the queue; so nobody who looks for an id is given this index for it. (Analyzed while empty,
-- all indexes look equally small, and it would read the whole of this one for each id.)
create index claim_order on dibs.jobs (queue, rank, run_at, id) where queue is not null;
-- A row of an adopted table has one job at most: this is the lease of that row.
create unique index row_lease on dibs.jobs (type, row_key) where row_key is not null;

create table dibs.history (
  id bigint not null, run_at timestamptz not null, created_at timestamptz not null, claimed_at timestamptz,
  finished_at timestamptz not null, expires date not null,
  worker bigint, token bigint, version int not null, rank smallint not null, state smallint not null,
  attempts smallint not null, max_attempts smallint not null, crashes smallint not null,
  queue text collate "C" not null, type text collate "C" not null, unique_key text collate "C",
  payload jsonb, tags jsonb, progress jsonb, failures jsonb, result jsonb, submits boolean not null default false, part bigint
) partition by range (expires);
create index history_id on dibs.history (id);
create table dibs.history_rest partition of dibs.history default;   -- a missing partition must never fail a settle

create table dibs.dead (
  id bigint primary key, run_at timestamptz not null, created_at timestamptz not null, claimed_at timestamptz,
  finished_at timestamptz not null,
  worker bigint, token bigint, version int not null, rank smallint not null, state smallint not null,
  attempts smallint not null, max_attempts smallint not null, crashes smallint not null,
  queue text collate "C" not null, type text collate "C" not null, unique_key text collate "C", unique_for float8,
  payload jsonb, tags jsonb, progress jsonb, failures jsonb, hook_error text, row_key text collate "C",
  submits boolean not null default false, part bigint
);
create index dead_queue on dibs.dead (queue, state);
create index dead_row on dibs.dead (type, row_key) where row_key is not null;

create table dibs.queues (name text collate "C" primary key, paused boolean not null default false);

create table dibs.workers (
  id bigint primary key,                        -- random: a number that comes back after a restore belongs to nobody
  name text not null,
  lease float8 not null,                        -- seconds without a beat until it is dead
  beat float8 not null,                         -- seconds between its beats
  started_at timestamptz not null default clock_timestamp(),
  beat_at timestamptz not null default clock_timestamp(),
  steady_since timestamptz not null default clock_timestamp(),  -- its beats went through without a gap since then
  asking boolean not null default true,         -- it has claimed since its last beat, or had room to
  claims int not null default 0                 -- of a worker over HTTP: the number of its last claim
) with (fillfactor = 10);
create table dibs.worker_names (id bigint primary key, name text not null, seen_at timestamptz not null default clock_timestamp());

create table dibs.unique_keys (
  type text collate "C", key text collate "C", job bigint not null,
  until timestamptz,                            -- null while its job is not final
  primary key (type, key)
);

-- Who may ask a server for what, and what servers share.
create table dibs.tokens (
  name text collate "C" primary key, hash text not null, scopes text not null,
  created_at timestamptz not null default clock_timestamp()
);
create table dibs.secrets (name text collate "C" primary key, value text not null);

-- Requests that said an Idempotency-Key, and the job that each led to; kept for a day.
create table dibs.requests (
  key text collate "C" primary key, fingerprint text not null, job bigint,
  at timestamptz not null default statement_timestamp()
);
create index on dibs.requests (at);

-- What jobs came to, by queue and minute, as workers have added it.
create table dibs.stats (
  minute timestamptz, queue text collate "C", successful int not null, failed int not null, retried int not null,
  primary key (minute, queue)
) with (fillfactor = 50);

-- Batches: jobs that are counted together. A batch has parts of a few hundred jobs, each with counters of its own: those who
-- settle jobs of one batch hardly ever wait for each other.
create table dibs.batches (
  id bigint generated always as identity primary key,
  name text,
  created_at timestamptz not null default statement_timestamp(),
  closed_at timestamptz,                        -- since then jobs come from its own jobs alone
  finished_at timestamptz,                      -- all of its jobs were final, and its hooks were added
  hooks jsonb                                   -- the jobs to add then
) with (fillfactor = 50);
create table dibs.parts (
  id bigint primary key,                        -- of its first job
  batch bigint not null, last bigint not null,  -- and of its last job
  total int not null, successful int not null default 0, failed int not null default 0, cancelled int not null default 0
) with (fillfactor = 50);
create index parts_of_batch on dibs.parts (batch, id);

-- What was handed to a provider: one row for each submission of a job; the last one counts. A row is there before the provider is asked.
create table dibs.submissions (
  job bigint, round int not null default 1,
  type text collate "C" not null,
  key text collate "C" not null,                -- the same however often it is tried
  tried boolean not null default false,         -- the provider was asked, and may have accepted
  begun_at timestamptz not null default statement_timestamp(),
  task_id text, digest text collate "C",        -- what the provider calls it; and its hash, for an id may be long
  accepted_at timestamptz,
  others jsonb,                                 -- further ids that the provider gave for it
  answer jsonb, answered_at timestamptz,        -- what a callback said
  outcome text,                                 -- done, rejected, given up, held or cancelled
  usage jsonb,                                  -- what it was charged for
  finished_at timestamptz, expires timestamptz,
  part bigint,                                  -- of its job's batch
  primary key (job, round)
);
-- The database itself refuses a double.
create unique index one_submission on dibs.submissions (type, digest) where digest is not null;
create index expired_submissions on dibs.submissions (expires) where expires is not null;

-- The state that people see of a live job.
create function dibs.shown(_held boolean, _state smallint, _submits boolean) returns int language sql immutable
return case when not _held or _state = 2 then _state when _submits then 7 else 6 end;

create function dibs.with_failure(_failures jsonb, _entry jsonb) returns jsonb language sql immutable
return case
  when _entry is null then _failures
  when jsonb_array_length(_failures) >= 10 then (_failures - 0) || jsonb_build_array(_entry)
  else coalesce(_failures, '[]') || jsonb_build_array(_entry)
end;

-- Settle what is done, then claim what is next. Two statements or more, so that the claim has a snapshot of its own and
-- every write to own jobs comes before the first pick (else two turns wait for each other's stray locks: deadlock).
-- The name carries a version: old workers go on calling theirs during a rolling deploy.
-- _rows: of adopted tables, or not of those: who does not know such a table must not take its rows.
--
-- `j.id = any (array[d.id])`, never `j.id = d.id`: on a queue that keeps up (analyzed while empty) the planner would
-- read the whole primary key, dead entries included, in each turn.
create function dibs.turn_1(
  _worker bigint = 0, _claim int = 0, _n int = 0, _suspects int = 0, _unknown text[] = '{}',
  _queues text[] = '{}', _ranks smallint[] = '{}', _ats timestamptz[] = '{}', _ids bigint[] = '{}',
  _done bigint[] = '{}', _done_tokens bigint[] = '{}', _done_states smallint[] = '{}', _done_days int[] = '{}',
  _done_results text = null, _done_failures text = null, _done_hook_errors text[] = '{}',
  _back bigint[] = '{}', _back_tokens bigint[] = '{}', _back_ways smallint[] = '{}', _back_delays float8[] = '{}',
  _back_failures text = null, _events text = null, _rows boolean = false)
returns table (
  id bigint, token bigint, type text, queue text, payload text, attempts smallint, max_attempts smallint, rank smallint,
  run_at timestamptz, crashes smallint, finishing smallint)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
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
    perform from dibs.jobs j
    where j.id = any (_done || _back) and j.token = any (_done_tokens || _back_tokens) and j.held order by j.id for update;
  end if;
  -- 1. Successful jobs go to history, others to dead. Most are plainly successful, and nothing more is said of them.
  if cardinality(_done) > 0 then
    with gone as (
      delete from dibs.jobs j
      using unnest(_done, _done_tokens, _done_states, _done_days, string_to_array(_done_results, E'\n', '')) d(id, token, state, days, result)
      where j.id = any (array[d.id]) and j.token = d.token and j.held and coalesce(d.state, 3) = 3
      returning j.*, coalesce(d.days, 7) as days, d.result),
    kept as (
      insert into dibs.history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
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
      delete from dibs.jobs j
      using unnest(_done, _done_tokens, _done_states, string_to_array(_done_failures, E'\n', ''), _done_hook_errors)
            d(id, token, state, failure, hook_error)
      where j.id = any (array[d.id]) and j.token = d.token and j.held and d.state <> 3
      returning j.*, d.state as outcome, d.failure, d.hook_error),
    buried as (
      insert into dibs.dead (id, run_at, created_at, claimed_at, finished_at, worker, token, version, rank, state,
        attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress, failures, hook_error, row_key,
        submits, part)
      select id, run_at, created_at, claimed_at, statement_timestamp(), worker, token, version + 1, rank, outcome,
        attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress,
        dibs.with_failure(failures, failure::jsonb || jsonb_build_object(
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
    perform dibs.free_keys_1(_key_jobs, _key_types, _keys, _keeps);
  end if;
  -- 2. Others go back to waiting: 1 retry, 2 snooze, 3 release, 4 finish (to be claimed once more only to be finished), 5 to
  -- ask the provider later (claimed for that alone, which is no attempt).
  if cardinality(_back) > 0 then
    with returned as (
      update dibs.jobs j set
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
        failures = dibs.with_failure(j.failures, d.failure::jsonb || jsonb_build_object(
          'started_at', extract(epoch from j.claimed_at), 'finished_at', extract(epoch from statement_timestamp())))
      from unnest(_back, _back_tokens, _back_ways, _back_delays, string_to_array(_back_failures, E'\n', '')) d(id, token, way, delay, failure)
      where j.id = any (array[d.id]) and j.token = d.token and j.held
      returning j.id, j.queue, j.rank, j.run_at, d.way),
    woken as materialized (
      select dibs.wake_1(queue, rank, min(run_at))
      from returned where way = 3 group by queue, rank)
    select coalesce(array_agg(id), '{}') into _returned from returned where (select count(*) from woken) >= 0;
  end if;
  -- 3. An id that did not come back was settled before (a settle sent twice) or is lost.
  if cardinality(_settled) + cardinality(_returned) < cardinality(_done) + cardinality(_back) then
    _unsettled := dibs.unsettled_1(_done || _back, _done_tokens || _back_tokens, _settled || _returned);
  end if;
  if _events is not null then
    perform pg_notify('job_events', event) from unnest(string_to_array(_events, E'\n')) event;
  end if;
  -- 4. The claim, with a snapshot of its own. One element of the arrays per range (queue, rank), in the order wanted.
  -- A row that another claimed and gave back since the snapshot is picked and not claimed. So the head row says how many were
  -- picked: who went by the rows alone would take a claim that came short for the end of what waits. It says so in the columns
  -- of a job, and has no token: id: how many were picked, type: the queues that are paused, queue: what was not settled, run_at: the clock.
  if _n = 0 then
    if _parts is not null then perform dibs.count_parts_1(_parts, _outcomes, 1); end if;
    return query select null::bigint, null::bigint, null, _unsettled::text, null, null::smallint, null::smallint, null::smallint,
      statement_timestamp(), null::smallint, null::smallint;
    return;
  end if;
  return query
  with suspect as materialized (
    select j.tid from unnest(_queues, _ranks) r(queue, rank)
    cross join lateral (
      select ctid as tid from dibs.jobs
      where queue = r.queue collate "C" and rank = r.rank + 20 and run_at <= statement_timestamp() and not held and type <> all (_unknown)
        and (row_key is not null) = _rows
      order by run_at, id limit 1 for no key update skip locked) j
    where _suspects > 0 and r.rank < 10
      and not exists (select from dibs.queues q where q.name = r.queue collate "C" and q.paused)
    limit _suspects),
  picked as materialized (
    select tid from suspect
    union all (
      select j.tid from unnest(_queues, _ranks, _ats, _ids) r(queue, rank, at, id)
      cross join lateral (
        select ctid as tid from dibs.jobs
        where queue = r.queue collate "C" and rank = r.rank and (run_at, id) > (r.at, r.id)
          and run_at <= statement_timestamp() and not held and type <> all (_unknown) and (row_key is not null) = _rows
        order by run_at, id limit _n for no key update skip locked) j
      where not exists (select from dibs.queues q where q.name = r.queue collate "C" and q.paused)
      limit _n - (select count(*) from suspect))),
  alive as materialized (                       -- after picked and only if there is something: an empty claim writes nothing
    select id from dibs.workers where id = _worker and (select count(*) from picked) > 0 for key share skip locked),
  claimed as (
    update dibs.jobs j set
      held = true, worker = _worker << 20 | _claim, version = version + 1,
      token = nextval('dibs.token') << 20 | floor(random() * 1048576)::bigint,
      attempts = attempts + (finishing = 0)::int, finishing = finishing + (finishing > 0)::int,
      claimed_at = statement_timestamp()
    from picked where j.ctid = picked.tid and exists (select from alive)
    returning j.id, j.token, j.type, j.queue, j.payload::text, j.attempts, j.max_attempts, j.rank, j.run_at, j.crashes, j.finishing)
  select (select count(*) from picked), null::bigint, (select jsonb_agg(name)::text from dibs.queues where paused), _unsettled::text,
    null, null::smallint, null::smallint, null::smallint, statement_timestamp(), null::smallint, null::smallint
  union all
  select * from claimed;
  -- 5. Batches are counted last: their locks are held for the commit alone, and nobody who has one waits for a job.
  if _parts is not null then perform dibs.count_parts_1(_parts, _outcomes, 1); end if;
end $$;

-- A unique key is freed by the statement that makes its job final, or held on for its period. In the order of the keys,
-- as those who add and retry take them.
create function dibs.free_keys_1(_jobs bigint[], _types text[], _keys text[], _keeps float8[]) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  delete from dibs.unique_keys k
  using (select * from unnest(_jobs, _types, _keys, _keeps) x(job, type, key, keep) order by type collate "C", key collate "C") g
  where k.type = any (array[g.type]) and k.key = any (array[g.key]) and k.job = g.job and g.keep is null;
  update dibs.unique_keys k set until = statement_timestamp() + make_interval(secs => g.keep)
  from (select * from unnest(_jobs, _types, _keys, _keeps) x(job, type, key, keep) order by type collate "C", key collate "C") g
  where k.type = any (array[g.type]) and k.key = any (array[g.key]) and k.job = g.job and g.keep is not null;
end $$;

-- What became of write-backs that changed nothing: {"job id": the state that the same token left, or null when lost}.
create function dibs.unsettled_1(_jobs bigint[], _tokens bigint[], _settled bigint[]) returns jsonb language sql stable
return (
  select jsonb_object_agg(d.id, coalesce(
    (select h.state from dibs.history h where h.id = d.id and h.token = d.token limit 1),
    (select g.state from dibs.dead g where g.id = d.id and g.token = d.token),
    (select j.state from dibs.jobs j where j.id = any (array[d.id]) and j.token = d.token and not j.held)))
  from unnest(_jobs, _tokens) d(id, token) where d.id <> all (_settled));

-- Recovery: the jobs of dead workers go back to waiting, as suspects. Safe from any number of judges at once.
-- Dead are: those the caller vouches for (_known: it reaped the process), those that were silent when the caller noted
-- them and still are (_silent, _beats), and, if the judge's own beats went through for a whole lease, everyone whose
-- last beat is a lease old or a lease in the future.
create function dibs.recover_1(_judge bigint, _known bigint[], _silent bigint[], _beats timestamptz[])
returns table (job bigint, worker bigint, dead boolean) language plpgsql as $$
#variable_conflict use_column
declare _dead bigint[]; _careful boolean;
begin
  _careful := exists (select from dibs.workers w where w.id = _judge
    and w.beat_at - w.steady_since >= make_interval(secs => w.lease)
    and abs(extract(epoch from clock_timestamp() - w.beat_at)) <= 2 * w.beat);
  select array_agg(id) into _dead from (
    select w.id from dibs.workers w
    where w.id = any (_known)
      or exists (select from unnest(_silent, _beats) s(id, beat_at) where s.id = w.id and s.beat_at = w.beat_at)
      or (_careful and abs(extract(epoch from clock_timestamp() - w.beat_at)) > w.lease)
    order by w.id for update skip locked) x;
  if _dead is null then return; end if;
  -- A statement of its own, so that it sees the claims that were in flight when their worker's row was locked.
  return query
  with lost as materialized (
    select j.id, j.worker >> 20 as number from dibs.jobs j
    where j.held and j.worker >> 20 = any (_dead) order by j.id for no key update skip locked),
  back as (
    update dibs.jobs j set
      held = false, worker = null, token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1,
      finishing = case when j.finishing = 0 and j.attempts >= j.max_attempts then 1 else j.finishing end,
      rank = j.rank % 10 + 20,
      run_at = statement_timestamp() + make_interval(secs => random() + case when j.finishing > 0 then least(2 ^ (j.finishing % 100), 300) else 0 end),
      failures = dibs.with_failure(j.failures, jsonb_build_object(
        'attempt', j.attempts, 'error', 'the worker died', 'worker', w.name,
        'started_at', extract(epoch from j.claimed_at), 'finished_at', extract(epoch from statement_timestamp())))
    from lost join dibs.workers w on w.id = lost.number
    where j.id = any (array[lost.id])
    returning j.id, lost.number, j.queue, j.rank, j.run_at),
  woken as materialized (
    select dibs.wake_1(queue, rank, min(run_at))
    from back group by queue, rank),
  told as materialized (
    select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text)
    from (select id, row_number() over (order by id) / 300 as part from back) b group by part)
  select id, number, false from back where (select count(*) from woken) + (select count(*) from told) >= 0;
  -- A row goes only when no job carries its name: one may be committing its own transaction.
  return query
  delete from dibs.workers w where w.id = any (_dead) and not exists (select from dibs.jobs j where j.held and j.worker >> 20 = w.id)
  returning null::bigint, w.id, true;
end $$;

-- Jobs whose worker has no row at all (a restored backup, a row deleted by hand): freed like those of a dead worker. A job that
-- has changed since the statement began is looked at again, but the rows of workers are not: one that was enlisted since is not
-- there. So a job is freed only if it still is that worker's whom the statement saw.
create function dibs.recover_orphans_1() returns setof bigint language sql as $$
  with seen as materialized (
    select j.id, j.worker from dibs.jobs j where j.held and not exists (select from dibs.workers w where w.id = j.worker >> 20)),
  orphans as materialized (
    select j.id from seen s join dibs.jobs j on j.id = any (array[s.id]) and j.worker = s.worker
    where j.held order by j.id for no key update of j skip locked)
  update dibs.jobs j set
    held = false, worker = null, token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1,
    finishing = case when j.finishing = 0 and j.attempts >= j.max_attempts then 1 else j.finishing end,
    rank = j.rank % 10 + 20, run_at = statement_timestamp(),
    failures = dibs.with_failure(j.failures, jsonb_build_object(
      'attempt', j.attempts, 'error', 'the worker vanished', 'worker', (select n.name from dibs.worker_names n where n.id = j.worker >> 20),
      'started_at', extract(epoch from j.claimed_at), 'finished_at', extract(epoch from statement_timestamp())))
  from orphans o where j.id = any (array[o.id])
  returning j.id;
$$;

-- Hand back what a claim took whose answer never came, attempt not used. Locking the worker's row waits for a claim that
-- is still in flight; the second statement then sees it.
create function dibs.hand_back_1(_workers bigint[], _claims bigint[], _held bigint[]) returns setof bigint language plpgsql as $$
begin
  perform from dibs.workers w where w.id = any (_workers) order by w.id for update;
  return query
  with taken as materialized (
    select j.id from dibs.jobs j
    where j.held and j.token <> all (_held)
      and (j.worker = any (_claims) or (_claims is null and j.worker >> 20 = any (_workers)))
    order by j.id for no key update),
  back as (
    update dibs.jobs j set
      held = false, worker = null, token = null, version = j.version + 1,
      attempts = j.attempts - (j.finishing = 0)::int, finishing = j.finishing - (j.finishing > 0)::int
    from taken where j.id = any (array[taken.id])
    returning j.id, j.queue, j.rank, j.run_at),
  woken as materialized (
    select dibs.wake_1(queue, rank, min(run_at))
    from back group by queue, rank),
  told as materialized (
    select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text)
    from (select id, row_number() over (order by id) / 300 as part from back) b group by part)
  select id from back where (select count(*) from woken) + (select count(*) from told) >= 0;
end $$;

-- Partitions of history: one per day of expiry, made ahead; a past one is dropped. Waits for no lock longer than 100 ms,
-- so that a DDL behind a dump's lock does not queue the settles; the caller tries again later.
create function dibs.make_partition_1(_day date) returns text language plpgsql set lock_timeout = '100ms' as $$
declare _name text := 'history_' || to_char(_day, 'YYYYMMDD');
begin
  if to_regclass(format('dibs.%I', _name)) is not null then return 'there'; end if;
  execute format('create table dibs.%I partition of dibs.history for values from (%L) to (%L)', _name, _day, _day + 1);
  return 'made';
exception
  when lock_not_available then return 'busy';
  when check_violation or duplicate_table then return 'there';   -- that day's rows lie in history_rest already
end $$;

create function dibs.drop_partition_1(_today date) returns text language plpgsql set lock_timeout = '100ms' as $$
declare _name text;
begin
  select c.relname into _name from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent = 'dibs.history'::regclass and c.relname ~ '^history_\d{8}$' and c.relname < 'history_' || to_char(_today, 'YYYYMMDD')
  order by c.relname limit 1;
  if _name is null then return 'none'; end if;
  execute format('drop table dibs.%I', _name);
  return 'dropped';
exception when lock_not_available then return 'busy';
end $$;

-- A wake-up is a hint: which range has something, and since when, so that a listener can move its cursor back.
create function dibs.wake_1(_queue text, _rank int, _run_at timestamptz) returns void language sql as $$
  select pg_notify('dibs_wake', json_build_object('queue', _queue, 'rank', _rank, 'runAt', _run_at)::text);
$$;

-- Jobs of a batch have come to their ends (_by = 1), or a person lets them run again (-1): their parts count it. Parts are
-- locked in the order of their ids, or two turns would wait for each other.
create function dibs.count_parts_1(_parts bigint[], _states smallint[], _by int) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare _ended bigint[];
begin
  perform from dibs.parts p where p.id = any (_parts) order by p.id for no key update;
  with counted as (
    update dibs.parts p set
      successful = p.successful + _by * g.successful, failed = p.failed + _by * g.failed, cancelled = p.cancelled + _by * g.cancelled
    from (
      select part, count(*) filter (where state = 3) as successful, count(*) filter (where state = 4) as failed,
        count(*) filter (where state = 5) as cancelled
      from unnest(_parts, _states) d(part, state) group by part) g
    where p.id = any (array[g.part])
    returning p.batch, p.total = p.successful + p.failed + p.cancelled as ended)
  select array_agg(batch) into _ended from counted where ended;
  if _ended is not null then perform dibs.finish_batches_1(_ended); end if;
end $$;

-- Parts of these batches have nothing left: so a batch may be finished. Whoever is here has counted already, then gets the
-- batch's row, then looks, with a snapshot of that moment: of two who count at the same time the second sees both. The row is
-- written, not only locked: where one snapshot serves a whole transaction, the second is refused, and not wrong.
create function dibs.finish_batches_1(_batches bigint[]) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare _batch bigint;
begin
  perform from dibs.batches b where b.id = any (_batches) order by b.id for no key update;
  update dibs.batches b set closed_at = b.closed_at where b.id = any (_batches);
  for _batch in
    select b.id from dibs.batches b where b.id = any (_batches) and b.closed_at is not null and b.finished_at is null order by b.id
  loop
    -- Jobs are run in the order of their ids, so the last parts are open longest.
    perform from dibs.parts p where p.batch = _batch and p.total > p.successful + p.failed + p.cancelled order by p.id desc limit 1;
    if not found then perform dibs.finish_batch_1(_batch); end if;
  end loop;
end $$;

create function dibs.finish_batch_1(_batch bigint) returns void language sql as $$
  update dibs.batches set finished_at = statement_timestamp() where id = _batch;
  with added as (
    insert into dibs.jobs (queue, rank, type, run_at, max_attempts, payload, tags, submits)
    select h.queue, h.rank, h.type,
      greatest(coalesce(to_timestamp(h.run_at), statement_timestamp() + make_interval(secs => h.delay)), statement_timestamp()),
      h.max_attempts, coalesce(h.payload::jsonb, jsonb_build_object('batch_id', _batch)), h.tags::jsonb, h.submits
    from dibs.batches b cross join jsonb_to_recordset(b.hooks) h(
      hook text, queue text, rank smallint, type text, run_at float8, delay float8, max_attempts smallint, payload text, tags text, submits boolean)
    where b.id = _batch and h.hook in ('on_complete', case
      when exists (select from dibs.parts p where p.batch = _batch and p.successful < p.total) then 'on_failure' else 'on_success' end)
    returning id, queue, rank, run_at),
  woken as materialized (
    select dibs.wake_1(queue, rank, min(run_at)) from added where run_at <= statement_timestamp() + interval '5 s' group by queue, rank),
  told as materialized (
    select pg_notify('job_events', jsonb_build_object('jobIds', jsonb_agg(id))::text) from added having count(*) > 0)
  select (select count(*) from woken) + (select count(*) from told);
$$;

-- No more jobs from outside: waits for those who add some now, and finishes the batch if nothing is left.
create function dibs.close_batch_1(_batch bigint) returns void language plpgsql set lock_timeout = '5s' as $$
begin
  perform from dibs.batches b where b.id = _batch for update;
  update dibs.batches set closed_at = statement_timestamp() where id = _batch and closed_at is null;
  perform dibs.finish_batches_1(array[_batch]);
end $$;

select dibs.make_partition_1((now() at time zone 'utc')::date + i) from generate_series(0, 10) i;

-- For people with psql: every job there is, in words.
create view dibs.all_jobs as
  select id, type, queue, (array['PENDING', 'RETRY', 'PROCESSING', '', '', '', 'RUNNING', 'SUBMITTING'])[dibs.shown(held, state, submits) + 1] as state,
    9 - rank % 10 as priority, attempts, max_attempts, payload, null::jsonb as result, failures -> -1 ->> 'error' as error, progress, tags,
    unique_key, worker >> 20 as worker, created_at, run_at, claimed_at as started_at, null::timestamptz as finished_at from dibs.jobs
  union all
  select id, type, queue, case state when 4 then 'FAILED' else 'CANCELLED' end, 9 - rank % 10, attempts, max_attempts, payload, null,
    failures -> -1 ->> 'error', progress, tags, unique_key, worker >> 20, created_at, run_at, claimed_at, finished_at from dibs.dead
  union all
  select id, type, queue, 'SUCCESSFUL', 9 - rank % 10, attempts, max_attempts, payload, result,
    failures -> -1 ->> 'error', progress, tags, unique_key, worker >> 20, created_at, run_at, claimed_at, finished_at from dibs.history;
