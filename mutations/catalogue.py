"""The breakages of `make mutate`: of the SQL of both engines, and of the rules in Python."""
# ruff: noqa: E501  # the texts stand here as they stand in the files

from __future__ import annotations

from mutations.breakage import Breakage, Edit

SCHEMA = "src/dibs/engines/postgres/migrations/0001_initial.sql"
PG = "src/dibs/engines/postgres/sql"
LITE = "src/dibs/engines/sqlite/sql"
TESTS = "tests/conformance/test_"


def postgres(name: str, old: str, new: str, *tests: str, file: str = SCHEMA, everywhere: bool = False) -> Breakage:
    """A breakage of PostgreSQL's SQL; `everywhere`: its tests name their own servers."""
    return Breakage(f"postgres: {name}", (Edit(file, old, new),), tuple(tests), "" if everywhere else "postgres")


def sqlite(name: str, old: str, new: str, *tests: str, file: str = f"{LITE}/claims.sql") -> Breakage:
    """A breakage of SQLite's SQL."""
    return Breakage(f"sqlite: {name}", (Edit(file, old, new),), tuple(tests), "sqlite")


def rule(name: str, file: str, old: str, new: str, *tests: str, engine: str = "") -> Breakage:
    """A breakage of a rule in Python."""
    return Breakage(f"rule: {name}", (Edit(f"src/dibs/{file}", old, new),), tuple(tests), engine)


FENCE = f"{TESTS}fencing.py"
CLAIMS = f"{TESTS}claims.py"
RECOVERY = f"{TESTS}recovery.py"
KEYS = f"{TESTS}keys.py"
JOBS = f"{TESTS}jobs.py"

FENCES = [
    postgres(
        "a finished job settles without its token",
        "j.token = d.token and j.held and coalesce(d.state, 3) = 3",
        "j.held and coalesce(d.state, 3) = 3",
        FENCE,
    ),
    postgres(
        "a failed job settles without its token",
        "j.token = d.token and j.held and d.state <> 3",
        "j.held and d.state <> 3",
        FENCE,
    ),
    postgres(
        "a job goes back to waiting without its token",
        "where j.id = any (array[d.id]) and j.token = d.token and j.held\n      returning j.id, j.queue",
        "where j.id = any (array[d.id]) and j.held\n      returning j.id, j.queue",
        FENCE,
    ),
    postgres(
        "progress without the token",
        "where id = :id::bigint and token = :token::bigint and held returning id)",
        "where id = :id::bigint and held returning id)",
        FENCE,
        file=f"{PG}/jobs.sql",
    ),
    postgres(
        "a beat does not compare tokens",
        "and j.held) is distinct from h.token;",
        "and j.held) is null;",
        FENCE,
        file=f"{PG}/workers.sql",
    ),
    postgres(
        "a settle does not ask whether the job is held",
        "j.token = d.token and j.held and coalesce(d.state, 3) = 3",
        "j.token = d.token and coalesce(d.state, 3) = 3",
        FENCE,
    ),
    postgres(
        "the token is the number of the attempt",
        "token = nextval('dibs.token') << 20 | floor(random() * 1048576)::bigint,",
        "token = attempts + 1,",
        FENCE,
    ),
    postgres(
        "the token is a bare counter",
        "nextval('dibs.token') << 20 | floor(random() * 1048576)::bigint,",
        "nextval('dibs.token') << 20,",
        FENCE,
    ),
    postgres(
        "recovery keeps the token",
        "      held = false, worker = null, token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1,\n      fin",
        "      held = false, worker = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1,\n      fin",
        FENCE,
        RECOVERY,
    ),
    postgres(
        "a settle sent twice is taken for a lost one",
        "    (select h.state from dibs.history h where h.id = d.id and h.token = d.token limit 1),\n",
        "    null,\n",
        FENCE,
    ),
    sqlite(
        "a settle of many takes whatever lies between them",
        "select 1 where changes() = :last - :first + 1;",
        "select 1 where changes() = :expected;",
        FENCE,
    ),
    sqlite(
        "a finished job goes to history without its token",
        "cross join dibs.jobs j on j.id = cast(d.key as integer) and j.token = d.value and j.held = 1\nleft join",
        "cross join dibs.jobs j on j.id = cast(d.key as integer) and j.held = 1\nleft join",
        FENCE,
    ),
    sqlite(
        "whether a lease is lost is asked without its token",
        "  select 1 from dibs.jobs j where j.id = cast(d.key as integer) and j.token = d.value and j.held = 1);",
        "  select 1 from dibs.jobs j where j.id = cast(d.key as integer) and j.held = 1);",
        FENCE,
    ),
    sqlite(
        "nobody asks whether a lease is lost",
        "json_each(case when changes() < :expected then :leases else '{}' end)",
        "json_each(case when changes() < 0 * :expected then :leases else '{}' end)",
        FENCE,
    ),
    sqlite(
        "a job goes back to waiting without its token",
        "where not exists (select 1 from dibs.jobs j where j.id = b.id and j.token = b.token and j.held = 1);",
        "where not exists (select 1 from dibs.jobs j where j.id = b.id and j.held = 1);",
        FENCE,
    ),
    sqlite(
        "progress without the token",
        "update dibs.jobs set progress = :progress, version = version + 1 where id = :id and token = :token and held = 1;\n"
        "select id from dibs.jobs where id = :id and token = :token and held = 1;",
        "update dibs.jobs set progress = :progress, version = version + 1 where id = :id and held = 1;\n"
        "select id from dibs.jobs where id = :id and :token and held = 1;",
        FENCE,
        file=f"{LITE}/jobs.sql",
    ),
    sqlite(
        "the token is a bare counter",
        '"bits": getrandbits(RANDOM_BITS),',
        '"bits": 0,',
        FENCE,
        file="src/dibs/operations/claims.py",
    ),
    sqlite(
        "the token that is told is not the one that is written",
        "token = ((coalesce(token, 0) >> 20) + 1) << 20 | ((:bits + id) & 1048575),",
        "token = ((coalesce(token, 0) >> 20) + 1) << 20 | ((:bits + id + 1) & 1048575),",
        FENCE,
    ),
]

