-- Owning jobs: the turn (settle what is done, claim what is next). All steps of a name run in one write transaction, so
-- no other writer comes between them: a claim picks, then marks, and needs no RETURNING (SQLite 3.24 will do).

-- name: turn
-- 1. Finished jobs go to history, failed ones to dead. `special` tells those that are not plainly successful.
-- each special
insert or replace into temp.dibs_special (id, token, state, days, result, failure, hook_error) values (?, ?, ?, ?, ?, ?, ?);
-- when leases
insert into dibs.history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
  attempts, max_attempts, crashes, queue, type, unique_key, payload, tags, progress, failures, result,
  submits, part)
select j.id, j.run_at, j.created_at, j.claimed_at, c.now, c.now + coalesce(s.days, :days) * 86400000000, j.worker, j.token, j.version + 1, j.rank, 3,
  j.attempts, j.max_attempts, j.crashes, j.queue, j.type, j.unique_key, j.payload, j.tags, j.progress, j.failures, s.result,
  j.submits, j.part
from dibs.clock c cross join json_each(:leases) d
cross join dibs.jobs j on j.id = cast(d.key as integer) and j.token = d.value and j.held = 1
left join temp.dibs_special s on s.id = j.id and s.token = j.token where coalesce(s.state, 3) = 3;
-- As many have just gone to history as there are ids from the first to the last: then they leave `jobs` as a range, in half the time.
-- when leases
-- notes gapless
select 1 where changes() = :last - :first + 1;
-- If all were plain and all have just gone to history, and nobody uses keys or batches, then the rest is not worth a look.
-- when leases
-- notes rare
select 1 where changes() < :expected or exists (select 1 from dibs.unique_keys) or exists (select 1 from dibs.parts);
-- Write-backs that change nothing: settled before, or lost. (Of two leases of one job the later one counts.)
-- when rare
insert into temp.dibs_unsettled (id, token)
select cast(d.key as integer), d.value from json_each(case when changes() < :expected then :leases else '{}' end) d
where not exists (
  select 1 from dibs.jobs j where j.id = cast(d.key as integer) and j.token = d.value and j.held = 1);
-- when special
insert into dibs.dead (id, run_at, created_at, claimed_at, finished_at, worker, token, version, rank, state,
  attempts, max_attempts, crashes, queue, type, unique_key, unique_for, payload, tags, progress, failures, hook_error, row_key,
  submits, part)
select j.id, j.run_at, j.created_at, j.claimed_at, c.now, j.worker, j.token, j.version + 1, j.rank, d.state,
  j.attempts, j.max_attempts, j.crashes, j.queue, j.type, j.unique_key, j.unique_for, j.payload, j.tags, j.progress,
  case when d.failure is null then j.failures else json_insert(
    case when json_array_length(j.failures) >= 10 then json_remove(j.failures, '$[0]') else coalesce(j.failures, '[]') end,
    '$[' || min(coalesce(json_array_length(j.failures), 0), 9) || ']',
    json_set(d.failure, '$.started_at', j.claimed_at / 1e6, '$.finished_at', c.now / 1e6)) end, d.hook_error, j.row_key,
  j.submits, j.part
from dibs.clock c cross join temp.dibs_special d
cross join dibs.jobs j on j.id = d.id and j.token = d.token and j.held = 1 where d.state <> 3;
-- when rare
delete from dibs.unique_keys where (type, key, job) in (
  select j.type, j.unique_key, j.id from (select 1 from dibs.unique_keys limit 1) cross join json_each(:leases) d
  cross join dibs.jobs j on j.id = cast(d.key as integer) and j.token = d.value and j.held = 1
  where j.unique_key is not null and j.unique_for is null);
-- when rare
update dibs.unique_keys set until = (select now from dibs.clock) + (select unique_for from dibs.jobs j where j.id = job) * 1000000
where (type, key, job) in (
  select j.type, j.unique_key, j.id from (select 1 from dibs.unique_keys limit 1) cross join json_each(:leases) d
  cross join dibs.jobs j on j.id = cast(d.key as integer) and j.token = d.value and j.held = 1
  where j.unique_key is not null and j.unique_for is not null);
