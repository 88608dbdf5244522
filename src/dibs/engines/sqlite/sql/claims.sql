-- Owning jobs: the turn (settle what is done, claim what is next). All steps of a name run in one write transaction, so
-- no other writer comes between them: a claim picks, marks and reads back, and needs no RETURNING (SQLite 3.24 will do).

-- name: turn
-- 1. Finished jobs go to history, failed ones to dead.
-- when settles
delete from temp.dibs_done;
-- when settles
delete from temp.dibs_back;
-- when done
insert into temp.dibs_done (id, state, days, result, failure, hook_error, type, unique_key, unique_for)
select j.id, json_extract(d.value, '$[2]'), json_extract(d.value, '$[3]'), json_extract(d.value, '$[4]'), json_extract(d.value, '$[5]'),
  json_extract(d.value, '$[6]'), j.type, j.unique_key, j.unique_for
from json_each(:done) d cross join dibs.jobs j
  on j.id = json_extract(d.value, '$[0]') and j.token = json_extract(d.value, '$[1]') and j.held = 1
where true on conflict do nothing;
-- when done
insert into dibs.history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, rank, state,
  attempts, max_attempts, crashes, queue, type, unique_key, payload, tags, progress, failures, result)
select j.id, j.run_at, j.created_at, j.claimed_at, c.now, c.now + d.days * 86400000000, j.worker, j.token, j.rank, d.state,
  j.attempts, j.max_attempts, j.crashes, j.queue, j.type, j.unique_key, j.payload, j.tags, j.progress, j.failures, d.result
from dibs.clock c cross join temp.dibs_done d cross join dibs.jobs j on j.id = d.id where d.state = 3;
-- when done
insert into dibs.dead (id, run_at, created_at, claimed_at, finished_at, worker, token, rank, state,
  attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress, failures, hook_error)
select j.id, j.run_at, j.created_at, j.claimed_at, c.now, j.worker, j.token, j.rank, d.state,
  j.attempts, j.max_attempts, j.crashes, j.queue, j.type, j.unique_key, j.unique_for, j.payload, j.tags, j.progress,
  case when d.failure is null then j.failures else json_insert(
    case when json_array_length(j.failures) >= 10 then json_remove(j.failures, '$[0]') else coalesce(j.failures, '[]') end,
    '$[' || min(coalesce(json_array_length(j.failures), 0), 9) || ']',
    json_set(d.failure, '$.started_at', j.claimed_at / 1e6, '$.finished_at', c.now / 1e6)) end, d.hook_error
from dibs.clock c cross join temp.dibs_done d cross join dibs.jobs j on j.id = d.id where d.state <> 3;
-- when done
delete from dibs.unique_keys where (type, key, job) in (
  select type, unique_key, id from temp.dibs_done where unique_key is not null and unique_for is null);
-- when done
update dibs.unique_keys set until = (select now from dibs.clock) + (select unique_for from temp.dibs_done d where d.id = job) * 1000000
where (type, key, job) in (select type, unique_key, id from temp.dibs_done where unique_key is not null and unique_for is not null);
-- when done
delete from dibs.jobs where id in (select id from temp.dibs_done);
-- 2. Others go back to waiting: 1 retry, 2 snooze, 3 release, 4 finish (to be claimed once more only to be finished).
-- when back
insert into temp.dibs_back (id, way, delay, failure)
select j.id, json_extract(b.value, '$[2]'), json_extract(b.value, '$[3]'), json_extract(b.value, '$[4]')
from json_each(:back) b cross join dibs.jobs j
  on j.id = json_extract(b.value, '$[0]') and j.token = json_extract(b.value, '$[1]') and j.held = 1
