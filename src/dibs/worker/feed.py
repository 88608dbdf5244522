"""Where jobs come from, and what is to be said of those that have ended: all queues, or one adopted table."""

from __future__ import annotations

from dataclasses import dataclass, field

from dibs.job import Claimed
from dibs.operations.adopted import Source
from dibs.operations.claims import Settle


@dataclass(slots=True)
class Feed:
    """What the lanes of one origin share."""

    source: Source | None = None  # None: the queues
    settles: list[tuple[Claimed, Settle]] = field(default_factory=list)
    later: list[tuple[Claimed, Settle]] = field(default_factory=list)  # what could not be said yet
    dry: bool = False  # the last ask took all that there was
    woken: bool = False  # since the last ask began: what it brings does not tell that there is nothing more
    missed: bool = False  # but suspects, perhaps: one at a time runs or is asked for

    def wake(self) -> None:
        """There may be something new."""
        self.dry, self.woken = False, True
