"""What is asked of an adopted table of SQLite by those who take nothing: whether rows wait, how many, what they say."""

from __future__ import annotations

from dibs.adopted.sqlite import WATCHES, SqliteTable
from dibs.adopted.sqlite_words import quoted
from dibs.engines.dialect import Step
from dibs.job import JobState
from dibs.operations.adopted import KEPT, NEWEST


def looks(table: SqliteTable) -> dict[str, list[Step]]:
    """The statements, by name."""
    return {
        "waiting": [table.step(f"select 1 from {table.table} where {table.free()} limit 1")],
        "count": [_count(table)],
        "look": [_look(table)],
        "glimpse": [_glimpse(table)],
        "ended": [_ended(table)],
    }


def _count(table: SqliteTable) -> Step:
    """How many wait, up to so many, and how many say that they run."""
    return table.step(
        f"select (select count(*) from (select 1 from {table.table} where {table.free()} limit :most)),\n"
        f"  (select count(*) from (select 1 from {table.table} where {table.status} = {table.word(JobState.RUNNING)} limit :most))"
    )


def _look(table: SqliteTable) -> Step:
    """One row by its key: its word, and its job if it has one."""
    parts = " and ".join(f"{table.table}.{name} = json_extract(:key, '$[{n}]')" for n, name in enumerate(table.key))
    return table.step(
        f"select {table.status}, {table.row_json()},\n"
        f"  (select dibs_j.id from {table.own}jobs dibs_j where dibs_j.type = {table.name} and dibs_j.row_key = {table.row_key()})\n"
        f"from {table.table} where {parts}"
    )


def _glimpse(table: SqliteTable) -> Step:
    """Many rows by their keys, for those who watch them. A job that only watches is none."""
    parts = " and ".join(
        f"{table.table}.{name} = json_extract(dibs_k.value, '$[{n}]')" for n, name in enumerate(table.key)
    )
    kept = [f"{table.table}.{quoted(name)}" if (name := table.adoption.kept.get(use)) else "null" for use in KEPT]
    return table.step(
        f"select dibs_k.key, {table.table}.{table.status}, {', '.join(kept)},\n"
        f"  (select dibs_j.id from {table.own}jobs dibs_j where dibs_j.type = {table.name} and dibs_j.row_key = {table.row_key()}"
        f" and not {WATCHES}), {table.key_json()}\n"
        f"from json_each(:keys) dibs_k cross join {table.table} on {parts}"
    )


def _ended(table: SqliteTable) -> Step:
    newest = f"(select max(id) from (select max(id) as id from {table.own}history union all select max(id) from {table.own}dead))"
    parts = [
        f"select id, json_extract(payload, '$.key') from {table.own}{ended} where id > {newest} - {NEWEST} and type = {table.name}"
        for ended in ("history", "dead")
    ]
    return table.step("\nunion all\n".join(parts))
