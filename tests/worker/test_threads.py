"""Threads for sync tasks."""

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from dibs.worker.threads import DaemonThreads

PATIENCE = 20.0


@pytest.fixture
def threads() -> DaemonThreads:
    return DaemonThreads(2, "test")


async def names(threads: DaemonThreads, calls: int) -> set[str]:
    """In which threads so many calls run, one after another."""
    return {(await threads.run(lambda: threading.current_thread().name))[0] for _ in range(calls)}


async def begun(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE)


async def test_a_result_and_an_error_come_back(threads: DaemonThreads) -> None:
    assert await threads.run(partial(divmod, 7, 2)) == ((3, 1), None)
    result, error = await threads.run(partial(sys.exit, 3))
    assert (result, type(error)) == (None, SystemExit)
    result, error = await threads.run(partial(next, iter(())))
    assert (result, type(error)) == (None, StopIteration)


async def test_many_at_once_all_come_back(threads: DaemonThreads) -> None:
    answers = await asyncio.gather(*[threads.run(partial(int, str(n))) for n in range(2_000)])
    assert answers == [(n, None) for n in range(2_000)]


async def test_never_more_threads_than_asked_for(threads: DaemonThreads) -> None:
    meet = threading.Barrier(2)
    answers = await asyncio.gather(*[threads.run(partial(meet.wait, PATIENCE)) for _ in range(10)])
    assert [error for _, error in answers] == [None] * 10
    assert await names(threads, 20) <= {"test-1", "test-2"}


async def test_what_was_cancelled_before_it_began_is_not_called(threads: DaemonThreads) -> None:
    go, called = threading.Event(), threading.Event()
    busy = [asyncio.create_task(threads.run(partial(go.wait, PATIENCE))) for _ in range(2)]
    late = asyncio.create_task(threads.run(called.set))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.wait([late])
    go.set()
    await asyncio.gather(*busy)
    assert await names(threads, 4)
    assert not called.is_set()


async def test_the_place_of_one_that_nobody_waits_for_is_given_to_another() -> None:
    threads = DaemonThreads(1, "test")
    started, go = threading.Event(), threading.Event()

    def stuck() -> None:
        started.set()
        go.wait(PATIENCE)

    task = asyncio.create_task(threads.run(stuck))
    await begun(started)
    task.cancel()
    await asyncio.wait([task])
    assert await names(threads, 3) == {"test-2"}
    go.set()
    assert threads.most in (1, 2)  # as soon as the stuck one has noticed
    assert len(await names(threads, 3)) == 1


def test_a_stuck_call_does_not_keep_the_process() -> None:
    program = """
import asyncio, threading
from dibs.worker.threads import DaemonThreads
threads, begun = DaemonThreads(1, "test"), threading.Event()

async def main():
    stuck = asyncio.create_task(threads.run(lambda: (begun.set(), threading.Event().wait())))
    await asyncio.to_thread(begun.wait)
    threads.shutdown()
    stuck.cancel()

asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=False).returncode == 0
