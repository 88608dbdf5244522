-- Retention: rows are deleted in small steps. There are no partitions.

-- name: make_partition
select 'there' where :day >= 0;

-- name: drop_partition
select 'none';

-- name: expired_history
select id from dibs.history where expires < (select now from dibs.clock) order by id limit :limit;

-- name: forget_history
select id from dibs.history where id in (select value from json_each(:ids));
delete from dibs.history where id in (select value from json_each(:ids));

-- name: expired_dead
select id from dibs.dead where finished_at < (select now from dibs.clock) - :days * 86400000000 order by id limit :limit;

-- name: forget_dead
select id from dibs.dead where id in (select value from json_each(:ids));
delete from dibs.dead where id in (select value from json_each(:ids));

-- name: prune_keys
delete from temp.dibs_listed;
insert into temp.dibs_listed (id) select job from dibs.unique_keys where until <= (select now from dibs.clock) limit :limit;
delete from dibs.unique_keys where until <= (select now from dibs.clock) and job in (select id from temp.dibs_listed);
select id from temp.dibs_listed;

-- name: prune_names
delete from dibs.worker_names where seen_at < (select now from dibs.clock) - :days * 86400000000
  and id not in (select id from dibs.workers);

-- name: prune_requests
delete from dibs.requests where key in (select key from dibs.requests where at < (select now from dibs.clock) - 86400000000 limit :limit);
select changes();