WATCHING = [
    postgres(
        "a claim keeps the version",
        "held = true, worker = _worker << 20 | _claim, version = version + 1,",
        "held = true, worker = _worker << 20 | _claim,",
        f"{TESTS}watching.py",
    ),
    sqlite(
        "a claim keeps the version",
        "held = 1, worker = :worker << 20 | :claim, version = version + 1, token",
        "held = 1, worker = :worker << 20 | :claim, token",
        f"{TESTS}watching.py",
    ),
]

SERVER = "tests/server/test_"

SERVING = [
    rule(
        "whoever has no token may do everything",
        "server/access.py",
        "return EVERYBODY if anybody else NOBODY",
        "return EVERYBODY",
        f"{SERVER}access.py",
    ),
    rule(
        "a token to watch is good for ever",
        "tokens.py",
        "return int(found[1]) if genuine and int(found[2]) > now else None",
        "return int(found[1]) if genuine else None",
        f"{SERVER}access.py",
    ),
    rule(
        "anybody can sign a token to watch",
        "tokens.py",
        'genuine = hmac.compare_digest(_signature(f"{WATCH}{found[1]}_{found[2]}", key), found[3])',
        "genuine = True",
        f"{SERVER}access.py",
    ),
    rule(
        "a token to watch one job is good for all",
        "tokens.py",
        'return scope == "read" and job is not None and job == self.job',
        'return scope == "read" and job is not None and self.job is not None',
        f"{SERVER}access.py",
    ),
    rule(
        "any page may ask",
        "server/guard.py",
        "if origin is not None and origin not in self.origins and _from(origin) != host:",
        "if False:",
        f"{SERVER}access.py",
    ),
    rule(
        "any name will do for a local server",
        "server/guard.py",
        "if self.hosts is not None and host_name(host) not in self.hosts:",
        "if False:",
        f"{SERVER}access.py",
    ),
    rule(
        "secrets are shown",
        "masking.py",
        "HIDDEN if key.lower() in names else masked(item, names)",
        "masked(item, names)",
        f"{SERVER}jobs.py",
    ),
    rule(
        "a client is told what is no newer",
        "server/socket.py",
        "if told.get(seen.id, -1) >= seen.version:",
        "if told.get(seen.id, -1) > seen.version:",
        f"{SERVER}socket.py",
    ),
    rule(
        "what was said while nobody listened is not looked for",
        "server/hub.py",
        "            self._read_all()  # what was said while nobody listened\n",
        "",
        f"{SERVER}outages.py::test_the_connection_of_the_hub_is_cut",
    ),
    rule(
        "jobs of an answer that was lost stay with a worker that does not know of them",
        "server/rest/claims.py",
        "workers.poll(worker, body.received)",
        "workers.poll(worker, None)",
        f"{SERVER}claims.py",
    ),
    rule(
        "a claim takes jobs though its worker has asked again",
        "operations/claims.py",
        'if not (yield Statement("still_asks", worker=want.worker, claim=want.number)):',
        "if False:",
        f"{SERVER}claims.py",
    ),
    rule(
        "an allowed name is taken for a local one",
        "server/access.py",
        'self.local and is_local(host_name(headers.get("host", ""))) and not await self._tokens()',
        "self.local and not await self._tokens()",
        f"{SERVER}access.py",
    ),
    rule(
        "who watches by a token that was revoked goes on",
        "server/socket.py",
        "                        await socket.mind_tokens()\n",
        "                        pass\n",
        f"{SERVER}access.py",
    ),
    rule(
        "one mistake ends the hub",
        "server/hub.py",
        "            except Exception:\n                log.exception",
        "            except ZeroDivisionError:\n                log.exception",
        f"{SERVER}hub.py",
    ),
    rule(
        "one is told of another's job",
        "server/adder.py",
        "zip(chosen, added, strict=True)",
        "zip(chosen, added[::-1], strict=True)",
        f"{SERVER}adder.py",
    ),
    rule(
        "one bad job spoils those that came with it",
        "server/adder.py",
        "            if len(chosen) == 1:\n",
        "            if True:\n",
        f"{SERVER}adder.py",
    ),
    postgres(
        "jobs that are added together wake nobody",
        "select id, created_at, run_at from added where (select count(*) from woken) >= 0 order by id;",
        "select id, created_at, run_at from added order by id;",
        f"{TESTS}wakeups.py",
        file=f"{PG}/jobs.sql",
    ),
]

