-- The first schema. Read docs/design/schema.md beside it; `dibs.` becomes the prefix `dibs_`.
--
-- States: 0 PENDING, 1 RETRY, 2 PROCESSING, 3 SUCCESSFUL, 4 FAILED, 5 CANCELLED; a held job shows as RUNNING, or as SUBMITTING.
-- rank = level + 10 * class: level 0..9 = 9 - priority; class 0 plain, 1 on its last attempt, 2 suspect.
-- worker = number of the worker << 20 | number of the claim.   token = the row's own counter << 20 | 20 random bits.
-- Times are microseconds since 1970.

create view dibs.clock as select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now;

create table dibs.jobs (
  id integer primary key autoincrement,         -- or ids would come back once the table is empty
  run_at integer not null,
  created_at integer not null,
  claimed_at integer,
  worker integer,
  token integer,
  version integer not null default 0,           -- grows with every change that people can see
  rank integer not null default 4,
  held integer not null default 0,
  submits integer not null default 0,           -- it is handed to a provider: held, it shows as SUBMITTING
  state integer not null default 0,
  attempts integer not null default 0,
  max_attempts integer not null default 3,
  crashes integer not null default 0,
  finishing integer not null default 0,         -- claimed only to be finished: how often, and 1; -1: only to ask the provider
  queue text not null default 'default',
  type text not null,
  unique_key text,
  unique_for real,
  payload text,
  tags text,
  progress text,
  failures text,
  row_key text,                                 -- of the row that it stands for, in an adopted table named like its type
  part integer                                  -- of a batch: the id of that part's first job
);
-- In the order of (queue, rank, run_at), then of the id, with which every index of SQLite ends.
create index dibs.claim_order on dibs.jobs (queue, rank, run_at) where held = 0;
-- A row of an adopted table has one job at most: this is the lease of that row.
create unique index dibs.row_lease on dibs.jobs (type, row_key) where row_key is not null;

create table dibs.history (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null, expires integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text,
  payload text, tags text, progress text, failures text, result text, submits integer not null default 0, part integer
);

create table dibs.dead (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text, unique_for real,
  payload text, tags text, progress text, failures text, hook_error text, row_key text,
  submits integer not null default 0, part integer
);
create index dibs.dead_queue on dibs.dead (queue, state);
create index dibs.dead_row on dibs.dead (type, row_key) where row_key is not null;

create table dibs.queues (name text primary key, paused integer not null default 0) without rowid;

create table dibs.workers (
  id integer primary key,                       -- random: a number that comes back after a restore belongs to nobody
  name text not null,
  lease real not null,                          -- seconds without a beat until it is dead
  beat real not null,                           -- seconds between its beats
  started_at integer not null,
  beat_at integer not null,
  steady_since integer not null,                -- its beats went through without a gap since then
  asking integer not null default 1,            -- it has claimed since its last beat, or had room to
  claims integer not null default 0             -- of a worker over HTTP: the number of its last claim
);
create table dibs.worker_names (id integer primary key, name text not null, seen_at integer not null);

create table dibs.unique_keys (
  type text not null, key text not null, job integer not null,
  until integer,                                -- null while its job is not final
  primary key (type, key)
) without rowid;

-- Who may ask a server for what, and what servers share.
create table dibs.tokens (name text primary key, hash text not null, scopes text not null, created_at integer not null) without rowid;
create table dibs.secrets (name text primary key, value text not null) without rowid;

-- Requests that said an Idempotency-Key, and the job that each led to; kept for a day.
create table dibs.requests (key text primary key, fingerprint text not null, job integer, at integer not null) without rowid;
create index dibs.old_requests on dibs.requests (at);

-- What jobs came to, by queue and minute, as workers have added it.
create table dibs.stats (
  minute integer not null, queue text not null, successful integer not null, failed integer not null, retried integer not null,
  primary key (minute, queue)
) without rowid;

