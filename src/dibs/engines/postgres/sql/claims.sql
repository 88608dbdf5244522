-- Owning jobs: the turn (settle what is done, claim what is next). The text is in migrations, as the function turn_1.

-- name: turn
-- The function takes more than most turns need: a claim, plain successes, and the two together say only what they use.
-- when claim_alone
select * from dibs.turn_1(
  :worker::bigint, :claim::int, :limit::int, :suspects::int, :unknown::text[],
  :ranges_queue::text[], :ranges_rank::smallint[], :ranges_at::timestamptz[], :ranges_id::bigint[], _events => :events);
-- when plain_alone
select * from dibs.turn_1(_done => :done_id::bigint[], _done_tokens => :done_token::bigint[], _events => :events);
-- when plain
select * from dibs.turn_1(
  :worker::bigint, :claim::int, :limit::int, :suspects::int, :unknown::text[],
  :ranges_queue::text[], :ranges_rank::smallint[], :ranges_at::timestamptz[], :ranges_id::bigint[],
  :done_id::bigint[], :done_token::bigint[], _events => :events);
-- when whole
select * from dibs.turn_1(
  :worker::bigint, :claim::int, :limit::int, :suspects::int, :unknown::text[],
  :ranges_queue::text[], :ranges_rank::smallint[], :ranges_at::timestamptz[], :ranges_id::bigint[],
  :done_id::bigint[], :done_token::bigint[], :done_state::smallint[], :done_days::int[], :done_result, :done_failure, :done_hook_error::text[],
  :back_id::bigint[], :back_token::bigint[], :back_way::smallint[], :back_delay::float8[], :back_failure,
  :events);

-- name: next_due
-- Seconds until the next job of these queues can be claimed: 0 when one is due, null when there is none.
select case when count(*) > 0 then greatest(extract(epoch from min(j.run_at) - statement_timestamp()), 0) end::float8
from unnest(:queues::text[]) q(name) cross join generate_series(0, 29) r(rank)
cross join lateral (
  select run_at from dibs.jobs where queue = q.name collate "C" and rank = r.rank and not held order by run_at, id limit 1) j
where not exists (select from dibs.queues p where p.name = q.name collate "C" and p.paused);

-- name: upcoming
-- The queues that there are (or only those named), each with the seconds until its next job can be claimed, or null. Ranges
-- are read from where claims have come to: what lies behind, they look for themselves.
with recursive found as (
  (select queue from dibs.jobs where :every and queue >= '' order by queue limit 1)
  union all
  select (select queue from dibs.jobs where queue > f.queue order by queue limit 1) from found f where f.queue is not null),
names as (
  select queue from found where queue is not null
  union select name from dibs.queues where :every
  union select name from unnest(:queues::text[]) n(name))
select n.queue, (
  select extract(epoch from min(j.run_at) - statement_timestamp())::float8
  from generate_series(0, 29) r(rank)
  left join unnest(:places_queue::text[], :places_rank::smallint[], :places_at::timestamptz[], :places_id::bigint[]) p(queue, rank, at, id)
    on p.queue = n.queue and p.rank = r.rank
  cross join lateral (
    select run_at from dibs.jobs
    where queue = n.queue collate "C" and rank = r.rank and (run_at, id) > (coalesce(p.at, '-infinity'), coalesce(p.id, 0)) and not held
    order by run_at, id limit 1) j
  where not exists (select from dibs.queues q where q.name = n.queue collate "C" and q.paused))
from names n order by 1;
