-- What jobs came to, by queue and minute.

-- name: add_stats
insert into dibs.stats as s (minute, queue, successful, failed, retried)
select date_trunc('minute', statement_timestamp()), c.*
from unnest(:counted_queue::text[], :counted_successful::int[], :counted_failed::int[], :counted_retried::int[]) c
on conflict (minute, queue) do update set
  successful = s.successful + excluded.successful, failed = s.failed + excluded.failed, retried = s.retried + excluded.retried;

-- name: stats
select minute, queue, successful, failed, retried from dibs.stats
where minute > statement_timestamp() - make_interval(mins => :minutes::int) order by minute, queue;

-- name: prune_stats
delete from dibs.stats where minute < statement_timestamp() - make_interval(mins => :minutes::int);
