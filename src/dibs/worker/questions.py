"""Questions to a provider that can be asked together: what became of these?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from dibs.provider import ProviderTask, Waiting, by_id

GATHER = 0.05  # seconds that a question waits for others
MOST = 500  # questions at once
GRID = 10  # they come due together: so many times in `poll_every`


@dataclass(slots=True)
class Questions:
    """Of one task; each waits a moment for others."""

    ask_many: Callable[[list[str]], Awaitable[Any]]
    waiting: dict[str, list[asyncio.Future[Any]]] = field(default_factory=dict)
    asking: asyncio.Task[None] | None = None

    async def ask(self, task_id: str) -> Any:
        """What became of it."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(task_id, []).append(future)
        if self.asking is None or self.asking.done():
            self.asking = asyncio.create_task(self._ask(), name="poll many")
        return await future

    async def _ask(self) -> None:
        while self.waiting:
            await asyncio.sleep(GATHER)
            ids = list(self.waiting)[:MOST]
            futures = {task_id: self.waiting.pop(task_id) for task_id in ids}
            try:
                answers = by_id(await self.ask_many(ids), ids)
                found: dict[str, Any] = {task_id: answers.get(task_id, Waiting()) for task_id in ids}
            except BaseException as error:  # user code; each of those who asked is told
                found = dict.fromkeys(ids, error if isinstance(error, Exception) else RuntimeError(repr(error)))
            for task_id, waiting in futures.items():
                _deliver(waiting, found[task_id])


def _deliver(futures: list[asyncio.Future[Any]], answer: Any) -> None:
    for future in futures:
        if not future.done():
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def due_in(task: ProviderTask, seconds: float) -> float:
    """When to ask; where many can be asked at once, they come due together."""
    if task.polls_many is None:
        return seconds
    grid = min(task.poll_every / GRID, 1.0)
    return seconds + grid - (time.time() + seconds) % grid
