-- What jobs came to, by queue and minute.

-- name: add_stats
insert into dibs.stats (minute, queue, successful, failed, retried)
select c.now - c.now % 60000000, json_extract(t.value, '$[0]'), 0, 0, 0 from dibs.clock c cross join json_each(:counted) t where true
on conflict do nothing;
update dibs.stats set
  successful = successful + (select json_extract(t.value, '$[1]') from json_each(:counted) t where json_extract(t.value, '$[0]') = queue),
  failed = failed + (select json_extract(t.value, '$[2]') from json_each(:counted) t where json_extract(t.value, '$[0]') = queue),
  retried = retried + (select json_extract(t.value, '$[3]') from json_each(:counted) t where json_extract(t.value, '$[0]') = queue)
where minute = (select now - now % 60000000 from dibs.clock) and queue in (select json_extract(t.value, '$[0]') from json_each(:counted) t);

-- name: stats
select minute, queue, successful, failed, retried from dibs.stats
where minute > (select now from dibs.clock) - :minutes * 60000000 order by minute, queue;

-- name: prune_stats
delete from dibs.stats where minute < (select now from dibs.clock) - :minutes * 60000000;
