"""The floor of each database: the shortest loop that can be called a queue. No token, no history, no retry, no lease.

PostgreSQL: `UPDATE ... RETURNING` over a partial index with SKIP LOCKED, then `UPDATE ... WHERE id = ANY` to done, as
psycopg's manual would have it: prepared, binary, lists as lists. SQLite: the same between BEGIN IMMEDIATE and COMMIT,
with the durability and the checkpoints of our own connections, and a short random pause while the file is locked.
"""

import random
import sqlite3
import time
from typing import Any

import psycopg

from dibs.engines.sqlite.connection import CHECKPOINT_PAGES

Row = tuple[Any, ...]

POSTGRES_TABLE = """
create schema floor;
create table floor.jobs (
  id bigint generated always as identity primary key,
  queue text collate "C" not null, rank smallint not null, run_at timestamptz not null,
  state smallint not null default 0, attempts smallint not null default 0, max_attempts smallint not null default 5,
  worker bigint, token bigint, claimed_at timestamptz, created_at timestamptz not null default now(),
  type text not null, payload jsonb not null);
create index on floor.jobs (queue, rank, run_at, id) where state = 0;
"""
POSTGRES_FILL = """
insert into floor.jobs (queue, rank, run_at, type, payload)
select 'default', 0, now(), 'noop', jsonb_build_object('i', i, 'note', repeat('x', 60)) from generate_series(1, %s) i
"""
POSTGRES_CLAIM = """
update floor.jobs set state = 1, attempts = attempts + 1
where id in (
  select id from floor.jobs where queue = %(queue)s and state = 0 and run_at <= now()
  order by rank, run_at, id limit %(n)s for update skip locked)
returning id, 0, rank, run_at, payload
"""
POSTGRES_SETTLE = "update floor.jobs set state = 2 where id = any(%(ids)s)"

SQLITE_TABLE = """
create table jobs (
  id integer primary key, queue text not null, rank integer not null, run_at integer not null,
  state integer not null default 0, attempts integer not null default 0, max_attempts integer not null default 5,
  worker integer, token integer, claimed_at integer, created_at integer not null default 0,
  type text not null, payload text not null);
create index claim_order on jobs (queue, rank, run_at, id) where state = 0;
"""
SQLITE_FILL = "insert into jobs (queue, rank, run_at, type, payload) values ('default', 0, ?, 'noop', ?)"
SQLITE_CLAIM = """
update jobs set state = 1, attempts = attempts + 1
where id in (select id from jobs where queue = ? and state = 0 and run_at <= ? order by rank, run_at, id limit ?)
returning id, 0, payload
"""
SQLITE_SETTLE = "update jobs set state = 2 where id = ?"
FIRST_PAUSE, FACTOR, LONGEST_PAUSE = 0.0005, 1.5, 0.01


class PostgresFloor:
    """Claim and settle on one connection."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)

    def claim(self, limit: int) -> list[Row]:
        """Take the first that are due."""
        return self._execute(POSTGRES_CLAIM, {"queue": "default", "n": limit}).fetchall()

    def settle(self, ids: list[int]) -> None:
        """They are done."""
        self._execute(POSTGRES_SETTLE, {"ids": ids})

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _execute(self, sql: str, values: dict[str, Any]) -> psycopg.Cursor[Row]:
        return self.connection.execute(sql, values, prepare=True, binary=True)


def fill_postgres(url: str, jobs: int) -> None:
    """A fresh floor with so many jobs waiting."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(POSTGRES_TABLE)
        connection.execute(POSTGRES_FILL, [jobs])
        connection.execute("vacuum analyze floor.jobs")


class SqliteFloor:
    """Claim and settle on one connection."""

    def __init__(self, path: str) -> None:
        self.connection = connect(path)

    def claim(self, limit: int) -> list[Row]:
        """Take the first that are due."""
        self._begin()
        rows = self.connection.execute(SQLITE_CLAIM, ("default", int(time.time() * 1e6), limit)).fetchall()
        self.connection.execute("commit")
        return rows

    def settle(self, ids: list[int]) -> None:
        """They are done."""
        self._begin()
        self.connection.executemany(SQLITE_SETTLE, [(job_id,) for job_id in ids])
        self.connection.execute("commit")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _begin(self) -> None:
        ceiling = FIRST_PAUSE
        while True:
            try:
                self.connection.execute("begin immediate")
                return
            except sqlite3.OperationalError:
                time.sleep(random.uniform(0.2, 1.0) * ceiling)
                ceiling = min(ceiling * FACTOR, LONGEST_PAUSE)


def connect(path: str) -> sqlite3.Connection:
    """A connection with the durability and the checkpoints of ours."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    for setting in ("journal_mode = wal", "synchronous = full", "cache_size = -65536"):
        connection.execute(f"pragma {setting}")
    connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
    return connection


def fill_sqlite(path: str, jobs: int) -> None:
    """A fresh floor with so many jobs waiting."""
    connection = connect(path)
    connection.executescript(SQLITE_TABLE)
    connection.execute("begin")
    connection.executemany(SQLITE_FILL, ((1000 + n, f'{{"i": {n}, "note": "{"x" * 60}"}}') for n in range(jobs)))
    connection.execute("commit")
    connection.close()
