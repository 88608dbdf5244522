-- Adding jobs, looking them up, cancelling and retrying them. Columns of a job: see operations/rows.py.

-- name: add
-- needs returning
insert into dibs.jobs (queue, rank, type, run_at, created_at, max_attempts, payload, tags, submits)
select :queue, :rank, :type, max(coalesce(:run_at, c.now + cast(:delay * 1000000 as integer)), c.now), c.now, :max_attempts, :payload, :tags, :submits
from dibs.clock c
returning id, created_at, run_at, null;
-- lacks returning
insert into dibs.jobs (queue, rank, type, run_at, created_at, max_attempts, payload, tags, submits)
select :queue, :rank, :type, max(coalesce(:run_at, c.now + cast(:delay * 1000000 as integer)), c.now), c.now, :max_attempts, :payload, :tags, :submits
from dibs.clock c;
-- lacks returning
select id, created_at, run_at, null from dibs.jobs where id = last_insert_rowid();

-- name: add_each
insert into dibs.jobs (queue, rank, type, run_at, created_at, max_attempts, payload, tags, submits)
select json_extract(w.value, '$[0]'), json_extract(w.value, '$[1]'), json_extract(w.value, '$[2]'),
  max(coalesce(json_extract(w.value, '$[3]'), c.now + cast(json_extract(w.value, '$[4]') * 1000000 as integer)), c.now), c.now,
  json_extract(w.value, '$[5]'), json_extract(w.value, '$[6]'), json_extract(w.value, '$[7]'), json_extract(w.value, '$[8]')
from dibs.clock c cross join json_each(:jobs) w;
select id, created_at, run_at from dibs.jobs where id > last_insert_rowid() - :count and id <= last_insert_rowid() order by id;

-- name: add_many
-- Safe as a range: SQLite has one writer, so the ids of one insert have no gaps.
insert into dibs.jobs (queue, rank, type, run_at, created_at, max_attempts, tags, submits, payload)
select :queue, :rank, :type, max(coalesce(:run_at, c.now + cast(:delay * 1000000 as integer)), c.now), c.now, :max_attempts, :tags, :submits, p.value
from dibs.clock c cross join json_each(:payloads) p;
select id from dibs.jobs where id > last_insert_rowid() - :count and id <= last_insert_rowid();

-- name: wake
-- Listeners watch the file.

-- name: notify
-- Listeners watch the file.

-- name: add_keyed
delete from dibs.unique_keys
where (type, key) in (select json_extract(value, '$[2]'), json_extract(value, '$[9]') from json_each(:jobs))
  and until <= (select now from dibs.clock);
insert into dibs.jobs (queue, rank, type, run_at, created_at, max_attempts, payload, tags, submits, unique_key, unique_for)
select json_extract(w.value, '$[0]'), json_extract(w.value, '$[1]'), json_extract(w.value, '$[2]'),
  max(coalesce(json_extract(w.value, '$[3]'), c.now + cast(json_extract(w.value, '$[4]') * 1000000 as integer)), c.now), c.now,
  json_extract(w.value, '$[5]'), json_extract(w.value, '$[6]'), json_extract(w.value, '$[7]'), json_extract(w.value, '$[8]'),
  json_extract(w.value, '$[9]'), json_extract(w.value, '$[10]')
from dibs.clock c cross join json_each(:jobs) w
where w.key in (select min(f.key) from json_each(:jobs) f group by json_extract(f.value, '$[2]'), json_extract(f.value, '$[9]'))
  and not exists (select 1 from dibs.unique_keys k where k.type = json_extract(w.value, '$[2]') and k.key = json_extract(w.value, '$[9]'));
-- The rows just added are the last changes() ones: SQLite has one writer.
insert into dibs.unique_keys (type, key, job)
select type, unique_key, id from dibs.jobs where id > last_insert_rowid() - changes() and id <= last_insert_rowid();
-- With no change last_insert_rowid() is somebody else's.
select w.key + 1, k.job,
  j.id is not null
    and w.key in (select min(f.key) from json_each(:jobs) f group by json_extract(f.value, '$[2]'), json_extract(f.value, '$[9]')),
  j.created_at, j.run_at
