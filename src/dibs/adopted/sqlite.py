"""The statements for an adopted table on SQLite: the same as on PostgreSQL, in steps of one write transaction.

A turn is the native turn with steps around it: what is settled is written into the rows first, while their jobs are still
there; then come the native steps; then the rows of what was claimed again, and new rows, are marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dibs.adopted.inspect import Found, length_limit
from dibs.adopted.mapping import Adoption
from dibs.adopted.sqlite_words import literal, quoted
from dibs.engines.dialect import PARAMETER, Step
from dibs.job import JobState
from dibs.lifecycle import CANCELLING
from dibs.operations.adopted import ASKED, UNWRITTEN, WATCHING

AT_ONCE = 40  # columns in one json_object: functions take 100 arguments at most, in old libraries
FINAL = "(3, 4, 5)"
DAY = 86_400  # by so many seconds a clock may be ahead
WATCHES = f"(dibs_j.held = 0 and dibs_j.claimed_at is null and dibs_j.rank % 10 = {WATCHING})"  # and was never claimed
WHERE = "\x00where\x00"  # stands for the user's condition until a statement is whole; no name has such a character
INFINITE = "9e999"
QUOTED = re.compile(r"""\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'""")


class SqliteTable:
    """One adopted table, and what is said to it."""

    def __init__(self, adoption: Adoption, found: Found, own: str, native_turn: Sequence[Step]) -> None:
        self.adoption, self.found, self.own, self.native_turn = adoption, found, own, native_turn
        self.columns = found.table.columns
        self.table = quoted(found.table.name)
        self.name = literal(adoption.name)
        self.status = quoted(adoption.status)
        self.key = [quoted(name) for name in adoption.key]

    def statements(self) -> dict[str, list[Step]]:
        """All of them, by name."""
        turn = [*self._writes(), *self.native_turn, *self._resumes(), *self._takes()]
        return {
            "turn": turn,
            "turn_after": turn,
            "due": [*self.native_turn],
            "first": [self.step(f"select {self.row_key()} from {self.table} where {self._to_take()} limit 1")],
            "put_off": [self._put_off()],
            "mend": list(self._mend()),
            "notice": list(self._notice()),
        }

    # Pieces

    def word(self, state: JobState) -> str:
        """The constant for a state."""
        return literal(self.adoption.words[state])

    def row_key(self) -> str:
        """The key as a text: what names the row in our tables."""
        parts = [f"{self.table}.{name}" for name in self.key]
        plain = len(parts) == 1 and self.columns[self.adoption.key[0]].type  # without a type, 1 and '1' are two keys
        return f"cast({parts[0]} as text)" if plain else f"json_array({', '.join(parts)})"

    def key_json(self) -> str:
        """The key as a list."""
        return f"json_array({', '.join(f'{self.table}.{name}' for name in self.key)})"

    def nameable(self) -> str:
        """Whether its key, as JSON, comes to the same again. Not so null (a text may be, even in a primary key), bytes, a text
        with a NUL, at which it would end, and a number with more digits than are written."""
        return " and ".join(
            f"case typeof({name}) when 'integer' then 1 when 'text' then instr({name}, char(0)) = 0 when 'real' then cast({name} as text) + 0.0 = {name} else 0 end"
            for name in [f"{self.table}.{each}" for each in self.key]
        )

    def key_in(self, rows: str) -> str:
        """Whether a row is one of those whose keys, as lists, are in `key` of these."""
        parts = ", ".join(f"json_extract(key, '$[{n}]')" for n in range(len(self.key)))
        names = ", ".join(f"{self.table}.{name}" for name in self.key)
        return (
            f"({names}) in (select {parts} from {rows})"
            if len(self.key) > 1
            else f"{names} in (select {parts} from {rows})"
        )

    def condition(self) -> str:
        """The user's own, on its own line: it may end in a comment."""
        return "1" if self.adoption.where is None else WHERE

    def has_output(self) -> str:
        """Whether the work on a row has left its trace already."""
        output, table = self.adoption.output, self.found.output
        if output is None or table is None:
            return "0"
        pairs = zip(output.columns, self.key, strict=True)
        where = " and ".join(f"dibs_o.{quoted(column)} = {self.table}.{name}" for column, name in pairs)
        return f"exists (select 1 from {quoted(table.name)} dibs_o where {where})"

    def now(self, name: str) -> str:
        """The time, as a column keeps it: as CURRENT_TIMESTAMP writes it, or seconds since 1970."""
        return "strftime('%s', 'now') + 0" if self.columns[name].is_number else "datetime('now')"

    def row_json(self) -> str:
        """A whole row; what JSON does not have as an object: bytes (hexadecimal digits), numbers without end."""
        names = list(self.columns)
        parts = []
        for at in range(0, len(names), AT_ONCE):
            some = [f"{literal(name)}, {self._plain(name)}" for name in names[at : at + AT_ONCE]]
            parts.append(f"substr(json_object({', '.join(some)}), 2, length(json_object({', '.join(some)})) - 2)")
        return "'{' || " + " || ',' || ".join(parts) + " || '}'"

    def _plain(self, name: str) -> str:
        column = f"{self.table}.{quoted(name)}"
        return (
            f"case when typeof({column}) = 'blob' then json_object('bytes', lower(hex({column})))"
            f" when typeof({column}) = 'real' and abs({column}) = {INFINITE} then json_object('real', cast({column} as text)) else {column} end"
        )

    def payload(self) -> str:
        """What a worker is given of a row."""
        done = f"case when {self.has_output()} then json('true') else json('false') end"
        return f"json_object('row', json({self.row_json()}), 'key', {self.key_json()}, 'done', {done})"

    def marks(self, attempts: str) -> str:
        """What a claim writes into a row."""
        kept = self.adoption.kept
        sets = [f"{self.status} = {self.word(JobState.RUNNING)}"]
        if name := kept.get("started_at"):
            sets.append(f"{quoted(name)} = {self.now(name)}")
        if name := kept.get("worker"):
            sets.append(f"{quoted(name)} = {self._short(name, ':worker_name')}")
        if name := kept.get("attempts"):
            sets.append(f"{quoted(name)} = {attempts}")
        if (name := kept.get("finished_at")) and self.columns[name].nullable:
            sets.append(f"{quoted(name)} = null")
        if name := kept.get("error"):
            none = self.no_error(name)
            last = f"case when {attempts} > 1 then {quoted(name)} else {none} end"  # it stays for the next attempt
            sets.append(f"{quoted(name)} = {none if attempts == '1' else last}")
        return ", ".join(sets)

    def never(self, name: str) -> str:
        """No time; where there must be one, what is there stays."""
        return "null" if self.columns[name].nullable else quoted(name)

    def no_error(self, name: str) -> str:
        """No text; where there must be one, an empty one."""
        return "null" if self.columns[name].nullable else "''"

    def _short(self, name: str, text: str) -> str:
        limit = length_limit(self.columns[name].plain)
        return f"substr({text}, 1, {limit})" if limit else text

    def _of_mine(self, column: str) -> str:
        return f"(select dibs_w.{column} from temp.dibs_written dibs_w where dibs_w.row_key = {self.row_key()})"

    def order_by(self) -> str:
        """In which rows are taken."""
        first = [f"{quoted(self.adoption.priority)} desc"] if self.adoption.priority else []
        rest = [quoted(name) for name in dict.fromkeys((*self.adoption.order_by, *self.adoption.key))]
        return ", ".join([*first, *rest])

    # Statements

    def free(self) -> str:
        """A row that waits and has no job: who has one is claimed with it. One that only watches does not count."""
        return (
            f"{self.status} = {self.word(JobState.PENDING)} and {self.nameable()} and {self.condition()}\n"
            f"  and not exists (select 1 from {self.own}jobs dibs_j where dibs_j.type = {self.name} and dibs_j.row_key = {self.row_key()}"
            f" and not {WATCHES})"
        )

    def _writes(self) -> Iterator[Step]:
        """What is settled, if it is still ours."""
        yield self.step("delete from temp.dibs_written", when="written")
        yield Step(
            "insert or replace into temp.dibs_written (job, token, state, error, attempts, key) values (?, ?, ?, ?, ?, ?)",
            each="written",
        )
        held = f"from {self.own}jobs dibs_j where dibs_j.id = job and dibs_j.token = temp.dibs_written.token and dibs_j.held = 1 and dibs_j.type = {self.name}"
        last = (
            "json_extract(dibs_j.failures, '$[' || (json_array_length(dibs_j.failures) - 1) || '].error')"  # of a crash
        )
        yield self.step(
            f"update temp.dibs_written set row_key = (select dibs_j.row_key {held}),\n"
            f"  error = coalesce(error, case when state = 4 then (select {last} {held}) end)",
            when="written",
        )
        parts = " and ".join(
            f"{self.table}.{name} = json_extract(dibs_w.key, '$[{n}]')" for n, name in enumerate(self.key)
        )
        ours = (
            f"select dibs_w.job from temp.dibs_written dibs_w cross join {self.table} on {parts}\n"
            f"where {self.table}.{self.status} = {self.word(JobState.RUNNING)} and dibs_w.row_key = {self.row_key()}"
        )
        yield self.step(f"delete from temp.dibs_written where job not in (\n{ours})", when="written")
        yield self.step("select job from temp.dibs_written", when="written")
        kept = self.adoption.kept
        words = {3: "SUCCESSFUL", 4: "FAILED", 5: "CANCELLED", 1: "RETRY", 6: "RUNNING"}
        whens = " ".join(f"when {code} then {self.word(JobState(state))}" for code, state in words.items())
        state = self._of_mine("state")
        sets = [f"{self.status} = case {state} {whens} else {self.word(JobState.PENDING)} end"]
        if name := kept.get("finished_at"):
            sets.append(
                f"{quoted(name)} = case when {state} in {FINAL} then {self.now(name)} else {self.never(name)} end"
            )
        if name := kept.get("error"):
            error = f"coalesce({self._short(name, self._of_mine('error'))}, {quoted(name)})"
            sets.append(f"{quoted(name)} = case when {state} <> 3 then {error} else {self.no_error(name)} end")
        if name := kept.get("attempts"):
            sets.append(f"{quoted(name)} = {self._of_mine('attempts')}")
        yield self.step(
            f"update {self.table} set {', '.join(sets)}\nwhere {self.key_in('temp.dibs_written')}",
            when="written",
        )

    def _resumes(self) -> Iterator[Step]:
        """The rows of jobs that were claimed again."""
        yield self.step("delete from temp.dibs_rows", when="room")
        words = ", ".join(self.word(state) for state in (JobState.PENDING, JobState.RETRY, JobState.RUNNING))
        ended = ", ".join(self.word(state) for state in (JobState.FAILED, JobState.CANCELLED))
        parts = " and ".join(
            f"{self.table}.{name} = json_extract(dibs_j.payload, '$.key[{n}]')" for n, name in enumerate(self.key)
        )
        yield self.step(
            f"insert into temp.dibs_rows (job, key, row_key, attempts)\n"
            f"select dibs_j.id, json_extract(dibs_j.payload, '$.key'), dibs_j.row_key, dibs_j.attempts from json_each(:picked) dibs_p\n"
            f"cross join {self.own}jobs dibs_j on dibs_j.id = dibs_p.value cross join {self.table} on {parts}\n"
            f"where dibs_j.row_key = {self.row_key()} and ({self.table}.{self.status} in ({words}) or dibs_j.rank % 10 = {ASKED} and dibs_j.attempts = 1 and {self.table}.{self.status} in ({ended}))\n"
            f"  and (dibs_j.finishing = 0 or dibs_j.finishing >= {CANCELLING} or {self.table}.{self.status} = {self.word(JobState.RUNNING)})\n"
            f"  and not (dibs_j.rank % 10 = {WATCHING} and dibs_j.attempts = 1 and dibs_j.finishing = 0 and dibs_j.crashes = 0 and {self.table}.{self.status} = {self.word(JobState.RUNNING)} and {self.still_fresh()})\n"
            f"  and (dibs_j.finishing > 0 or {self._meant()})",
            when="picked",
        )
        yield self.step(
            f"update {self.table} set {self.marks('(select dibs_r.attempts from temp.dibs_rows dibs_r where dibs_r.row_key = ' + self.row_key() + ')')}\n"
            f"where {self.key_in('temp.dibs_rows')}",
            when="picked",
        )
        yield self.step(self._rows_of("temp.dibs_rows"), when="picked")

    def _meant(self) -> str:
        """The user's condition for a row among others, where its columns' names would be ambiguous."""
        if self.adoption.where is None:
            return "1"
        same = " and ".join(f"dibs_m.{name} = {self.table}.{name}" for name in self.key)
        return f"exists (select 1 from (select * from {self.table} where {self.condition()}) dibs_m where {same})"

    def _rows_of(self, rows: str) -> str:
        parts = " and ".join(
            f"{self.table}.{name} = json_extract(dibs_r.key, '$[{n}]')" for n, name in enumerate(self.key)
        )
        return f"select dibs_r.job, {self.payload()} from {rows} dibs_r cross join {self.table} on {parts}"

    def _takes(self) -> Iterator[Step]:
        """New rows: pick, give each a job, mark."""
        yield self.step("delete from temp.dibs_rows", when="room")
        yield self.step(
            f"insert into temp.dibs_rows (key, row_key)\n"
            f"select {self.key_json()}, {self.row_key()} from {self.table}\n"
            f"where exists (select 1 from {self.own}workers where id = :worker)\n"
            f"  and not exists (select 1 from {self.own}queues dibs_q where dibs_q.name = {self.name} and dibs_q.paused)\n"
            f"  and {self._to_take()} limit max(:room - json_array_length(:picked), 0)",
            when="room",
        )
        yield self.step(
            f"insert into {self.own}jobs (held, worker, version, token, attempts, max_attempts, queue, type, row_key, payload,\n"
            f"  claimed_at, run_at, created_at)\n"
            f"select 1, :worker << 20 | :claim, 1, 1 << 20 | ((:bits + dibs_r.place) & 1048575), 1, :max_attempts, {self.name}, {self.name}, dibs_r.row_key,\n"
            f"  json_object('table', {self.name}, 'key', json(dibs_r.key)), dibs_c.now, dibs_c.now, dibs_c.now\n"
            f"from {self.own}clock dibs_c cross join temp.dibs_rows dibs_r where true\n"
            f"on conflict (type, row_key) where row_key is not null do update set\n"
            f"  held = 1, worker = excluded.worker, version = version + 1, attempts = 1, rank = excluded.rank, claimed_at = excluded.claimed_at, run_at = excluded.run_at,\n"
            f"  token = ((coalesce(token, 0) >> 20) + 1) << 20 | (excluded.token & 1048575)",
            when="room",
        )
        yield self.step(
            f"update temp.dibs_rows set job = (select dibs_j.id from {self.own}jobs dibs_j where dibs_j.type = {self.name} and dibs_j.row_key = temp.dibs_rows.row_key)",
            when="room",
        )
        yield self.step(
            f"update {self.table} set {self.marks('1')}\n"
            f"where {self.key_in('temp.dibs_rows')} and {self.status} = {self.word(JobState.PENDING)}",
            when="room",
        )
        yield self.step(
            f"select dibs_j.id, dibs_j.token, dibs_j.type, dibs_j.queue, null, dibs_j.attempts, dibs_j.max_attempts, dibs_j.rank, dibs_j.run_at, dibs_j.crashes, dibs_j.finishing\n"
            f"from temp.dibs_rows dibs_r cross join {self.own}jobs dibs_j on dibs_j.id = dibs_r.job order by dibs_r.place",
            when="room",
        )
        yield self.step(self._rows_of("temp.dibs_rows"), when="room")

    def _to_take(self) -> str:
        return f"{self.free()}\norder by {self.order_by()}"

    def _put_off(self) -> Step:
        """The row that comes first, if it is still this one, gets a job that is due later: it is not taken as a new one."""
        return self.step(
            f"insert into {self.own}jobs (run_at, created_at, max_attempts, queue, type, row_key, payload)\n"
            f"select cast(dibs_c.now + :seconds * 1000000 as integer), dibs_c.now, :max_attempts, {self.name}, {self.name}, dibs_p.row_key,\n"
            f"  json_object('table', {self.name}, 'key', json(dibs_p.key))\n"
            f"from {self.own}clock dibs_c cross join (\n"
            f"  select {self.row_key()} as row_key, {self.key_json()} as key from {self.table} where {self._to_take()} limit 1) dibs_p\n"
            f"where dibs_p.row_key = :row_key\n"
            f"on conflict (type, row_key) where row_key is not null do update set run_at = excluded.run_at, rank = excluded.rank"
        )

    def began(self) -> str:
        """When a row that says that it runs has begun, in seconds since 1970, as far as that can be: not before, nor a day
        from now."""
        name = self.adoption.kept.get("started_at")
        if name is None:
            return "null"
        column = f"{self.table}.{quoted(name)}"
        seconds = column if self.columns[name].is_number else f"strftime('%s', {column}) + 0"
        return f"case when {seconds} between 1 and strftime('%s', 'now') + {DAY} then {seconds} end"

    def still_fresh(self) -> str:
        """It says that it runs, without a lease of ours, and not for long: somebody else may be at it."""
        if self.adoption.started_at is None:
            return "0"
        return f"coalesce({self.began()} > strftime('%s', 'now') - :stuck_after, 0)"

    def _mend(self) -> Iterator[Step]:
        """Rows that still say that they run, whose job waits for its next attempt since its worker died."""
        yield self.step("delete from temp.dibs_rows")
        yield self.step(
            f"insert into temp.dibs_rows (job, key)\n"
            f"select dibs_j.id, {self.key_json()} from {self.table} cross join {self.own}jobs dibs_j\n"
            f"  on dibs_j.type = {self.name} and dibs_j.row_key = {self.row_key()}\n"
            f"where {self.table}.{self.status} = {self.word(JobState.RUNNING)}\n"
            f"  and dibs_j.held = 0 and dibs_j.state = 1 and dibs_j.finishing = 0 and dibs_j.attempts > 0"
        )
        yield self.step(
            f"update {self.table} set {self.status} = {self.word(JobState.RETRY)} where {self.key_in('temp.dibs_rows')}"
        )
        yield self.step("select job from temp.dibs_rows")

    def _notice(self) -> Iterator[Step]:
        """Rows that say that they run and have no job of ours are left behind, unless somebody else still works on them:
        a job is made for each, due when the time allowed is over. If the row says something else then, it is dropped."""
        since = f"coalesce(cast({self.began()} as integer) * 1000000, dibs_c.now)"
        left = ", ".join(self.word(state) for state in self.adoption.left_behind)
        yield self.step("delete from temp.dibs_rows")
        yield self.step(
            f"insert into temp.dibs_rows (key, row_key, attempts)\n"
            f"select {self.key_json()}, {self.row_key()}, {since} from {self.own}clock dibs_c cross join {self.table}\n"
            f"where {self.table}.{self.status} in ({left}) and {self.nameable()} and {self._meant()}\n"
            f"  and not exists (select 1 from {self.own}jobs dibs_j where dibs_j.type = {self.name} and dibs_j.row_key = {self.row_key()})\n"
            f"  and not exists (select 1 from {self.own}dead dibs_d where dibs_d.type = {self.name} and dibs_d.row_key = {self.row_key()}"
            f" and dibs_d.hook_error = {literal(UNWRITTEN)})\n"
            "limit :most"
        )
        yield self.step(
            f"insert into {self.own}jobs (run_at, created_at, rank, max_attempts, queue, type, row_key, payload)\n"
            f"select max(cast(dibs_r.attempts + :stuck_after * 1000000 as integer), dibs_c.now), dibs_c.now, {WATCHING}, :max_attempts, {self.name}, {self.name}, dibs_r.row_key,\n"
            f"  json_object('table', {self.name}, 'key', json(dibs_r.key))\n"
            f"from {self.own}clock dibs_c cross join temp.dibs_rows dibs_r"
        )
        yield self.step("select place from temp.dibs_rows")

    def step(self, sql: str, *, when: str = "") -> Step:
        """Its parameters are those that stand outside of quotes, and outside of the user's own condition."""
        uses = frozenset(PARAMETER.findall(QUOTED.sub("", sql)))
        return Step(sql.replace(WHERE, f"({self.adoption.where}\n)"), when=when, uses=uses)
