"""What the owner of an adopted table may add to its PostgreSQL: triggers that wake workers, and recovery for its cron."""

from __future__ import annotations

from hashlib import sha256

from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_words import literal, quoted
from dibs.job import JobState
from dibs.operations.adopted import UNWRITTEN

LONGEST_NAME = 63


def wakes(table: PostgresTable) -> list[str]:
    """Tell workers at once of rows that come to wait, once for each statement."""
    function = f"{table.own}{quoted(function_name('wake', table.adoption.name))}"
    status = table.status if table.columns[table.adoption.status].is_number else f"{table.status}::text"
    body = f"""begin
  if exists (select from dibs_changed where {status} = {literal(table.adoption.words[JobState.PENDING])}) then
    perform {table.own}wake_1({table.name}, 4, statement_timestamp());
  end if;
  return null;
end"""
    triggers = [
        f"create or replace trigger dibs_wake_{event} after {event} on {table.table} referencing new table as dibs_changed\n"
        f"for each statement execute function {function}()"
        for event in ("insert", "update")
    ]
    made = f"create or replace function {function}() returns trigger language plpgsql\nsecurity definer set search_path = pg_catalog, pg_temp as {_dollars(body)}"
    return [_plain(sql) for sql in (made, *triggers)]


def recovers(table: PostgresTable, stuck_after: float) -> str:
    """What a worker does with rows that were left behind, as a function for the database's own cron. Where no column says
    since when a row runs, those alone that were ours.

    It looks twice, so that workers who come back after an outage are not taken for dead.
    """
    function = f"{table.own}{quoted(function_name('recover', table.adoption.name))}"
    body = f"""declare
  silent bigint[]; beats timestamptz[]; freed bigint; completed bigint := 0; left_behind bigint;
begin
  select array_agg(id), array_agg(beat_at) into silent, beats from {table.own}workers
  where abs(extract(epoch from clock_timestamp() - beat_at)) > 2 * lease;
  if silent is not null then
    perform pg_sleep(5);
    perform {table.own}recover_1(0, '{{}}', silent, beats);
  end if;
  with mended as (
    {table.mend()})
  select count(*) into freed from mended;
  {_frees_others(table)}
  return freed + completed + left_behind;
end"""
    text = _dollars(body.replace("%(stuck_after)s", f"{stuck_after:g}"))
    return _plain(
        f"create or replace function {function}() returns bigint language plpgsql\nset search_path from current as {text}"
    )


def _frees_others(table: PostgresTable) -> str:
    """Rows that nobody of ours has had, and that say for too long that they run."""
    if table.adoption.started_at is None:
        return "left_behind := 0;"
    has_job = (
        f"select j.id from {table.own}jobs j where j.type = {table.name} and j.row_key = {table.row_key('t')} limit 1"
    )
    words = ", ".join(table.word(state) for state in table.adoption.left_behind)
    left = (
        f"t.{table.status} in ({words}) and {table.began('t')} is not null\n"
        f"    and not {table.still_fresh('t')} and {table.condition('t')}\n"
        f"    and ({has_job}) is null\n"
        f"    and not exists (select from {table.own}dead j where j.type = {table.name} and j.row_key = {table.row_key('t')} and j.hook_error = {literal(UNWRITTEN)})"
    )
    done = f"""update {table.table} t set {_completes(table)} where {left} and {table.has_output("t")};
  get diagnostics completed = row_count;"""
    return f"""{done if table.adoption.output else ""}
  update {table.table} t set {table.status} = {table.word(JobState.PENDING)} where {left};
  get diagnostics left_behind = row_count;"""


def _completes(table: PostgresTable) -> str:
    """What is written into a row whose output is there."""
    kept = table.adoption.kept
    sets = [f"{table.status} = {table.word(JobState.SUCCESSFUL)}"]
    if name := kept.get("finished_at"):
        sets.append(f"{quoted(name)} = {table.now(name)}")
    if name := kept.get("error"):
        sets.append(f"{quoted(name)} = {table.no_error(name)}")
    return ", ".join(sets)


def functions(table: PostgresTable) -> str:
    """What there is of both functions, as it was made."""
    names = ", ".join(literal(function_name(use, table.adoption.name)) for use in ("wake", "recover"))
    return (
        f"select proname::text, prosrc from pg_proc where proname in ({names})\n"
        f"and pronamespace = (select pronamespace from pg_proc where oid = '{table.own}wake_1'::regproc) order by 1"
    )


def function_name(use: str, table: str) -> str:
    """Within what PostgreSQL keeps of a name, and still one for each table.

    >>> function_name("wake", "stickers")
    'wake stickers'
    """
    name = f"{use} {table}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    return f"{use} {table.encode()[:30].decode(errors='ignore')} {sha256(table.encode()).hexdigest()[:16]}"


def _dollars(body: str) -> str:
    """A text as a constant, whatever is in it."""
    tag = "$dibs$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag}\n{body}\n{tag}"


def _plain(sql: str) -> str:
    """As it is typed into a shell."""
    return sql.replace("%%", "%")
