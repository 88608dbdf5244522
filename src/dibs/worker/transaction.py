"""A job's own transaction: its effects and its last state commit together, fenced by the lease, or not at all.

Order: the body, the fenced settle, the commit. When the commit's answer is lost, the attempt counts as failed for now;
the worker's settle then names the same lease and so learns what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any

from dibs.context import CurrentJob
from dibs.engines.engine import AsyncOpen, Engine, Open
from dibs.engines.joined import ajoin, join
from dibs.errors import ConfigError, LeaseLost
from dibs.operations.claims import Turn
from dibs.operations.operation import Operation


class JobTransaction:
    """`with` and `async with`. `settle` is asked for at the end of the body, when the result is known."""

    def __init__(
        self, engine: Engine, job: CurrentJob, settle: Callable[[], Operation[Turn]], session: Any = None
    ) -> None:
        self.engine, self.job, self.settle, self.session = engine, job, settle, session
        self.stack, self.astack = ExitStack(), AsyncExitStack()
        self.open: Open
        self.aopen: AsyncOpen

    def __enter__(self) -> Any:
        self._once()
        self.open = self.stack.enter_context(
            self.engine.transaction() if self.session is None else join(self.engine, self.session)
        )
        return self.open.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.stack:
            if error is None:
                self._fenced(self.open.run(self.settle()))
                self.open.commit()
                self.job.settled = True
            else:
                self.open.rollback()

    async def __aenter__(self) -> Any:
        self._once()
        self.aopen = await self.astack.enter_async_context(
            self.engine.atransaction() if self.session is None else ajoin(self.engine, self.session)
        )
        return self.aopen.connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self.astack:
            if error is None:
                self._fenced(await self.aopen.run(self.settle()))
                await self.aopen.commit()
                self.job.settled = True
            else:
                await self.aopen.rollback()

    def _once(self) -> None:
        if self.job.began:
            raise ConfigError("transaction() can be used once in an attempt: its commit makes the job final.")
        self.job.began = True

    def _fenced(self, turn: Turn) -> None:
        if turn.lost or turn.before or turn.unwritten:
            raise LeaseLost(self.job.id)
