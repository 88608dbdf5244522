-- turn
delete from temp.dibs_written;
insert or replace into temp.dibs_written (job, token, state, error, attempts, key) values (?, ?, ?, ?, ?, ?);
update temp.dibs_written set row_key = (select dibs_j.row_key from dibs_jobs dibs_j where dibs_j.id = job and dibs_j.token = temp.dibs_written.token and dibs_j.held = 1 and dibs_j.type = 'Shop.OrderItem'),
  error = coalesce(error, case when state = 4 then (select json_extract(dibs_j.failures, '$[' || (json_array_length(dibs_j.failures) - 1) || '].error') from dibs_jobs dibs_j where dibs_j.id = job and dibs_j.token = temp.dibs_written.token and dibs_j.held = 1 and dibs_j.type = 'Shop.OrderItem') end);
delete from temp.dibs_written where job not in (
select dibs_w.job from temp.dibs_written dibs_w cross join "OrderItem" on "OrderItem"."order" = json_extract(dibs_w.key, '$[0]') and "OrderItem"."line%" = json_extract(dibs_w.key, '$[1]')
where "OrderItem"."State" = 'started' and dibs_w.row_key = json_array("OrderItem"."order", "OrderItem"."line%"));
select job from temp.dibs_written;
update "OrderItem" set "State" = case (select dibs_w.state from temp.dibs_written dibs_w where dibs_w.row_key = json_array("OrderItem"."order", "OrderItem"."line%")) when 3 then 'completed' when 4 then 'failed' when 5 then 'failed' when 1 then 'again' when 6 then 'started' else 'queued' end, "ended" = case when (select dibs_w.state from temp.dibs_written dibs_w where dibs_w.row_key = json_array("OrderItem"."order", "OrderItem"."line%")) in (3, 4, 5) then datetime('now') end, "why" = case when (select dibs_w.state from temp.dibs_written dibs_w where dibs_w.row_key = json_array("OrderItem"."order", "OrderItem"."line%")) <> 3 then coalesce(substr((select dibs_w.error from temp.dibs_written dibs_w where dibs_w.row_key = json_array("OrderItem"."order", "OrderItem"."line%")), 1, 200), "why") end, "tries" = (select dibs_w.attempts from temp.dibs_written dibs_w where dibs_w.row_key = json_array("OrderItem"."order", "OrderItem"."line%"))
where ("OrderItem"."order", "OrderItem"."line%") in (select json_extract(key, '$[0]'), json_extract(key, '$[1]') from temp.dibs_written);
select 'the native turn';
delete from temp.dibs_rows;
insert into temp.dibs_rows (job, key, row_key, attempts)
select dibs_j.id, json_extract(dibs_j.payload, '$.key'), dibs_j.row_key, dibs_j.attempts from json_each(:picked) dibs_p
cross join dibs_jobs dibs_j on dibs_j.id = dibs_p.value cross join "OrderItem" on "OrderItem"."order" = json_extract(dibs_j.payload, '$.key[0]') and "OrderItem"."line%" = json_extract(dibs_j.payload, '$.key[1]')
where ("OrderItem"."State" in ('queued', 'again', 'started') or dibs_j.rank % 10 = 0 and dibs_j.attempts = 1 and "OrderItem"."State" in ('failed', 'failed'))
  and (dibs_j.finishing = 0 or dibs_j.finishing >= 100 or "OrderItem"."State" = 'started')
  and not (dibs_j.rank % 10 = 9 and dibs_j.attempts = 1 and dibs_j.finishing = 0 and dibs_j.crashes = 0 and "OrderItem"."State" = 'started' and coalesce(strftime('%s', "OrderItem"."began") + 0 > strftime('%s', 'now') - :stuck_after, 0))
  and (dibs_j.finishing > 0 or exists (select 1 from (select * from "OrderItem" where (deleted is null
)) dibs_m where dibs_m."order" = "OrderItem"."order" and dibs_m."line%" = "OrderItem"."line%"));
update "OrderItem" set "State" = 'started', "began" = datetime('now'), "who" = :worker_name, "tries" = (select dibs_r.attempts from temp.dibs_rows dibs_r where dibs_r.row_key = json_array("OrderItem"."order", "OrderItem"."line%"))
where ("OrderItem"."order", "OrderItem"."line%") in (select json_extract(key, '$[0]'), json_extract(key, '$[1]') from temp.dibs_rows);
select dibs_r.job, json_object('row', json('{' || substr(json_object('order', case typeof("OrderItem"."order") when 'blob' then json_object('bytes', lower(hex("OrderItem"."order"))) else "OrderItem"."order" end, 'line%', case typeof("OrderItem"."line%") when 'blob' then json_object('bytes', lower(hex("OrderItem"."line%"))) else "OrderItem"."line%" end, 'State', case typeof("OrderItem"."State") when 'blob' then json_object('bytes', lower(hex("OrderItem"."State"))) else "OrderItem"."State" end, 'made', case typeof("OrderItem"."made") when 'blob' then json_object('bytes', lower(hex("OrderItem"."made"))) else "OrderItem"."made" end, 'weight', case typeof("OrderItem"."weight") when 'blob' then json_object('bytes', lower(hex("OrderItem"."weight"))) else "OrderItem"."weight" end, 'began', case typeof("OrderItem"."began") when 'blob' then json_object('bytes', lower(hex("OrderItem"."began"))) else "OrderItem"."began" end, 'ended', case typeof("OrderItem"."ended") when 'blob' then json_object('bytes', lower(hex("OrderItem"."ended"))) else "OrderItem"."ended" end, 'who', case typeof("OrderItem"."who") when 'blob' then json_object('bytes', lower(hex("OrderItem"."who"))) else "OrderItem"."who" end, 'why', case typeof("OrderItem"."why") when 'blob' then json_object('bytes', lower(hex("OrderItem"."why"))) else "OrderItem"."why" end, 'tries', case typeof("OrderItem"."tries") when 'blob' then json_object('bytes', lower(hex("OrderItem"."tries"))) else "OrderItem"."tries" end, 'deleted', case typeof("OrderItem"."deleted") when 'blob' then json_object('bytes', lower(hex("OrderItem"."deleted"))) else "OrderItem"."deleted" end), 2, length(json_object('order', case typeof("OrderItem"."order") when 'blob' then json_object('bytes', lower(hex("OrderItem"."order"))) else "OrderItem"."order" end, 'line%', case typeof("OrderItem"."line%") when 'blob' then json_object('bytes', lower(hex("OrderItem"."line%"))) else "OrderItem"."line%" end, 'State', case typeof("OrderItem"."State") when 'blob' then json_object('bytes', lower(hex("OrderItem"."State"))) else "OrderItem"."State" end, 'made', case typeof("OrderItem"."made") when 'blob' then json_object('bytes', lower(hex("OrderItem"."made"))) else "OrderItem"."made" end, 'weight', case typeof("OrderItem"."weight") when 'blob' then json_object('bytes', lower(hex("OrderItem"."weight"))) else "OrderItem"."weight" end, 'began', case typeof("OrderItem"."began") when 'blob' then json_object('bytes', lower(hex("OrderItem"."began"))) else "OrderItem"."began" end, 'ended', case typeof("OrderItem"."ended") when 'blob' then json_object('bytes', lower(hex("OrderItem"."ended"))) else "OrderItem"."ended" end, 'who', case typeof("OrderItem"."who") when 'blob' then json_object('bytes', lower(hex("OrderItem"."who"))) else "OrderItem"."who" end, 'why', case typeof("OrderItem"."why") when 'blob' then json_object('bytes', lower(hex("OrderItem"."why"))) else "OrderItem"."why" end, 'tries', case typeof("OrderItem"."tries") when 'blob' then json_object('bytes', lower(hex("OrderItem"."tries"))) else "OrderItem"."tries" end, 'deleted', case typeof("OrderItem"."deleted") when 'blob' then json_object('bytes', lower(hex("OrderItem"."deleted"))) else "OrderItem"."deleted" end)) - 2) || '}'), 'key', json_array("OrderItem"."order", "OrderItem"."line%"), 'done', case when exists (select 1 from "files" dibs_o where dibs_o."order" = "OrderItem"."order" and dibs_o."line" = "OrderItem"."line%") then json('true') else json('false') end) from temp.dibs_rows dibs_r cross join "OrderItem" on "OrderItem"."order" = json_extract(dibs_r.key, '$[0]') and "OrderItem"."line%" = json_extract(dibs_r.key, '$[1]');
delete from temp.dibs_rows;
insert into temp.dibs_rows (key, row_key)
select json_array("OrderItem"."order", "OrderItem"."line%"), json_array("OrderItem"."order", "OrderItem"."line%") from "OrderItem"
where exists (select 1 from dibs_workers where id = :worker)
  and not exists (select 1 from dibs_queues dibs_q where dibs_q.name = 'Shop.OrderItem' and dibs_q.paused)
  and "State" = 'queued' and "order" is not null and "line%" is not null and (deleted is null
)
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9))
  and json_array("OrderItem"."order", "OrderItem"."line%") not in (select value from json_each(:avoid))
