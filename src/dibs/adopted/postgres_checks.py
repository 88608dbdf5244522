"""What a check asks of an adopted table of PostgreSQL: how its rows are found, and what is wrong with them."""

from __future__ import annotations

from dibs.adopted.postgres import PostgresTable
from dibs.adopted.postgres_words import quoted
from dibs.job import JobState

PLANNED = (  # what the lane of a worker is told, which claims
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
)


def checks(table: PostgresTable) -> dict[str, list[str]]:
    """The statements, by name."""
    return {
        "explain": [*[f"set local {each}" for each in PLANNED], f"explain {_explained(table)}"],
        "unknown": [_unknown(table)],
        "stuck": [_stuck(table)],
        **({} if table.adoption.output is None else {"duplicates": [_duplicates(table)]}),
    }


def _explained(table: PostgresTable) -> str:
    return f"with room as materialized (select 5 as n)\n{table.waiting()}"


def _unknown(table: PostgresTable) -> str:
    words = ", ".join(dict.fromkeys(table.word(state) for state in table.adoption.words))
    return (
        f"select {table.status}::text, count(*) from {table.table} t\n"
        f"where ({table.status} is null or {table.status} not in ({words})) and {table.condition('t')} group by 1 order by 2 desc limit 20"
    )


def _stuck(table: PostgresTable) -> str:
    """Rows that say that they run, for too long as far as one can see, which nobody alive has, and for which nobody is
    about to come."""
    alive = "abs(extract(epoch from statement_timestamp() - w.beat_at)) <= w.lease"
    soon = "j.run_at > statement_timestamp() - make_interval(secs => %(stuck_after)s::float8)"
    return (
        f"select {table.row_key('t')} from {table.table} t\n"
        f"where {table.status} = {table.word(JobState.RUNNING)} and not {table.still_fresh('t')} and {table.condition('t')}\n"
        f"  and not exists (select from {table.own}jobs j left join {table.own}workers w on w.id = j.worker >> 20\n"
        f"    where j.type = {table.name} and j.row_key = {table.row_key('t')}\n"
        f"      and case when j.held then {alive} else {soon} end) limit 1000"
    )


def _duplicates(table: PostgresTable) -> str:
    """Rows that have left more than one trace."""
    output, found = table.adoption.output, table.found.output
    assert output is not None
    assert found is not None
    names = ", ".join(quoted(name) for name in output.columns)
    place = f"{quoted(found.schema)}.{quoted(found.name)}"
    named = " and ".join(f"{quoted(name)} is not null" for name in output.columns)
    return (
        f"select {names}, count(*) from {place} where {named}\n"
        f"group by {names} having count(*) > 1 order by count(*) desc limit 1000"
    )
