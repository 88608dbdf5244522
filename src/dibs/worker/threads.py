"""Threads for sync tasks. The standard pool waits for its own when the process ends, and a stuck job would keep it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

Call = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """At most so many threads, started when needed, that let the process end."""

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name = most, name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._abandoned: set[Future[Any]] = set()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call it in the next thread that is free. From one thread only."""
        future: Future[T] = Future()
        self._calls.put((future, partial(function, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < self.most:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self.name}-{self._started}", daemon=True).start()
        return future

    def abandon(self, future: Future[Any]) -> None:
        """Nobody waits for this one any more: if it runs, another thread may take its place until it ends."""
        if not future.cancel() and not future.done():
            self._abandoned.add(future)
            self.most += 1

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have done what was submitted; nobody waits for them."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            _call(future, function)
            replaced = future in self._abandoned
            self._abandoned.discard(future)
            del call, future, function  # or an idle thread would keep the job's arguments
            if replaced:
                self.most, self._started = self.most - 1, self._started - 1
                return
            self._idle.release()


def _call(future: Future[Any], function: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:  # user code may raise anything, sys.exit included
            future.set_exception(error)