CANCELLING = [
    postgres(
        "a cancel waits for a row while it has others",
        "order by id for update skip locked),\nmarked as (",
        "order by id for update),\nmarked as (",
        JOBS,
        file=f"{PG}/jobs.sql",
    ),
    rule(
        "a cancel forgets the rows that were busy",
        "operations/jobs.py",
        "        ids = [job_id for job_id, cancelled in rows if not cancelled]",
        "        ids = []",
        JOBS,
        engine="postgres",
    ),
]

CLAIMING = [
    postgres(
        "a claim that does not lock what it picks",
        "order by run_at, id limit _n for no key update skip locked) j",
        "order by run_at, id limit _n) j",
        CLAIMS,
    ),
    postgres(
        "a claim waits for locked jobs",
        "order by run_at, id limit _n for no key update skip locked) j",
        "order by run_at, id limit _n for no key update) j",
        CLAIMS,
    ),
    postgres(
        "a claim does not lock its worker's row",
        "(select count(*) from picked) > 0 for key share skip locked),",
        "(select count(*) from picked) > 0),",
        RECOVERY,
    ),
    postgres(
        "a worker without a row claims",
        "from picked where j.ctid = picked.tid and exists (select from alive)",
        "from picked where j.ctid = picked.tid and (select count(*) from alive) >= 0",
        CLAIMS,
    ),
    postgres(
        "suspects without a limit",
        "    limit _suspects),",
        "    limit _n),",
        CLAIMS,
    ),
    postgres(
        "a paused queue is claimed from",
        'where q.name = r.queue collate "C" and q.paused)\n      limit _n - (select',
        'where q.name = r.queue collate "C" and q.paused and false)\n      limit _n - (select',
        CLAIMS,
    ),
    postgres(
        "the claim index knows what is held, so that a claim is no HOT update",
        "create index claim_order on dibs.jobs (queue, rank, run_at, id) where queue is not null;",
        "create index claim_order on dibs.jobs (queue, rank, run_at, id, held) where queue is not null;",
        CLAIMS,
    ),
    postgres(
        "the claim index may be chosen only by an id",
        "create index claim_order on dibs.jobs (queue, rank, run_at, id) where queue is not null;",
        "create index claim_order on dibs.jobs (queue, rank, run_at, id) where id > 0;",
        "tests/scenarios/test_plans.py::test_a_turn_on_a_full_queue_does_not_read_it_all[postgres18]",
        everywhere=True,
    ),
    postgres(
        "a settle that forgets history",
        "result::jsonb, submits, part\n      from gone)",
        "result::jsonb, submits, part\n      from gone where id < 0)",
        CLAIMS,
    ),
    postgres(
        "a snooze uses an attempt",
        "attempts = j.attempts - case when d.way in (2, 3) and j.finishing = 0 then 1 else 0 end,",
        "attempts = j.attempts - case when d.way = 3 and j.finishing = 0 then 1 else 0 end,",
        CLAIMS,
    ),
    postgres(
        "a job handed back loses its place",
        "run_at = case when d.way = 3 and d.delay = 0 then j.run_at else",
        "run_at = case when d.way = 33 then j.run_at else",
        CLAIMS,
    ),
    postgres(
        "a retry into the last attempt stays plain",
        "when d.way = 4 or j.attempts - (d.way = 2)::int >= j.max_attempts - 1 then",
        "when d.way = 4 then",
        CLAIMS,
    ),
    postgres(
        "finishing counts as an attempt",
        "attempts = attempts + (finishing = 0)::int, finishing",
        "attempts = attempts + 1, finishing",
        CLAIMS,
    ),
    postgres(
        "a missing partition fails a settle",
        "create table dibs.history_rest partition of dibs.history default;",
        "create table dibs.history_rest (like dibs.history);",
        f"{TESTS}retention.py",
    ),
    postgres(
        "dropping a partition waits behind a dump",
        "create function dibs.drop_partition_1(_today date) returns text language plpgsql set lock_timeout = '100ms' as",
        "create function dibs.drop_partition_1(_today date) returns text language plpgsql set lock_timeout = '0' as",
        f"{TESTS}retention.py",
    ),
    postgres(
        "`j.id = d.id` on a queue that keeps up",
        "where j.id = any (array[d.id]) and j.token = d.token and j.held and coalesce(d.state, 3) = 3",
        "where j.id = d.id and j.token = d.token and j.held and coalesce(d.state, 3) = 3",
        "tests/scenarios/test_plans.py::test_a_turn_on_a_queue_that_keeps_up_does_not_read_the_dead[postgres18]",
        everywhere=True,
    ),
    postgres(
        "a turn that picks before it settles",
        "begin\n  -- Own jobs are locked in the order of their ids,",
        "begin\n"
        "  perform j.tid from unnest(_queues, _ranks, _ats, _ids) r(queue, rank, at, id) cross join lateral (\n"
        '    select ctid as tid from dibs.jobs where queue = r.queue collate "C" and rank = r.rank and (run_at, id) > (r.at, r.id)\n'
        "      and run_at <= statement_timestamp() and not held order by run_at, id limit _n for no key update skip locked) j;\n"
        "  -- Own jobs are locked in the order of their ids,",
        CLAIMS,
    ),
    sqlite(
        "a claim begins without the write lock",
        'self.raw.execute("begin immediate")',
        'self.raw.execute("begin")',
        CLAIMS,
        "tests/scenarios/test_one_job.py",
        file="src/dibs/engines/sqlite/connection.py",
    ),
    sqlite(
        "ids come back once the table is empty",
        "id integer primary key autoincrement,         -- or",
        "id integer primary key,         -- or",
        JOBS,
        file="src/dibs/engines/sqlite/migrations/0001_initial.sql",
    ),
    sqlite(
        "a settle that forgets history",
        "left join temp.dibs_special s on s.id = j.id and s.token = j.token where coalesce(s.state, 3) = 3;",
        "left join temp.dibs_special s on s.id = j.id and s.token = j.token where coalesce(s.state, 3) = 33;",
        CLAIMS,
    ),
    sqlite(
        "a worker without a row claims",
        "where exists (select 1 from dibs.workers where id = :worker)\n  and not exists",
        "where :worker is not null\n  and not exists",
        CLAIMS,
    ),
]

