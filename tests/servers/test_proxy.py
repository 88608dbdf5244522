"""The network fails as told, and not otherwise."""

import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.servers.fixtures import FreshDatabase
from tests.servers.proxy import Proxy

INSERT = "insert into written select n from generate_series(1, %s) n returning n, repeat('x', 100)"


@pytest.fixture
def direct(postgres_url: FreshDatabase) -> Iterator["psycopg.Connection[tuple[int, ...]]"]:
    """A connection past the proxy."""
    with psycopg.connect(postgres_url("postgres18"), autocommit=True) as connection:
        connection.execute("create table written (n int)")
        yield connection


@pytest.fixture
def proxy(direct: "psycopg.Connection[tuple[int, ...]]") -> Iterator[Proxy]:
    """The network before that database."""
    info = direct.info
    with Proxy.before(f"postgresql://{info.user}@{info.host}:{info.port}/{info.dbname}") as before:
        yield before


def count(direct: "psycopg.Connection[tuple[int, ...]]") -> int:
    return direct.execute("select count(*) from written").fetchall()[0][0]


def test_who_comes_while_it_closes_is_turned_away(proxy: Proxy) -> None:
    url = urlsplit(proxy.url)
    for _ in range(50):
        with ExitStack() as clients, Proxy.before(url._replace(query="").geturl()) as closing_down:
            address = ("127.0.0.1", urlsplit(closing_down.url).port or 0)
            for _ in range(5):
                clients.enter_context(socket.create_connection(address))
    gc.collect()  # what was left open warns now, and a warning fails


def test_everything_passes(proxy: Proxy) -> None:
    with psycopg.connect(proxy.url) as one, psycopg.connect(proxy.url) as other:
        assert len(one.execute(INSERT, [10_000]).fetchall()) == 10_000
        assert other.execute("select 1").fetchone() == (1,)
    assert proxy.spoiled == 0


@pytest.mark.parametrize("rows", [1, 10_000])
def test_an_answer_is_lost_after_the_commit(
    rows: int, proxy: Proxy, direct: "psycopg.Connection[tuple[int, ...]]"
) -> None:
    with closing(psycopg.connect(proxy.url, autocommit=True)) as connection:
        proxy.lose_answer()
        with pytest.raises(psycopg.OperationalError):
            connection.execute(INSERT, [rows])
        assert (count(direct), proxy.spoiled) == (rows, 1)
    psycopg.connect(proxy.url).close()


def test_a_later_answer_is_lost(proxy: Proxy, direct: "psycopg.Connection[tuple[int, ...]]") -> None:
    with closing(psycopg.connect(proxy.url, autocommit=True)) as connection:
        proxy.lose_answer(3)
        psycopg.connect(proxy.url).close()  # to be let in is no answer
        for _ in range(2):
            connection.execute(INSERT, [1])
        with pytest.raises(psycopg.OperationalError):
            connection.execute(INSERT, [1])
    assert (count(direct), proxy.spoiled) == (3, 1)


@pytest.mark.parametrize("size", [0, 1, 7, 100])
def test_an_answer_is_cut_short(size: int, proxy: Proxy, direct: "psycopg.Connection[tuple[int, ...]]") -> None:
    with closing(psycopg.connect(proxy.url, autocommit=True)) as connection:
        proxy.cut_after(size)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(INSERT, [1])
    assert (count(direct), proxy.spoiled) == (1, 1)


def test_what_was_frozen_arrives_after_all(proxy: Proxy, direct: "psycopg.Connection[tuple[int, ...]]") -> None:
    with closing(psycopg.connect(proxy.url, autocommit=True)) as connection:
        proxy.freeze()
        connection.pgconn.send_query(b"insert into written values (1)")
        connection.pgconn.flush()
    psycopg.connect(proxy.url).close()
    assert count(direct) == 0
    proxy.thaw()
    while count(direct) == 0:
        pass


def test_connections_are_cut(proxy: Proxy) -> None:
    with closing(psycopg.connect(proxy.url)) as connection:
        proxy.reset()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    psycopg.connect(proxy.url).close()
