-- turn
delete from temp.dibs_written;
insert or replace into temp.dibs_written (job, token, state, error, attempts, key) values (?, ?, ?, ?, ?, ?);
update temp.dibs_written set row_key = (select dibs_j.row_key from dibs_jobs dibs_j where dibs_j.id = job and dibs_j.token = temp.dibs_written.token and dibs_j.held = 1 and dibs_j.type = 'things'),
  error = coalesce(error, case when state = 4 then (select json_extract(dibs_j.failures, '$[' || (json_array_length(dibs_j.failures) - 1) || '].error') from dibs_jobs dibs_j where dibs_j.id = job and dibs_j.token = temp.dibs_written.token and dibs_j.held = 1 and dibs_j.type = 'things') end);
delete from temp.dibs_written where job not in (
select dibs_w.job from temp.dibs_written dibs_w cross join "things" on "things"."id" = json_extract(dibs_w.key, '$[0]')
where "things"."status" = 'started' and dibs_w.row_key = cast("things"."id" as text));
select job from temp.dibs_written;
update "things" set "status" = case (select dibs_w.state from temp.dibs_written dibs_w where dibs_w.row_key = cast("things"."id" as text)) when 3 then 'completed' when 4 then 'failed' when 5 then 'failed' when 1 then 'queued' when 6 then 'started' else 'queued' end
where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_written);
select 'the native turn';
delete from temp.dibs_rows;
insert into temp.dibs_rows (job, key, row_key, attempts)
select dibs_j.id, json_extract(dibs_j.payload, '$.key'), dibs_j.row_key, dibs_j.attempts from json_each(:picked) dibs_p
cross join dibs_jobs dibs_j on dibs_j.id = dibs_p.value cross join "things" on "things"."id" = json_extract(dibs_j.payload, '$.key[0]')
where dibs_j.row_key = cast("things"."id" as text) and ("things"."status" in ('queued', 'queued', 'started') or dibs_j.rank % 10 = 0 and dibs_j.attempts = 1 and "things"."status" in ('failed', 'failed'))
  and (dibs_j.finishing = 0 or dibs_j.finishing >= 100 or "things"."status" = 'started')
  and not (dibs_j.rank % 10 = 9 and dibs_j.attempts = 1 and dibs_j.finishing = 0 and dibs_j.crashes = 0 and "things"."status" = 'started' and 0)
  and (dibs_j.finishing > 0 or 1);
update "things" set "status" = 'started'
where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_rows);
select dibs_r.job, json_object('row', json('{' || substr(json_object('id', case when typeof("things"."id") = 'blob' then json_object('bytes', lower(hex("things"."id"))) when typeof("things"."id") = 'real' and abs("things"."id") = 9e999 then json_object('real', cast("things"."id" as text)) else "things"."id" end, 'status', case when typeof("things"."status") = 'blob' then json_object('bytes', lower(hex("things"."status"))) when typeof("things"."status") = 'real' and abs("things"."status") = 9e999 then json_object('real', cast("things"."status" as text)) else "things"."status" end), 2, length(json_object('id', case when typeof("things"."id") = 'blob' then json_object('bytes', lower(hex("things"."id"))) when typeof("things"."id") = 'real' and abs("things"."id") = 9e999 then json_object('real', cast("things"."id" as text)) else "things"."id" end, 'status', case when typeof("things"."status") = 'blob' then json_object('bytes', lower(hex("things"."status"))) when typeof("things"."status") = 'real' and abs("things"."status") = 9e999 then json_object('real', cast("things"."status" as text)) else "things"."status" end)) - 2) || '}'), 'key', json_array("things"."id"), 'done', case when 0 then json('true') else json('false') end) from temp.dibs_rows dibs_r cross join "things" on "things"."id" = json_extract(dibs_r.key, '$[0]');
delete from temp.dibs_rows;
insert into temp.dibs_rows (key, row_key)
select json_array("things"."id"), cast("things"."id" as text) from "things"
where exists (select 1 from dibs_workers where id = :worker)
  and not exists (select 1 from dibs_queues dibs_q where dibs_q.name = 'things' and dibs_q.paused)
  and "status" = 'queued' and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text) and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9))
order by "id" limit max(:room - json_array_length(:picked), 0);
insert into dibs_jobs (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload,
  claimed_at, run_at, created_at)
