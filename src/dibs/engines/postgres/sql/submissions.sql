-- What is handed to a provider. A job's last submission counts; it is open until `finished_at`.

-- name: begin_submission
-- Before the provider is asked, and only by who holds the job: what was known until now, and from now on it may have been accepted.
with mine as materialized (
  select id, part from dibs.jobs where id = :id::bigint and token = :token::bigint and held),
last as materialized (
  select s.* from mine m cross join lateral (select * from dibs.submissions where job = m.id order by round desc limit 1) s),
fresh as (
  insert into dibs.submissions (job, round, type, key, tried, part, expires)
  select m.id, coalesce((select round from last), 0) + 1, :type, :key, true, m.part, statement_timestamp() + make_interval(days => :days::int) from mine m
  where not exists (select from last where finished_at is null)
  returning round, key),
again as (
  update dibs.submissions s set tried = true, expires = statement_timestamp() + make_interval(days => :days::int) from last l
  where s.job = l.job and s.round = l.round and l.finished_at is null returning 1)
select round, key, false, null::text, null::text from fresh
union all
select l.round, l.key, l.tried, l.task_id, l.answer::text from last l where l.finished_at is null and (select count(*) from again) >= 0;

-- name: refuse_submission
-- The provider has said no for now: it did not accept, and need not be asked whether it did.
update dibs.submissions s set tried = false
where s.job = :id::bigint and s.round = :round::int and s.task_id is null
  and exists (select from dibs.jobs j where j.id = s.job and j.token = :token::bigint and j.held)
returning s.job;

-- name: accept_submission
-- Noted whoever holds the job by now. Of two ids for one submission the first counts, and the other is kept for people.
with other as materialized (
  select job from dibs.submissions where type = :type and digest = :digest and (job, round) <> (:id::bigint, :round::int)),
noted as (
  update dibs.submissions set task_id = :task_id, digest = :digest, accepted_at = statement_timestamp(), tried = true, outcome = null,
    expires = statement_timestamp() + make_interval(days => :days::int)
  where job = :id::bigint and round = :round::int and finished_at is null and (task_id is null or task_id = :task_id)
    and not exists (select from other)
  returning answered_at is not null as answered),
more as (
  update dibs.submissions set others = coalesce(others, '[]') || to_jsonb(:task_id::text)
  where job = :id::bigint and round = :round::int and task_id <> :task_id and not coalesce(others, '[]') ? :task_id
    and not exists (select from other)
  returning 1)
select (select job from other limit 1), (select count(*) from noted) > 0, coalesce((select answered from noted), false), (select count(*) from more) > 0;

-- name: process
-- The provider works on it, and nobody holds it until it is time to ask. So it is, too, if its owner lost it and nobody has it.
with moved as (
  update dibs.jobs j set held = false, worker = null, version = j.version + 1, state = 2, finishing = -1, rank = j.rank % 10,
    token = case when j.held then j.token end, run_at = statement_timestamp() + make_interval(secs => :delay::float8)
  where j.id = any (array[:id::bigint])
    and (j.held and j.token = :token::bigint or not j.held and j.state <> 2 and j.finishing < 100)
  returning j.id, j.queue, j.rank, j.run_at),
woken as materialized (
  select dibs.wake_1(queue, rank, run_at) from moved where :delay::float8 <= 5)
select id from moved where (select count(*) from woken) >= 0
union
select id from dibs.jobs where id = :id::bigint and state = 2 and not held;

-- name: submission
-- The last one of a job, and how many seconds ago it was accepted.
select round, key, tried, task_id, answer::text, extract(epoch from statement_timestamp() - accepted_at)::float8,
  finished_at is null
from dibs.submissions where job = :id::bigint order by round desc limit 1;

-- name: conclude_submission
-- Together with what the job comes to. One that is left open is gone on with when a person retries the job.
update dibs.submissions s set
  outcome = :outcome, usage = coalesce(:usage::jsonb, s.usage), tried = case when :open::boolean then false else s.tried end,
  finished_at = case when not :open::boolean then statement_timestamp() end,
  expires = statement_timestamp() + make_interval(days => :days::int)
where s.job = :id::bigint and s.round = :round::int
  and exists (select from dibs.jobs j where j.id = s.job and j.token = :token::bigint and j.held);

-- name: answer_submission
-- The first answer counts, while the job is not final; also after it was given up on, for the day when a person retries it.
update dibs.submissions s set answer = :answer::jsonb, answered_at = statement_timestamp()
where s.job = :id::bigint and s.round = :round::int and s.answered_at is null and s.finished_at is null
  and (exists (select from dibs.jobs j where j.id = s.job) or exists (select from dibs.dead d where d.id = s.job and d.state = 4))
returning s.job;

-- name: forget_answer
-- It said nothing yet, and may be given another time.
update dibs.submissions s set answer = null, answered_at = null
where s.job = :id::bigint and s.round = :round::int
  and exists (select from dibs.jobs j where j.id = s.job and j.token = :token::bigint and j.held);

-- name: end_cancelled
-- Of a job that was cancelled while it was handed over: the provider knows it now.
update dibs.submissions s set outcome = 'cancelled', finished_at = statement_timestamp()
where s.job = :id::bigint and s.round = :round::int and exists (select from dibs.dead d where d.id = s.job and d.state = 5);

-- name: hasten
-- A statement of its own: it sees a job that was accepted while the answer waited for that to be noted.
with due as (
  update dibs.jobs j set run_at = statement_timestamp()
  where j.id = any (array[:id::bigint]) and not j.held and j.state = 2 and j.finishing = -1
  returning queue, rank, run_at)
select dibs.wake_1(queue, rank, run_at) from due;

-- name: receipts
-- For people: what the provider calls each of these jobs, and what it charged for it, earlier submissions included.
select distinct on (job) job, task_id,
  (select jsonb_agg(e.usage order by e.round) from dibs.submissions e where e.job = s.job and e.usage is not null)::text
from dibs.submissions s where job = any (:ids::bigint[]) order by job, round desc;

-- name: prune_submissions
with gone as (
  delete from dibs.submissions where (job, round) in (
    select job, round from dibs.submissions where expires <= statement_timestamp() limit :limit::int) returning 1)
select count(*) from gone;
