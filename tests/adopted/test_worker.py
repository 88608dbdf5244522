"""A worker on an adopted table: what others left behind, what wakes it, and how long a row may take."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import Dibs
from dibs.adopted.postgres_extras import wakes
from dibs.adopted.source import Adopted
from dibs.operations import jobs
from dibs.operations.jobs import Filter
from tests.adopted.schemas import WORDS
from tests.adopted.tables import Application
from tests.adopted.test_owners import table_of
from tests.adopted.test_processing import TABLE, adopt, fill, statuses, until
from tests.apps import on_postgres

BEGUN = "create table stickers (id integer primary key, status varchar(20) not null, began timestamp)"


@pytest.fixture
async def often(url: str) -> AsyncIterator[Dibs]:
    """An app whose workers look often for what is due."""
    app = Dibs(url, look=0.1)
    yield app
    await app.aclose()


def began(app: Dibs, ago: str) -> str:
    """When, as the application writes it."""
    return f"datetime('now', '-{ago}')" if app.engine.name == "sqlite" else f"now() - interval '{ago}'"


def left_behind(app: Dibs, **ago: str) -> tuple[Application, Adopted, list[int]]:
    """Rows 1, 2, ... of an old processor, begun so long ago; and what runs."""
    application, ran = Application(app.engine), list[int]()
    application.execute(BEGUN)
    for n, each in enumerate(ago.values(), 1):
        application.execute(f"insert into stickers values ({n}, 'started', {began(app, each)})")
    said = dict(key="id", status="status", states=WORDS, started_at="began", poll=0.05)
    stickers = app.adopt("stickers", **said)  # type: ignore[arg-type]  # what it asks for
    stickers.process(lambda row: ran.append(row["id"]))
    return application, stickers, ran


async def test_what_was_begun_long_ago_is_taken_over_at_once(often: Dibs) -> None:
    """By the time in the row: what was begun just now waits until its own time is over."""
    application, _, ran = left_behind(often, old="1 hour", fresh="1 minute")
    async with often.running():
        await until(lambda: statuses(application) == {"completed": 1, "started": 1})
        (watching,) = [job for job in often.engine.run(jobs.page(Filter())).jobs if job.state == "PENDING"]
        assert (ran, watching.payload["key"]) == ([1], ["2" if often.engine.name == "postgres" else 2])
        application.execute(f"update stickers set began = {began(often, '1 hour')} where id = 2")
        application.wait(239)  # and it is due in a second: jobs do not come to be due in the past
        await until(lambda: statuses(application) == {"completed": 2})
    assert ran == [1, 2]


async def test_what_its_old_processor_began_anew_is_left_to_it(often: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    application, _, ran = left_behind(often, fresh="1 minute")
    with caplog.at_level(logging.INFO, "dibs"):
        async with often.running():
            await until(lambda: "run without a lease of ours" in caplog.text)
            application.execute(f"update stickers set began = {began(often, '1 second')}")
            application.wait(239)  # likewise
            await until(
                lambda: "Row 1 of stickers is gone, or was finished by somebody else: left as it is" in caplog.text
            )
    assert not ran
    assert statuses(application) == {"started": 1}


@on_postgres
async def test_a_trigger_wakes_a_worker_that_looks_once_a_minute(url: str) -> None:
    app = Dibs(url, look=3600.0)
    application = Application(app.engine)
    application.execute(TABLE)
    stickers, ran = adopt(app, poll=60.0), list[int]()
    stickers.process(lambda row: ran.append(row["id"]))
    for sql in wakes(table_of(app, stickers)):
        application.execute(sql)
    async with app.running() as worker:
        await until(lambda: worker.feeds["stickers"].dry)
        application.execute("insert into stickers (id, status) values (1, 'queued'), (2, 'other')")
        await until(lambda: statuses(application) == {"completed": 1, "other": 1})
        await until(lambda: worker.feeds["stickers"].dry)
        application.execute("update stickers set status = 'queued' where id = 2")
        await until(lambda: statuses(application) == {"completed": 2})
    assert ran == [1, 2]
    await app.aclose()


@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "thread"])
def test_a_row_may_take_so_long(app: Dibs, is_async: bool) -> None:
    application, over = Application(app.engine), threading.Event()
    application.execute(TABLE)
    stickers = adopt(app, timeout=0.05, max_attempts=2)

    async def sleeps(row: Any) -> None:
        await asyncio.sleep(600)

    stickers.process(sleeps if is_async else lambda row: over.wait(600))
    fill(application, 1)
    report = app.drain()
    over.set()
    assert (report.retried, report.failed) == (1, 1)
    ((status, error, attempts),) = application.execute("select status, error, attempts from stickers")
    assert (status, attempts) == ("failed", 2)
    assert error.startswith("TimeoutError: it ran longer than 0.05 s")
