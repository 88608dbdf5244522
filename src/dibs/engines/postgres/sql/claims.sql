-- Owning jobs: the turn (settle what is done, claim what is next). The text is in migrations, as the function turn_1.

-- name: turn
-- The function takes more than most turns need: a claim alone, and plain successes alone, say only what they use.
-- when claim_alone
select * from dibs.turn_1(
  :worker::bigint, :claim::int, :limit::int, :suspects::int, :unknown::text[],
  :ranges_queue::text[], :ranges_rank::smallint[], :ranges_at::timestamptz[], :ranges_id::bigint[], _events => :events);
-- when plain_alone
select * from dibs.turn_1(_done => :done_id::bigint[], _done_tokens => :done_token::bigint[], _events => :events);
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
