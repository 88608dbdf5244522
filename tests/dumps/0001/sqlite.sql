BEGIN TRANSACTION;
CREATE TABLE dibs_dead (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null,
  worker integer, token integer, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text, unique_for real,
  payload text, tags text, progress text, failures text, hook_error text
);
INSERT INTO "dibs_dead" VALUES(9,1794808687156000,1794808687154000,1794808687157000,1794808687157000,2165628357695242244,2821137,4,4,2,3,0,'failed','task','free',NULL,'{"name":"failed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"first","started_at":1794808687.155,"finished_at":1794808687.156},{"attempt":2,"error":"second","started_at":1794808687.157,"finished_at":1794808687.157}]',NULL);
INSERT INTO "dibs_dead" VALUES(10,1794808687158000,1794808687158000,NULL,1794808687158000,NULL,1875540,9,5,0,3,0,'cancelled','task',NULL,NULL,'{"name":"cancelled","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
CREATE TABLE dibs_history (
  id integer primary key, run_at integer not null, created_at integer not null, claimed_at integer,
  finished_at integer not null, expires integer not null,
  worker integer, token integer, rank integer not null, state integer not null,
  attempts integer not null, max_attempts integer not null, crashes integer not null,
  queue text not null, type text not null, unique_key text,
  payload text, tags text, progress text, failures text, result text
);
INSERT INTO "dibs_history" VALUES(7,1794808687149000,1794808687149000,1794808687150000,1794808687151000,1795413487151000,2165628357695242241,1520782,4,3,1,3,0,'successful','task',NULL,'{"name":"successful","text":"naïve ☃ \\ '' \"\n"}',NULL,'{"percent":90}',NULL,'{"sent":true}');
INSERT INTO "dibs_history" VALUES(8,1794808687152000,1794808687152000,1794808687153000,1794808687154000,1795413487154000,2165628357695242242,1635808,4,3,1,3,0,'successful for long','task','held on','{"name":"successful for long","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL,NULL);
CREATE TABLE dibs_jobs (
  id integer primary key autoincrement,         -- or ids would come back once the table is empty
  run_at integer not null,
  created_at integer not null,
  claimed_at integer,
  worker integer,
  token integer,
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
  failures text
);
INSERT INTO "dibs_jobs" VALUES(1,1794808687145000,1794808687145000,NULL,NULL,NULL,4,0,0,0,3,0,0,'waiting','task',NULL,NULL,'{"name":"waiting","text":"naïve ☃ \\ '' \"\n"}','["a","b"]',NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(2,1794808687146000,1794808687146000,NULL,NULL,NULL,0,0,0,0,3,0,0,'urgent','task',NULL,NULL,'{"name":"urgent","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(3,4070908800000000,1794808687146000,NULL,NULL,NULL,4,0,0,0,3,0,0,'later','task',NULL,NULL,'{"name":"later","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(4,1794808687147000,1794808687147000,NULL,NULL,NULL,14,0,0,0,1,0,0,'once','task',NULL,NULL,'{"name":"once","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(5,1794808687147000,1794808687147000,NULL,NULL,NULL,4,0,0,0,3,0,0,'keyed','task','held',NULL,'{"name":"keyed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(6,1794808687148000,1794808687148000,NULL,NULL,NULL,4,0,0,0,3,0,0,'paused','task',NULL,NULL,'{"name":"paused","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(11,1794808747160000,1794808687159000,1794808687160000,NULL,1613535,4,0,1,1,5,0,0,'retried','task',NULL,NULL,'{"name":"retried","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1794808687.16,"finished_at":1794808687.16}]');
INSERT INTO "dibs_jobs" VALUES(12,1794808687162000,1794808687161000,1794808687161000,NULL,1716279,14,0,1,1,2,0,0,'on its last attempt','task',NULL,NULL,'{"name":"on its last attempt","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"boom","started_at":1794808687.161,"finished_at":1794808687.162}]');
INSERT INTO "dibs_jobs" VALUES(13,1794808687163000,1794808687162000,1794808687163000,NULL,1360227,4,0,0,0,3,0,0,'snoozed','task',NULL,NULL,'{"name":"snoozed","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(14,1794808687164000,1794808687164000,1794808687165000,NULL,1939567,4,0,0,0,3,0,0,'released','task',NULL,NULL,'{"name":"released","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
INSERT INTO "dibs_jobs" VALUES(15,1794808688105098,1794808687166000,1794808687167000,NULL,2946811,24,0,1,1,3,1,0,'suspect','task',NULL,NULL,'{"name":"suspect","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-576f80","started_at":1794808687.167,"finished_at":1794808687.168}]');
INSERT INTO "dibs_jobs" VALUES(16,1794808687467552,1794808687167000,1794808687167000,NULL,2409196,24,0,1,1,1,1,1,'finishing','task',NULL,NULL,'{"name":"finishing","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,'[{"attempt":1,"error":"the worker died","worker":"worker-576f80","started_at":1794808687.167,"finished_at":1794808687.168}]');
INSERT INTO "dibs_jobs" VALUES(17,1794808687169000,1794808687169000,1794808687169000,2165628357695242249,1236975,4,1,0,1,3,0,0,'running','task',NULL,NULL,'{"name":"running","text":"naïve ☃ \\ '' \"\n"}',NULL,NULL,NULL);
CREATE TABLE dibs_migrations (
  number integer primary key, name text not null, applied_at integer not null);
INSERT INTO "dibs_migrations" VALUES(1,'initial',1794808687140000);
CREATE TABLE dibs_queues (name text primary key, paused integer not null default 0) without rowid;
INSERT INTO "dibs_queues" VALUES('paused',1);
CREATE TABLE dibs_unique_keys (
  type text not null, key text not null, job integer not null,
  until integer,                                -- null while its job is not final
  primary key (type, key)
) without rowid;
INSERT INTO "dibs_unique_keys" VALUES('task','held',5,NULL);
INSERT INTO "dibs_unique_keys" VALUES('task','held on',8,4948408687154000);
CREATE TABLE dibs_worker_names (id integer primary key, name text not null, seen_at integer not null);
INSERT INTO "dibs_worker_names" VALUES(2065304143615,'worker-83df7d',1794808687144000);
INSERT INTO "dibs_worker_names" VALUES(4300778548860,'worker-576f80',1794808687166000);
CREATE TABLE dibs_workers (
  id integer primary key,                       -- random: a number that comes back after a restore belongs to nobody
  name text not null,
  lease real not null,                          -- seconds without a beat until it is dead
  beat real not null,                           -- seconds between its beats
  started_at integer not null,
  beat_at integer not null,
  steady_since integer not null,                -- its beats went through without a gap since then
  asking integer not null default 1             -- it has claimed since its last beat, or had room to
);
INSERT INTO "dibs_workers" VALUES(2065304143615,'worker-83df7d',15.0,3.0,1794808687144000,1794808687144000,1794808687144000,1);
CREATE VIEW dibs_clock as select cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 as now;
CREATE INDEX dibs_claim_order on dibs_jobs (queue, rank, run_at) where held = 0;
CREATE INDEX dibs_dead_queue on dibs_dead (queue, state);
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
