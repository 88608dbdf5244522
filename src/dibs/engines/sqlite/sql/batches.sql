-- Batches: jobs that are counted together, in parts of a few hundred.

-- name: add_batch
insert into dibs.batches (name, hooks, created_at) select :name, :hooks, now from dibs.clock;
select id, created_at from dibs.batches where id = last_insert_rowid();

-- name: open_batch
-- Whether it takes jobs.
select closed_at is not null, finished_at is not null from dibs.batches where id = :batch;

-- name: own_job
-- A job of this batch, held by who says so.
select j.id from dibs.jobs j
where j.id = :id and j.token = :token and j.held = 1 and (select p.batch from dibs.parts p where p.id = j.part) = :batch;

-- name: add_parts
-- SQLite has one writer, so the next ids are known, and have no gaps.
insert into dibs.jobs (queue, rank, type, run_at, created_at, max_attempts, tags, submits, payload, part)
select :queue, :rank, :type, max(coalesce(:run_at, c.now + cast(:delay * 1000000 as integer)), c.now), c.now, :max_attempts, :tags, :submits,
  p.value, coalesce((select seq from sqlite_sequence where name = 'dibs.jobs'), 0) + 1 + p.key - p.key % :size
from dibs.clock c cross join json_each(:payloads) p;
select id from dibs.jobs where id > last_insert_rowid() - :count and id <= last_insert_rowid();
with recursive pieces (at) as (select 0 union all select at + :size from pieces where at + :size < :count)
insert into dibs.parts (id, batch, last, total)
select s.last - :count + 1 + p.at, :batch, s.last - :count + min(p.at + :size, :count), min(:size, :count - p.at)
from (select seq as last from sqlite_sequence where name = 'dibs.jobs') s cross join pieces p;

-- name: make_part
-- Of jobs that were added in this transaction.
update dibs.jobs set part = (select min(value) from json_each(:ids)) where id in (select value from json_each(:ids));
insert into dibs.parts (id, batch, last, total) select min(value), :batch, max(value), count(*) from json_each(:ids);

-- name: close_batch
update dibs.batches set closed_at = (select now from dibs.clock) where id = :batch and closed_at is null;

-- name: batch_of
select p.batch from dibs.jobs j cross join dibs.parts p on p.id = j.part where j.id = :id;

-- name: batch
-- One batch with its sums, and how many of its jobs that are not final are in each state, if those are few.
select b.id, b.name, b.created_at, b.closed_at, b.finished_at, s.total, s.successful, s.failed, s.cancelled,
  case when s.total - s.successful - s.failed - s.cancelled <= :exact then (
    select json_group_object(l.state, l.jobs) from (
      select case when not j.held or j.state = 2 then j.state when j.submits then 7 else 6 end as state, count(*) as jobs
      from dibs.parts p cross join dibs.jobs j on j.id between p.id and p.last and j.part = p.id
      where p.batch = :batch and p.total > p.successful + p.failed + p.cancelled group by 1) l) end
from dibs.batches b cross join (
  select coalesce(sum(p.total), 0) as total, coalesce(sum(p.successful), 0) as successful, coalesce(sum(p.failed), 0) as failed,
    coalesce(sum(p.cancelled), 0) as cancelled
  from dibs.parts p where p.batch = :batch) s
where b.id = :batch;

-- name: batches
-- Some of them with their sums: those that are named, or the newest before one.
select b.id, b.name, b.created_at, b.closed_at, b.finished_at, coalesce(sum(p.total), 0), coalesce(sum(p.successful), 0),
  coalesce(sum(p.failed), 0), coalesce(sum(p.cancelled), 0), null
from (
  select * from (select * from dibs.batches where id in (select value from json_each(:ids)))
  union all
  select * from (select * from dibs.batches where id < :before and (not :unfinished or finished_at is null) order by id desc limit :limit)) b
left join dibs.parts p on p.batch = b.id group by b.id order by b.id desc;

-- name: batch_usage
-- What its submissions were charged for: the sum of each number in `usage`, or of `usage` itself where that is a number.
select coalesce(e.key, 'usage'), total(e.atom)
from dibs.parts p cross join dibs.submissions s on s.job between p.id and p.last and s.part = p.id
cross join json_each(s.usage) e
where p.batch = :batch and e.type in ('integer', 'real') and json_type(s.usage) in ('integer', 'real', 'object')
group by 1 order by 1;

-- name: batch_jobs
-- Of its jobs that are not final: the first after that one.
select j.id from dibs.parts p cross join dibs.jobs j on j.id between p.id and p.last and j.id > :after and j.part = p.id
where p.batch = :batch and p.last > :after and p.total > p.successful + p.failed + p.cancelled
order by p.id, j.id limit :limit;

-- name: batch_dead
-- Of those that ended in this state: the first after that one.
select d.id from dibs.parts p cross join dibs.dead d on d.id between p.id and p.last and d.id > :after and d.part = p.id and d.state = :state
where p.batch = :batch and p.last > :after and p.failed + p.cancelled > 0
order by p.id, d.id limit :limit;

-- name: prune_parts
-- Of batches that finished so long ago, and are gone as soon as they have no part.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id)
select p.id from dibs.batches b cross join dibs.parts p on p.batch = b.id
where b.finished_at < (select now from dibs.clock) - :days * 86400000000 order by b.id limit :limit;
delete from dibs.parts where id in (select id from temp.dibs_listed);
delete from dibs.batches where finished_at < (select now from dibs.clock) - :days * 86400000000
  and not exists (select 1 from dibs.parts p where p.batch = dibs.batches.id);
select count(*) from dibs.batches where finished_at < (select now from dibs.clock) - :days * 86400000000;
