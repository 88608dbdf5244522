-- What people watch: the state of jobs by their ids, and jobs that are new.

-- name: states
select j.id, j.version, case when not j.held or j.state = 2 then j.state when j.submits then 7 else 6 end, j.attempts,
  json_extract(j.failures, '$[' || (json_array_length(j.failures) - 1) || '].error'), j.progress, j.queue, j.type
from json_each(:ids) i cross join dibs.jobs j on j.id = i.value
union all
select j.id, j.version, j.state, j.attempts,
  json_extract(j.failures, '$[' || (json_array_length(j.failures) - 1) || '].error'), j.progress, j.queue, j.type
from json_each(:ids) i cross join dibs.dead j on j.id = i.value
union all
select j.id, j.version, j.state, j.attempts, null, j.progress, j.queue, j.type
from json_each(:ids) i cross join dibs.history j on j.id = i.value;

-- name: newest
select max(coalesce((select max(id) from dibs.jobs), 0), coalesce((select max(id) from dibs.dead), 0), coalesce((select max(id) from dibs.history), 0));

-- name: newer
select id from dibs.jobs where id > :after and (:every or queue in (select value from json_each(:queues)))
union all
select id from dibs.dead where id > :after and (:every or queue in (select value from json_each(:queues)))
union all
select id from dibs.history where id > :after and (:every or queue in (select value from json_each(:queues)))
order by 1 limit :limit;

-- name: oldest
select id from dibs.jobs where :every or queue in (select value from json_each(:queues)) order by id limit :limit;
