-- What people watch: the state of jobs by their ids, and jobs that are new.

-- name: states
select j.id, j.version, dibs.shown(j.held, j.state, j.submits), j.attempts, j.failures -> -1 ->> 'error', j.progress::text, j.queue, j.type
from dibs.jobs j where j.id = any (:ids::bigint[])
union all
select j.id, j.version, j.state, j.attempts, j.failures -> -1 ->> 'error', j.progress::text, j.queue, j.type
from dibs.dead j where j.id = any (:ids::bigint[])
union all
select j.id, j.version, j.state, j.attempts, null, j.progress::text, j.queue, j.type
from dibs.history j where j.id = any (:ids::bigint[]);

-- name: newest
select greatest((select max(id) from dibs.jobs), (select max(id) from dibs.dead), (select max(id) from dibs.history));

-- name: newer
select id from (
  select id from dibs.jobs where id > :after::bigint and (:every or queue = any (:queues::text[]))
  union all
  select id from dibs.dead where id > :after::bigint and (:every or queue = any (:queues::text[]))
  union all
  select id from dibs.history where id > :after::bigint and (:every or queue = any (:queues::text[]))) n
order by id limit :limit::int;

-- name: oldest
select id from dibs.jobs where :every or queue = any (:queues::text[]) order by id limit :limit::int;
