"""Apps on fresh databases, a pytest plugin: for tests of what a user holds, on one engine of each kind."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dibs import Dibs
from dibs.operations import jobs
from dibs.operations.jobs import Filter
from tests.actors import Actors
from tests.engines import Engines
from tests.servers.fixtures import FreshDatabase

SQLITE, POSTGRES = "sqlite", "postgres18"

on_postgres = pytest.mark.parametrize("url", [POSTGRES], indirect=True)
on_sqlite = pytest.mark.parametrize("url", [SQLITE], indirect=True)
# One engine in `make test`, both in CI: for what does not hang on the engine.
on_one = pytest.mark.parametrize("url", [POSTGRES, pytest.param(SQLITE, marks=pytest.mark.long)], indirect=True)
on_file_first = pytest.mark.parametrize("url", [SQLITE, pytest.param(POSTGRES, marks=pytest.mark.long)], indirect=True)


@pytest.fixture
def fresh_url(engines: Engines, postgres_url: FreshDatabase, tmp_path: Path) -> Callable[[str], str]:
    """Addresses of fresh databases by the name of their engine; on a server they are migrated."""

    def create(name: str) -> str:
        if name == SQLITE:
            engines.opened += 1
            return f"sqlite:///{tmp_path}/{engines.opened}.db"
        return postgres_url(name, template=engines.template(name))

    return create


@pytest.fixture(params=[SQLITE, POSTGRES])
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """The address of a fresh database, of either kind."""
    return fresh_url(request.param)


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    """An app on it."""
    app = Dibs(url)
    yield app
    app.close()


@pytest.fixture
async def async_app(url: str) -> AsyncIterator[Dibs]:
    """An app on it, for async tests."""
    app = Dibs(url)
    yield app
    await app.aclose()


def count_jobs(app: Dibs) -> int:
    """How many jobs there are, in whatever state."""
    page = app.engine.run(jobs.page(Filter(), limit=500))
    assert page.cursor is None
    return len(page.jobs)


def nothing_is_locked(url: str) -> bool:
    """Whether somebody else gets the strongest lock there is, at once."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.partition(":///")[2], timeout=0, isolation_level=None)) as file:
            file.execute("begin exclusive")
            file.execute("rollback")
    else:
        with closing(psycopg.connect(url)) as server:
            server.execute("lock table dibs.jobs, dibs.unique_keys in access exclusive mode nowait")
            server.rollback()
    return True


def can_write_at_once(url: str, **settings: Any) -> bool:
    """Whether somebody else can add a job without waiting for a lock, and take it away again."""
    other = Dibs(url, deadline=1, **settings)
    try:
        actors = Actors(other.engine)
        job_id = actors.add("somebody else's")
        actors.sql(f"delete from dibs.jobs where id = {job_id}")
        return True
    finally:
        other.close()