-- Jobs of batches are counted in their parts; where there are no batches, this is all.
-- when rare
-- notes counted
select json_array(j.part, sum(coalesce(s.state, 3) = 3), coalesce(sum(s.state = 4), 0), coalesce(sum(s.state = 5), 0))
from (select 1 from dibs.parts limit 1) cross join json_each(:leases) d
cross join dibs.jobs j on j.id = cast(d.key as integer) and j.token = d.value and j.held = 1 left join temp.dibs_special s on s.id = j.id and s.token = j.token
where j.part is not null group by j.part;
-- when counted
update dibs.parts set
  successful = successful + (select json_extract(c.value, '$[1]') from json_each(:counted) c where json_extract(c.value, '$[0]') = dibs.parts.id),
  failed = failed + (select json_extract(c.value, '$[2]') from json_each(:counted) c where json_extract(c.value, '$[0]') = dibs.parts.id),
  cancelled = cancelled + (select json_extract(c.value, '$[3]') from json_each(:counted) c where json_extract(c.value, '$[0]') = dibs.parts.id)
where id in (select json_extract(value, '$[0]') from json_each(:counted));
-- when gapless
delete from dibs.jobs where id between :first and :last;
-- when leases
-- unless gapless
delete from dibs.jobs where id in (select cast(d.key as integer) from json_each(:leases) d)
  and id not in (select u.id from temp.dibs_unsettled u);
-- 2. Others go back to waiting: 1 retry, 2 snooze, 3 release, 4 finish (to be claimed once more only to be finished), 5 to ask
--    the provider later (claimed for that alone, which is no attempt).
-- each back
insert or replace into temp.dibs_back (id, token, way, delay, failure) values (?, ?, ?, ?, ?);
-- when back
insert or ignore into temp.dibs_unsettled (id, token) select id, token from temp.dibs_back b
where not exists (select 1 from dibs.jobs j where j.id = b.id and j.token = b.token and j.held = 1);
-- when back
delete from temp.dibs_back where (id, token) in (select id, token from temp.dibs_unsettled);
-- when back
update dibs.jobs set
  held = 0, worker = null, version = version + 1,
  state = case (select way from temp.dibs_back b where b.id = dibs.jobs.id) when 2 then 0 when 3 then state when 5 then 2
    else case when finishing >= 100 then state else 1 end end,
  attempts = attempts - ((select way from temp.dibs_back b where b.id = dibs.jobs.id) in (2, 3) and finishing = 0),
  finishing = case (select way from temp.dibs_back b where b.id = dibs.jobs.id)
    when 5 then -1 when 4 then max(finishing, 1) when 3 then finishing - (finishing > 0) else max(finishing, 0) end,
  run_at = case when exists (select 1 from temp.dibs_back b where b.id = dibs.jobs.id and b.way = 3 and b.delay = 0) then run_at
    else (select now from dibs.clock) + cast((select delay from temp.dibs_back b where b.id = dibs.jobs.id) * 1000000 as integer) end,
  rank = case (select way from temp.dibs_back b where b.id = dibs.jobs.id)
    when 3 then rank
    when 5 then rank % 10
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
--    {"job id": the state that the same token left, or null when lost}. All of it in the columns of a job.
-- 4. After it the claim: pick, then mark. First suspects, then the others. `ranks` has a list of ranks for each queue, all in
--    the order wanted: the loops run in the order written. The rows come as they will be once they are marked.
-- gives picked
select null, null, (select case when count(*) > 0 then json_group_array(name) end from dibs.queues where paused),
  case when :settles > 0 and exists (select 1 from temp.dibs_unsettled) then (
    select json_group_object(u.id, coalesce(
      (select h.state from dibs.history h where h.id = u.id and h.token = u.token),
      (select g.state from dibs.dead g where g.id = u.id and g.token = u.token),
      (select j.state from dibs.jobs j where j.id = u.id and j.token = u.token and j.held = 0)))
    from temp.dibs_unsettled u
    where u.id not in (select id from temp.dibs_back) and not exists (
      select 1 from json_each(:leases) d where cast(d.key as integer) = u.id
        and (u.id, d.value) not in (select id, token from temp.dibs_unsettled))) end,
  null, null, null, null, c.now, null, null
