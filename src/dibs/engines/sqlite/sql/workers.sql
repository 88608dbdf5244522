-- Workers: enlisting, beating, judging, leaving.

-- name: enlist
insert into dibs.workers (id, name, lease, beat, started_at, beat_at, steady_since)
select :id, :worker, :lease, :beat, now, now, now from dibs.clock where true on conflict do nothing;
insert into dibs.worker_names (id, name, seen_at) select :id, :worker, now from dibs.clock where true on conflict do nothing;
select id from dibs.workers where id = :id and name = :worker;

-- name: beat
update dibs.workers set
  steady_since = case when :steady and (select now from dibs.clock) - beat_at between 0 and 2 * beat * 1000000 then steady_since
    else (select now from dibs.clock) end,
  beat_at = (select now from dibs.clock), asking = id in (select value from json_each(:asking))
where id in (select value from json_each(:workers));
select 'beat', m.id, (
  select count(*) from dibs.workers a, dibs.clock c where a.id < m.id and a.asking and abs(c.now - a.beat_at) <= a.lease * 1000000)
from dibs.workers m where m.id in (select value from json_each(:workers));
select 'claimers', null, count(*) from dibs.workers a, dibs.clock c where a.asking and abs(c.now - a.beat_at) <= a.lease * 1000000;
select 'silent', null, count(*) from dibs.workers a, dibs.clock c where abs(c.now - a.beat_at) > a.lease * 1000000;
select 'lost', json_extract(h.value, '$[0]'), json_extract(h.value, '$[1]') from json_each(:held) h
where not exists (
  select 1 from dibs.jobs j where j.id = json_extract(h.value, '$[0]') and j.token = json_extract(h.value, '$[1]') and j.held = 1);

-- name: ended
-- Of these leases, those that brought their jobs to an end: it keeps their token. (Whoever takes or cancels a job changes it.)
select json_extract(h.value, '$[0]'), json_extract(h.value, '$[1]') from json_each(:held) h
where exists (select 1 from dibs.history d where d.id = json_extract(h.value, '$[0]') and d.token = json_extract(h.value, '$[1]'))
  or exists (select 1 from dibs.dead d where d.id = json_extract(h.value, '$[0]') and d.token = json_extract(h.value, '$[1]'));

-- name: poll
-- A worker over HTTP asks for jobs, which is a beat of its; it leaves the looks for late rows to others.
update dibs.workers set beat_at = (select now from dibs.clock), asking = 0, claims = (claims + 1) % 1048576 where id = :worker;
select claims from dibs.workers where id = :worker;

-- name: still_asks
-- It has not asked again since; and does not, until this transaction is over.
select id from dibs.workers where id = :worker and claims = :claim;

-- name: beat_of
-- The owner of this lease lives.
update dibs.workers set beat_at = (select now from dibs.clock), asking = 0
where id = (select worker >> 20 from dibs.jobs where id = :id and token = :token and held = 1);
select id from dibs.workers where id = (select worker >> 20 from dibs.jobs where id = :id and token = :token and held = 1);

-- name: hand_back
-- Hand back what a claim took whose answer never came (or all that these workers hold), attempt not used.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id)
select j.id from json_each(:workers) w cross join dibs.jobs j
  on j.held = 1 and j.worker >> 20 = w.value
where (:claims is null or j.worker in (select value from json_each(:claims)))
  -- Here a token alone is not enough: each row has a counter of its own, and two jobs of a worker may have the same token.
  and (j.id, j.token) not in (select json_extract(h.value, '$[0]'), json_extract(h.value, '$[1]') from json_each(:leases) h);
update dibs.jobs set
  held = 0, worker = null, version = version + 1, token = ((token >> 20) + 1) << 20 | (random() & 1048575),
  attempts = attempts - (finishing = 0), finishing = finishing - (finishing > 0)
where id in (select id from temp.dibs_listed);
select id from temp.dibs_listed;