select 1, :worker << 20 | :claim, 1, 1 << 20 | ((:bits + dibs_r.place) & 1048575), 1, :max_attempts, 'things', 'things', dibs_r.row_key,
  json_object('table', 'things', 'key', json(dibs_r.key)), dibs_c.now, dibs_c.now, dibs_c.now
from dibs_clock dibs_c cross join temp.dibs_rows dibs_r where true
on conflict (type, row_key) where row_key is not null do update set
  held = 1, worker = excluded.worker, version = version + 1, attempts = 1, rank = excluded.rank, claimed_at = excluded.claimed_at, run_at = excluded.run_at,
  token = ((coalesce(token, 0) >> 20) + 1) << 20 | (excluded.token & 1048575);
update temp.dibs_rows set job = (select dibs_j.id from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = temp.dibs_rows.row_key);
update "things" set "status" = 'started'
where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_rows) and "status" = 'queued';
select dibs_j.id, dibs_j.token, dibs_j.type, dibs_j.queue, null, dibs_j.attempts, dibs_j.max_attempts, dibs_j.rank, dibs_j.run_at, dibs_j.crashes, dibs_j.finishing
from temp.dibs_rows dibs_r cross join dibs_jobs dibs_j on dibs_j.id = dibs_r.job order by dibs_r.place;
select dibs_r.job, json_object('row', json('{' || substr(json_object('id', case when typeof("things"."id") = 'blob' then json_object('bytes', lower(hex("things"."id"))) when typeof("things"."id") = 'real' and abs("things"."id") = 9e999 then json_object('real', cast("things"."id" as text)) else "things"."id" end, 'status', case when typeof("things"."status") = 'blob' then json_object('bytes', lower(hex("things"."status"))) when typeof("things"."status") = 'real' and abs("things"."status") = 9e999 then json_object('real', cast("things"."status" as text)) else "things"."status" end), 2, length(json_object('id', case when typeof("things"."id") = 'blob' then json_object('bytes', lower(hex("things"."id"))) when typeof("things"."id") = 'real' and abs("things"."id") = 9e999 then json_object('real', cast("things"."id" as text)) else "things"."id" end, 'status', case when typeof("things"."status") = 'blob' then json_object('bytes', lower(hex("things"."status"))) when typeof("things"."status") = 'real' and abs("things"."status") = 9e999 then json_object('real', cast("things"."status" as text)) else "things"."status" end)) - 2) || '}'), 'key', json_array("things"."id"), 'done', case when 0 then json('true') else json('false') end) from temp.dibs_rows dibs_r cross join "things" on "things"."id" = json_extract(dibs_r.key, '$[0]');

-- due
select 'the native turn';

-- first
select cast("things"."id" as text) from "things" where "status" = 'queued' and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text) and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9))
order by "id" limit 1;

-- put_off
insert into dibs_jobs (run_at, created_at, max_attempts, queue, type, row_key, payload)
select cast(dibs_c.now + :seconds * 1000000 as integer), dibs_c.now, :max_attempts, 'things', 'things', dibs_p.row_key,
  json_object('table', 'things', 'key', json(dibs_p.key))
from dibs_clock dibs_c cross join (
  select cast("things"."id" as text) as row_key, json_array("things"."id") as key from "things" where "status" = 'queued' and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text) and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9))
order by "id" limit 1) dibs_p
where dibs_p.row_key = :row_key
on conflict (type, row_key) where row_key is not null do update set run_at = excluded.run_at, rank = excluded.rank;

-- mend
delete from temp.dibs_rows;
insert into temp.dibs_rows (job, key)
select dibs_j.id, json_array("things"."id") from "things" cross join dibs_jobs dibs_j
  on dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text)
where "things"."status" = 'started'
  and dibs_j.held = 0 and dibs_j.state = 1 and dibs_j.finishing = 0 and dibs_j.attempts > 0;
update "things" set "status" = 'queued' where "things"."id" in (select json_extract(key, '$[0]') from temp.dibs_rows);
select job from temp.dibs_rows;

-- notice
delete from temp.dibs_rows;
insert into temp.dibs_rows (key, row_key, attempts)
select json_array("things"."id"), cast("things"."id" as text), coalesce(cast(null as integer) * 1000000, dibs_c.now) from dibs_clock dibs_c cross join "things"
where "things"."status" in ('started') and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text))
  and not exists (select 1 from dibs_dead dibs_d where dibs_d.type = 'things' and dibs_d.row_key = cast("things"."id" as text) and dibs_d.hook_error = 'its row could not be written')
