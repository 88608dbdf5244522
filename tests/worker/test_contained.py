"""Tasks that jobs begin, in a loop that they share with others."""

import asyncio
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.context import enter
from dibs.worker.contained import JobTasks, LeftByTask, contain


@pytest.fixture
async def in_job() -> Context:
    """A context in which a job runs."""
    contain(asyncio.get_running_loop())
    context = copy_context()
    context.run(enter, SimpleNamespace(lease=(1, 2)))
    return context


async def leaves() -> None:
    raise SystemExit(7)


async def test_in_a_job_it_is_a_failure(in_job: Context) -> None:
    with pytest.raises(LeftByTask, match="SystemExit: 7"):
        await in_job.run(asyncio.create_task, leaves())


async def test_tasks_of_others_are_as_they_were(in_job: Context) -> None:
    waiting = asyncio.sleep(0)
    task = asyncio.create_task(waiting, name="theirs")
    assert (task.get_coro(), task.get_name()) == (waiting, "theirs")
    await task


async def test_one_that_is_cancelled_before_it_begins_leaves_nothing_behind(in_job: Context) -> None:
    task = in_job.run(asyncio.create_task, leaves())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_factory_that_was_there_before_is_still_asked() -> None:
    loop, made = asyncio.get_running_loop(), list[Any]()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    loop.set_task_factory(factory)
    contain(loop)
    contain(loop)
    await asyncio.create_task(asyncio.sleep(0))
    assert len(made) == 1
    assert isinstance(loop.get_task_factory(), JobTasks)
