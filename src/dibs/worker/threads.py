"""Threads for sync tasks. The standard pool waits for its own when the process ends, and a stuck job would keep it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Call = Callable[[], None]


class DaemonThreads(Executor):
    """At most so many threads, started when needed, that let the process end."""

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name = most, name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it in the next thread that is free. From one thread only."""
        future: Future[T] = Future()
        self._calls.put(partial(_call, future, partial(function, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < self.most:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self.name}-{self._started}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have done what was submitted; nobody waits for them."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # or an idle thread would keep the job's arguments
            self._idle.release()


def _call(future: Future[T], function: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:  # user code may raise anything, sys.exit included
            future.set_exception(error)
