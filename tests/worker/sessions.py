"""Connections that fail at the worst moment: the database has done it, and the answer does not come."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dibs.engines.engine import Engine, Session
from dibs.errors import ConnectionLost, DatabaseError
from dibs.operations.operation import Operation

T = TypeVar("T")


@dataclass
class FaultySession(Session):
    """A session whose turns may be cut off after their commit, or refused before they begin."""

    inner: Session
    cut_off: Callable[[int, Any], bool]  # by the number of the turn, and what it did
    refuse: Callable[[int], DatabaseError | None] = lambda number: None
    turns: int = 0
    lost: list[Any] = field(default_factory=list)

    async def arun(self, operation: Operation[T]) -> T:
        """Carry an operation, perhaps."""
        self.turns += 1
        if error := self.refuse(self.turns):
            raise error
        done = await self.inner.arun(operation)
        if self.cut_off(self.turns, done):
            self.lost.append(done)
            raise ConnectionLost("cut off")
        return done

    async def aclose(self) -> None:
        """Close it."""
        await self.inner.aclose()


def make_faulty(engine: Engine, **faults: Any) -> list[FaultySession]:
    """From now on the sessions of this engine are faulty; here they are."""
    sessions: list[FaultySession] = []
    opened = engine.session

    def session(purpose: str) -> Session:
        sessions.append(FaultySession(opened(purpose), **{"cut_off": lambda number, done: False, **faults}))
        return sessions[-1]

    engine.session = session  # type: ignore[method-assign]  # for one test
    return sessions
