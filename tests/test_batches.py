"""Batches as a user holds them: begun and closed by a block, added to from anywhere, and from their own jobs."""

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dibs import BatchProgress, Dibs, current_job
from dibs.batch import BatchState
from dibs.errors import BatchClosed, BatchNotFound, ConfigError, Conflict, InvalidOption, JoinTimeout
from dibs.job import JobState
from dibs.operations import batches, jobs
from tests.apps import on_one, on_postgres


class Shop:
    """Some tasks, and what their hooks have said."""

    def __init__(self, app: Dibs) -> None:
        self.app, self.said = app, []

        @app.task(name="work", max_attempts=1)
        def work(n: int) -> int:
            if n < 0:
                raise ValueError(n)
            return n

        @app.task(name="more")
        def more(n: int) -> None:
            batch = current_job().batch()
            batch.add(work.call(n=k) for k in range(n))

        @app.task(name="amore")
        async def amore(n: int) -> None:
            batch = await current_job().abatch()
            await batch.aadd(work.call(n=k) for k in range(n))

        @app.task(name="completed")
        def completed(batch_id: int) -> None:
            self.said.append(("completed", batch_id))

        @app.task(name="noted")
        def noted(text: str) -> None:
            self.said.append(("noted", text))

        self.work, self.more, self.amore, self.completed, self.noted = work, more, amore, completed, noted

    def calls(self, *numbers: int) -> Any:
        return (self.work.call(n=n) for n in numbers)


@pytest.fixture
def shop(app: Dibs) -> Shop:
    return Shop(app)


def counts(progress: BatchProgress) -> tuple[int, int, int, int]:
    return progress.total, progress.successful, progress.failed, progress.cancelled


def test_the_whole_of_it(app: Dibs, shop: Shop) -> None:
    good, bad = shop.noted.call(text="all well"), shop.noted.call(text="not well")
    with app.batch(name="numbers", on_complete=shop.completed, on_success=good, on_failure=bad) as batch:
        assert batch.progress().state is BatchState.OPEN
        ids = batch.add(shop.calls(1, 2, 3)) + batch.add(shop.calls(4))
    assert batch.progress().state == "CLOSED"
    app.drain()
    done = batch.join(timeout=10)
    assert (counts(done), done.name, done.unfinished, done.state) == ((4, 4, 0, 0), "numbers", 0, "FINISHED")
    assert sorted(shop.said) == [("completed", batch.id), ("noted", "all well")]
    assert [app.get(job).result for job in ids] == [1, 2, 3, 4]
    assert repr(batch) == f"Batch({batch.id}, 'numbers')"


def test_one_that_fails_and_is_retried(app: Dibs, shop: Shop) -> None:
    good, bad = shop.noted.call(text="all well"), shop.noted.call(text="not well")
    with app.batch(on_success=good, on_failure=bad) as batch:
        batch.add(shop.calls(1, -2))
    app.drain()
    assert (counts(batch.progress()), shop.said) == ((2, 1, 1, 0), [("noted", "not well")])
    assert batch.retry() == 1
    assert counts(batch.progress()) == (2, 1, 0, 0)
    app.drain()
    assert (counts(batch.progress()), shop.said) == ((2, 1, 1, 0), [("noted", "not well")])


async def test_calls_that_cannot_be_read_in_async_code(async_app: Dibs) -> None:
    shop = Shop(async_app)

    def broken() -> Any:
        yield from shop.calls(*range(6_000))
        raise ConnectionResetError("the file is gone")

    batch = await async_app.batch().abegin()
    with pytest.raises(ConnectionResetError, match="the file is gone"):
        await batch.aadd(broken())
    assert counts(await batch.aprogress()) == (0, 0, 0, 0)


async def test_the_whole_of_it_in_async_code(async_app: Dibs) -> None:
    shop = Shop(async_app)
    async with async_app.batch(on_complete=shop.completed) as batch:
        await batch.aadd(shop.calls(1, -2))
    await async_app.adrain()
    assert counts(await batch.ajoin(timeout=10)) == (2, 1, 1, 0)
    again = await async_app.aget_batch(batch.id)
    assert (await again.aretry(), await again.acancel(), counts(await again.aprogress())) == (1, 1, (2, 1, 0, 1))
    await again.aclose()
    assert shop.said == [("completed", batch.id)]


