"""A worker in a thread of somebody else's process: an event loop of its own, begun and ended from sync code."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any


class WorkerThread:
    """Runs a worker until told to stop, or until the process ends."""

    def __init__(
        self, running: Callable[[], AbstractAsyncContextManager[Any]], close: Callable[[], Awaitable[None]]
    ) -> None:
        self.running, self.close = running, close
        self.process = os.getpid()
        self.begun = threading.Event()
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ending: asyncio.Event | None = None
        self.thread = threading.Thread(target=self._run, name="dibs-worker", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it runs in this very process: a child of a fork has none."""
        return self.process == os.getpid() and self.thread.is_alive()

    def start(self) -> None:
        """Begin; raises what kept it from beginning."""
        self.thread.start()
        self.begun.wait()
        if self.error is not None:
            self.thread.join()
            raise self.error
        atexit.register(self.stop)

    def stop(self) -> None:
        """End, and wait for it."""
        atexit.unregister(self.stop)
        if self.alive and self.loop is not None and self.ending is not None:
            self.loop.call_soon_threadsafe(self.ending.set)
            self.thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # told to whoever started it, or in the log already
            self.error = error
        finally:
            self.begun.set()

    async def _work(self) -> None:
        self.loop, self.ending = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self.running() as worker:
                self.begun.set()
                either = [asyncio.create_task(event.wait()) for event in (self.ending, worker.ended)]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                for task in either:
                    task.cancel()
        finally:
            await self.close()
