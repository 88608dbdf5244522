"""Threads for sync tasks."""

import subprocess
import sys
import threading
from concurrent.futures import Future, wait

import pytest

from dibs.worker.threads import DaemonThreads

PATIENCE = 20.0


@pytest.fixture
def threads() -> DaemonThreads:
    return DaemonThreads(2, "test")


def names(threads: DaemonThreads, calls: int) -> set[str]:
    """In which threads so many calls run, one after another."""
    return {threads.submit(lambda: threading.current_thread().name).result(PATIENCE) for _ in range(calls)}


def test_a_result_and_an_error_come_back(threads: DaemonThreads) -> None:
    assert threads.submit(divmod, 7, 2).result(PATIENCE) == (3, 1)
    with pytest.raises(SystemExit):
        threads.submit(sys.exit, 3).result(PATIENCE)
    assert threads.submit(int, "12", base=3).result(PATIENCE) == 5


def test_never_more_threads_than_asked_for(threads: DaemonThreads) -> None:
    meet = threading.Barrier(2)
    done = wait([threads.submit(meet.wait, PATIENCE) for _ in range(10)], PATIENCE)
    assert not done.not_done
    assert all(future.exception() is None for future in done.done)
    assert names(threads, 20) <= {"test-1", "test-2"}


def test_what_was_cancelled_before_it_began_is_not_called(threads: DaemonThreads) -> None:
    go, called = threading.Event(), threading.Event()
    busy: list[Future[bool]] = [threads.submit(go.wait, PATIENCE) for _ in range(2)]
    late = threads.submit(called.set)
    assert late.cancel()
    go.set()
    wait(busy, PATIENCE)
    assert names(threads, 4)
    assert not called.is_set()


def test_a_stuck_call_does_not_keep_the_process() -> None:
    program = """
import threading
from dibs.worker.threads import DaemonThreads
threads, begun = DaemonThreads(1, "test"), threading.Event()
threads.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
threads.shutdown()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=False).returncode == 0