limit :most;
insert into dibs_jobs (run_at, created_at, rank, max_attempts, queue, type, row_key, payload)
select max(cast(dibs_r.attempts + :stuck_after * 1000000 as integer), dibs_c.now), dibs_c.now, 9, :max_attempts, 'things', 'things', dibs_r.row_key,
  json_object('table', 'things', 'key', json(dibs_r.key))
from dibs_clock dibs_c cross join temp.dibs_rows dibs_r;
select place from temp.dibs_rows;

-- waiting
select 1 from "things" where "status" = 'queued' and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text) and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)) limit 1;

-- count
select (select count(*) from (select 1 from "things" where "status" = 'queued' and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text) and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)) limit :most)),
  (select count(*) from (select 1 from "things" where "status" = 'started' limit :most));

-- look
select "status", '{' || substr(json_object('id', case when typeof("things"."id") = 'blob' then json_object('bytes', lower(hex("things"."id"))) when typeof("things"."id") = 'real' and abs("things"."id") = 9e999 then json_object('real', cast("things"."id" as text)) else "things"."id" end, 'status', case when typeof("things"."status") = 'blob' then json_object('bytes', lower(hex("things"."status"))) when typeof("things"."status") = 'real' and abs("things"."status") = 9e999 then json_object('real', cast("things"."status" as text)) else "things"."status" end), 2, length(json_object('id', case when typeof("things"."id") = 'blob' then json_object('bytes', lower(hex("things"."id"))) when typeof("things"."id") = 'real' and abs("things"."id") = 9e999 then json_object('real', cast("things"."id" as text)) else "things"."id" end, 'status', case when typeof("things"."status") = 'blob' then json_object('bytes', lower(hex("things"."status"))) when typeof("things"."status") = 'real' and abs("things"."status") = 9e999 then json_object('real', cast("things"."status" as text)) else "things"."status" end)) - 2) || '}',
  (select dibs_j.id from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text))
from "things" where "things"."id" = json_extract(:key, '$[0]');

-- glimpse
select dibs_k.key, "things"."status", null, null,
  (select dibs_j.id from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text) and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)), json_array("things"."id")
from json_each(:keys) dibs_k cross join "things" on "things"."id" = json_extract(dibs_k.value, '$[0]');

-- ended
select id, json_extract(payload, '$.key') from dibs_history where id > (select max(id) from (select max(id) as id from dibs_history union all select max(id) from dibs_dead)) - 1000 and type = 'things'
union all
select id, json_extract(payload, '$.key') from dibs_dead where id > (select max(id) from (select max(id) as id from dibs_history union all select max(id) from dibs_dead)) - 1000 and type = 'things';

-- explain
explain query plan select "id" from "things" where "status" = 'queued' and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text) and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)) order by "id" limit 5;

-- unknown
select cast("status" as text), count(*) from "things"
where ("status" is null or "status" not in ('queued', 'started', 'completed', 'failed')) and 1 group by 1 order by 2 desc limit 20;

-- nameless
select count(*) from "things"
where "status" in ('queued', 'started') and not (case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end) and 1;

-- stuck
select cast("things"."id" as text) from "things"
where "status" = 'started' and not 0 and case typeof("things"."id") when 'integer' then 1 when 'text' then instr("things"."id", char(0)) = 0 when 'real' then cast("things"."id" as text) + 0.0 = "things"."id" else 0 end and 1
  and not exists (select 1 from dibs_clock dibs_c cross join dibs_jobs dibs_j left join dibs_workers dibs_w on dibs_w.id = dibs_j.worker >> 20
    where dibs_j.type = 'things' and dibs_j.row_key = cast("things"."id" as text)
      and case dibs_j.held when 1 then abs(dibs_c.now - dibs_w.beat_at) <= dibs_w.lease * 1000000 else dibs_j.run_at > dibs_c.now - :stuck_after * 1000000 end) limit 1000;

-- plan
create index if not exists "things_dibs_waiting" on "things" ("id") where "status" = 'queued';

-- plan
create index if not exists "things_dibs_running" on "things" ("id") where "status" = 'started';
