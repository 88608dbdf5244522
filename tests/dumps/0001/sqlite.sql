BEGIN TRANSACTION;
CREATE TABLE dibs_batches (
  id integer primary key autoincrement,
  name text,
  created_at integer not null,
  closed_at integer,                            -- since then jobs come from its own jobs alone
  finished_at integer,                          -- all of its jobs were final, and its hooks were added
  hooks text                                    -- the jobs to add then
);
INSERT INTO "dibs_batches" VALUES(1,'batched',1795128626277000,1795128626280000,NULL,'[{"hook":"on_complete","queue":"hooks","rank":4,"type":"done","delay":0,"max_attempts":3,"run_at":null,"payload":null,"tags":null,"submits":false}]');
CREATE TABLE dibs_dead (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text, unique_for real,
  payload text, tags text, progress text, failures text, hook_error text, row_key text,
  submits integer not null default 0, part integer
);
INSERT INTO "dibs_dead" VALUES(9,1795128626267000,1795128626266000,1795128626268000,1795128626268000,3435661264535158788,3120227,4,4,4,2,3,0,'failed','task','free',NULL,'{"name":"failed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"first","started_at":1795128626.267,"finished_at":1795128626.267},{"attempt":2,"error":"second","started_at":1795128626.268,"finished_at":1795128626.268}]',NULL,NULL,0,NULL);
INSERT INTO "dibs_dead" VALUES(10,1795128626269000,1795128626269000,NULL,1795128626269000,NULL,1418764,1,9,5,0,3,0,'cancelled','task',NULL,NULL,'{"name":"cancelled","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL,0,NULL);
CREATE TABLE dibs_history (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null, expires integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text,
  payload text, tags text, progress text, failures text, result text, submits integer not null default 0, part integer
);
INSERT INTO "dibs_history" VALUES(7,1795128626263000,1795128626263000,1795128626264000,1795128626264000,1795733426264000,3435661264535158785,1637414,3,4,3,1,3,0,'successful','task',NULL,'{"name":"successful","text":"naïve ☃ \\ '' \"\n"}',NULL,'{"percent":90}',NULL,'{"sent":true}',0,NULL);
INSERT INTO "dibs_history" VALUES(8,1795128626265000,1795128626265000,1795128626266000,1795128626266000,1795733426266000,3435661264535158786,2034491,2,4,3,1,3,0,'successful for long','task','held on','{"name":"successful for long","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "dibs_history" VALUES(18,1795128626278000,1795128626278000,1795128626278000,1795128626279000,1795733426279000,3435661264535158793,1870952,2,4,3,1,3,0,'first of its batch','task',NULL,'{"name":"batched"}',NULL,NULL,NULL,NULL,0,18);
INSERT INTO "dibs_history" VALUES(21,1795128626284000,1795128626283000,1795128626285000,1795128626285000,1795733426285000,3435661264535158797,2102146,4,4,3,1,3,0,'provided','task',NULL,'{"name":"provided","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,'"short"',1,NULL);
CREATE TABLE dibs_jobs (
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
INSERT INTO "dibs_jobs" VALUES(1,1795128626260000,1795128626260000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'waiting','task',NULL,NULL,'{"name":"waiting","text":"naïve ☃ \\ '' \"\n"}','["a","b"]',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(2,1795128626260000,1795128626260000,NULL,NULL,NULL,0,0,0,0,0,0,3,0,0,'urgent','task',NULL,NULL,'{"name":"urgent","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(3,4070908800000000,1795128626261000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'later','task',NULL,NULL,'{"name":"later","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(4,1795128626261000,1795128626261000,NULL,NULL,NULL,0,14,0,0,0,0,1,0,0,'once','task',NULL,NULL,'{"name":"once","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(5,1795128626262000,1795128626262000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'keyed','task','held',NULL,'{"name":"keyed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(6,1795128626262000,1795128626262000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'paused','task',NULL,NULL,'{"name":"paused","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(11,1795128686271000,1795128626270000,1795128626270000,NULL,1051986,2,4,0,0,1,1,5,0,0,'retried','task',NULL,NULL,'{"name":"retried","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1795128626.27,"finished_at":1795128626.271}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(12,1795128626272000,1795128626271000,1795128626272000,NULL,2060511,2,14,0,0,1,1,2,0,0,'on its last attempt','task',NULL,NULL,'{"name":"on its last attempt","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1795128626.272,"finished_at":1795128626.272}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(13,1795128626273000,1795128626272000,1795128626273000,NULL,1776941,2,4,0,0,0,0,3,0,0,'snoozed','task',NULL,NULL,'{"name":"snoozed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(14,1795128626274000,1795128626274000,1795128626274000,NULL,1113267,2,4,0,0,0,0,3,0,0,'released','task',NULL,NULL,'{"name":"released","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(15,1795128626720358,1795128626275000,1795128626276000,NULL,3034027,2,24,0,0,1,1,3,1,0,'suspect','task',NULL,NULL,'{"name":"suspect","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-8c3bbf","started_at":1795128626.276,"finished_at":1795128626.276}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(16,1795128627174596,1795128626275000,1795128626276000,NULL,2303709,2,24,0,0,1,1,1,1,1,'finishing','task',NULL,NULL,'{"name":"finishing","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-8c3bbf","started_at":1795128626.276,"finished_at":1795128626.276}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(17,1795128626277000,1795128626277000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'batched','task',NULL,NULL,'{"name":"batched"}',NULL,NULL,NULL,NULL,17);
INSERT INTO "dibs_jobs" VALUES(19,1795128626280000,1795128626280000,1795128626280000,3435661264535158794,1674826,1,4,1,1,0,1,3,0,0,'submitting','task',NULL,NULL,'{"name":"submitting","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(20,1826664626283000,1795128626281000,1795128626282000,NULL,2019686,2,4,0,1,2,1,3,0,-1,'processing','task',NULL,NULL,'{"name":"processing","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(22,1795128626286000,1795128626286000,1795128626286000,3435661264535158798,1480919,1,4,1,0,0,1,3,0,0,'running','task',NULL,NULL,'{"name":"running","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE dibs_migrations (
  number integer primary key, name text not null, applied_at integer not null);
INSERT INTO "dibs_migrations" VALUES(1,'initial',1795128626255000);
CREATE TABLE dibs_parts (
  id integer primary key,                       -- of its first job
  batch integer not null, last integer not null,  -- and of its last job
  total integer not null, successful integer not null default 0, failed integer not null default 0, cancelled integer not null default 0
);
INSERT INTO "dibs_parts" VALUES(17,1,17,1,0,0,0);
INSERT INTO "dibs_parts" VALUES(18,1,18,1,1,0,0);
CREATE TABLE dibs_queues (name text primary key, paused integer not null default 0) without rowid;
INSERT INTO "dibs_queues" VALUES('paused',1);
CREATE TABLE dibs_requests (key text primary key, fingerprint text not null, job integer, at integer not null) without rowid;
CREATE TABLE dibs_secrets (name text primary key, value text not null) without rowid;
CREATE TABLE dibs_stats (
  minute integer not null, queue text not null, successful integer not null, failed integer not null, retried integer not null,
  primary key (minute, queue)
) without rowid;
CREATE TABLE dibs_submissions (
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
INSERT INTO "dibs_submissions" VALUES(19,1,'task','key-submitting',1,1795128626281000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1829688626281000,NULL);
INSERT INTO "dibs_submissions" VALUES(20,1,'task','key-processing',1,1795128626282000,'task-processing','2ead4d73489cf14810f6503ea2097a1d25ef66c88c193350e9938d0a98a05ab7',1795128626283000,NULL,NULL,NULL,NULL,NULL,NULL,1829688626283000,NULL);
INSERT INTO "dibs_submissions" VALUES(21,1,'task','key-provided',1,1795128626284000,'task-provided','bf4a6dc2f7eeb94e24efc5d93453e31b4e0559c66328b9596982160726c2da5b',1795128626284000,NULL,NULL,NULL,'done','{"tokens":12}',1795128626285000,1802904626285000,NULL);
CREATE TABLE dibs_tokens (name text primary key, hash text not null, scopes text not null, created_at integer not null) without rowid;
CREATE TABLE dibs_unique_keys (
  type text not null, key text not null, job integer not null,
  until integer,                                -- null while its job is not final
  primary key (type, key)
) without rowid;
INSERT INTO "dibs_unique_keys" VALUES('task','held',5,NULL);
INSERT INTO "dibs_unique_keys" VALUES('task','held on',8,4948728626266000);
CREATE TABLE dibs_worker_names (id integer primary key, name text not null, seen_at integer not null);
INSERT INTO "dibs_worker_names" VALUES(2916018337055,'worker-8c3bbf',1795128626275000);
INSERT INTO "dibs_worker_names" VALUES(3276501907859,'worker-d5458f',1795128626259000);
CREATE TABLE dibs_workers (
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
INSERT INTO "dibs_workers" VALUES(3276501907859,'worker-d5458f',15.0,3.0,1795128626259000,1795128626259000,1795128626259000,1,0);
CREATE VIEW dibs_clock as select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now;
CREATE INDEX dibs_claim_order on dibs_jobs (queue, rank, run_at) where held = 0;
CREATE UNIQUE INDEX dibs_row_lease on dibs_jobs (type, row_key) where row_key is not null;
CREATE INDEX dibs_dead_queue on dibs_dead (queue, state);
CREATE INDEX dibs_dead_row on dibs_dead (type, row_key) where row_key is not null;
CREATE INDEX dibs_old_requests on dibs_requests (at);
CREATE INDEX dibs_parts_of_batch on dibs_parts (batch, id);
CREATE TRIGGER dibs_part_ended after update on dibs_parts when new.total = new.successful + new.failed + new.cancelled begin
  update dibs_batches set finished_at = (select now from dibs_clock)
  where id = new.batch and closed_at is not null and finished_at is null and (
    select p.id from dibs_parts p where p.batch = new.batch and p.total > p.successful + p.failed + p.cancelled order by p.id desc limit 1) is null;
end;
CREATE TRIGGER dibs_batch_closed after update of closed_at on dibs_batches begin
  update dibs_batches set finished_at = (select now from dibs_clock)
  where id = new.id and closed_at is not null and finished_at is null and (
    select p.id from dibs_parts p where p.batch = new.id and p.total > p.successful + p.failed + p.cancelled order by p.id desc limit 1) is null;
end;
CREATE TRIGGER dibs_batch_finished after update of finished_at on dibs_batches when old.finished_at is null and new.finished_at is not null begin
  insert into dibs_jobs (queue, rank, type, run_at, created_at, max_attempts, payload, tags, submits)
  select json_extract(h.value, '$.queue'), json_extract(h.value, '$.rank'), json_extract(h.value, '$.type'),
    max(coalesce(cast(json_extract(h.value, '$.run_at') * 1000000 as integer), c.now + cast(json_extract(h.value, '$.delay') * 1000000 as integer)), c.now), c.now,
    json_extract(h.value, '$.max_attempts'), coalesce(json_extract(h.value, '$.payload'), json_object('batch_id', new.id)),
    json_extract(h.value, '$.tags'), json_extract(h.value, '$.submits')
  from dibs_clock c cross join json_each(new.hooks) h
  where json_extract(h.value, '$.hook') in ('on_complete', case
    when exists (select 1 from dibs_parts p where p.batch = new.id and p.successful < p.total) then 'on_failure' else 'on_success' end);
end;
CREATE UNIQUE INDEX dibs_one_submission on dibs_submissions (type, digest) where digest is not null;
CREATE INDEX dibs_expired_submissions on dibs_submissions (expires) where expires is not null;
CREATE VIEW dibs_all_jobs as
  select id, type, queue, case when state = 2 then 'PROCESSING' when held and submits then 'SUBMITTING' when held then 'RUNNING'
      when state = 0 then 'PENDING' else 'RETRY' end as state,
    9 - rank % 10 as priority, attempts, max_attempts, payload, null as result,
    json_extract(failures, '$[' || (json_array_length(failures) - 1) || '].error') as error, progress, tags,
    unique_key, worker >> 20 as worker, created_at, run_at, claimed_at as started_at, null as finished_at from dibs_jobs
  union all
  select id, type, queue, case state when 4 then 'FAILED' else 'CANCELLED' end, 9 - rank % 10, attempts, max_attempts, payload, null,
    json_extract(failures, '$[' || (json_array_length(failures) - 1) || '].error'), progress, tags,
    unique_key, worker >> 20, created_at, run_at, claimed_at, finished_at from dibs_dead
  union all
  select id, type, queue, 'SUCCESSFUL', 9 - rank % 10, attempts, max_attempts, payload, result,
    json_extract(failures, '$[' || (json_array_length(failures) - 1) || '].error'), progress, tags,
    unique_key, worker >> 20, created_at, run_at, claimed_at, finished_at from dibs_history;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('dibs_jobs',22);
INSERT INTO "sqlite_sequence" VALUES('dibs_batches',1);
COMMIT;