order by "weight" desc, "made", "order", "line%" limit max(:room - json_array_length(:picked), 0);
insert into dibs_jobs (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload,
  claimed_at, run_at, created_at)
select 1, :worker << 20 | :claim, 1, 1 << 20 | ((:bits + dibs_r.place) & 1048575), 1, :max_attempts, 'Shop.OrderItem', 'Shop.OrderItem', dibs_r.row_key,
  json_object('table', 'Shop.OrderItem', 'key', json(dibs_r.key)), dibs_c.now, dibs_c.now, dibs_c.now
from dibs_clock dibs_c cross join temp.dibs_rows dibs_r where true
on conflict (type, row_key) where row_key is not null do update set
  held = 1, worker = excluded.worker, version = version + 1, attempts = 1, rank = excluded.rank, claimed_at = excluded.claimed_at, run_at = excluded.run_at,
  token = ((coalesce(token, 0) >> 20) + 1) << 20 | (excluded.token & 1048575);
update temp.dibs_rows set job = (select dibs_j.id from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = temp.dibs_rows.row_key);
update "OrderItem" set "State" = 'started', "began" = datetime('now'), "who" = :worker_name, "tries" = 1
where ("OrderItem"."order", "OrderItem"."line%") in (select json_extract(key, '$[0]'), json_extract(key, '$[1]') from temp.dibs_rows);
select dibs_j.id, dibs_j.token, dibs_j.type, dibs_j.queue, null, dibs_j.attempts, dibs_j.max_attempts, dibs_j.rank, dibs_j.run_at, dibs_j.crashes, dibs_j.finishing
from temp.dibs_rows dibs_r cross join dibs_jobs dibs_j on dibs_j.id = dibs_r.job order by dibs_r.place;
select dibs_r.job, json_object('row', json('{' || substr(json_object('order', case typeof("OrderItem"."order") when 'blob' then json_object('bytes', lower(hex("OrderItem"."order"))) else "OrderItem"."order" end, 'line%', case typeof("OrderItem"."line%") when 'blob' then json_object('bytes', lower(hex("OrderItem"."line%"))) else "OrderItem"."line%" end, 'State', case typeof("OrderItem"."State") when 'blob' then json_object('bytes', lower(hex("OrderItem"."State"))) else "OrderItem"."State" end, 'made', case typeof("OrderItem"."made") when 'blob' then json_object('bytes', lower(hex("OrderItem"."made"))) else "OrderItem"."made" end, 'weight', case typeof("OrderItem"."weight") when 'blob' then json_object('bytes', lower(hex("OrderItem"."weight"))) else "OrderItem"."weight" end, 'began', case typeof("OrderItem"."began") when 'blob' then json_object('bytes', lower(hex("OrderItem"."began"))) else "OrderItem"."began" end, 'ended', case typeof("OrderItem"."ended") when 'blob' then json_object('bytes', lower(hex("OrderItem"."ended"))) else "OrderItem"."ended" end, 'who', case typeof("OrderItem"."who") when 'blob' then json_object('bytes', lower(hex("OrderItem"."who"))) else "OrderItem"."who" end, 'why', case typeof("OrderItem"."why") when 'blob' then json_object('bytes', lower(hex("OrderItem"."why"))) else "OrderItem"."why" end, 'tries', case typeof("OrderItem"."tries") when 'blob' then json_object('bytes', lower(hex("OrderItem"."tries"))) else "OrderItem"."tries" end, 'deleted', case typeof("OrderItem"."deleted") when 'blob' then json_object('bytes', lower(hex("OrderItem"."deleted"))) else "OrderItem"."deleted" end), 2, length(json_object('order', case typeof("OrderItem"."order") when 'blob' then json_object('bytes', lower(hex("OrderItem"."order"))) else "OrderItem"."order" end, 'line%', case typeof("OrderItem"."line%") when 'blob' then json_object('bytes', lower(hex("OrderItem"."line%"))) else "OrderItem"."line%" end, 'State', case typeof("OrderItem"."State") when 'blob' then json_object('bytes', lower(hex("OrderItem"."State"))) else "OrderItem"."State" end, 'made', case typeof("OrderItem"."made") when 'blob' then json_object('bytes', lower(hex("OrderItem"."made"))) else "OrderItem"."made" end, 'weight', case typeof("OrderItem"."weight") when 'blob' then json_object('bytes', lower(hex("OrderItem"."weight"))) else "OrderItem"."weight" end, 'began', case typeof("OrderItem"."began") when 'blob' then json_object('bytes', lower(hex("OrderItem"."began"))) else "OrderItem"."began" end, 'ended', case typeof("OrderItem"."ended") when 'blob' then json_object('bytes', lower(hex("OrderItem"."ended"))) else "OrderItem"."ended" end, 'who', case typeof("OrderItem"."who") when 'blob' then json_object('bytes', lower(hex("OrderItem"."who"))) else "OrderItem"."who" end, 'why', case typeof("OrderItem"."why") when 'blob' then json_object('bytes', lower(hex("OrderItem"."why"))) else "OrderItem"."why" end, 'tries', case typeof("OrderItem"."tries") when 'blob' then json_object('bytes', lower(hex("OrderItem"."tries"))) else "OrderItem"."tries" end, 'deleted', case typeof("OrderItem"."deleted") when 'blob' then json_object('bytes', lower(hex("OrderItem"."deleted"))) else "OrderItem"."deleted" end)) - 2) || '}'), 'key', json_array("OrderItem"."order", "OrderItem"."line%"), 'done', case when exists (select 1 from "files" dibs_o where dibs_o."order" = "OrderItem"."order" and dibs_o."line" = "OrderItem"."line%") then json('true') else json('false') end) from temp.dibs_rows dibs_r cross join "OrderItem" on "OrderItem"."order" = json_extract(dibs_r.key, '$[0]') and "OrderItem"."line%" = json_extract(dibs_r.key, '$[1]');

