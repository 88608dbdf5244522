-- Workers: enlisting, beating, judging, leaving.

-- name: enlist
-- Asked again because the answer was lost, it finds itself.
with named as (
  insert into dibs.worker_names (id, name) values (:id::bigint, :worker) on conflict do nothing),
entered as (
  insert into dibs.workers (id, name, lease, beat) values (:id::bigint, :worker, :lease::float8, :beat::float8) on conflict do nothing
  returning id)
select id from entered union all select id from dibs.workers where id = :id::bigint and name = :worker;

-- name: beat
with mine as (
  update dibs.workers set
    steady_since = case
      when :steady::boolean and clock_timestamp() - beat_at between interval '0' and make_interval(secs => 2 * beat) then steady_since
      else clock_timestamp() end,
    beat_at = clock_timestamp(), asking = id = any (:asking::bigint[])
  where id = any (:workers::bigint[]) returning id),
claimers as materialized (
  select id from dibs.workers
  where asking and abs(extract(epoch from clock_timestamp() - beat_at)) <= lease and id <> all (:workers::bigint[])
  union all select id from mine where id = any (:asking::bigint[]))
select 'beat', m.id, (select count(*) from claimers c where c.id < m.id) from mine m
union all
select 'claimers', null, count(*) from claimers
union all
select 'silent', null, count(*) from dibs.workers w
where abs(extract(epoch from clock_timestamp() - w.beat_at)) > w.lease and w.id <> all (:workers::bigint[])
union all
-- A subquery with one answer, so that each is found by its id: `not exists` would be a join, in which each is compared with each.
select 'lost', h.id, h.token from unnest(:held_id::bigint[], :held_token::bigint[]) h(id, token)
where (select j.token from dibs.jobs j where j.id = any (array[h.id]) and j.held) is distinct from h.token;

-- name: ended
-- Of these leases, those that brought their jobs to an end: it keeps their token. (Whoever takes or cancels a job changes it.)
select h.id, h.token from unnest(:held_id::bigint[], :held_token::bigint[]) h(id, token)
where exists (select from dibs.history d where d.id = any (array[h.id]) and d.token = h.token)
  or exists (select from dibs.dead d where d.id = any (array[h.id]) and d.token = h.token);

-- name: poll
-- A worker over HTTP asks for jobs, which is a beat of its; it leaves the looks for late rows to others.
update dibs.workers set beat_at = clock_timestamp(), asking = false, claims = (claims + 1) % 1048576 where id = :worker::bigint returning claims;

-- name: still_asks
-- It has not asked again since; and does not, until this transaction is over.
select id from dibs.workers where id = :worker::bigint and claims = :claim::int for share;

-- name: beat_of
-- The owner of this lease lives.
update dibs.workers set beat_at = clock_timestamp(), asking = false
where id = (select worker >> 20 from dibs.jobs where id = :id::bigint and token = :token::bigint and held) returning id;

-- name: hand_back
select * from dibs.hand_back_1(:workers::bigint[], :claims::bigint[], :held::bigint[]);

-- name: recover
select * from dibs.recover_1(:judge::bigint, :known::bigint[], :silent_id::bigint[], :silent_beat_at::timestamptz[]);

-- name: recover_orphans
select * from dibs.recover_orphans_1();

-- name: silent
select id, beat_at from dibs.workers where abs(extract(epoch from clock_timestamp() - beat_at)) > :leases::float8 * lease order by id;

-- name: leave
delete from dibs.workers where id = any (:workers::bigint[]) returning id;

-- name: workers
select id, name, lease, started_at, beat_at, abs(extract(epoch from clock_timestamp() - beat_at)) <= lease from dibs.workers order by started_at, id;

-- name: reasons_not_to_hold
-- A row without a name: another worker claims, or could. The others: queues that are paused.
select null where exists (
  select from dibs.workers
  where abs(extract(epoch from clock_timestamp() - beat_at)) <= lease and asking and id <> all (:workers::bigint[]))
union all select name from dibs.queues where paused;

-- name: asks
update dibs.workers set asking = true where id = any (:workers::bigint[]) and not asking;
