BEGIN TRANSACTION;
CREATE TABLE dibs_dead (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text, unique_for real,
  payload text, tags text, progress text, failures text, hook_error text, row_key text
);
INSERT INTO "dibs_dead" VALUES(9,1794882578259000,1794882578258000,1794882578260000,1794882578261000,2051757294764425220,2630566,4,4,4,2,3,0,'failed','task','free',NULL,'{"name":"failed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"first","started_at":1794882578.259,"finished_at":1794882578.259},{"attempt":2,"error":"second","started_at":1794882578.26,"finished_at":1794882578.261}]',NULL,NULL);
INSERT INTO "dibs_dead" VALUES(10,1794882578261000,1794882578261000,NULL,1794882578261000,NULL,1834779,1,9,5,0,3,0,'cancelled','task',NULL,NULL,'{"name":"cancelled","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE dibs_history (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null, expires integer not null,
  worker integer, token integer, version integer not null, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text,
  payload text, tags text, progress text, failures text, result text
);
INSERT INTO "dibs_history" VALUES(7,1794882578255000,1794882578255000,1794882578255000,1794882578256000,1795487378256000,2051757294764425217,1171369,3,4,3,1,3,0,'successful','task',NULL,'{"name":"successful","text":"naïve ☃ \\ '' \"\n"}',NULL,'{"percent":90}',NULL,'{"sent":true}');
INSERT INTO "dibs_history" VALUES(8,1794882578257000,1794882578257000,1794882578257000,1794882578258000,1795487378258000,2051757294764425218,1410388,2,4,3,1,3,0,'successful for long','task','held on','{"name":"successful for long","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
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
INSERT INTO "dibs_jobs" VALUES(1,1794882578252000,1794882578252000,NULL,NULL,NULL,0,4,0,0,0,3,0,0,'waiting','task',NULL,NULL,'{"name":"waiting","text":"naïve ☃ \\ '' \"\n"}','["a","b"]',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(2,1794882578252000,1794882578252000,NULL,NULL,NULL,0,0,0,0,0,3,0,0,'urgent','task',NULL,NULL,'{"name":"urgent","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(3,4070908800000000,1794882578253000,NULL,NULL,NULL,0,4,0,0,0,3,0,0,'later','task',NULL,NULL,'{"name":"later","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(4,1794882578253000,1794882578253000,NULL,NULL,NULL,0,14,0,0,0,1,0,0,'once','task',NULL,NULL,'{"name":"once","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(5,1794882578254000,1794882578254000,NULL,NULL,NULL,0,4,0,0,0,3,0,0,'keyed','task','held',NULL,'{"name":"keyed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(6,1794882578254000,1794882578254000,NULL,NULL,NULL,0,4,0,0,0,3,0,0,'paused','task',NULL,NULL,'{"name":"paused","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(11,1794882638263000,1794882578262000,1794882578262000,NULL,1513495,2,4,0,1,1,5,0,0,'retried','task',NULL,NULL,'{"name":"retried","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1794882578.262,"finished_at":1794882578.263}]',NULL);
INSERT INTO "dibs_jobs" VALUES(12,1794882578264000,1794882578263000,1794882578263000,NULL,1166815,2,14,0,1,1,2,0,0,'on its last attempt','task',NULL,NULL,'{"name":"on its last attempt","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1794882578.263,"finished_at":1794882578.264}]',NULL);
INSERT INTO "dibs_jobs" VALUES(13,1794882578265000,1794882578264000,1794882578265000,NULL,1327809,2,4,0,0,0,3,0,0,'snoozed','task',NULL,NULL,'{"name":"snoozed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(14,1794882578265000,1794882578265000,1794882578266000,NULL,2083878,2,4,0,0,0,3,0,0,'released','task',NULL,NULL,'{"name":"released","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(15,1794882578822488,1794882578267000,1794882578267000,NULL,2393926,2,24,0,1,1,3,1,0,'suspect','task',NULL,NULL,'{"name":"suspect","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-6076a6","started_at":1794882578.267,"finished_at":1794882578.268}]',NULL);
INSERT INTO "dibs_jobs" VALUES(16,1794882578290792,1794882578267000,1794882578267000,NULL,2890918,2,24,0,1,1,1,1,1,'finishing','task',NULL,NULL,'{"name":"finishing","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-6076a6","started_at":1794882578.267,"finished_at":1794882578.268}]',NULL);
INSERT INTO "dibs_jobs" VALUES(17,1794882578268000,1794882578268000,1794882578269000,2051757294764425225,1241043,1,4,1,0,1,3,0,0,'running','task',NULL,NULL,'{"name":"running","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
CREATE TABLE dibs_migrations (
  number integer primary key, name text not null, applied_at integer not null);
INSERT INTO "dibs_migrations" VALUES(1,'initial',1794882578248000);
CREATE TABLE dibs_queues (name text primary key, paused integer not null default 0) without rowid;
INSERT INTO "dibs_queues" VALUES('paused',1);
CREATE TABLE dibs_requests (key text primary key, fingerprint text not null, job integer, at integer not null) without rowid;
CREATE TABLE dibs_secrets (name text primary key, value text not null) without rowid;
CREATE TABLE dibs_stats (
  minute integer not null, queue text not null, successful integer not null, failed integer not null, retried integer not null,
  primary key (minute, queue)
) without rowid;
CREATE TABLE dibs_tokens (name text primary key, hash text not null, scopes text not null, created_at integer not null) without rowid;
CREATE TABLE dibs_unique_keys (
  type text not null, key text not null, job integer not null,
  until integer,                                -- null while its job is not final
  primary key (type, key)
) without rowid;
INSERT INTO "dibs_unique_keys" VALUES('task','held',5,NULL);
INSERT INTO "dibs_unique_keys" VALUES('task','held on',8,4948482578258000);
CREATE TABLE dibs_worker_names (id integer primary key, name text not null, seen_at integer not null);
INSERT INTO "dibs_worker_names" VALUES(1956708235516,'worker-57f724',1794882578251000);
INSERT INTO "dibs_worker_names" VALUES(3039696254009,'worker-6076a6',1794882578266000);
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
INSERT INTO "dibs_workers" VALUES(1956708235516,'worker-57f724',15.0,3.0,1794882578251000,1794882578251000,1794882578251000,1,0);
CREATE VIEW dibs_clock as select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now;
CREATE INDEX dibs_claim_order on dibs_jobs (queue, rank, run_at) where held = 0;
CREATE UNIQUE INDEX dibs_row_lease on dibs_jobs (type, row_key) where row_key is not null;
CREATE INDEX dibs_dead_queue on dibs_dead (queue, state);
CREATE INDEX dibs_dead_row on dibs_dead (type, row_key) where row_key is not null;
CREATE INDEX dibs_old_requests on dibs_requests (at);
CREATE VIEW dibs_all_jobs as
  select id, type, queue, case when held then 'RUNNING' when state = 0 then 'PENDING' when state = 1 then 'RETRY' else 'PROCESSING' end as state,
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
INSERT INTO "sqlite_sequence" VALUES('dibs_jobs',17);
COMMIT;
