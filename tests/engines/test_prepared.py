"""Statements that we prepare by ourselves: a value arrives as it was, and whatever goes wrong, the next one works."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from dibs.engines.postgres.connection import PatientConnection, Server, sound
from dibs.engines.postgres.errors import Stopped
from tests.apps import POSTGRES
from tests.servers.fixtures import FreshDatabase

AT = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


@pytest.fixture
def server(postgres_url: FreshDatabase) -> Server:
    return Server.parse(postgres_url(POSTGRES))


@pytest.fixture
def raw(server: Server) -> Iterator[PatientConnection]:
    raw = server.connect(pooled=False, patience=20.0)
    yield raw
    raw.close()


@pytest.mark.parametrize(
    "kind, value",
    [
        ("bigint", 2**63 - 1),
        ("bigint", -(2**63)),
        ("smallint", 0),
        ("text", "50 % of \u00e4\U0001f600 '\\"),
        ("text", ""),
        ("float8", 0.1),
        ("float8", -1e300),
        ("boolean", True),
        ("boolean", False),
        ("timestamptz", AT),
        ("text", None),
    ],
)
def test_a_value_comes_back_as_it_went(raw: PatientConnection, kind: str, value: Any) -> None:
    sql = f"select %(value)s::{kind}, %(value)s::{kind} is null, '100 %%'"
    for _ in range(2):
        assert raw.ask(sql, {"value": value, "more": 1}) == [(value, value is None, "100 %")]


def test_one_that_gives_nothing(raw: PatientConnection) -> None:
    assert raw.ask("set lock_timeout = '1s'", {}) == []
    assert raw.ask("select 1 where false", {}) == []


def test_an_answer_of_many_packets(raw: PatientConnection) -> None:
    rows = raw.ask("select n, repeat('x', 1000) from generate_series(1, %(most)s::int) n", {"most": 20_000})
    assert [row[0] for row in rows] == [*range(1, 20_001)]
    assert {len(row[1]) for row in rows} == {1000}


def test_a_question_of_many_packets(raw: PatientConnection) -> None:
    assert raw.ask("select length(%(text)s::text)", {"text": "x" * 20_000_000}) == [(20_000_000,)]


@pytest.mark.parametrize("wrong", ["select nothing", "select 1 / %(zero)s::int"])
def test_after_an_error_the_next_one_works(raw: PatientConnection, wrong: str) -> None:
    for _ in range(2):
        with pytest.raises((psycopg.errors.UndefinedColumn, psycopg.errors.DivisionByZero)):
            raw.ask(wrong, {"zero": 0})
    assert sound(raw)
    assert raw.ask("select 1", {}) == [(1,)]


def test_one_that_takes_too_long_is_given_up(raw: PatientConnection) -> None:
    raw.patience = 0.2
    with pytest.raises(Stopped, match=r"within 0\.2 s"):
        raw.ask("select pg_sleep(%(seconds)s::int)", {"seconds": 60})
    assert sound(raw)
    assert raw.ask("select 1", {}) == [(1,)]


def test_one_that_was_cut_off_while_it_was_prepared_can_be_asked_again(raw: PatientConnection) -> None:
    """The server knows it by its name already, and we do not know that."""
    asking = raw.statements.ask("select 2", {}, 20.0)
    asking.send(None)
    while raw.pgconn.get_result() is not None:
        pass
    asking.close()
    assert raw.ask("select 2", {}) == [(2,)]


async def test_a_cancelled_one_leaves_a_sound_connection(server: Server) -> None:
    raw = await server.aconnect(pooled=False, patience=20.0)
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as other:
        waiting = asyncio.create_task(raw.ask("select pg_sleep(%(seconds)s::int)", {"seconds": 60}))
        running = "select count(*) from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
        while (await (await other.execute(running, [raw.info.backend_pid])).fetchone()) != (1,):
            pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert sound(raw)
    assert await raw.ask("select 1", {}) == [(1,)]
    await raw.close()
