"""What a check asks of an adopted table of SQLite: how its rows are found, and what is wrong with them."""

from __future__ import annotations

from dibs.adopted.sqlite import SqliteTable
from dibs.adopted.sqlite_words import quoted
from dibs.engines.dialect import Step
from dibs.job import JobState


def checks(table: SqliteTable) -> dict[str, list[Step]]:
    """The statements, by name."""
    found = {
        "explain": f"explain query plan {_explained(table)}",
        "unknown": _unknown(table),
        "nameless": _nameless(table),
        "stuck": _stuck(table),
        **({} if table.adoption.output is None else {"duplicates": _duplicates(table)}),
    }
    return {name: [table.step(sql)] for name, sql in found.items()}


def _explained(table: SqliteTable) -> str:
    return f"select {', '.join(table.key)} from {table.table} where {table.free()} order by {table.order_by()} limit 5"


def _unknown(table: SqliteTable) -> str:
    words = ", ".join(dict.fromkeys(table.word(state) for state in table.adoption.words))
    return (
        f"select cast({table.status} as text), count(*) from {table.table}\n"
        f"where ({table.status} is null or {table.status} not in ({words})) and {table.condition()} group by 1 order by 2 desc limit 20"
    )


def _nameless(table: SqliteTable) -> str:
    """How many rows would be worked on if their keys could name them."""
    words = ", ".join(table.word(state) for state in (JobState.PENDING, *table.adoption.left_behind))
    return (
        f"select count(*) from {table.table}\n"
        f"where {table.status} in ({words}) and not ({table.nameable()}) and {table.condition()}"
    )


def _stuck(table: SqliteTable) -> str:
    """Rows that say that they run, for too long as far as one can see, which nobody alive has, and for which nobody is
    about to come."""
    alive = "abs(dibs_c.now - dibs_w.beat_at) <= dibs_w.lease * 1000000"
    soon = "dibs_j.run_at > dibs_c.now - :stuck_after * 1000000"
    return (
        f"select {table.row_key()} from {table.table}\n"
        f"where {table.status} = {table.word(JobState.RUNNING)} and not {table.still_fresh()} and {table.nameable()} and {table.condition()}\n"
        f"  and not exists (select 1 from {table.own}clock dibs_c cross join {table.own}jobs dibs_j left join {table.own}workers dibs_w on dibs_w.id = dibs_j.worker >> 20\n"
        f"    where dibs_j.type = {table.name} and dibs_j.row_key = {table.row_key()}\n"
        f"      and case dibs_j.held when 1 then {alive} else {soon} end) limit 1000"
    )


def _duplicates(table: SqliteTable) -> str:
    """Rows that have left more than one trace."""
    output, found = table.adoption.output, table.found.output
    assert output is not None
    assert found is not None
    names = ", ".join(quoted(name) for name in output.columns)
    named = " and ".join(f"{quoted(name)} is not null" for name in output.columns)
    return (
        f"select {names}, count(*) from {quoted(found.name)} where {named}\n"
        f"group by {names} having count(*) > 1 order by count(*) desc limit 1000"
    )