-- due
select 'the native turn';

-- first
select json_array("OrderItem"."order", "OrderItem"."line%") from "OrderItem" where "State" = 'queued' and "order" is not null and "line%" is not null and (deleted is null
)
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9))
  and json_array("OrderItem"."order", "OrderItem"."line%") not in (select value from json_each(:avoid))
order by "weight" desc, "made", "order", "line%" limit 1;

-- waiting
select 1 from "OrderItem" where "State" = 'queued' and "order" is not null and "line%" is not null and (deleted is null
)
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)) limit 1;

-- count
select (select count(*) from (select 1 from "OrderItem" where "State" = 'queued' and "order" is not null and "line%" is not null and (deleted is null
)
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)) limit :most)),
  (select count(*) from (select 1 from "OrderItem" where "State" = 'started' limit :most));

-- mend
delete from temp.dibs_rows;
insert into temp.dibs_rows (job, key)
select dibs_j.id, json_array("OrderItem"."order", "OrderItem"."line%") from "OrderItem" cross join dibs_jobs dibs_j
  on dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%")
where "OrderItem"."State" = 'started'
  and dibs_j.held = 0 and dibs_j.state = 1 and dibs_j.finishing = 0 and dibs_j.attempts > 0;
update "OrderItem" set "State" = 'again' where ("OrderItem"."order", "OrderItem"."line%") in (select json_extract(key, '$[0]'), json_extract(key, '$[1]') from temp.dibs_rows);
select job from temp.dibs_rows;

