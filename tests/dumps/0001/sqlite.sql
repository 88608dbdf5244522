BEGIN TRANSACTION;
CREATE TABLE dibs_batches (
  id integer primary key autoincrement,
  name text,
  created_at integer not null,
  closed_at integer,                            -- since then jobs come from its own jobs alone
  finished_at integer,                          -- all of its jobs were final, and its hooks were added
  hooks text                                    -- the jobs to add then
);
INSERT INTO "dibs_batches" VALUES(1,'batched',1794894982434000,1794894982436000,NULL,'[{"hook":"on_complete","queue":"hooks","rank":4,"type":"done","delay":0,"max_attempts":3,"run_at":null,"payload":null,"tags":null,"submits":false}]');
CREATE TABLE dibs_dead (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text, unique_for real,
  payload text, tags text, progress text, failures text, hook_error text, row_key text,
  submits integer not null default 0, part integer
);
INSERT INTO "dibs_dead" VALUES(9,1794894982426000,1794894982425000,1794894982426000,1794894982426000,3209567294347804676,2191721,4,4,4,2,3,0,'failed','task','free',NULL,'{"name":"failed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"first","started_at":1794894982.425,"finished_at":1794894982.426},{"attempt":2,"error":"second","started_at":1794894982.426,"finished_at":1794894982.426}]',NULL,NULL,0,NULL);
INSERT INTO "dibs_dead" VALUES(10,1794894982427000,1794894982427000,NULL,1794894982427000,NULL,1253527,1,9,5,0,3,0,'cancelled','task',NULL,NULL,'{"name":"cancelled","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL,0,NULL);
CREATE TABLE dibs_history (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null, expires integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text,
  payload text, tags text, progress text, failures text, result text, submits integer not null default 0, part integer
);
INSERT INTO "dibs_history" VALUES(7,1794894982421000,1794894982421000,1794894982422000,1794894982422000,1795499782422000,3209567294347804673,1178658,3,4,3,1,3,0,'successful','task',NULL,'{"name":"successful","text":"naïve ☃ \\ '' \"\n"}',NULL,'{"percent":90}',NULL,'{"sent":true}',0,NULL);
INSERT INTO "dibs_history" VALUES(8,1794894982423000,1794894982423000,1794894982424000,1794894982424000,1795499782424000,3209567294347804674,2029736,2,4,3,1,3,0,'successful for long','task','held on','{"name":"successful for long","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,0,NULL);
INSERT INTO "dibs_history" VALUES(18,1794894982435000,1794894982435000,1794894982435000,1794894982435000,1795499782435000,3209567294347804681,1189647,2,4,3,1,3,0,'first of its batch','task',NULL,'{"name":"batched"}',NULL,NULL,NULL,NULL,0,18);
INSERT INTO "dibs_history" VALUES(21,1794894982440000,1794894982439000,1794894982441000,1794894982441000,1795499782441000,3209567294347804685,2457261,4,4,3,1,3,0,'provided','task',NULL,'{"name":"provided","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,'"short"',1,NULL);
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
INSERT INTO "dibs_jobs" VALUES(1,1794894982418000,1794894982418000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'waiting','task',NULL,NULL,'{"name":"waiting","text":"naïve ☃ \\ '' \"\n"}','["a","b"]',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(2,1794894982419000,1794894982419000,NULL,NULL,NULL,0,0,0,0,0,0,3,0,0,'urgent','task',NULL,NULL,'{"name":"urgent","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(3,4070908800000000,1794894982419000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'later','task',NULL,NULL,'{"name":"later","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(4,1794894982419000,1794894982419000,NULL,NULL,NULL,0,14,0,0,0,0,1,0,0,'once','task',NULL,NULL,'{"name":"once","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(5,1794894982420000,1794894982420000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'keyed','task','held',NULL,'{"name":"keyed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(6,1794894982420000,1794894982420000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'paused','task',NULL,NULL,'{"name":"paused","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(11,1794895042428000,1794894982428000,1794894982428000,NULL,1615060,2,4,0,0,1,1,5,0,0,'retried','task',NULL,NULL,'{"name":"retried","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1794894982.428,"finished_at":1794894982.428}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(12,1794894982429000,1794894982429000,1794894982429000,NULL,1347372,2,14,0,0,1,1,2,0,0,'on its last attempt','task',NULL,NULL,'{"name":"on its last attempt","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1794894982.429,"finished_at":1794894982.429}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(13,1794894982430000,1794894982430000,1794894982430000,NULL,1522742,2,4,0,0,0,0,3,0,0,'snoozed','task',NULL,NULL,'{"name":"snoozed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(14,1794894982431000,1794894982431000,1794894982431000,NULL,1162918,2,4,0,0,0,0,3,0,0,'released','task',NULL,NULL,'{"name":"released","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(15,1794894983002163,1794894982432000,1794894982433000,NULL,2383995,2,24,0,0,1,1,3,1,0,'suspect','task',NULL,NULL,'{"name":"suspect","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-3e88d9","started_at":1794894982.433,"finished_at":1794894982.433}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(16,1794894982748928,1794894982432000,1794894982433000,NULL,2770277,2,24,0,0,1,1,1,1,1,'finishing','task',NULL,NULL,'{"name":"finishing","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-3e88d9","started_at":1794894982.433,"finished_at":1794894982.433}]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(17,1794894982434000,1794894982434000,NULL,NULL,NULL,0,4,0,0,0,0,3,0,0,'batched','task',NULL,NULL,'{"name":"batched"}',NULL,NULL,NULL,NULL,17);
INSERT INTO "dibs_jobs" VALUES(19,1794894982436000,1794894982436000,1794894982437000,3209567294347804682,1262808,1,4,1,1,0,1,3,0,0,'submitting','task',NULL,NULL,'{"name":"submitting","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(20,1826430982439000,1794894982438000,1794894982438000,NULL,1267435,2,4,0,1,2,1,3,0,-1,'processing','task',NULL,NULL,'{"name":"processing","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(22,1794894982442000,1794894982442000,1794894982442000,3209567294347804686,1593331,1,4,1,0,0,1,3,0,0,'running','task',NULL,NULL,'{"name":"running","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE dibs_migrations (
  number integer primary key, name text not null, applied_at integer not null);
INSERT INTO "dibs_migrations" VALUES(1,'initial',1794894982414000);
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
INSERT INTO "dibs_submissions" VALUES(19,1,'task','key-submitting',1,1794894982437000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1829454982437000,NULL);
INSERT INTO "dibs_submissions" VALUES(20,1,'task','key-processing',1,1794894982438000,'task-processing','2ead4d73489cf14810f6503ea2097a1d25ef66c88c193350e9938d0a98a05ab7',1794894982439000,NULL,NULL,NULL,NULL,NULL,NULL,1829454982439000,NULL);
INSERT INTO "dibs_submissions" VALUES(21,1,'task','key-provided',1,1794894982440000,'task-provided','bf4a6dc2f7eeb94e24efc5d93453e31b4e0559c66328b9596982160726c2da5b',1794894982440000,NULL,NULL,NULL,'done','{"tokens":12}',1794894982441000,1802670982441000,NULL);
CREATE TABLE dibs_tokens (name text primary key, hash text not null, scopes text not null, created_at integer not null) without rowid;
CREATE TABLE dibs_unique_keys (
  type text not null, key text not null, job integer not null,
  until integer,                                -- null while its job is not final
  primary key (type, key)
) without rowid;
INSERT INTO "dibs_unique_keys" VALUES('task','held',5,NULL);
INSERT INTO "dibs_unique_keys" VALUES('task','held on',8,4948494982424000);
CREATE TABLE dibs_worker_names (id integer primary key, name text not null, seen_at integer not null);
INSERT INTO "dibs_worker_names" VALUES(3060881895397,'worker-6c63c6',1794894982418000);
INSERT INTO "dibs_worker_names" VALUES(4137728816064,'worker-3e88d9',1794894982432000);
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
INSERT INTO "dibs_workers" VALUES(3060881895397,'worker-6c63c6',15.0,3.0,1794894982417000,1794894982417000,1794894982417000,1,0);
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
