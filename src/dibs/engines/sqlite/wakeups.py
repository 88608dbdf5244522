"""Waking on SQLite: look at the file's change counter, which SQLite keeps in shared memory for us.

`PRAGMA data_version` changes when another connection has committed; asking costs about a microsecond and a half. Where
Linux tells that the -wal was written, it is asked only then, a few times, less and less often: the commit follows the
write when the disk has it, and Linux may tell of two writes at once. Elsewhere it is asked a hundred times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from typing import Any

from dibs.engines.engine import Hint
from dibs.engines.sqlite.connection import Place, connect
from dibs.engines.sqlite.errors import translate
from dibs.engines.sqlite.inotify import Written

EVERY = 0.01  # seconds, where nobody tells
SOON, IN_ANY_CASE = 0.001, 1.0  # after a write, and when there was none for long; in between twice as long each time


class Watch:
    """A connection that only looks whether others have committed; it is opened again after a fork."""

    def __init__(self, place: Place, lock: AbstractContextManager[Any], every: float = EVERY) -> None:
        self.place, self.lock, self.every = place, lock, every
        self.raw: Any = None
        self.seen = self.version()

    def version(self) -> int:
        """Changes with each commit of another connection."""
        with self.lock:
            try:
                if self.raw is None:
                    self.raw, self.seen = connect(self.place), -1
                return int(self.raw.execute("pragma data_version").fetchone()[0])
            except self.place.module.Error as error:
                self.close()
                raise translate(error, self.place.path) from error

    async def hints(self) -> AsyncGenerator[Hint, None]:
        """One hint after each change, for ever."""
        written = self._written()
        try:
            pause = IN_ANY_CASE
            while True:
                version = self.version()
                if version != self.seen:
                    self.seen = version
                    yield Hint("dibs_wake")
                if written is None:
                    await asyncio.sleep(self.every)
                else:
                    pause = SOON if await _told(written, pause) else min(2 * pause, IN_ANY_CASE)
        finally:
            if written is not None:
                written.close()

    def close(self) -> None:
        """Stop looking, until asked again."""
        with self.lock:
            raw, self.raw = self.raw, None
            if raw is not None:
                raw.close()

    def _written(self) -> Written | None:
        try:
            return Written(f"{self.place.path}-wal")
        except OSError:
            return None


async def _told(written: Written, seconds: float) -> bool:
    """Whether there was a write within that time."""
    try:
        async with asyncio.timeout(seconds):
            await written.event.wait()
    except TimeoutError:
        return False
    written.event.clear()
    return True