-- notice
delete from temp.dibs_rows;
insert into temp.dibs_rows (key, row_key, attempts)
select json_array("OrderItem"."order", "OrderItem"."line%"), json_array("OrderItem"."order", "OrderItem"."line%"), coalesce(cast(strftime('%s', "OrderItem"."began") as integer) * 1000000, dibs_c.now) from dibs_clock dibs_c cross join "OrderItem"
where "OrderItem"."State" in ('started', 'again') and "OrderItem"."order" is not null and "OrderItem"."line%" is not null and exists (select 1 from (select * from "OrderItem" where (deleted is null
)) dibs_m where dibs_m."order" = "OrderItem"."order" and dibs_m."line%" = "OrderItem"."line%")
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%"))
  and not exists (select 1 from dibs_dead dibs_d where dibs_d.type = 'Shop.OrderItem' and dibs_d.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and dibs_d.hook_error = 'its row could not be written')
limit :most;
insert into dibs_jobs (run_at, created_at, rank, max_attempts, queue, type, row_key, payload)
select max(cast(dibs_r.attempts + :stuck_after * 1000000 as integer), dibs_c.now), dibs_c.now, 9, :max_attempts, 'Shop.OrderItem', 'Shop.OrderItem', dibs_r.row_key,
  json_object('table', 'Shop.OrderItem', 'key', json(dibs_r.key))
