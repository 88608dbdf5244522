"""What is asked of an adopted table of PostgreSQL by those who take nothing: whether rows wait, how many, what they say."""

from __future__ import annotations

from dibs.adopted.postgres import IMPATIENT, PostgresTable
from dibs.adopted.postgres_words import quoted
from dibs.job import JobState
from dibs.operations.adopted import KEPT, NEWEST


def looks(table: PostgresTable) -> dict[str, list[str]]:
    """The statements, by name."""
    return {
        "waiting": [IMPATIENT, _any_waiting(table)],
        "count": [IMPATIENT, _count(table)],
        "look": [_look(table)],
        "glimpse": [_glimpse(table)],
        "ended": [_ended(table)],
    }


def _any_waiting(table: PostgresTable) -> str:
    return f"select 1 from {table.table} t where {table.free()} limit 1"


def _count(table: PostgresTable) -> str:
    """How many wait, up to so many, and how many say that they run."""
    return (
        f"select (select count(*) from (select from {table.table} t where {table.free()} limit %(most)s::int) x),\n"
        f"  (select count(*) from (select from {table.table} t where {table.status} = {table.word(JobState.RUNNING)} limit %(most)s::int) x)"
    )


def _look(table: PostgresTable) -> str:
    """One row by its key: its word, and its job if it has one."""
    values = [f"%(key_{n})s::text" for n in range(len(table.key))]
    return f"""select t.{table.status}::text, row_to_json(t)::text,
  (select j.id from {table.own}jobs j where j.type = {table.name} and j.row_key = {table.row_key("t")})
from {table.table} t where {table.same_row("t", values)}"""


def _glimpse(table: PostgresTable) -> str:
    """Many rows by their keys, for those who watch them. A job that only watches is none."""
    values = [f"d.key ->> {n}" for n in range(len(table.key))]
    kept = [f"t.{quoted(name)}::text" if (name := table.adoption.kept.get(use)) else "null" for use in KEPT]
    return f"""select d.n - 1, t.{table.status}::text, {", ".join(kept)},
  (select j.id from {table.own}jobs j where j.type = {table.name} and j.row_key = {table.row_key("t")} and not {table.watches}), {table.key_json("t")}::text
from jsonb_array_elements(%(keys)s::text::jsonb) with ordinality d(key, n) cross join {table.table} t where {table.same_row("t", values)}"""


def _ended(table: PostgresTable) -> str:
    newest = f"greatest((select max(id) from {table.own}history), (select max(id) from {table.own}dead))"
    parts = [
        f"select j.id, (j.payload -> 'key')::text from {table.own}{ended} j\nwhere j.id > {newest} - {NEWEST} and j.type = {table.name}"
        for ended in ("history", "dead")
    ]
    return "\nunion all\n".join(parts)