RECOVERING = [
    postgres(
        "a crash costs no attempt",
        "token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1,\n      finishing",
        "token = null, version = j.version + 1, state = case j.state when 2 then 2 else 1 end, crashes = j.crashes + 1, attempts = j.attempts - 1,\n      finishing",
        RECOVERY,
    ),
    postgres(
        "no suspects",
        "      rank = j.rank % 10 + 20,\n      run_at",
        "      rank = j.rank % 10,\n      run_at",
        RECOVERY,
    ),
    postgres(
        "a claim does not say how many it found",
        "select (select count(*) from picked), null::bigint,",
        "select null::bigint, null::bigint,",
        CLAIMS,
    ),
    postgres(
        "a worker without room counts as a claimer",
        "  where asking and abs(",
        "  where abs(",
        RECOVERY,
        file=f"{PG}/workers.sql",
    ),
    postgres("a careless judge", "or (_careful and abs(", "or (_judge > 0 and abs(", RECOVERY),
    postgres(
        "a gap does not start trust anew",
        "when :steady::boolean and clock_timestamp() - beat_at between interval '0' and make_interval(secs => 2 * beat) then",
        "when :steady::boolean or true then",
        RECOVERY,
        file=f"{PG}/workers.sql",
    ),
    postgres(
        "the judge's own clock is not asked",
        "when :steady::boolean and clock_timestamp()",
        "when (:steady::boolean or true) and clock_timestamp()",
        RECOVERY,
        file=f"{PG}/workers.sql",
    ),
    postgres(
        "a beat in the future is alive",
        "or (_careful and abs(extract(epoch from clock_timestamp() - w.beat_at)) > w.lease)",
        "or (_careful and extract(epoch from clock_timestamp() - w.beat_at) > w.lease)",
        RECOVERY,
    ),
    postgres(
        "recovery waits for a job that is being committed",
        "where j.held and j.worker >> 20 = any (_dead) order by j.id for no key update skip locked),",
        "where j.held and j.worker >> 20 = any (_dead) order by j.id for no key update),",
        RECOVERY,
    ),
    postgres(
        "a worker's row goes although a job carries its name",
        "delete from dibs.workers w where w.id = any (_dead) and not exists (select from dibs.jobs j where j.held and j.worker >> 20 = w.id)",
        "delete from dibs.workers w where w.id = any (_dead)",
        RECOVERY,
    ),
    postgres(
        "handing back does not wait for a claim in flight",
        "perform from dibs.workers w where w.id = any (_workers) order by w.id for update;",
        "perform from dibs.workers w where w.id = any (_workers) order by w.id;",
        RECOVERY,
    ),
    postgres(
        "the last crash leaves nothing to finish",
        "      finishing = case when j.finishing = 0 and j.attempts >= j.max_attempts then 1 else j.finishing end,\n"
        "      rank = j.rank % 10 + 20,\n",
        "      rank = j.rank % 10 + 20,\n",
        RECOVERY,
    ),
    postgres(
        "those who were silent are recovered although they beat again",
        "where s.id = w.id and s.beat_at = w.beat_at)",
        "where s.id = w.id)",
        RECOVERY,
    ),
    sqlite(
        "a careless judge",
        "and me.beat_at - me.steady_since >= me.lease * 1000000 and",
        "and",
        RECOVERY,
        file=f"{LITE}/workers.sql",
    ),
    sqlite(
        "no suspects",
        "  rank = rank % 10 + 20,\n  run_at",
        "  rank = rank % 10,\n  run_at",
        RECOVERY,
        file=f"{LITE}/workers.sql",
    ),
    sqlite(
        "a crash is not counted",
        "state = case state when 2 then 2 else 1 end, crashes = crashes + 1,\n  finishing = case when finishing = 0 and attempts >= max_attempts "
        "then 1 else finishing end,\n  rank = rank % 10 + 20,\n  run_at",
        "state = 1, attempts = attempts - 1,\n  rank = rank % 10 + 20,\n  run_at",
        RECOVERY,
        file=f"{LITE}/workers.sql",
    ),
]

KEYED = [
    postgres("a final job keeps its unique key", "  if _key_jobs is not null then", "  if false then", KEYS),
    postgres(
        "an enqueue locks the key that it meets",
        "  on conflict do nothing returning job),",
        "  on conflict (type, key) do update set key = excluded.key where false returning job),",
        KEYS,
        file=f"{PG}/jobs.sql",
    ),
    sqlite(
        "a final job keeps its unique key",
        "where j.unique_key is not null and j.unique_for is null);",
        "where j.unique_key is null and j.unique_for is null);",
        KEYS,
    ),
]

