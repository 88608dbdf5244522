"""The statements for an adopted table on PostgreSQL. Names are quoted, words are literals, values are parameters.

A turn is one statement: the jobs behind the rows are settled and claimed again by turn_1, as any others, and what follows
from that is written into the rows; then new rows are picked, given a job each (their lease), and marked.
"""

from __future__ import annotations

import re

from dibs.adopted.inspect import Found, length_limit
from dibs.adopted.mapping import Adoption
from dibs.adopted.postgres_words import as_text, escaped, literal, quoted
from dibs.job import JobState
from dibs.lifecycle import CANCELLING
from dibs.operations.adopted import ASKED, UNWRITTEN, WATCHING

FINAL = "(3, 4, 5)"
DAY = 86_400  # by so many seconds a clock may be ahead
IMPATIENT = "set local lock_timeout = '1s'"  # who has locked the whole table is not waited for in silence
CLAIM = """%(worker)s::bigint, %(claim)s::int, %(again)s::int, %(suspects)s::int, '{}'::text[],
    %(ranges_queue)s::text[], %(ranges_rank)s::smallint[], %(ranges_at)s::timestamptz[], %(ranges_id)s::bigint[]"""


class PostgresTable:
    """One adopted table, and what is said to it."""

    def __init__(self, adoption: Adoption, found: Found, own: str) -> None:
        self.adoption, self.found, self.own = adoption, found, own
        self.columns = found.table.columns
        self.table = f"{quoted(found.table.schema)}.{quoted(found.table.name)}"
        self.name = literal(adoption.name)
        self.status = quoted(adoption.status)
        self.key = [quoted(name) for name in adoption.key]
        self.types = [escaped(self.columns[name].plain) for name in adoption.key]
        self.watches = (
            f"(not j.held and j.claimed_at is null and j.rank %% 10 = {WATCHING})"  # a job that was never claimed
        )

    def statements(self) -> dict[str, list[str]]:
        """All of them, by name; each is one text here."""
        return {
            "turn": [self._turn(self.waiting())],
            "turn_after": [self._turn(self.waiting_after())],
            "due": [self._due()],
            "first": [self._first()],
            "put_off": [self._put_off()],
            "held": [self._held()],
            "mend": [IMPATIENT, self.mend()],
            "notice": [IMPATIENT, self._notice()],
        }

    # Pieces

    def word(self, state: JobState) -> str:
        """The constant for a state, of the status column's own type."""
        column = self.columns[self.adoption.status]
        constant = literal(self.adoption.words[state])
        return f"{constant}::{escaped(column.plain)}" if column.labels else constant

    def row_key(self, alias: str) -> str:
        """The key as a text: what names the row in our tables."""
        return self.key_text([f"{alias}.{name}" for name in self.key])

    def key_json(self, alias: str) -> str:
        """The key as a list of texts."""
        return f"json_build_array({', '.join(self._texts([f'{alias}.{name}' for name in self.key]))})"

    def _one_text(self, parts: list[str]) -> str:
        return parts[0] if len(parts) == 1 else f"json_build_array({', '.join(parts)})::text"

    def _texts(self, parts: list[str]) -> list[str]:
        """The parts of a key as texts that are the same in every session."""
        kinds = [self.columns[name].plain for name in self.adoption.key]
        return [as_text(part, kind) for part, kind in zip(parts, kinds, strict=True)]

    def same_row(self, alias: str, other: list[str]) -> str:
        """Found by the key. `= any (array[...])`: the planner is not to read the table for it."""
        pairs = zip(self.key, other, self.types, strict=True)
        return " and ".join(f"{alias}.{name} = any (array[({value})::{kind}])" for name, value, kind in pairs)

    def says(self, alias: str, state: JobState) -> str:
        """Of a row that is found by its key: put so that the planner does not think of an index over all such rows."""
        return f"case when {alias}.{self.status} = {self.word(state)} then true else false end"

    def key_text(self, parts: list[str]) -> str:
        """What names a row in our tables, of the parts of its key."""
        return self._one_text(self._texts(parts))

    def key_of_text(self, text: str) -> str:
        """The key as a list of texts, as JSON, of what names the row."""
        return text if len(self.key) > 1 else f"'[' || to_json({text})::text || ']'"

    def place_json(self, parts: list[str]) -> str:
        """Where a row is in the order of the table."""
        return f"json_build_array({', '.join(f'{part}::text' for part in parts)})"

    def from_payload(self, payload: str) -> list[str]:
        """The parts of the key, out of a job's payload."""
        return [f"{payload} -> 'key' ->> {n}" for n in range(len(self.key))]

    def condition(self, alias: str) -> str:
        """The user's own, on its own line: it may end in a comment. One that names its table has a row of that name."""
        if self.adoption.where is None:
            return "true"
        where, name = f"({self.adoption.where.replace('%', '%%')}\n)", quoted(self.found.table.name)
        names_it = re.search(rf"(?<!\w){re.escape(name[1:-1])}(?!\w)", where, re.IGNORECASE)
        return f"(select {where} from (select {alias}.*) {name})" if names_it else where

    def meant(self, alias: str) -> str:
        """The same for a row among others, where its columns' names would be ambiguous."""
        if self.adoption.where is None:
            return "true"
        same = " and ".join(f"{self.table}.{name} = {alias}.{name}" for name in self.key)
        return f"exists (select from {self.table} where {same} and {self.condition(alias)})"

    def has_output(self, alias: str) -> str:
        """Whether the work on a row has left its trace already."""
        output, table = self.adoption.output, self.found.output
        if output is None or table is None:
            return "false"
        where = " and ".join(f"o.{quoted(c)} = {alias}.{k}" for c, k in zip(output.columns, self.key, strict=True))
        return f"exists (select from {quoted(table.schema)}.{quoted(table.name)} o where {where})"

    def now(self, name: str) -> str:
        """The time, as a column keeps it: a time with or without a zone, or seconds since 1970."""
        column = self.columns[name]
        return (
            f"extract(epoch from statement_timestamp())::{escaped(column.type)}"
            if column.is_number
            else "statement_timestamp()"
        )

    def marks(self, attempts: str) -> str:
        """What a claim writes into a row."""
        kept = self.adoption.kept
        sets = [f"{self.status} = {self.word(JobState.RUNNING)}"]
        if name := kept.get("started_at"):
            sets.append(f"{quoted(name)} = {self.now(name)}")
        if name := kept.get("worker"):
            sets.append(f"{quoted(name)} = {self._short(name, '%(worker_name)s')}")
        if name := kept.get("attempts"):
            sets.append(f"{quoted(name)} = {attempts}")
        if (name := kept.get("finished_at")) and self.columns[name].nullable:
            sets.append(f"{quoted(name)} = null")
        if name := kept.get("error"):
            none = self.no_error(name)
            last = f"case when {attempts} > 1 then t.{quoted(name)} else {none} end"  # it stays for the next attempt
            sets.append(f"{quoted(name)} = {none if attempts == '1' else last}")
        return ", ".join(sets)

    def writes(self) -> str:
        """What a settle writes into a row; d has the state that it comes to, its error and its attempts."""
        kept = self.adoption.kept
        words = {3: "SUCCESSFUL", 4: "FAILED", 5: "CANCELLED", 1: "RETRY", 6: "RUNNING"}
        whens = " ".join(f"when {code} then {self.word(JobState(state))}" for code, state in words.items())
        sets = [f"{self.status} = case d.state {whens} else {self.word(JobState.PENDING)} end"]
        if name := kept.get("finished_at"):
            sets.append(
                f"{quoted(name)} = case when d.state in {FINAL} then {self.now(name)} else {self.never(name)} end"
            )
        if name := kept.get("error"):
            last = f"(select j.failures -> -1 ->> 'error' from {self.own}jobs j where j.id = d.job)"  # of a crash
            error = f"coalesce({self._short(name, 'd.error')}, case when d.state = 4 then {self._short(name, last)} end, t.{quoted(name)})"
            sets.append(f"{quoted(name)} = case when d.state <> 3 then {error} else {self.no_error(name)} end")
        if name := kept.get("attempts"):
            sets.append(f"{quoted(name)} = d.attempts")
        return ", ".join(sets)

    def never(self, name: str) -> str:
        """No time; where there must be one, what is there stays."""
        return "null" if self.columns[name].nullable else f"t.{quoted(name)}"

    def no_error(self, name: str) -> str:
        """No text; where there must be one, an empty one."""
        return "null" if self.columns[name].nullable else "''"

    def _short(self, name: str, text: str) -> str:
        limit = length_limit(self.columns[name].plain)
        return f"left({text}::text, {limit})" if limit else f"{text}::text"

    @property
    def order(self) -> list[tuple[str, str, str]]:
        """In which rows are taken: name, type, direction."""
        chosen = [(name, "asc") for name in dict.fromkeys((*self.adoption.order_by, *self.adoption.key))]
        first = [(self.adoption.priority, "desc")] if self.adoption.priority else []
        return [(quoted(name), escaped(self.columns[name].type), way) for name, way in [*first, *chosen]]

    def order_by(self) -> str:
        """The same, as SQL."""
        return ", ".join(f"{name}{' desc nulls last' if way == 'desc' else ''}" for name, _, way in self.order)

    # Statements

    def free(self, *, watched: bool = True) -> str:
        """A row that waits and has no job: who has one is claimed with it. (If both ways were open, one would lock the job
        first and the other the row, and they would wait for each other.) Watched or not: one that only watches is none."""
        none = f" and not {self.watches}" if watched else ""
        return (
            f"{self.status} = {self.word(JobState.PENDING)} and {self.condition('t')}\n"
            f"      and (select j.id from {self.own}jobs j where j.type = {self.name} and j.row_key = {self.row_key('t')}"
            f"{none} limit 1) is null"
        )

    def waiting(self) -> str:
        """New rows, from the beginning."""
        return self.pick(self.free())

    def waiting_after(self, *, watched: bool = True) -> str:
        """Only what comes after the place where the last claim stopped: dead rows before it are not read again."""
        free, pick = self.free(watched=watched), self.pick if watched else self._pick_new
        names = [name for name, _, _ in self.order]
        places = [f"%(place_{n})s::text::{kind}" for n, (_, kind, _) in enumerate(self.order)]
        keys = [f"k{n}" for n in range(len(self.key))] + ["tid"] + ["job"] * watched
        if not self.adoption.priority:
            return pick(f"({', '.join(names)}) > ({', '.join(places)})\n      and {free}")
        rest = f"({', '.join(names[1:])}) > ({', '.join(places[1:])})"
        same = pick(f"{names[0]} = {places[0]} and {rest}\n      and {free}")
        lower = pick(f"{names[0]} < {places[0]}\n      and {free}")
        shown = ", ".join(keys)
        both = f"select {shown} from ({same}) same\n    union all select {shown} from ({lower}) lower"
        return f"select {shown} from ({both}) x limit (select n from room)"

    def pick(self, where: str) -> str:
        watching = f"(select j.id from {self.own}jobs j where j.type = {self.name} and j.row_key = {self.row_key('t')})"
        return self._pick_new(where, f", {watching} as job")

    def _pick_new(self, where: str, more: str = "") -> str:
        keys = ", ".join(f"t.{name} as k{n}" for n, name in enumerate(self.key))
        return (
            f"select {keys}, t.ctid as tid{more} from {self.table} t\n    where {where}\n"
            f"    order by {self.order_by()} limit (select n from room) for update skip locked"
        )

    def unchanged(self) -> str:
        """Whether a picked row is as this statement saw it. If it has changed since, it may have been taken and given back, and
        its job, which this statement does not see, be in the hands of somebody who waits for the row: to wait for the job
        would close a circle."""
        same = " and ".join(f"v.{name} = p.k{n}" for n, name in enumerate(self.key))
        return f"(select true from {self.table} v where v.ctid = p.tid and {same})"

    def _watched(self) -> str:
        """The jobs that only watch picked rows, locked."""
        return f"select j.id from {self.own}jobs j where j.id = any (array(select job from picked where job is not null)) for no key update skip locked"

    def _may_have_a_job(self) -> str:
        return f"{self.unchanged()}\n    and (p.job is null or p.job = any (array(select id from watched)))"

    def _picked_key(self) -> str:
        return self.key_text([f"p.k{n}" for n in range(len(self.key))])

    def _named_by_picked(self) -> str:
        """What a job has of its row: queue, type, row_key, payload."""
        texts = ", ".join(self._texts([f"p.k{n}" for n in range(len(self.key))]))
        return f"{self.name}, {self.name}, {self._picked_key()},\n    jsonb_build_object('table', {self.name}, 'key', jsonb_build_array({texts}))"

    def _turn(self, picks: str) -> str:
        written = self.same_row("t", [f"d.key::jsonb ->> {n}" for n in range(len(self.key))])
        stuck = self.still_fresh("t")
        return f"""with turn as materialized (
  select * from {self.own}turn_1(
    {CLAIM},
    %(done_id)s::bigint[], %(done_token)s::bigint[], %(done_state)s::smallint[], %(done_days)s::int[],
    %(done_result)s, %(done_failure)s, %(done_hook_error)s::text[],
    %(back_id)s::bigint[], %(back_token)s::bigint[], %(back_way)s::smallint[], %(back_delay)s::float8[], %(back_failure)s,
    %(events)s, true)),
refused as materialized (
  select coalesce(array_agg(u.id::bigint), '{{}}') as ids from turn cross join lateral jsonb_object_keys(case when token is null then queue::jsonb end) u(id)),
written as (
  update {self.table} t set {self.writes()}
  from unnest(%(written_job)s::bigint[], %(written_key)s::text[], %(written_state)s::smallint[], %(written_error)s::text[],
    %(written_attempts)s::smallint[]) d(job, key, state, error, attempts)
  where {written} and {self.says("t", JobState.RUNNING)}
    and d.job <> all ((select ids from refused)::bigint[])
    and (select j.row_key from {self.own}jobs j where j.id = d.job and j.type = {self.name}) = {self.row_key("t")}
  returning d.job),
resumed as (
  update {self.table} t set {self.marks("r.attempts")}
  from turn r
  where r.token is not null and {self.same_row("t", self.from_payload("r.payload::jsonb"))}
    and (t.{self.status} in ({self.word(JobState.PENDING)}, {self.word(JobState.RETRY)}, {self.word(JobState.RUNNING)})
      or r.rank %% 10 = {ASKED} and r.attempts = 1 and t.{self.status} in ({self.word(JobState.FAILED)}, {self.word(JobState.CANCELLED)}))
    and (r.finishing = 0 or r.finishing >= {CANCELLING} or t.{self.status} = {self.word(JobState.RUNNING)})
    and not (r.rank %% 10 = {WATCHING} and r.attempts = 1 and r.finishing = 0 and r.crashes = 0 and t.{self.status} = {self.word(JobState.RUNNING)} and {stuck})
    and (r.finishing > 0 or {self.meant("t")})
  returning r.id as job, json_build_object(
    'row', row_to_json(t), 'key', {self.key_json("t")}, 'done', {self.has_output("t")})::text as payload),
room as materialized (
  select case when (select count(*) from written) + (select count(*) from resumed) >= 0
    and not exists (select from {self.own}queues q where q.name = {self.name} and q.paused)
    then greatest(%(room)s::int - (select count(*) from turn where token is not null), 0) else 0 end as n),
picked as materialized (
    {picks}),
alive as materialized (
  select id from {self.own}workers where id = %(worker)s::bigint and (select count(*) from picked) > 0 for key share skip locked),
watched as materialized (
  {self._watched()}),
leased as (
  insert into {self.own}jobs as j (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload, claimed_at)
  select true, %(worker)s::bigint << 20 | %(claim)s::int, 1, nextval('{self.own}token') << 20 | floor(random() * 1048576)::bigint,
    1, %(max_attempts)s::smallint, {self._named_by_picked()}, statement_timestamp()
  from picked p where exists (select from alive) and {self._may_have_a_job()}
  on conflict (type, row_key) where row_key is not null do update set
    held = true, worker = excluded.worker, version = j.version + 1, token = excluded.token, attempts = 1, rank = excluded.rank,
    claimed_at = excluded.claimed_at, run_at = excluded.run_at
    where {self.watches}
  returning id, token, payload as key, attempts, max_attempts, rank, run_at, crashes, finishing),
taken as (
  update {self.table} t set {self.marks("1")}
  from leased l where {self.same_row("t", self.from_payload("l.key"))} and {self.says("t", JobState.PENDING)}
  returning l.*, json_build_object('row', row_to_json(t), 'key', {self.key_json("t")}, 'done', {self.has_output("t")},
    'place', {self.place_json([f"t.{name}" for name, _, _ in self.order])})::text as payload)
select id, token, type, queue, (select json_agg(job)::text from written), attempts, max_attempts, rank, run_at, crashes, finishing
from turn where token is null
union all
select t.id, t.token, t.type, t.queue, coalesce(r.payload, t.payload), t.attempts, t.max_attempts, t.rank, t.run_at, t.crashes, t.finishing
from turn t left join resumed r on r.job = t.id where t.token is not null
union all
select id, token, {self.name}, {self.name}, payload, attempts, max_attempts, rank, run_at, crashes, finishing from taken
union all
select id, token, {self.name}, {self.name}, key::text, attempts, max_attempts, rank, run_at, crashes, finishing from leased
where (select count(*) from taken) < (select count(*) from leased) and id <> all (array(select id from taken))"""

    def _due(self) -> str:
        return f"select * from {self.own}turn_1(\n    {CLAIM}, _rows => true)"

    def _first(self) -> str:
        return f"with room as materialized (select 1 as n)\nselect {self._picked_key()} from (\n    {self.waiting()}) p"

    def _put_off(self) -> str:
        """The row that comes first, if it is still this one, gets a job that is due later: it is not taken as a new one."""
        return f"""with room as materialized (select 1 as n),
picked as materialized (
    {self.waiting()}),
watched as materialized (
  {self._watched()})
insert into {self.own}jobs as j (run_at, max_attempts, queue, type, row_key, payload)
select statement_timestamp() + make_interval(secs => %(seconds)s::float8), %(max_attempts)s::smallint, {self._named_by_picked()}
from picked p where {self._picked_key()} = %(row_key)s::text and {self._may_have_a_job()}
on conflict (type, row_key) where row_key is not null do update set run_at = excluded.run_at, rank = excluded.rank
  where {self.watches}"""

    def _held(self) -> str:
        """Rows that are there and locked by somebody else."""
        row = self.same_row("t", [f"d.key::jsonb ->> {n}" for n in range(len(self.key))])
        return f"""with d as materialized (
  select * from unnest(%(written_job)s::bigint[], %(written_key)s::text[]) d(job, key)),
free as materialized (
  select d.job from d cross join {self.table} t where {row} for no key update of t skip locked)
select d.job from d cross join {self.table} t where {row} and d.job <> all (array(select job from free))"""

    def began(self, alias: str) -> str:
        """When a row that says that it runs has begun, as far as its time can be: not before 1970, nor a day from now."""
        name = self.adoption.kept.get("started_at")
        if name is None:
            return "null::timestamptz"
        time, now = f"{alias}.{quoted(name)}", "statement_timestamp()"
        if self.columns[name].is_number:
            return f"case when {time} between 1 and extract(epoch from {now}) + {DAY} then to_timestamp({time}::float8) end"
        return (
            f"case when {time} between timestamptz 'epoch' and {now} + interval '{DAY} s' then {time}::timestamptz end"
        )

    def still_fresh(self, alias: str) -> str:
        """It says that it runs, without a lease of ours, and not for long: somebody else may be at it."""
        if self.adoption.started_at is None:
            return "false"
        return f"coalesce({self.began(alias)} > statement_timestamp() - make_interval(secs => %(stuck_after)s::float8), false)"

    def mend(self) -> str:
        """Rows that still say that they run, whose job waits for its next attempt since its worker died."""
        keys = self.from_payload("j.payload")
        return f"""update {self.table} t set {self.status} = {self.word(JobState.RETRY)}
from (
  select j.id, j.payload from {self.table} t join {self.own}jobs j on j.type = {self.name} and j.row_key = {self.row_key("t")}
  where t.{self.status} = {self.word(JobState.RUNNING)} and not j.held and j.state = 1 and j.finishing = 0 and j.attempts > 0
  for update of j skip locked) j
where {self.same_row("t", keys)} and {self.says("t", JobState.RUNNING)}
returning j.id"""

    def _notice(self) -> str:
        """Rows that say that they run and have no job of ours are left behind, unless somebody else still works on them:
        a job is made for each, due when the time allowed is over. If the row says something else then, it is dropped."""
        due = f"coalesce({self.began('t')}, statement_timestamp())"
        return f"""insert into {self.own}jobs (run_at, rank, max_attempts, queue, type, row_key, payload)
select greatest({due} + make_interval(secs => %(stuck_after)s::float8), statement_timestamp()), {WATCHING}, %(max_attempts)s::smallint, {self.name}, {self.name}, {self.row_key("t")},
  jsonb_build_object('table', {self.name}, 'key', {self.key_json("t")})
from {self.table} t
where {self.status} in ({", ".join(self.word(state) for state in self.adoption.left_behind)}) and {self.condition("t")}
  and (select j.id from {self.own}jobs j where j.type = {self.name} and j.row_key = {self.row_key("t")} limit 1) is null
  and not exists (select from {self.own}dead j where j.type = {self.name} and j.row_key = {self.row_key("t")} and j.hook_error = {literal(UNWRITTEN)})
limit %(most)s::int
on conflict (type, row_key) where row_key is not null do nothing
returning id"""