-- name: recover
-- The jobs of dead workers go back to waiting, as suspects. Dead are: those the caller vouches for (known), those that
-- were silent when the caller noted them and still are (silent), and, if the judge's own beats went through for a whole
-- lease, everyone whose last beat is a lease old or a lease in the future.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id, number, worker)
select w.id, w.id, w.name from dibs.clock c cross join dibs.workers w
where w.id in (select value from json_each(:known))
  or exists (select 1 from json_each(:silent) s where json_extract(s.value, '$[0]') = w.id and json_extract(s.value, '$[1]') = w.beat_at)
  or (abs(c.now - w.beat_at) > w.lease * 1000000 and exists (
    select 1 from dibs.workers me where me.id = :judge
      and me.beat_at - me.steady_since >= me.lease * 1000000 and abs(c.now - me.beat_at) <= 2 * me.beat * 1000000));
delete from temp.dibs_picked;
insert into temp.dibs_picked (place, id)
select j.id, w.id from temp.dibs_listed w cross join dibs.jobs j on j.held = 1 and j.worker >> 20 = w.id;
update dibs.jobs set
  held = 0, worker = null, version = version + 1, token = ((token >> 20) + 1) << 20 | (random() & 1048575), state = case state when 2 then 2 else 1 end, crashes = crashes + 1,
  finishing = case when finishing = 0 and attempts >= max_attempts then 1 else finishing end,
  rank = rank % 10 + 20,
  run_at = (select now from dibs.clock) + abs(random() % 1000000) + case when finishing > 0 then min(1 << finishing % 100, 300) else 0 end * 1000000,
  failures = json_insert(
    case when json_array_length(failures) >= 10 then json_remove(failures, '$[0]') else coalesce(failures, '[]') end,
    '$[' || min(coalesce(json_array_length(failures), 0), 9) || ']',
    json_object('attempt', attempts, 'error', 'the worker died',
      'worker', (select l.worker from temp.dibs_listed l where l.id = dibs.jobs.worker >> 20),
      'started_at', claimed_at / 1e6, 'finished_at', (select now from dibs.clock) / 1e6))
where id in (select place from temp.dibs_picked);
delete from dibs.workers where id in (select id from temp.dibs_listed);
select place, id, 0 from temp.dibs_picked;
select null, id, 1 from temp.dibs_listed;

-- name: recover_orphans
-- Jobs whose worker has no row at all (a restored backup, a row deleted by hand): freed like those of a dead worker.
delete from temp.dibs_listed;
insert into temp.dibs_listed (id, worker)
select j.id, n.name from dibs.jobs j left join dibs.worker_names n on n.id = j.worker >> 20
where j.held = 1 and j.worker >> 20 not in (select id from dibs.workers);
update dibs.jobs set
  held = 0, worker = null, version = version + 1, token = ((token >> 20) + 1) << 20 | (random() & 1048575), state = case state when 2 then 2 else 1 end, crashes = crashes + 1,
  finishing = case when finishing = 0 and attempts >= max_attempts then 1 else finishing end,
  rank = rank % 10 + 20, run_at = (select now from dibs.clock),
  failures = json_insert(
    case when json_array_length(failures) >= 10 then json_remove(failures, '$[0]') else coalesce(failures, '[]') end,
    '$[' || min(coalesce(json_array_length(failures), 0), 9) || ']',
    json_object('attempt', attempts, 'error', 'the worker vanished', 'worker', (select l.worker from temp.dibs_listed l where l.id = dibs.jobs.id),
      'started_at', claimed_at / 1e6, 'finished_at', (select now from dibs.clock) / 1e6))
where id in (select id from temp.dibs_listed);
select id from temp.dibs_listed;

-- name: silent
select w.id, w.beat_at from dibs.clock c cross join dibs.workers w where abs(c.now - w.beat_at) > :leases * w.lease * 1000000 order by w.id;

-- name: leave
delete from dibs.workers where id in (select value from json_each(:workers));

-- name: workers
select w.id, w.name, w.lease, w.started_at, w.beat_at, abs(c.now - w.beat_at) <= w.lease * 1000000
from dibs.clock c cross join dibs.workers w order by w.started_at, w.id;

-- name: reasons_not_to_hold
-- A row without a name: another worker claims, or could. The others: queues that are paused.
select null where exists (
  select 1 from dibs.workers a, dibs.clock c
  where a.asking and abs(c.now - a.beat_at) <= a.lease * 1000000 and a.id not in (select value from json_each(:workers)))
union all select name from dibs.queues where paused;

-- name: asks
update dibs.workers set asking = 1 where id in (select value from json_each(:workers)) and not asking;
