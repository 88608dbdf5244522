"""What an engine is: it carries operations to its database, sync and async, and says what it can do.

Retrying is decided here, once, for both engines: what may be repeated, how long to pause, when to give up.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # what it does before a fork must come after what we do: see the end
import os
import random
import threading
import time
import weakref
from abc import ABC, abstractmethod
from asyncio import sleep
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from dibs.engines.dialect import Dialect
from dibs.errors import Conflict, ConnectionLost, DatabaseError, DeadlineExceeded, OutcomeUnknown, Unreachable
from dibs.operations.operation import Operation

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
DEADLINE = 30.0
ADDING = ("add", "add_each", "add_many", "add_to_batch")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Real differences between engines, declared."""

    push_wakeups: bool  # listeners are told; else they look by themselves
    listens: bool  # who listens hears, one way or the other; else only a look helps
    notifies: bool  # a commit can tell who changed; else the file itself shows that something did
    cursor: bool  # dead rows linger, so claims keep a cursor
    lanes: int  # turns that a worker keeps in flight: with one writer at a time, a second would only wait for the first
    prepared: bool = True


@dataclass(frozen=True, slots=True)
class Hint:
    """Something may have happened: on which channel, and what was said. Never trusted, never needed."""

    channel: str
    payload: str = ""


class Patience:
    """Whether to try an operation again after an error, and after what pause."""

    def __init__(
        self,
        operation: Operation[Any],
        deadline: float,
        *,
        reached: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.operation, self.reached, self.clock = operation, reached, clock
        self.until = clock() + deadline
        self.deadline, self.ceiling = deadline, FIRST_PAUSE

    def pause(self, error: DatabaseError) -> float:
        """Seconds to wait before the next try; raises when there should be none."""
        if isinstance(error, ConnectionLost) and not (self.operation.repeatable or self.operation.reads):
            raise OutcomeUnknown(
                f"The database did not answer whether {self.operation.name!r} was committed ({error}). {self._advice}"
            ) from error
        if not isinstance(error, Conflict | ConnectionLost | Unreachable) or not self.operation.restartable():
            raise error
        if isinstance(error, Unreachable) and not self.reached:
            raise error  # never seen this server: a wrong URL is likelier than an outage
        pause = random.uniform(0.3, 1.0) * self.ceiling
        if self.clock() + pause > self.until:
            raise DeadlineExceeded(f"Gave up after {self.deadline:g} s: {error}") from error
        self.ceiling = min(self.ceiling * 2, LONGEST_PAUSE)
        return pause

    @property
    def _advice(self) -> str:
        if self.operation.name in ADDING:
            return (
                "The job may or may not be there. With a unique_key it is safe to repeat, and then I do that for you."
            )
        return "It may or may not have been done: look before you do it again."


class Session(ABC):
    """One connection of our own, for one purpose: a lane of turns, beats, a held transaction."""

    @abstractmethod
    async def arun(self, operation: Operation[T]) -> T:
        """Carry an operation, once: the caller knows what a lost answer means."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it; a second time does nothing."""


class Open(ABC):
    """A transaction that somebody else's code fills, and in which we have the last word."""

    connection: Any  # the driver's own

    @abstractmethod
    def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""

    @abstractmethod
    def commit(self) -> None:
        """All of it, or nothing."""

    @abstractmethod
    def rollback(self) -> None:
        """Nothing of it."""


class AsyncOpen(ABC):
    """The same for async code."""

    connection: Any

    @abstractmethod
    async def run(self, operation: Operation[T]) -> T:
        """Carry an operation in it."""

    @abstractmethod
    async def commit(self) -> None:
        """All of it, or nothing."""

    @abstractmethod
    async def rollback(self) -> None:
        """Nothing of it."""


class Engine(ABC):
    """A database that carries operations."""

    name: str
    schema: str
    can: Capabilities
    dialect: Dialect
    deadline: float = DEADLINE
    reached: bool = False  # this process has been connected to it

    def run(self, operation: Operation[T]) -> T:
        """Carry an operation; again, after a pause, when that is safe and the deadline allows it."""
        patience = Patience(operation, self.deadline, reached=self.reached)
        while True:
            try:
                return self.run_once(operation)
            except DatabaseError as error:
                time.sleep(patience.pause(error))

    async def arun(self, operation: Operation[T]) -> T:
        """The same for async code."""
        patience = Patience(operation, self.deadline, reached=self.reached)
        while True:
            try:
                return await self.arun_once(operation)
            except DatabaseError as error:
                await sleep(patience.pause(error))

    @property
    def exists(self) -> bool:
        """Whether there is such a database, as far as one can see without asking it."""
        return True

    @abstractmethod
    def run_once(self, operation: Operation[T], *, within: float | None = None) -> T:
        """Carry an operation, once; wait `within` seconds at most (else the deadline) for each answer."""

    @abstractmethod
    async def arun_once(self, operation: Operation[T]) -> T:
        """Carry an operation, once."""

    @abstractmethod
    def session(self, purpose: str) -> Session:
        """A connection of its own, opened on first use."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Open]:
        """A transaction on a connection without settings of ours; rolled back at the end if nobody has ended it."""

    @abstractmethod
    def atransaction(self) -> AbstractAsyncContextManager[AsyncOpen]:
        """The same for async code."""

    @abstractmethod
    def listen(self, *channels: str) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Hints that something happened, as they come."""

    @abstractmethod
    def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that ran."""

    @abstractmethod
    def applied(self) -> list[tuple[int, str]]:
        """The migrations that this database has had."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection of this process."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close every connection of this process, from async code."""

    @abstractmethod
    def _before_fork(self) -> None:
        """Have nothing open that a child could not do without, until one of the next two is called."""

    @abstractmethod
    def _after_fork_in_parent(self) -> None:
        """Go on."""

    @abstractmethod
    def _after_fork(self) -> None:
        """We are a child now: drop what was inherited, never close or use it."""


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inherited: list[Any] = []
_forking: list[Engine] = []
_one_fork_at_a_time = threading.Lock()


def mind_forks(engine: Engine) -> None:
    """From now on this engine is told when the process was forked."""
    _engines.add(engine)


def never_close(things: Any) -> None:
    """Keep inherited connections alive for ever: closing them would harm the parent's."""
    _inherited.append(things)


def _before() -> None:
    _one_fork_at_a_time.acquire()
    _forking[:] = list(_engines)
    for engine in _forking:
        engine._before_fork()


def _in_parent() -> None:
    for engine in _forking:
        engine._after_fork_in_parent()
    _forking.clear()
    _one_fork_at_a_time.release()


def _in_child() -> None:
    _forking.clear()
    _one_fork_at_a_time.release()
    for engine in list(_engines):
        engine._after_fork()


# Who registers later is asked first. The thread pools' lock comes after our own, as it does when something is submitted
# while an engine is locked; the other way round, the two threads would wait for each other.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