-- Batches: jobs that are counted together. A batch has parts of a few hundred jobs, each with counters of its own.
create table dibs.batches (
  id integer primary key autoincrement,
  name text,
  created_at integer not null,
  closed_at integer,                            -- since then jobs come from its own jobs alone
  finished_at integer,                          -- all of its jobs were final, and its hooks were added
  hooks text                                    -- the jobs to add then
);
create table dibs.parts (
  id integer primary key,                       -- of its first job
  batch integer not null, last integer not null,  -- and of its last job
  total integer not null, successful integer not null default 0, failed integer not null default 0, cancelled integer not null default 0
);
create index dibs.parts_of_batch on dibs.parts (batch, id);
-- A part has nothing left, or its batch was closed: a batch that is closed and has nothing left is finished. Jobs are run in the
-- order of their ids, so the last parts are open longest.
create trigger dibs.part_ended after update on dibs.parts when new.total = new.successful + new.failed + new.cancelled begin
  update dibs.batches set finished_at = (select now from dibs.clock)
  where id = new.batch and closed_at is not null and finished_at is null and (
    select p.id from dibs.parts p where p.batch = new.batch and p.total > p.successful + p.failed + p.cancelled order by p.id desc limit 1) is null;
end;
create trigger dibs.batch_closed after update of closed_at on dibs.batches begin
  update dibs.batches set finished_at = (select now from dibs.clock)
  where id = new.id and closed_at is not null and finished_at is null and (
    select p.id from dibs.parts p where p.batch = new.id and p.total > p.successful + p.failed + p.cancelled order by p.id desc limit 1) is null;
end;
create trigger dibs.batch_finished after update of finished_at on dibs.batches when old.finished_at is null and new.finished_at is not null begin
  insert into dibs.jobs (queue, rank, type, run_at, created_at, max_attempts, payload, tags, submits)
  select json_extract(h.value, '$.queue'), json_extract(h.value, '$.rank'), json_extract(h.value, '$.type'),
    max(coalesce(cast(json_extract(h.value, '$.run_at') * 1000000 as integer), c.now + cast(json_extract(h.value, '$.delay') * 1000000 as integer)), c.now), c.now,
    json_extract(h.value, '$.max_attempts'), coalesce(json_extract(h.value, '$.payload'), json_object('batch_id', new.id)),
    json_extract(h.value, '$.tags'), json_extract(h.value, '$.submits')
  from dibs.clock c cross join json_each(new.hooks) h
  where json_extract(h.value, '$.hook') in ('on_complete', case
    when exists (select 1 from dibs.parts p where p.batch = new.id and p.successful < p.total) then 'on_failure' else 'on_success' end);
end;

-- What was handed to a provider: one row for each submission of a job; the last one counts. A row is there before the provider is asked.
create table dibs.submissions (
  job integer not null, round integer not null default 1,
  type text not null,
  key text not null,                            -- the same however often it is tried
  tried integer not null default 0,             -- the provider was asked, and may have accepted
  begun_at integer not null,
  task_id text, digest text,                    -- what the provider calls it; and its hash, for an id may be long
  accepted_at integer,
  others text,                                  -- further ids that the provider gave for it
  answer text, answered_at integer,             -- what a callback said
  outcome text,                                 -- done, rejected, given up, held or cancelled
  usage text,                                   -- what it was charged for
  finished_at integer, expires integer,
  part integer,                                 -- of its job's batch
  primary key (job, round)
) without rowid;
-- The database itself refuses a double.
create unique index dibs.one_submission on dibs.submissions (type, digest) where digest is not null;
create index dibs.expired_submissions on dibs.submissions (expires) where expires is not null;

-- For people with a shell: every job there is, in words.
create view dibs.all_jobs as
  select id, type, queue, case when state = 2 then 'PROCESSING' when held and submits then 'SUBMITTING' when held then 'RUNNING'
      when state = 0 then 'PENDING' else 'RETRY' end as state,
    9 - rank % 10 as priority, attempts, max_attempts, payload, null as result,
    json_extract(failures, '$[' || (json_array_length(failures) - 1) || '].error') as error, progress, tags,
    unique_key, worker >> 20 as worker, created_at, run_at, claimed_at as started_at, null as finished_at from dibs.jobs
  union all
  select id, type, queue, case state when 4 then 'FAILED' else 'CANCELLED' end, 9 - rank % 10, attempts, max_attempts, payload, null,
    json_extract(failures, '$[' || (json_array_length(failures) - 1) || '].error'), progress, tags,
    unique_key, worker >> 20, created_at, run_at, claimed_at, finished_at from dibs.dead
  union all
  select id, type, queue, 'SUCCESSFUL', 9 - rank % 10, attempts, max_attempts, payload, result,
    json_extract(failures, '$[' || (json_array_length(failures) - 1) || '].error'), progress, tags,
    unique_key, worker >> 20, created_at, run_at, claimed_at, finished_at from dibs.history;
