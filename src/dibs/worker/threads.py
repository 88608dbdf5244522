"""Threads for sync tasks. The standard pool waits for its own when the process ends, and a stuck job would keep it.

And it wakes the event loop once for each call that ends, where once for all that have ended is enough.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

Answer = tuple[Any, BaseException | None]


class Call:
    """A function for a thread, and who waits for it."""

    __slots__ = ("begun", "dropped", "ended", "function", "future")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Answer]) -> None:
        self.function, self.future = function, future
        self.begun = self.ended = self.dropped = False


class DaemonThreads:
    """At most so many threads, started when needed, that let the process end. Used from one event loop."""

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name = most, name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0
        self._answers: deque[tuple[Call, Answer]] = deque()
        self._told = False  # the loop is to deliver them
        self._loop: asyncio.AbstractEventLoop

    async def run(self, function: Callable[[], Any]) -> Answer:
        """Call it in the next thread that is free: its result, or what it raised. Futures do not carry every exception:
        StopIteration waits for ever, GeneratorExit closes those who await it."""
        self._loop = asyncio.get_running_loop()
        call = Call(function, self._loop.create_future())
        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and self._started < self.most:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self.name}-{self._started}", daemon=True).start()
        try:
            return await call.future
        finally:
            if not call.ended:
                self._drop(call)

    def shutdown(self) -> None:
        """Let the threads end when they have done what was submitted; nobody waits for them."""
        for _ in range(self._started):
            self._calls.put(None)

    def _drop(self, call: Call) -> None:
        """Nobody waits for this one any more. If it runs, another thread may take its place until it ends."""
        with self._lock:
            call.dropped = True
            if call.begun and not call.ended:
                self.most += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                call.begun = not call.dropped
            if call.begun:
                answer = _answer(call.function)
                with self._lock:
                    call.ended = True
                    if call.dropped:
                        self.most, self._started = self.most - 1, self._started - 1
                        return
                self._deliver(call, answer)
                del answer
            del call  # or an idle thread would keep the job's arguments
            self._idle.release()

    def _deliver(self, call: Call, answer: Answer) -> None:
        self._answers.append((call, answer))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop has ended before
                self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._told = False  # first: what ends from now on may come too late for the next lines
        while self._answers:
            call, answer = self._answers.popleft()
            if not call.future.done():
                call.future.set_result(answer)


def _answer(function: Callable[[], Any]) -> Answer:
    try:
        return function(), None
    except BaseException as error:  # user code may raise anything, sys.exit included
        return None, error