from dibs_clock dibs_c cross join temp.dibs_rows dibs_r;
select place from temp.dibs_rows;

-- look
select "State", '{' || substr(json_object('order', case typeof("OrderItem"."order") when 'blob' then json_object('bytes', lower(hex("OrderItem"."order"))) else "OrderItem"."order" end, 'line%', case typeof("OrderItem"."line%") when 'blob' then json_object('bytes', lower(hex("OrderItem"."line%"))) else "OrderItem"."line%" end, 'State', case typeof("OrderItem"."State") when 'blob' then json_object('bytes', lower(hex("OrderItem"."State"))) else "OrderItem"."State" end, 'made', case typeof("OrderItem"."made") when 'blob' then json_object('bytes', lower(hex("OrderItem"."made"))) else "OrderItem"."made" end, 'weight', case typeof("OrderItem"."weight") when 'blob' then json_object('bytes', lower(hex("OrderItem"."weight"))) else "OrderItem"."weight" end, 'began', case typeof("OrderItem"."began") when 'blob' then json_object('bytes', lower(hex("OrderItem"."began"))) else "OrderItem"."began" end, 'ended', case typeof("OrderItem"."ended") when 'blob' then json_object('bytes', lower(hex("OrderItem"."ended"))) else "OrderItem"."ended" end, 'who', case typeof("OrderItem"."who") when 'blob' then json_object('bytes', lower(hex("OrderItem"."who"))) else "OrderItem"."who" end, 'why', case typeof("OrderItem"."why") when 'blob' then json_object('bytes', lower(hex("OrderItem"."why"))) else "OrderItem"."why" end, 'tries', case typeof("OrderItem"."tries") when 'blob' then json_object('bytes', lower(hex("OrderItem"."tries"))) else "OrderItem"."tries" end, 'deleted', case typeof("OrderItem"."deleted") when 'blob' then json_object('bytes', lower(hex("OrderItem"."deleted"))) else "OrderItem"."deleted" end), 2, length(json_object('order', case typeof("OrderItem"."order") when 'blob' then json_object('bytes', lower(hex("OrderItem"."order"))) else "OrderItem"."order" end, 'line%', case typeof("OrderItem"."line%") when 'blob' then json_object('bytes', lower(hex("OrderItem"."line%"))) else "OrderItem"."line%" end, 'State', case typeof("OrderItem"."State") when 'blob' then json_object('bytes', lower(hex("OrderItem"."State"))) else "OrderItem"."State" end, 'made', case typeof("OrderItem"."made") when 'blob' then json_object('bytes', lower(hex("OrderItem"."made"))) else "OrderItem"."made" end, 'weight', case typeof("OrderItem"."weight") when 'blob' then json_object('bytes', lower(hex("OrderItem"."weight"))) else "OrderItem"."weight" end, 'began', case typeof("OrderItem"."began") when 'blob' then json_object('bytes', lower(hex("OrderItem"."began"))) else "OrderItem"."began" end, 'ended', case typeof("OrderItem"."ended") when 'blob' then json_object('bytes', lower(hex("OrderItem"."ended"))) else "OrderItem"."ended" end, 'who', case typeof("OrderItem"."who") when 'blob' then json_object('bytes', lower(hex("OrderItem"."who"))) else "OrderItem"."who" end, 'why', case typeof("OrderItem"."why") when 'blob' then json_object('bytes', lower(hex("OrderItem"."why"))) else "OrderItem"."why" end, 'tries', case typeof("OrderItem"."tries") when 'blob' then json_object('bytes', lower(hex("OrderItem"."tries"))) else "OrderItem"."tries" end, 'deleted', case typeof("OrderItem"."deleted") when 'blob' then json_object('bytes', lower(hex("OrderItem"."deleted"))) else "OrderItem"."deleted" end)) - 2) || '}',
  (select dibs_j.id from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%"))
from "OrderItem" where "OrderItem"."order" = json_extract(:key, '$[0]') and "OrderItem"."line%" = json_extract(:key, '$[1]');

-- glimpse
select dibs_k.key, "OrderItem"."State", "OrderItem"."tries", "OrderItem"."why",
  (select dibs_j.id from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)), json_array("OrderItem"."order", "OrderItem"."line%")
