"""Waking on SQLite: look at the file's change counter, which SQLite keeps in shared memory for us.

`PRAGMA data_version` changes when another connection has committed; asking costs about a microsecond and a half.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

from dibs.engines.engine import Hint
from dibs.engines.sqlite.connection import Place, connect

EVERY = 0.01


class Watch:
    """A connection that only looks whether others have committed; it is opened again after a fork."""

    def __init__(self, place: Place, lock: AbstractContextManager[Any], every: float = EVERY) -> None:
        self.place, self.lock, self.every = place, lock, every
        self.raw: Any = None
        self.seen = self.version()

    def version(self) -> int:
        """Changes with each commit of another connection."""
        with self.lock:
            if self.raw is None:
                self.raw, self.seen = connect(self.place), -1
            return int(self.raw.execute("pragma data_version").fetchone()[0])

    async def hints(self) -> AsyncIterator[Hint]:
        """One hint after each change, for ever."""
        while True:
            version = self.version()
            if version != self.seen:
                self.seen = version
                yield Hint("dibs_wake")
            await asyncio.sleep(self.every)

    def close(self) -> None:
        """Stop looking, until asked again."""
        with self.lock:
            raw, self.raw = self.raw, None
            if raw is not None:
                raw.close()
