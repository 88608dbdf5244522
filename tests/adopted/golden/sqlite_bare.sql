-- turn
delete from temp.dibs_written;
insert or replace into temp.dibs_written (job, token, state, error, attempts, key) values (?, ?, ?, ?, ?, ?);
update temp.dibs_written set row_key = (select j.row_key from dibs_jobs j where j.id = job and j.token = temp.dibs_written.token and j.held = 1);
delete from temp.dibs_written where row_key is null;
update "things" set "status" = case (select w.state from temp.dibs_written w where w.row_key = cast("things"."id" as text)) when 3 then 'completed' when 4 then 'failed' when 5 then 'failed' when 1 then 'queued' when 6 then 'started' else 'queued' end
where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_written) and "status" = 'started';
select 'the native turn';
delete from temp.dibs_rows;
insert into temp.dibs_rows (job, key, row_key, attempts)
select j.id, json_extract(j.payload, '$.key'), j.row_key, j.attempts from json_each(:picked) p
cross join dibs_jobs j on j.id = p.value cross join "things" on "things"."id" = json_extract(j.payload, '$.key[0]')
where ("things"."status" in ('queued', 'queued', 'started') or j.rank % 10 = 0 and j.attempts = 1 and "things"."status" in ('failed', 'failed'))
  and (j.finishing = 0 or j.finishing >= 100 or "things"."status" = 'started')
  and not (j.rank % 10 = 9 and j.attempts = 1 and j.finishing = 0 and j.crashes = 0 and "things"."status" = 'started' and 0)
  and 1;
update "things" set "status" = 'started'
where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_rows);
select r.job, json_object('row', json('{' || substr(json_object('id', case typeof("things"."id") when 'blob' then lower(hex("things"."id")) else "things"."id" end, 'status', case typeof("things"."status") when 'blob' then lower(hex("things"."status")) else "things"."status" end), 2, length(json_object('id', case typeof("things"."id") when 'blob' then lower(hex("things"."id")) else "things"."id" end, 'status', case typeof("things"."status") when 'blob' then lower(hex("things"."status")) else "things"."status" end)) - 2) || '}'), 'key', json_array("things"."id"), 'done', case when 0 then json('true') else json('false') end) from temp.dibs_rows r cross join "things" on "things"."id" = json_extract(r.key, '$[0]');
delete from temp.dibs_rows;
insert into temp.dibs_rows (key, row_key)
select json_array("things"."id"), cast("things"."id" as text) from "things"
where "status" = 'queued' and "id" is not null and 1
  and not exists (select 1 from dibs_jobs j where j.type = 'things' and j.row_key = cast("things"."id" as text) and (j.held = 1 or j.attempts > 0 or j.rank % 10 <> 9 and j.run_at > (select now from dibs_clock)))
  and exists (select 1 from dibs_workers where id = :worker)
  and not exists (select 1 from dibs_queues q where q.name = 'things' and q.paused)
order by "id" limit max(:room - json_array_length(:picked), 0);
insert into dibs_jobs (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload,
  claimed_at, run_at, created_at)
select 1, :worker << 20 | :claim, 1, 1 << 20 | ((:bits + r.place) & 1048575), 1, :max_attempts, 'things', 'things', r.row_key,
  json_object('table', 'things', 'key', json(r.key)), c.now, c.now, c.now
from dibs_clock c cross join temp.dibs_rows r where true
on conflict (type, row_key) where row_key is not null do update set
  held = 1, worker = excluded.worker, version = version + 1, attempts = 1, rank = excluded.rank, claimed_at = excluded.claimed_at, run_at = excluded.run_at,
  token = ((coalesce(token, 0) >> 20) + 1) << 20 | (excluded.token & 1048575);
update temp.dibs_rows set job = (select j.id from dibs_jobs j where j.type = 'things' and j.row_key = temp.dibs_rows.row_key);
update "things" set "status" = 'started'
where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_rows);
select j.id, j.token, j.type, j.queue, null, j.attempts, j.max_attempts, j.rank, j.run_at, j.crashes, j.finishing
from temp.dibs_rows r cross join dibs_jobs j on j.id = r.job order by r.place;
select r.job, json_object('row', json('{' || substr(json_object('id', case typeof("things"."id") when 'blob' then lower(hex("things"."id")) else "things"."id" end, 'status', case typeof("things"."status") when 'blob' then lower(hex("things"."status")) else "things"."status" end), 2, length(json_object('id', case typeof("things"."id") when 'blob' then lower(hex("things"."id")) else "things"."id" end, 'status', case typeof("things"."status") when 'blob' then lower(hex("things"."status")) else "things"."status" end)) - 2) || '}'), 'key', json_array("things"."id"), 'done', case when 0 then json('true') else json('false') end) from temp.dibs_rows r cross join "things" on "things"."id" = json_extract(r.key, '$[0]');