from json_each(:keys) dibs_k cross join "OrderItem" on "OrderItem"."order" = json_extract(dibs_k.value, '$[0]') and "OrderItem"."line%" = json_extract(dibs_k.value, '$[1]');

-- ended
select id, json_extract(payload, '$.key') from dibs_history where id > (select max(id) from (select max(id) as id from dibs_history union all select max(id) from dibs_dead)) - 1000 and type = 'Shop.OrderItem'
union all
select id, json_extract(payload, '$.key') from dibs_dead where id > (select max(id) from (select max(id) as id from dibs_history union all select max(id) from dibs_dead)) - 1000 and type = 'Shop.OrderItem';

-- explain
explain query plan select "order", "line%" from "OrderItem" where "State" = 'queued' and "order" is not null and "line%" is not null and (deleted is null
)
  and not exists (select 1 from dibs_jobs dibs_j where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and not (dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = 9)) order by "weight" desc, "made", "order", "line%" limit 5;

-- unknown
select cast("State" as text), count(*) from "OrderItem"
where ("State" is null or "State" not in ('queued', 'started', 'completed', 'failed', 'again')) and (deleted is null
) group by 1 order by 2 desc limit 20;

-- stuck
select json_array("OrderItem"."order", "OrderItem"."line%") from "OrderItem"
where "State" = 'started' and not coalesce(strftime('%s', "OrderItem"."began") + 0 > strftime('%s', 'now') - :stuck_after, 0) and (deleted is null
)
  and not exists (select 1 from dibs_jobs dibs_j join dibs_workers dibs_w on dibs_w.id = dibs_j.worker >> 20
    where dibs_j.type = 'Shop.OrderItem' and dibs_j.row_key = json_array("OrderItem"."order", "OrderItem"."line%") and dibs_j.held = 1) limit 1000;

-- duplicates
select "order", "line", count(*) from "files" group by "order", "line" having count(*) > 1 order by count(*) desc limit 1000;

-- plan
create index if not exists "OrderItem_dibs_waiting" on "OrderItem" ("weight" desc, "made", "order", "line%") where "State" = 'queued';

-- plan
create index if not exists "OrderItem_dibs_running" on "OrderItem" ("order", "line%") where "State" = 'started';

-- plan
create unique index if not exists "files_dibs_once" on "files" ("order", "line");