from dibs.clock c
union all select * from (
  select j.id, ((coalesce(j.token, 0) >> 20) + 1) << 20 | ((:bits + j.id) & 1048575), j.type, j.queue, j.payload, j.attempts + (j.finishing = 0),
    j.max_attempts, j.rank, j.run_at, j.crashes, j.finishing + (j.finishing > 0)
  from json_each(:ranks) w cross join json_each(w.value) r cross join dibs.jobs j indexed by dibs.claim_order
    on j.queue = w.key and j.rank = r.value + 20 and j.held = 0
    and j.run_at <= (select now from dibs.clock) and (:unknown = '[]' or j.type not in (select value from json_each(:unknown)))
    and (j.row_key is not null) = :rows
  where r.value < 10 and exists (select 1 from dibs.workers where id = :worker)
    and exists (select 1 from dibs.jobs s indexed by dibs.claim_order where s.queue = w.key and s.rank >= 20 and s.held = 0)
    and not exists (select 1 from dibs.queues q where q.name = w.key and q.paused)
  limit :suspects)
union all
select j.id, ((coalesce(j.token, 0) >> 20) + 1) << 20 | ((:bits + j.id) & 1048575), j.type, j.queue, j.payload, j.attempts + (j.finishing = 0),
  j.max_attempts, j.rank, j.run_at, j.crashes, j.finishing + (j.finishing > 0)
from json_each(:ranks) w cross join json_each(w.value) r cross join dibs.jobs j indexed by dibs.claim_order
  on j.queue = w.key and j.rank = r.value and j.held = 0
  and j.run_at <= (select now from dibs.clock) and (:unknown = '[]' or j.type not in (select value from json_each(:unknown)))
  and (j.row_key is not null) = :rows
where exists (select 1 from dibs.workers where id = :worker)
  and not exists (select 1 from dibs.queues q where q.name = w.key and q.paused)
limit 1 + :limit;
-- when picked
update dibs.jobs set
  held = 1, worker = :worker << 20 | :claim, version = version + 1, token = ((coalesce(token, 0) >> 20) + 1) << 20 | ((:bits + id) & 1048575),
  attempts = attempts + (finishing = 0), finishing = finishing + (finishing > 0), claimed_at = (select now from dibs.clock)
where id in (select value from json_each(:picked));
-- when rare
delete from temp.dibs_unsettled;
-- when back
delete from temp.dibs_unsettled;
-- when back
delete from temp.dibs_back;
-- when special
delete from temp.dibs_special;

-- name: next_due
-- Seconds until the next job of these queues can be claimed: 0 when one is due, null when there is none.
with recursive ranks (rank) as (values (0) union all select rank + 1 from ranks where rank < 29)
select max(min(due) - (select now from dibs.clock), 0) / 1e6 from (
  select (select min(j.run_at) from dibs.jobs j indexed by dibs.claim_order where j.queue = q.value and j.rank = r.rank and j.held = 0) as due
  from json_each(:queues) q cross join ranks r
  where not exists (select 1 from dibs.queues p where p.name = q.value and p.paused));

-- name: upcoming
-- The queues that there are (or only those named), each with the seconds until its next job can be claimed, or null.
with recursive ranks (rank) as (values (0) union all select rank + 1 from ranks where rank < 29),
found (queue) as (
  select min(queue) from dibs.jobs where held = 0 and :every
  union all
  select (select min(j.queue) from dibs.jobs j where j.held = 0 and j.queue > f.queue) from found f where f.queue is not null),
names (queue) as (
  select queue from found where queue is not null
  union select name from dibs.queues where :every
  union select value from json_each(:queues))
select n.queue, (
  select (min(due) - (select now from dibs.clock)) / 1e6 from (
    select (select min(j.run_at) from dibs.jobs j indexed by dibs.claim_order where j.queue = n.queue and j.rank = r.rank and j.held = 0) as due
    from ranks r)
  where not exists (select 1 from dibs.queues p where p.name = n.queue and p.paused))
from names n order by 1;