-- waiting
select 1 from "things" where "status" = 'queued' and "id" is not null and 1
  and not exists (select 1 from dibs_jobs j where j.type = 'things' and j.row_key = cast("things"."id" as text) and (j.held = 1 or j.attempts > 0 or j.rank % 10 <> 9 and j.run_at > (select now from dibs_clock))) limit 1;

-- count
select (select count(*) from (select 1 from "things" where "status" = 'queued' and "id" is not null and 1
  and not exists (select 1 from dibs_jobs j where j.type = 'things' and j.row_key = cast("things"."id" as text) and (j.held = 1 or j.attempts > 0 or j.rank % 10 <> 9 and j.run_at > (select now from dibs_clock))) limit :most)),
  (select count(*) from (select 1 from "things" where "status" = 'started' limit :most));

-- mend
delete from temp.dibs_rows;
insert into temp.dibs_rows (job, key)
select j.id, json_extract(j.payload, '$.key') from dibs_jobs j cross join "things" on "things"."id" = json_extract(j.payload, '$.key[0]')
where j.type = 'things' and j.row_key is not null and j.held = 0 and j.state = 1 and j.finishing = 0 and j.attempts > 0
  and "things"."status" = 'started';
update "things" set "status" = 'queued' where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_rows);
select job from temp.dibs_rows;

-- notice
delete from temp.dibs_rows;
insert into temp.dibs_rows (key, row_key, attempts)
select json_array("things"."id"), cast("things"."id" as text), c.now from dibs_clock c cross join "things"
where "things"."status" in ('started') and "things"."id" is not null and 1
  and not exists (select 1 from dibs_jobs j where j.type = 'things' and j.row_key = cast("things"."id" as text))
limit :most;
insert into dibs_jobs (run_at, created_at, rank, max_attempts, queue, type, row_key, payload)
select max(cast(r.attempts + :stuck_after * 1000000 as integer), c.now), c.now, 9, :max_attempts, 'things', 'things', r.row_key,
  json_object('table', 'things', 'key', json(r.key))
from dibs_clock c cross join temp.dibs_rows r;
select place from temp.dibs_rows;

-- look
select "status", '{' || substr(json_object('id', case typeof("things"."id") when 'blob' then lower(hex("things"."id")) else "things"."id" end, 'status', case typeof("things"."status") when 'blob' then lower(hex("things"."status")) else "things"."status" end), 2, length(json_object('id', case typeof("things"."id") when 'blob' then lower(hex("things"."id")) else "things"."id" end, 'status', case typeof("things"."status") when 'blob' then lower(hex("things"."status")) else "things"."status" end)) - 2) || '}',
  (select j.id from dibs_jobs j where j.type = 'things' and j.row_key = cast("things"."id" as text))
from "things" where "things"."id" = json_extract(:key, '$[0]');

-- explain
explain query plan select "id" from "things" where "status" = 'queued' and "id" is not null and 1
  and not exists (select 1 from dibs_jobs j where j.type = 'things' and j.row_key = cast("things"."id" as text) and (j.held = 1 or j.attempts > 0 or j.rank % 10 <> 9 and j.run_at > (select now from dibs_clock))) order by "id" limit 5;

-- unknown
select cast("status" as text), count(*) from "things"
where ("status" is null or "status" not in ('queued', 'started', 'completed', 'failed')) and 1 group by 1 order by 2 desc limit 20;

-- stuck
select cast("things"."id" as text) from "things"
where "status" = 'started' and not 0 and 1
  and not exists (select 1 from dibs_jobs j join dibs_workers w on w.id = j.worker >> 20
    where j.type = 'things' and j.row_key = cast("things"."id" as text) and j.held = 1) limit 1000;

-- plan
create index if not exists "things_dibs_waiting" on "things" ("id") where "status" = 'queued';

-- plan
create index if not exists "things_dibs_running" on "things" ("id") where "status" = 'started';