from json_each(:jobs) w
cross join dibs.unique_keys k on k.type = json_extract(w.value, '$[2]') and k.key = json_extract(w.value, '$[9]')
left join dibs.jobs j on j.id = k.job and changes() > 0 and j.id > last_insert_rowid() - changes()
order by w.key;

-- name: begin_request
delete from temp.dibs_listed;
insert into temp.dibs_listed (id) select 1 where not exists (select 1 from dibs.requests where key = :key);
insert into dibs.requests (key, fingerprint, at) select :key, :fingerprint, now from dibs.clock where true on conflict do nothing;
select id from temp.dibs_listed;

-- name: request
select fingerprint, job from dibs.requests where key = :key;

-- name: end_request
update dibs.requests set job = :id where key = :key;

-- name: get
select j.id, j.type, j.queue, j.payload, case when not j.held or j.state = 2 then j.state when j.submits then 7 else 6 end, j.rank, j.attempts, j.max_attempts, null, j.failures,
  j.progress, j.tags, j.unique_key, n.name, j.created_at, j.run_at, j.claimed_at, null, j.version, j.submits
from json_each(:ids) i cross join dibs.jobs j on j.id = i.value left join dibs.worker_names n on n.id = j.worker >> 20
union all
select j.id, j.type, j.queue, j.payload, j.state, j.rank, j.attempts, j.max_attempts, null, j.failures,
  j.progress, j.tags, j.unique_key, n.name, j.created_at, j.run_at, j.claimed_at, j.finished_at, j.version, j.submits
from json_each(:ids) i cross join dibs.dead j on j.id = i.value left join dibs.worker_names n on n.id = j.worker >> 20
union all
select j.id, j.type, j.queue, j.payload, j.state, j.rank, j.attempts, j.max_attempts, j.result, j.failures,
  j.progress, j.tags, j.unique_key, n.name, j.created_at, j.run_at, j.claimed_at, j.finished_at, j.version, j.submits
from json_each(:ids) i cross join dibs.history j on j.id = i.value left join dibs.worker_names n on n.id = j.worker >> 20;

-- name: page_floor
-- How far down a page may read: the id of the `reach`-th row below `before` in the table where that comes first.
select max(
  coalesce((select id from dibs.jobs where :live and id < :before order by id desc limit 1 offset :reach - 1), 0),
  coalesce((select id from dibs.dead where :dead and id < :before order by id desc limit 1 offset :reach - 1), 0),
  coalesce((select id from dibs.history where :history and id < :before order by id desc limit 1 offset :reach - 1), 0));

-- name: page
select * from (select j.id, j.type, j.queue, j.payload, case when not j.held or j.state = 2 then j.state when j.submits then 7 else 6 end, j.rank, j.attempts, j.max_attempts, null,
    j.failures, j.progress, j.tags, j.unique_key, (select n.name from dibs.worker_names n where n.id = j.worker >> 20), j.created_at, j.run_at,
    j.claimed_at, null, j.version, j.submits
  from dibs.jobs j
  where :live and j.id < :before and j.id >= :floor
    and (:state is null or case when not j.held or j.state = 2 then j.state when j.submits then 7 else 6 end = :state)
    and (:type is null or j.type = :type) and (:queue is null or j.queue = :queue)
    and (:tag is null or exists (select 1 from json_each(case when json_valid(j.tags) then j.tags end) t where t.value = :tag))
  order by j.id desc limit :limit)
union all
select * from (select j.id, j.type, j.queue, j.payload, j.state, j.rank, j.attempts, j.max_attempts, null,
    j.failures, j.progress, j.tags, j.unique_key, (select n.name from dibs.worker_names n where n.id = j.worker >> 20), j.created_at, j.run_at,
    j.claimed_at, j.finished_at, j.version, j.submits
  from dibs.dead j
  where :dead and j.id < :before and j.id >= :floor and (:state is null or j.state = :state)
    and (:type is null or j.type = :type) and (:queue is null or j.queue = :queue)
    and (:tag is null or exists (select 1 from json_each(case when json_valid(j.tags) then j.tags end) t where t.value = :tag))
  order by j.id desc limit :limit)