RULES = [
    rule(
        "a cursor without looks",
        "ladder.py",
        "max((2 * (k & -k) for k in ticks if looks(index, k, count)), default=0)",
        "0",
        "tests/test_ladder.py",
    ),
    rule(
        "a cursor that only grows",
        "ladder.py",
        '"""The claim read this range up to `place`, even if that is further back: never the maximum."""\n',
        "place = max(place, self.place)\n",
        "tests/test_ladder.py",
    ),
    rule(
        "suspects are asked for once in a tick",
        "ladder.py",
        "        self.warm.update(dict.fromkeys(read.suspects, now))\n",
        "",
        "tests/worker/test_lane.py",
    ),
    rule(
        "a job that has ended itself is taken for lost",
        "worker/heart.py",
        "return missing - ended",
        "return missing",
        "tests/worker/test_transaction.py",
    ),
    rule(
        "the next suspect begins before the last one is settled",
        "worker/turns.py",
        "            return self.buffer.spare_suspects(wish)\n",
        "            return wish\n",
        "tests/worker/test_worker.py",
    ),
    rule(
        "a claim that came short is taken for the end of what waits",
        "worker/lane.py",
        "turn.picked, _last",
        "len(turn.claimed), _last",
        "tests/worker/test_lane.py",
    ),
    rule(
        "a paused queue is taken for one that was read",
        "ladder.py",
        "            if key[0] in read.paused:\n                continue",
        "            if False:\n                continue",
        "tests/test_ladder.py",
    ),
    rule(
        "what a hook writes is committed before FAILED is",
        "worker/transaction.py",
        "                self._fenced(self.open.run(self.settle()))\n                self.open.commit()\n",
        "                self.open.commit()\n                self._fenced(self.engine.run(self.settle()))\n",
        "tests/scenarios/test_hooks.py",
    ),
    rule(
        "a copy of the worker that a task forked goes on as one",
        "worker/run.py",
        "    if forks_before() != forks:\n",
        "    if False:\n",
        "tests/scenarios/test_bad_tasks.py",
    ),
    rule(
        "a process outlives its worker",
        "worker/child.py",
        "        gone.poll()\n        _die()\n",
        "        gone.poll()\n",
        "tests/worker/test_processes.py",
    ),
    rule(
        "who begins to listen has heard everything before",
        "ladder.py",
        "self.told, self.untold = told, told",
        "self.told, self.untold = told, False",
        "tests/test_ladder.py",
    ),
    rule(
        "a permanent failure is retried",
        "lifecycle.py",
        "if not permanent and job.attempts < job.max_attempts:",
        "if job.attempts < job.max_attempts:",
        "tests/test_lifecycle.py",
    ),
    rule(
        "the worker's clock instead of the database's",
        "operations/jobs.py",
        '        "run_at": job.run_at,\n',
        '        "run_at": job.run_at or __import__("datetime").datetime.fromtimestamp(\n'
        '            __import__("time").time() + job.delay, __import__("datetime").UTC\n        ),\n',
        "tests/conformance/test_clock.py",
    ),
    rule(
        "a claim whose answer was lost is not in doubt",
        "worker/lane.py",
        "self.doubt(self.worker, want.number)",
        "pass",
        "tests/worker/test_lane.py",
    ),
    rule(
        "claims in doubt are not handed back",
        "worker/heart.py",
        "            self._hand_back()\n",
        "",
        "tests/worker/test_heart.py",
    ),
    rule(
        "an enqueue without a key is repeated after a lost answer",
        "engines/engine.py",
        "if isinstance(error, ConnectionLost) and not (self.operation.repeatable or self.operation.reads):",
        "if False:",
        "tests/engines/test_engine.py",
    ),
    rule(
        "a forked process goes on with its parent's connections",
        "engines/engine.py",
        "        engine._after_fork()\n",
        "        pass\n",
        "tests/engines/test_forks.py",
    ),
]

ROWS, PROCESSING = "tests/adopted/test_rows.py", "tests/adopted/test_processing.py"
OWNERS, TROUBLE = "tests/adopted/test_owners.py", "tests/adopted/test_trouble.py"
LANE = "tests/adopted/test_lane.py"