def test_a_batch_without_a_block(app: Dibs, shop: Shop) -> None:
    batch = app.batch(on_complete=shop.completed).begin()
    assert batch.begin() is batch
    batch.add(shop.calls(1))
    app.drain()
    assert batch.progress().state == "OPEN"
    with pytest.raises(JoinTimeout, match=r"Batch 1 is still OPEN after 0.01 s. Nobody has closed it"):
        batch.join(timeout=0.01)
    app.get_batch(batch.id).close()
    batch.close()
    app.drain()
    assert shop.said == [("completed", batch.id)]


def test_one_that_was_never_begun(app: Dibs, shop: Shop) -> None:
    batch = app.batch()
    for act in (batch.close, batch.progress, batch.cancel, batch.retry, lambda: batch.add(shop.calls(1))):
        with pytest.raises(ConfigError, match="has not begun"):
            act()


def test_an_exception_in_the_block_leaves_it_open(app: Dibs, shop: Shop) -> None:
    """As if the process had died there: what was committed runs, and nothing says that it was all."""
    with pytest.raises(RuntimeError) as raised, app.batch(on_complete=shop.completed) as batch:  # noqa: PT012  # inside
        batch.add(shop.calls(1, 2))
        raise RuntimeError("no more")
    assert raised.value.__notes__ == [
        f"Batch {batch.id} stays open, with what was added to it: close it, or cancel it."
    ]
    app.drain()
    assert (counts(batch.progress()), batch.progress().state, shop.said) == ((2, 2, 0, 0), "OPEN", [])
    batch.close()
    app.drain()
    assert shop.said == [("completed", batch.id)]


def test_calls_that_cannot_be_read_add_nothing(app: Dibs, shop: Shop) -> None:
    def broken() -> Any:
        yield from shop.calls(*range(6_000))
        raise OSError("the file is gone")

    batch = app.batch().begin()
    with pytest.raises(OSError, match="the file is gone"):
        batch.add(broken())
    assert counts(batch.progress()) == (0, 0, 0, 0)
    with pytest.raises(InvalidOption, match=r"task.call"):
        batch.add([7])  # type: ignore[list-item]


def test_a_cancelled_batch_takes_no_more(app: Dibs, shop: Shop) -> None:
    batch = app.batch(on_complete=shop.completed).begin()
    batch.add(shop.calls(1, 2, 3))
    assert batch.cancel() == 3
    assert batch.cancel() == 0
    assert (counts(batch.progress()), batch.progress().state) == ((3, 0, 0, 3), "FINISHED")
    with pytest.raises(BatchClosed):
        batch.add(shop.calls(4))
    app.drain()
    assert shop.said == [("completed", batch.id)]


# From its own jobs


@pytest.mark.parametrize("how", ["more", "amore"])
def test_its_own_jobs_add_to_it(app: Dibs, shop: Shop, how: str) -> None:
    with app.batch(on_complete=shop.completed) as batch:
        batch.add([getattr(shop, how).call(n=3)])
    with pytest.raises(BatchClosed, match="only its own jobs"):
        batch.add(shop.calls(1))
    app.drain()
    assert (counts(batch.join(timeout=10)), shop.said) == ((4, 4, 0, 0), [("completed", batch.id)])


def test_its_own_jobs_add_to_it_in_their_transaction(app: Dibs, shop: Shop) -> None:
    @app.task(name="inside", max_attempts=1)
    def inside(batch_id: int, fail: bool) -> None:
        batch = app.get_batch(batch_id)
        with current_job().transaction() as connection:
            batch.add(shop.calls(1, 2), connection=connection)
            if fail:
                raise ValueError

    @app.task(name="ainside")
    async def ainside(batch_id: int) -> None:
        batch = await app.aget_batch(batch_id)
        async with current_job().transaction() as connection:
            await batch.aadd(shop.calls(1, 2), connection=getattr(connection, "raw", connection))

    with app.batch(on_complete=shop.completed) as batch:
        batch.add([inside.call(batch_id=batch.id, fail=True), inside.call(batch_id=batch.id, fail=False)])
    app.drain()
    assert (counts(batch.progress()), shop.said) == ((4, 3, 1, 0), [("completed", batch.id)])
    if app.engine.name == "postgres":  # on SQLite the connection of an async task lives on a thread of its own
        with app.batch() as batch:
            batch.add([ainside.call(batch_id=batch.id)])
        app.drain()
        assert counts(batch.progress()) == (3, 3, 0, 0)