where true on conflict do nothing;
-- when back
update dibs.jobs set
  held = 0, worker = null,
  state = case (select way from temp.dibs_back b where b.id = dibs.jobs.id) when 2 then 0 when 3 then state else 1 end,
  attempts = attempts - ((select way from temp.dibs_back b where b.id = dibs.jobs.id) in (2, 3) and finishing = 0),
  finishing = case (select way from temp.dibs_back b where b.id = dibs.jobs.id)
    when 4 then max(finishing, 1) when 3 then max(finishing - 1, 0) else finishing end,
  run_at = case (select way from temp.dibs_back b where b.id = dibs.jobs.id) when 3 then run_at
    else (select now from dibs.clock) + cast((select delay from temp.dibs_back b where b.id = dibs.jobs.id) * 1000000 as integer) end,
  rank = case (select way from temp.dibs_back b where b.id = dibs.jobs.id)
    when 3 then rank
    when 4 then rank % 10 + 10
    when 2 then rank % 10 + 10 * (attempts - 1 >= max_attempts - 1)
    else rank % 10 + 10 * (attempts >= max_attempts - 1) end,
  failures = case when (select failure from temp.dibs_back b where b.id = dibs.jobs.id) is null then failures else json_insert(
    case when json_array_length(failures) >= 10 then json_remove(failures, '$[0]') else coalesce(failures, '[]') end,
    '$[' || min(coalesce(json_array_length(failures), 0), 9) || ']',
    json_set((select failure from temp.dibs_back b where b.id = dibs.jobs.id),
      '$.started_at', claimed_at / 1e6, '$.finished_at', (select now from dibs.clock) / 1e6)) end
where id in (select id from temp.dibs_back);
-- 3. The head row: the clock, the paused queues, and what became of write-backs that changed nothing:
--    {"job id": the state that the same token left, or null when lost}.
select null, null, null, null, null, null, null, null, null, null, null, c.now,
  (select case when count(*) > 0 then json_group_array(name) end from dibs.queues where paused),
  case when :settles > 0 and (select count(*) from temp.dibs_done) + (select count(*) from temp.dibs_back) < :settles then (
    select json_group_object(u.id, coalesce(
      (select h.state from dibs.history h where h.id = u.id and h.token = u.token),
      (select g.state from dibs.dead g where g.id = u.id and g.token = u.token),
      (select j.state from dibs.jobs j where j.id = u.id and j.token = u.token and j.held = 0)))
    from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as token from json_each(:done)
          union all select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(:back)) u
    where u.id not in (select id from temp.dibs_done) and u.id not in (select id from temp.dibs_back)) end
from dibs.clock c;
-- 4. The claim. One element of ranges per range (queue, rank), in the order wanted: the loops run in the order written.
-- when limit
delete from temp.dibs_picked;
-- when suspects
insert into temp.dibs_picked (id)
select j.id from json_each(:ranges) r cross join dibs.jobs j indexed by dibs.claim_order
  on j.queue = json_extract(r.value, '$[0]') and j.rank = json_extract(r.value, '$[1]') + 20 and j.held = 0
  and j.run_at <= (select now from dibs.clock) and j.type not in (select value from json_each(:unknown))
where json_extract(r.value, '$[1]') < 10 and exists (select 1 from dibs.workers where id = :worker)
  and not exists (select 1 from dibs.queues q where q.name = json_extract(r.value, '$[0]') and q.paused)
limit :suspects;
-- when limit
insert into temp.dibs_picked (id)
select j.id from json_each(:ranges) r cross join dibs.jobs j indexed by dibs.claim_order
  on j.queue = json_extract(r.value, '$[0]') and j.rank = json_extract(r.value, '$[1]') and j.held = 0
  and j.run_at <= (select now from dibs.clock) and j.type not in (select value from json_each(:unknown))
where exists (select 1 from dibs.workers where id = :worker)
  and not exists (select 1 from dibs.queues q where q.name = json_extract(r.value, '$[0]') and q.paused)
limit :limit - (select count(*) from temp.dibs_picked);
-- when limit
update dibs.jobs set
  held = 1, worker = :worker << 20 | :claim, token = ((coalesce(token, 0) >> 20) + 1) << 20 | (random() & 1048575),
  attempts = attempts + (finishing = 0), finishing = finishing + (finishing > 0), claimed_at = (select now from dibs.clock)
where id in (select id from temp.dibs_picked);
-- when limit
select j.id, j.token, j.type, j.queue, j.payload, j.attempts, j.max_attempts, j.rank, j.run_at, j.crashes, j.finishing, null, null, null
from temp.dibs_picked p cross join dibs.jobs j on j.id = p.id order by p.place;

-- name: next_due
-- Seconds until the next job of these queues can be claimed: 0 when one is due, null when there is none.
with recursive ranks (rank) as (values (0) union all select rank + 1 from ranks where rank < 29)
select max(min(due) - (select now from dibs.clock), 0) / 1e6 from (
  select (select min(j.run_at) from dibs.jobs j indexed by dibs.claim_order where j.queue = q.value and j.rank = r.rank and j.held = 0) as due
  from json_each(:queues) q cross join ranks r
  where not exists (select 1 from dibs.queues p where p.name = q.value and p.paused));