ADOPTED = [
    rule(
        "a late owner writes into an adopted row",
        "adopted/postgres.py",
        "    and d.job <> all ((select ids from refused)::bigint[])\n",
        "",
        ROWS,
        engine="postgres",
    ),
    rule(
        "a late owner writes into an adopted row",
        "adopted/sqlite.py",
        "and dibs_j.token = temp.dibs_written.token and dibs_j.held = 1",
        "",
        ROWS,
        engine="sqlite",
    ),
    rule(
        "a settle writes over what the application has put into a row",
        "adopted/postgres.py",
        'where {written} and {self.says("t", JobState.RUNNING)}',
        "where {written}",
        ROWS,
        engine="postgres",
    ),
    rule(
        "a settle writes over what the application has put into a row",
        "adopted/sqlite.py",
        "where {self.table}.{self.status} = {self.word(JobState.RUNNING)} and dibs_w.row_key",
        "where dibs_w.row_key",
        ROWS,
        engine="sqlite",
    ),
    rule(
        "a row whose retry is not due is taken as a new one",
        "adopted/sqlite.py",
        '            f" and not {WATCHES})"\n',
        '            f" and dibs_j.held = 1)"\n',
        ROWS,
        engine="sqlite",
    ),
    rule(
        "a row that its application has failed is run",
        "adopted/postgres.py",
        "or r.rank %% 10 = {ASKED} and r.attempts = 1 and",
        "or r.attempts = 1 and",
        ROWS,
        engine="postgres",
    ),
    rule(
        "a row that was taken over is still only watched",
        "adopted/sqlite.py",
        "and dibs_j.attempts = 1 and dibs_j.finishing = 0 and dibs_j.crashes = 0 and",
        "and dibs_j.attempts = 1 and",
        ROWS,
        engine="sqlite",
    ),
    rule(
        "new rows go to somebody who is not enlisted",
        "adopted/postgres.py",
        "from picked p where exists (select from alive)",
        "from picked p where true",
        ROWS,
        engine="postgres",
    ),
    rule(
        "rows of a paused table are taken",
        "adopted/postgres.py",
        "    and not exists (select from {self.own}queues q where q.name = {self.name} and q.paused)\n",
        "",
        ROWS,
        engine="postgres",
    ),
    rule(
        "a late owner writes into an adopted row, in a hurry",
        "adopted/postgres_plain.py",
        "and j.token = d.token and j.held\n",
        "\n",
        ROWS,
        engine="postgres",
    ),
    rule(
        "a success is written over what the application has put into a row",
        "adopted/postgres_plain.py",
        'and {table.says("t", JobState.RUNNING)} and g.row_key',
        "and g.row_key",
        ROWS,
        engine="postgres",
    ),
    rule(
        "a new row is taken although it has changed since it was seen",
        "adopted/postgres_plain.py",
        "and t.ctid = p.tid and {same}",
        "and {same}",
        OWNERS,
    ),
    rule(
        "new rows alone go to somebody who is not enlisted",
        "adopted/postgres_plain.py",
        "from picked p where exists (select from alive) and",
        "from picked p where",
        ROWS,
        engine="postgres",
    ),
    rule(
        "new rows alone of a paused table are taken",
        "adopted/postgres_plain.py",
        "\n    and not exists (select from {table.own}queues q where q.name = {table.name} and q.paused) then",
        " then",
        ROWS,
        engine="postgres",
    ),
    rule(
        "a settle that waited for its own first copy takes it for lost",
        "adopted/postgres_plain.py",
        'f"{table.own}turn_1(_done => r.ids, _done_tokens => r.tokens, _rows => true)"',
        "f\"(select {table.own}unsettled_1(r.ids, r.tokens, '{{}}')::text as queue)\"",
        OWNERS,
    ),
    rule(
        "who takes a new row waits for its job, whose owner waits for the row",
        "adopted/postgres.py",
        'return f"(select true from {self.table} v where v.ctid = p.tid and {same})"',
        'return "true"',
        OWNERS,
    ),
    rule(
        "a row that was asked for since we looked stops the turn",
        "engines/postgres/errors.py",
        "error.diag.constraint_name == LEASE",
        "False",
        OWNERS,
    ),
    rule(
        "the last new row is taken for the end, though a retry is due",
        "worker/rows.py",
        "            self.split = True\n            self.ladders.ask_all()\n",
        "            pass\n",
        LANE,
    ),
    rule(
        "a retry waits until there are no new rows",
        "worker/rows.py",
        "self.engine.can.cursor and self.ladders.rests(self._ranges(ask), now)",
        "self.engine.can.cursor",
        LANE,
    ),
    rule(
        "a row with its output is run",
        "worker/rows.py",
        "taken.row is not None and not taken.done and job.finishing < CANCELLING",
        "taken.row is not None and job.finishing < CANCELLING",
        PROCESSING,
    ),
    rule(
        "a row is settled without its status",
        "adopted/processor.py",
        "        return taken_of(job).key\n",
        "        return None\n",
        PROCESSING,
    ),
    rule(
        "a row that was put back under our hands has its output twice",
        "worker/transaction.py",
        "if turn.lost or turn.before or turn.unwritten:",
        "if turn.lost or turn.before:",
        OWNERS,
    ),
    rule(
        "a table has two names, and its rows two owners",
        "adopted/inspect.py",
        "    named(adoption, table)\n",
        "",
        OWNERS,
    ),
    rule(
        "a row that was handed back is taken in two ways, which wait for each other",
        "adopted/postgres.py",
        "(not j.held and j.claimed_at is null and j.rank %% 10 = {WATCHING})",
        "(not j.held and j.attempts = 0)",
        OWNERS,
    ),
    rule(
        "a settle is written into a row that is not of its job",
        "adopted/postgres.py",
        ' = {self.row_key("t")}\n  returning d.job',
        " is not null\n  returning d.job",
        OWNERS,
    ),
    rule(
        "rows wait until a busy queue is empty",
        "worker/buffer.py",
        "        if limit <= 0 and self.waiting:\n",
        "        if False:\n",
        TROUBLE,
    ),
    rule(
        "a row that cannot be claimed stops its table",
        "worker/rows.py",
        "                self.avoided[key] = now + AVOIDED\n",
        "",
        TROUBLE,
    ),
    rule(
        "a row that cannot be written is run for ever",
        "worker/rows.py",
        "change=failed.change._replace(hook_error=UNWRITTEN)",
        "change=failed.change",
        TROUBLE,
    ),
    rule(
        "a row that is no longer meant loses its hook",
        "adopted/postgres.py",
        'and (r.finishing > 0 or {self.meant("t")})',
        'and {self.meant("t")}',
        TROUBLE,
    ),
    rule(
        "a job that only looks like a row is run",
        "worker/drain.py",
        "if task is None or task.takes_rows != bool(feed.source):",
        "if task is None:",
        OWNERS,
    ),
    rule(
        "a key is another one in another time zone",
        "adopted/postgres_words.py",
        "({moment}) || '+00' else",
        "{value}::text else",
        OWNERS,
    ),
    postgres(
        "jobs of adopted rows are taken by those who do not know the table",
        "and type <> all (_unknown) and (row_key is not null) = _rows\n        order by",
        "and type <> all (_unknown)\n        order by",
        ROWS,
    ),
]