union all
select * from (select j.id, j.type, j.queue, j.payload, j.state, j.rank, j.attempts, j.max_attempts, j.result,
    j.failures, j.progress, j.tags, j.unique_key, (select n.name from dibs.worker_names n where n.id = j.worker >> 20), j.created_at, j.run_at,
    j.claimed_at, j.finished_at, j.version, j.submits
  from dibs.history j
  where :history and j.id < :before and j.id >= :floor
    and (:type is null or j.type = :type) and (:queue is null or j.queue = :queue)
    and (:tag is null or exists (select 1 from json_each(case when json_valid(j.tags) then j.tags end) t where t.value = :tag))
  order by j.id desc limit :limit)
order by 1 desc limit :limit;

-- name: count
-- Of those that a person could cancel or retry.
select count(*) from (
  select * from (select 1 from dibs.jobs j
    where (:state is null or case when not j.held or j.state = 2 then j.state when j.submits then 7 else 6 end = :state)
      and (:type is null or j.type = :type) and (:queue is null or j.queue = :queue)
      and (:tag is null or exists (select 1 from json_each(case when json_valid(j.tags) then j.tags end) t where t.value = :tag)) limit :most)
  union all
  select * from (select 1 from dibs.dead j
    where (:state is null or j.state = :state)
      and (:type is null or j.type = :type) and (:queue is null or j.queue = :queue)
      and (:tag is null or exists (select 1 from json_each(case when json_valid(j.tags) then j.tags end) t where t.value = :tag)) limit :most));

-- name: cancel
-- From any state that is not final; the token moves on, so that the owner's write-back is refused.
-- The job of an adopted row is marked, and becomes CANCELLED by whoever knows that table: its row says so in the same moment.
-- So is one that a provider works on, by whoever can tell the provider.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id, type, unique_key, unique_for)
select j.id, j.type, case when j.row_key is null and j.finishing between 0 and 99 then j.unique_key end, j.unique_for
from json_each(:ids) i cross join dibs.jobs j on j.id = i.value where true
on conflict do nothing;
insert into dibs.dead (id, run_at, created_at, claimed_at, finished_at, worker, token, version, rank, state,
  attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress, failures, row_key,
  submits, part)
select j.id, j.run_at, j.created_at, j.claimed_at, c.now, j.worker, ((coalesce(j.token, 0) >> 20) + 1) << 20 | (random() & 1048575), j.version + 1, j.rank, 5,
  j.attempts, j.max_attempts, j.crashes, j.queue, j.type, j.unique_key, j.unique_for, j.payload, j.tags, j.progress, j.failures, j.row_key,
  j.submits, j.part
from dibs.clock c cross join temp.dibs_listed l cross join dibs.jobs j on j.id = l.id where j.row_key is null and j.finishing between 0 and 99;
delete from dibs.unique_keys where (type, key, job) in (
  select type, unique_key, id from temp.dibs_listed where unique_key is not null and unique_for is null);
update dibs.unique_keys set until = (select now from dibs.clock) + (select unique_for from temp.dibs_listed l where l.id = job) * 1000000
where (type, key, job) in (select type, unique_key, id from temp.dibs_listed where unique_key is not null and unique_for is not null);
-- notes counted
select json_array(j.part, count(*)) from temp.dibs_listed l cross join dibs.jobs j on j.id = l.id
where j.part is not null and j.row_key is null and j.finishing between 0 and 99 group by j.part;
delete from dibs.jobs where id in (select id from temp.dibs_listed) and row_key is null and finishing between 0 and 99;
-- when counted
update dibs.parts set
  cancelled = cancelled + (select json_extract(c.value, '$[1]') from json_each(:counted) c where json_extract(c.value, '$[0]') = dibs.parts.id)
where id in (select json_extract(value, '$[0]') from json_each(:counted));
update dibs.jobs set held = 0, worker = null, token = ((coalesce(token, 0) >> 20) + 1) << 20 | (random() & 1048575), version = version + 1,
  state = case state when 2 then 2 else 1 end, finishing = 100, run_at = (select now from dibs.clock), rank = rank % 10 + 10
where id in (select id from temp.dibs_listed);
select id, true from temp.dibs_listed;