def test_a_job_of_no_batch_has_none(app: Dibs, shop: Shop) -> None:
    @app.task(name="alone")
    async def alone() -> list[bool]:
        return [current_job().batch() is None, await current_job().abatch() is None]

    job = alone.enqueue()
    app.drain()
    assert app.get(job.id).result == [True, True]


def test_the_failure_of_a_job_with_a_hook_is_counted_with_it(app: Dibs, shop: Shop) -> None:
    seen: list[str] = []

    @app.task(name="hooked", max_attempts=1, on_failure=lambda job, connection: seen.append(job.state))
    def hooked() -> None:
        raise ValueError

    with app.batch(on_complete=shop.completed) as batch:
        batch.add([hooked.call()])
    app.drain()
    assert (len(seen), counts(batch.progress()), shop.said) == (1, (1, 0, 1, 0), [("completed", batch.id)])


# In the caller's own transaction


@on_postgres
def test_a_whole_batch_in_a_transaction_of_the_callers(app: Dibs, shop: Shop, url: str) -> None:
    for undo in (True, False):
        with psycopg.connect(url) as connection:
            with app.batch(connection=connection, on_complete=shop.completed) as batch:
                batch.add(shop.calls(*range(1_000)))
                assert counts(batch.progress()) == (1_000, 0, 0, 0)
            if undo:
                connection.rollback()
                with pytest.raises(BatchNotFound):
                    app.get_batch(batch.id)
    app.drain()
    assert (counts(batch.progress()), shop.said) == ((1_000, 1_000, 0, 0), [("completed", batch.id)])


@on_postgres
@pytest.mark.slow
def test_closing_beside_an_open_transaction_that_adds(app: Dibs, shop: Shop, url: str) -> None:
    """It would wait for ever for who waits for it: it gives up instead, and can be closed afterwards."""
    with psycopg.connect(url) as connection:
        batch = app.batch().begin()
        batch.add(shop.calls(1), connection=connection)
        with pytest.raises(Conflict, match="lock timeout"):
            app.engine.run_once(batches.close(batch.id))
    batch.close()
    assert batch.progress().state == "CLOSED"


def test_a_whole_batch_in_a_transaction_on_a_file(tmp_path: Any) -> None:
    app = Dibs(f"sqlite:///{tmp_path}/own.db")
    app.migrate()
    shop = Shop(app)
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        for end in (connection.rollback, connection.commit):
            with app.batch(connection=connection, on_complete=shop.completed) as batch:
                batch.add(shop.calls(1, 2, -3))
            end()
    app.drain()
    assert (counts(batch.progress()), shop.said) == ((3, 2, 1, 0), [("completed", batch.id)])
    assert len(app.engine.run(jobs.page(jobs.Filter(type="work"))).jobs) == 3
    app.close()


# What cannot be


@on_one
@pytest.mark.parametrize(
    "options, said",
    [
        ({"name": ""}, "name: must be a text"),
        ({"name": "x" * 10_000}, "name: has 10000 characters"),
        ({"name": 7}, "name: must be a text"),
        ({"on_complete": 7}, "on_complete: must be a task or a task.call"),
        ({"on_success": print}, "on_success: must be a task or a task.call"),
    ],
)
def test_options_are_checked(app: Dibs, options: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        app.batch(**options)


@on_one
def test_hooks_are_checked_when_the_batch_is_made(app: Dibs, shop: Shop) -> None:
    with pytest.raises(InvalidOption, match="on_failure: work is called with batch_id, and does not take it"):
        app.batch(on_failure=shop.work)
    with pytest.raises(InvalidOption, match="on_complete: cannot have a unique_key"):
        app.batch(on_complete=shop.completed.using(unique_key="k"))


@on_one
def test_a_hook_has_the_options_that_were_said(app: Dibs, shop: Shop) -> None:
    with app.batch(on_complete=shop.completed.using(queue="reports", priority=9, tags=["t"], delay=60)) as batch:
        pass
    (job,) = app.engine.run(jobs.page(jobs.Filter(queue="reports"))).jobs
    assert (job.priority, job.tags, job.payload, job.state) == (9, ("t",), {"batch_id": batch.id}, JobState.PENDING)


@on_one
@pytest.mark.parametrize("number", [0, -1, 7, 2**63, 10**30])
def test_no_such_batch(app: Dibs, number: int) -> None:
    with pytest.raises(BatchNotFound, match=f"There is no batch {number}"):
        app.get_batch(number)