PROVIDER = "tests/worker/test_provider.py"

PROVIDERS = [
    postgres(
        "a submission is begun without the lease",
        "select id, part from dibs.jobs where id = :id::bigint and token = :token::bigint and held),",
        "select id, part from dibs.jobs where id = :id::bigint),",
        PROVIDER,
        file=f"{PG}/submissions.sql",
        everywhere=True,
    ),
    sqlite(
        "a submission is begun without the lease",
        "where j.id = :id and j.token = :token and j.held = 1 order by s.round desc limit 1;",
        "where j.id = :id order by s.round desc limit 1;",
        PROVIDER,
        file=f"{LITE}/submissions.sql",
    ),
    postgres(
        "a submission does not remember that it was tried",
        ":type, :key, true, m.part,",
        ":type, :key, false, m.part,",
        PROVIDER,
        file=f"{PG}/submissions.sql",
        everywhere=True,
    ),
    postgres(
        "an acceptance is not noted once the lease is lost",
        "where job = :id::bigint and round = :round::int and finished_at is null and (task_id is null or task_id = :task_id)",
        "where job = :id::bigint and round = :round::int and finished_at is null and exists (select from dibs.jobs j where j.id = job and j.held and not j.rank >= 20)",
        PROVIDER,
        file=f"{PG}/submissions.sql",
        everywhere=True,
    ),
    postgres(
        "a second callback counts",
        "and s.answered_at is null and s.finished_at is null",
        "and s.finished_at is null",
        PROVIDER,
        file=f"{PG}/submissions.sql",
        everywhere=True,
    ),
    sqlite(
        "a second callback counts",
        "and s.answered_at is null and s.finished_at is null",
        "and s.finished_at is null",
        PROVIDER,
        file=f"{LITE}/submissions.sql",
    ),
    postgres(
        "asking is an attempt",
        "state = 2, finishing = -1, rank",
        "state = 2, finishing = 0, rank",
        PROVIDER,
        file=f"{PG}/submissions.sql",
        everywhere=True,
    ),
    sqlite(
        "a crash while asking takes a job from its provider",
        "state = case state when 2 then 2 else 1 end, crashes = crashes + 1,\n  finishing = case when finishing = 0 and attempts >= max_attempts then 1 else finishing end,\n  rank = rank % 10 + 20,\n  run_at = (select now from dibs.clock) + abs",
        "state = 1, crashes = crashes + 1,\n  finishing = case when attempts >= max_attempts then 1 else finishing end,\n  rank = rank % 10 + 20,\n  run_at = (select now from dibs.clock) + abs",
        PROVIDER,
        file=f"{LITE}/workers.sql",
    ),
    rule(
        "nobody asks the provider before submitting again",
        "worker/provider.py",
        "if not begun.tried or task.reconciles is None:",
        "if True:",
        PROVIDER,
    ),
    rule(
        "what is to be held is submitted",
        "worker/provider.py",
        "        if begun.tried and _holds(task):",
        "        if False:",
        PROVIDER,
    ),
    rule(
        "the last attempt is not asked after",
        "worker/provider.py",
        "return None if hook_is_spent(job) else await self._last_question(task, job, current)",
        "return None",
        PROVIDER,
    ),
    rule(
        "who is told to wait may have been accepted",
        "worker/provider.py",
        "            await self.engine.arun(submissions.refuse(job.lease, begun.round))\n",
        "",
        PROVIDER,
    ),
    rule(
        "an early callback is forgotten",
        "operations/submissions.py",
        "delay=0.0 if answered else delay",
        "delay=delay",
        PROVIDER,
    ),
    rule(
        "any signature will do for a callback",
        "tokens.py",
        "return (int(found[1]), int(found[2])) if genuine else None",
        "return int(found[1]), int(found[2])",
        PROVIDER,
        "tests/server/test_callbacks.py",
    ),
]

BATCHES = f"{TESTS}batches.py"
LITE_SCHEMA = "src/dibs/engines/sqlite/migrations/0001_initial.sql"