-- name: wait_for_row
-- Never asked for: who writes, writes alone.
select id from dibs.jobs where id = :id;

-- name: retry
-- Back from the dead, attempts and crashes anew, if the unique key can be had again: one of each key, its holder first.
-- An adopted row has one job at most: if it has another by now, that one counts; of several, the youngest.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id, type, unique_key, number)
select d.id, d.type, d.unique_key, d.unique_key is null from json_each(:ids) i cross join dibs.dead d on d.id = i.value where true
on conflict do nothing;
delete from dibs.unique_keys where (type, key) in (select type, unique_key from temp.dibs_listed where unique_key is not null)
  and until <= (select now from dibs.clock);
update dibs.unique_keys set until = null where (type, key, job) in (select type, unique_key, id from temp.dibs_listed);
insert into dibs.unique_keys (type, key, job)
select type, unique_key, id from temp.dibs_listed where unique_key is not null order by id
on conflict do nothing;
update temp.dibs_listed set number = 1 where (type, unique_key, id) in (select type, key, job from dibs.unique_keys);
update temp.dibs_listed set number = 0 where id in (
  select d.id from temp.dibs_listed l cross join dibs.dead d on d.id = l.id and d.row_key is not null
  where exists (select 1 from dibs.jobs j where j.type = d.type and j.row_key = d.row_key)
    or exists (select 1 from temp.dibs_listed o cross join dibs.dead x on x.id = o.id where x.type = d.type and x.row_key = d.row_key and x.id > d.id));
insert into dibs.jobs (id, run_at, created_at, token, version, rank, attempts, max_attempts, queue, type, unique_key, unique_for, payload, tags, failures, row_key,
  submits, part)
select d.id, c.now, d.created_at, ((coalesce(d.token, 0) >> 20) + 1) << 20, d.version + 1,
  case when d.row_key is null then d.rank % 10 else 0 end + 10 * (d.max_attempts = 1), 0, d.max_attempts, d.queue,
  d.type, d.unique_key, d.unique_for, d.payload, d.tags, d.failures, d.row_key, d.submits, d.part
from dibs.clock c cross join temp.dibs_listed l cross join dibs.dead d on d.id = l.id where l.number = 1;
-- notes counted
select json_array(d.part, sum(d.state = 4), sum(d.state = 5)) from temp.dibs_listed l cross join dibs.dead d on d.id = l.id
where l.number = 1 and d.part is not null group by d.part;
-- when counted
update dibs.parts set
  failed = failed - (select json_extract(c.value, '$[1]') from json_each(:counted) c where json_extract(c.value, '$[0]') = dibs.parts.id),
  cancelled = cancelled - (select json_extract(c.value, '$[2]') from json_each(:counted) c where json_extract(c.value, '$[0]') = dibs.parts.id)
where id in (select json_extract(value, '$[0]') from json_each(:counted));
delete from dibs.dead where id in (select id from temp.dibs_listed where number = 1);
select l.id, l.number, coalesce((select k.job from dibs.unique_keys k where k.type = l.type and k.key = l.unique_key),
  (select j.id from dibs.dead d cross join dibs.jobs j on j.type = d.type and j.row_key = d.row_key where d.id = l.id))
from temp.dibs_listed l order by l.id;

-- name: matching_dead
select id from dibs.dead
where id > :after and (:state is null or state = :state)
  and (:type is null or type = :type) and (:queue is null or queue = :queue)
  and (:tag is null or exists (select 1 from json_each(case when json_valid(tags) then tags end) t where t.value = :tag))
order by id limit :limit;

-- name: matching_live
select id from dibs.jobs
where id > :after and (:state is null or case when not held or state = 2 then state when submits then 7 else 6 end = :state)
  and (:type is null or type = :type) and (:queue is null or queue = :queue)
  and (:tag is null or exists (select 1 from json_each(case when json_valid(tags) then tags end) t where t.value = :tag))
order by id limit :limit;

-- name: progress
update dibs.jobs set progress = :progress, version = version + 1 where id = :id and token = :token and held = 1;
select id from dibs.jobs where id = :id and token = :token and held = 1;
