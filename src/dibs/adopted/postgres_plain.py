"""The usual turn on an adopted table of PostgreSQL, in fewer words: rows that succeeded, and new rows alone.

What a statement costs before it touches a row grows with its steps, and most turns need few of them. Jobs are settled
here as by turn_1, which is still asked about those that were not as they should be.
"""

from __future__ import annotations

from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_words import literal, quoted
from dibs.job import JobState
from dibs.operations.adopted import PLAIN
from dibs.payload import encode

NULLS = "null::smallint, null::smallint, null::smallint, statement_timestamp(), null::smallint, null::smallint"


def plain(table: PostgresTable) -> dict[str, list[str]]:
    """Settle alone; settle, and take new rows after a place."""
    picked = "(select count(*) from picked)"
    paused = f"(select jsonb_agg(name)::text from {table.own}queues where paused)"
    return {
        "done": [f"with {_settles(table)}\n{_head(table, 'null::bigint', 'null')}"],
        "new_after": [
            f"with {_settles(table)},\n{_claims(table)}\n{_head(table, picked, paused)}\nunion all\n{_taken(table)}"
        ],
    }


def _settles(table: PostgresTable) -> str:
    """All of the jobs first, in the order of their ids, then their rows: as everybody takes their locks."""
    return f"""gone as (
  delete from {table.own}jobs j using unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token)
  where j.id = any (array[d.id]) and j.token = d.token and j.held
    and case when j.type = {table.name} then j.row_key is not null end
  returning j.*),
kept as (
  insert into {table.own}history (id, run_at, created_at, claimed_at, finished_at, expires, worker, token, version, rank, state,
    attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures)
  select id, run_at, created_at, claimed_at, statement_timestamp(), (statement_timestamp() at time zone 'utc')::date + %(days)s::int,
    worker, token, version + 1, rank, 3, attempts, max_attempts, crashes, queue, type, payload, tags, progress, failures
  from gone),
written as (
  update {table.table} t set {_succeeds(table, "g.attempts")}
  from (select id, attempts, row_key, payload from gone offset 0) g
  where (select count(*) from gone) > 0 and {table.same_row("t", table.from_payload("g.payload"))}
    and {table.says("t", JobState.RUNNING)} and g.row_key = {table.row_key("t")}
  returning g.id),
told as materialized (
  select pg_notify('job_events', event) from unnest(string_to_array(%(events)s, E'\\n')) event)"""


def _succeeds(table: PostgresTable, attempts: str) -> str:
    """What a success writes into a row."""
    kept = table.adoption.kept
    sets = [f"{table.status} = {table.word(JobState.SUCCESSFUL)}"]
    if name := kept.get("finished_at"):
        sets.append(f"{quoted(name)} = {table.now(name)}")
    if name := kept.get("error"):
        sets.append(f"{quoted(name)} = {table.no_error(name)}")
    if name := kept.get("attempts"):
        sets.append(f"{quoted(name)} = {attempts}")
    return ", ".join(sets)


def _head(table: PostgresTable, picked: str, paused: str) -> str:
    """As turn_1 has it; and the jobs whose rows were written, if not all were. A volatile function sees what was committed
    while this statement waited: a settle that is sent twice finds the first one."""
    sent = "cardinality(%(done_id)s::bigint[])"
    rest = """select array_agg(d.id) as ids, array_agg(d.token) as tokens
    from unnest(%(done_id)s::bigint[], %(done_token)s::bigint[]) d(id, token) where d.id not in (select id from gone)"""
    asked = f"{table.own}turn_1(_done => r.ids, _done_tokens => r.tokens, _rows => true)"
    return f"""select {picked}, null::bigint, {paused},
  case when (select count(*) from gone) < {sent} then (
    select t.queue from ({rest}) r cross join lateral {asked} t) end,
  case when (select count(*) from written) < {sent} then (select coalesce(json_agg(id), '[]')::text from written) end,
  {NULLS}
where (select count(*) from told) >= 0"""


def _claims(table: PostgresTable) -> str:
    """A row is taken as it was seen: found again by where it lies, in which nobody else can have written since. One that has
    a job by now, which this statement cannot see, makes it fail, to be repeated. (That is hardly ever, and `on conflict` would
    be a sixth of the work on every row.) What a trigger keeps from being marked is left to the long statement."""
    keys = [f"t.{name}" for name in table.key]
    same = " and ".join(f"{name} = p.k{n}" for n, name in enumerate(keys))
    key = table.key_of_text(table.row_key("t"))
    start = literal(f'{{"table": {encode(table.adoption.name).decode()}, "key": ')
    done = "" if table.adoption.output is None else f" || ',\"done\":' || ({table.has_output('t')})::text"
    order = ", ".join(f"t.{name} as o{n}" for n, (name, _, _) in enumerate(table.order))
    return f"""room as materialized (
  select case when (select count(*) from written) >= 0
    and not exists (select from {table.own}queues q where q.name = {table.name} and q.paused) then %(room)s::int else 0 end as n),
picked as materialized (
    {table.waiting_after(watched=False)}),
alive as materialized (
  select id from {table.own}workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
taken as (
  update {table.table} t set {table.marks("1")}
  from picked p where exists (select from alive) and t.ctid = p.tid and {same} and {table.says("t", JobState.PENDING)}
  returning nextval('{table.own}job_id') as job, nextval('{table.own}token') << 20 | floor(random() * 1048576)::bigint as token,
    {table.row_key("t")} as key, {order},
    '{{"row":' || row_to_json(t)::text || ',"key":' || {key}{done} || '}}' as payload),
leased as (
  insert into {table.own}jobs (id, held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select job, true, %(worker)s::bigint << 20 | %(claim)s::int, 1, token, 1, %(max_attempts)s::smallint, {table.name}, {table.name}, key,
    ({start} || {table.key_of_text("key")} || '}}')::jsonb, statement_timestamp()
  from taken)"""


def _taken(table: PostgresTable) -> str:
    """The last one says where it is in the order of the table."""
    place = table.place_json([f"o{n}" for n in range(len(table.order))])
    last = f"left(payload, -1) || ',\"place\":' || {place}::text || '}}'"
    return f"""select job, token, {table.name}, {table.name},
  case when job = (select max(job) from taken) then {last} else payload end,
  1::smallint, %(max_attempts)s::smallint, {PLAIN}::smallint, statement_timestamp(), 0::smallint, 0::smallint from taken"""