BATCHED = [
    postgres(
        "batch: of two who count at the same time neither waits for the other",
        "  perform from dibs.batches b where b.id = any (_batches) order by b.id for no key update;\n"
        "  update dibs.batches b set closed_at = b.closed_at where b.id = any (_batches);\n",
        "",
        BATCHES,
    ),
    postgres(
        "batch: its row is locked and not written",
        "  update dibs.batches b set closed_at = b.closed_at where b.id = any (_batches);\n",
        "",
        BATCHES,
    ),
    postgres(
        "batch: an open one finishes",
        "b.closed_at is not null and b.finished_at is null",
        "b.finished_at is null",
        BATCHES,
    ),
    postgres(
        "batch: it finishes twice",
        "b.closed_at is not null and b.finished_at is null",
        "b.closed_at is not null",
        BATCHES,
    ),
    postgres(
        "batch: it finishes with its first part",
        "    if not found then perform dibs.finish_batch_1(_batch); end if;",
        "    perform dibs.finish_batch_1(_batch);",
        BATCHES,
    ),
    postgres(
        "batch: parts are locked in another order",
        "perform from dibs.parts p where p.id = any (_parts) order by p.id for no key update;",
        "perform from dibs.parts p where p.id = any (_parts) order by p.id desc for no key update;",
        BATCHES,
    ),
    postgres(
        "batch: a turn that claims does not count",
        "  if _parts is not null then perform dibs.count_parts_1(_parts, _outcomes, 1); end if;\nend $$;",
        "end $$;",
        BATCHES,
    ),
    postgres(
        "batch: a cancel does not count",
        "array_agg(5::smallint), 1) from gone where part is not null having",
        "array_agg(5::smallint), 1) from gone where part is null and id < 0 having",
        BATCHES,
        file=f"{PG}/jobs.sql",
    ),
    postgres(
        "batch: a persons retry does not count",
        "array_agg(state), -1) from gone where part is not null having",
        "array_agg(state), -1) from gone where part is null and id < 0 having",
        BATCHES,
        file=f"{PG}/jobs.sql",
    ),
    postgres(
        "batch: a cancel waits for parts while it has jobs",
        " and (select count(*) from parted) >= 0 order by id for update skip locked",
        " order by id for update skip locked",
        BATCHES,
        file=f"{PG}/jobs.sql",
    ),
    postgres(
        "batch: it is closed beside those who add",
        "from dibs.batches where id = :batch::bigint for key share;",
        "from dibs.batches where id = :batch::bigint;",
        BATCHES,
        file=f"{PG}/batches.sql",
    ),
    postgres(
        "batch: who adds keeps others from settling",
        "from dibs.batches where id = :batch::bigint for key share;",
        "from dibs.batches where id = :batch::bigint for no key update;",
        BATCHES,
        file=f"{PG}/batches.sql",
    ),
    postgres(
        "batch: a job adds to it without its token",
        "where j.id = :id::bigint and j.token = :token::bigint and j.held and (select",
        "where j.id = :id::bigint and :token::bigint > 0 and j.held and (select",
        BATCHES,
        file=f"{PG}/batches.sql",
    ),
    postgres(
        "batch: a job that adds can be cancelled meanwhile",
        "= :batch::bigint\nfor key share;",
        "= :batch::bigint;",
        BATCHES,
        file=f"{PG}/batches.sql",
    ),
    postgres(
        "batch: closed with nothing left it does not finish",
        "  perform dibs.finish_batches_1(array[_batch]);\n",
        "",
        BATCHES,
    ),
    sqlite(
        "batch: an open one finishes",
        "where id = new.batch and closed_at is not null and finished_at is null",
        "where id = new.batch and finished_at is null",
        BATCHES,
        file=LITE_SCHEMA,
    ),
    sqlite(
        "batch: it finishes with its first part",
        "select p.id from dibs.parts p where p.batch = new.batch and p.total > p.successful",
        "select p.id from dibs.parts p where p.batch = new.batch and p.id < 0 and p.total > p.successful",
        BATCHES,
        file=LITE_SCHEMA,
    ),
    sqlite(
        "batch: it finishes twice",
        "after update of finished_at on dibs.batches when old.finished_at is null and new.finished_at is not null begin",
        "after update on dibs.parts when new.total = new.successful + new.failed + new.cancelled begin\n"
        "  update dibs.batches set finished_at = finished_at where id = new.batch;\nend;\n"
        "create trigger dibs.again after update of finished_at on dibs.batches when new.finished_at is not null begin",
        BATCHES,
        file=LITE_SCHEMA,
    ),
    sqlite(
        "batch: a settle does not count",
        "where j.part is not null group by j.part;",
        "where j.part < 0 group by j.part;",
        BATCHES,
    ),
    sqlite(
        "batch: a cancel does not count",
        "where j.part is not null and j.row_key is null",
        "where j.part < 0 and j.row_key is null",
        BATCHES,
        file=f"{LITE}/jobs.sql",
    ),
    sqlite(
        "batch: a persons retry does not count",
        "where l.number = 1 and d.part is not null group by d.part;",
        "where l.number = 1 and d.part < 0 group by d.part;",
        BATCHES,
        file=f"{LITE}/jobs.sql",
    ),
    sqlite(
        "batch: a job adds to it without its token",
        "where j.id = :id and j.token = :token and j.held = 1 and (select",
        "where j.id = :id and :token > 0 and j.held = 1 and (select",
        BATCHES,
        file=f"{LITE}/batches.sql",
    ),
    rule(
        "batch: a job whose key is held is counted",
        "operations/batches.py",
        "new = [each.id for each in added if each.created]",
        "new = [each.id for each in added]",
        BATCHES,
    ),
    rule(
        "batch: a finished one takes jobs", "operations/batches.py", "if finished or not own:", "if not own:", BATCHES
    ),
    rule(
        "batch: an exception in the block closes it",
        "batches.py",
        "        if error is None:\n            self.close()",
        "        if True:\n            self.close()",
        "tests/test_batches.py",
    ),
]

BREAKAGES = [
    *FENCES,
    *WATCHING,
    *SERVING,
    *CANCELLING,
    *CLAIMING,
    *RECOVERING,
    *KEYED,
    *ADOPTED,
    *BATCHED,
    *PROVIDERS,
    *RULES,
]
