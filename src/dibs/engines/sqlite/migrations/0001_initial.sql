-- The first schema. Read docs/design/schema.md beside it; `dibs.` becomes the prefix `dibs_`.
--
-- States: 0 PENDING, 1 RETRY, 2 PROCESSING, 3 SUCCESSFUL, 4 FAILED, 5 CANCELLED; a held job shows as RUNNING.
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
  state integer not null default 0,
  attempts integer not null default 0,
  max_attempts integer not null default 3,
  crashes integer not null default 0,
  finishing integer not null default 0,
  queue text not null default 'default',
  type text not null,
  unique_key text,
  unique_for real,
  payload text,
  tags text,
  progress text,
  failures text,
  row_key text                                  -- of the row that it stands for, in an adopted table named like its type
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
  payload text, tags text, progress text, failures text, result text
);

create table dibs.dead (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text, unique_for real,
  payload text, tags text, progress text, failures text, hook_error text, row_key text
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

-- For people with a shell: every job there is, in words.
create view dibs.all_jobs as
  select id, type, queue, case when held then 'RUNNING' when state = 0 then 'PENDING' when state = 1 then 'RETRY' else 'PROCESSING' end as state,
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
