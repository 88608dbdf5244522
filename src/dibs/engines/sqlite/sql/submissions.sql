-- What is handed to a provider. A job's last submission counts; it is open until `finished_at`.

-- name: begin_submission
-- Before the provider is asked, and only by who holds the job: what was known until now, and from now on it may have been accepted.
insert into dibs.submissions (job, round, type, key, begun_at, part)
select j.id, coalesce((select max(s.round) from dibs.submissions s where s.job = j.id), 0) + 1, :type, :key, c.now, j.part
from dibs.clock c cross join dibs.jobs j
where j.id = :id and j.token = :token and j.held = 1
  and not exists (
    select 1 from dibs.submissions s where s.job = j.id and s.finished_at is null
      and s.round = (select max(l.round) from dibs.submissions l where l.job = j.id));
select s.round, s.key, s.tried, s.task_id, s.answer from dibs.jobs j cross join dibs.submissions s on s.job = j.id
where j.id = :id and j.token = :token and j.held = 1 order by s.round desc limit 1;
update dibs.submissions set tried = 1, expires = (select now from dibs.clock) + :days * 86400000000
where job = :id and round = (select max(l.round) from dibs.submissions l where l.job = :id)
  and exists (select 1 from dibs.jobs j where j.id = :id and j.token = :token and j.held = 1);

-- name: refuse_submission
-- The provider has said no for now: it did not accept, and need not be asked whether it did.
update dibs.submissions set tried = 0
where job = :id and round = :round and task_id is null
  and exists (select 1 from dibs.jobs j where j.id = :id and j.token = :token and j.held = 1);
select id from dibs.jobs where id = :id and token = :token and held = 1;

-- name: accept_submission
-- Noted whoever holds the job by now. Of two ids for one submission the first counts, and the other is kept for people.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id) select 1 from dibs.submissions
where job = :id and round = :round and task_id <> :task_id
  and not exists (select 1 from json_each(coalesce(others, '[]')) o where o.value = :task_id)
  and not exists (select 1 from dibs.submissions o where o.type = :type and o.digest = :digest and (o.job, o.round) <> (:id, :round));
update dibs.submissions set others = json_insert(coalesce(others, '[]'), '$[' || json_array_length(coalesce(others, '[]')) || ']', :task_id)
where job = :id and round = :round and exists (select 1 from temp.dibs_listed);
update dibs.submissions set task_id = :task_id, digest = :digest, accepted_at = (select now from dibs.clock), tried = 1, outcome = null,
  expires = (select now from dibs.clock) + :days * 86400000000
where job = :id and round = :round and finished_at is null and (task_id is null or task_id = :task_id)
  and not exists (select 1 from dibs.submissions o where o.type = :type and o.digest = :digest and (o.job, o.round) <> (:id, :round));
select (select o.job from dibs.submissions o where o.type = :type and o.digest = :digest and (o.job, o.round) <> (:id, :round)),
  coalesce(s.task_id = :task_id and s.finished_at is null, 0), coalesce(s.task_id = :task_id and s.answered_at is not null, 0),
  (select count(*) from temp.dibs_listed)
from dibs.submissions s where s.job = :id and s.round = :round;

-- name: process
-- The provider works on it, and nobody holds it until it is time to ask. So it is, too, if its owner lost it and nobody has it.
update dibs.jobs set held = 0, worker = null, version = version + 1, state = 2, finishing = -1, rank = rank % 10,
  run_at = (select now from dibs.clock) + cast(:delay * 1000000 as integer)
where id = :id and (held = 1 and token = :token or held = 0 and state <> 2 and finishing < 100);
select id from dibs.jobs where id = :id and state = 2 and held = 0;

-- name: submission
-- The last one of a job, and how many seconds ago it was accepted.
select s.round, s.key, s.tried, s.task_id, s.answer, (c.now - s.accepted_at) / 1e6, s.finished_at is null
from dibs.clock c cross join dibs.submissions s where s.job = :id order by s.round desc limit 1;

-- name: conclude_submission
-- Together with what the job comes to. One that is left open is gone on with when a person retries the job.
update dibs.submissions set
  outcome = :outcome, usage = coalesce(:usage, usage), tried = case when :open then 0 else tried end,
  finished_at = case when not :open then (select now from dibs.clock) end,
  expires = (select now from dibs.clock) + :days * 86400000000
where job = :id and round = :round
  and exists (select 1 from dibs.jobs j where j.id = :id and j.token = :token and j.held = 1);

-- name: answer_submission
-- The first answer counts, while the job is not final; also after it was given up on, for the day when a person retries it.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id) select s.job from dibs.submissions s
where s.job = :id and s.round = :round and s.answered_at is null and s.finished_at is null
  and (exists (select 1 from dibs.jobs j where j.id = s.job) or exists (select 1 from dibs.dead d where d.id = s.job and d.state = 4));
update dibs.submissions set answer = :answer, answered_at = (select now from dibs.clock)
where job = :id and round = :round and exists (select 1 from temp.dibs_listed);
select id from temp.dibs_listed;

-- name: forget_answer
-- It said nothing yet, and may be given another time.
update dibs.submissions set answer = null, answered_at = null
where job = :id and round = :round and exists (select 1 from dibs.jobs j where j.id = :id and j.token = :token and j.held = 1);

-- name: end_cancelled
-- Of a job that was cancelled while it was handed over: the provider knows it now.
update dibs.submissions set outcome = 'cancelled', finished_at = (select now from dibs.clock)
where job = :id and round = :round and exists (select 1 from dibs.dead d where d.id = :id and d.state = 5);

-- name: hasten
update dibs.jobs set run_at = (select now from dibs.clock) where id = :id and held = 0 and state = 2 and finishing = -1;

-- name: receipts
-- For people: what the provider calls each of these jobs, and what it charged for it, earlier submissions included.
select s.job, s.task_id,
  (select json_group_array(json(e.usage)) from (
     select usage from dibs.submissions where job = s.job and usage is not null order by round) e)
from json_each(:ids) i cross join dibs.submissions s on s.job = i.value
where s.round = (select max(l.round) from dibs.submissions l where l.job = s.job) order by s.job;

-- name: prune_submissions
delete from temp.dibs_picked;
insert into temp.dibs_picked (place, id)
select job, round from dibs.submissions where expires <= (select now from dibs.clock) limit :limit;
delete from dibs.submissions where (job, round) in (select place, id from temp.dibs_picked);
select count(*) from temp.dibs_picked;
