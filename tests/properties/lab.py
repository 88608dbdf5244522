"""A real engine under control: answers that get lost, two operations at once, and time that can be moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from itertools import cycle
from typing import Any, TypeVar

from dibs.engines.dialect import Step
from dibs.engines.engine import Engine, Patience, Session
from dibs.errors import ConnectionLost, DibsError, OutcomeUnknown
from dibs.operations.operation import Conversation, Operation, Statement
from tests.actors import Actors
from tests.properties.look import Look, prepare
from tests.properties.values import DAY, SECOND

T = TypeVar("T")

TABLES = ("jobs", "dead", "history", "unique_keys", "queues", "workers", "worker_names")
PATIENCE = 30.0
LINGER = 0.02  # seconds
CUTS = (1, 3, 2)  # statements after which a connection breaks, in turn


class Fate(Enum):
    """What becomes of an operation on its way."""

    ANSWERED = auto()
    LOST = auto()  # carried out, but the answer never came
    CUT = auto()  # never arrived
    HALF = auto()  # the connection broke between two of its statements, or before its commit

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Answer:
    """What the caller heard, and how often the operation was really carried out."""

    value: Any = None
    error: DibsError | None = None
    times: int = 1
    heard: bool = True


class Lab:
    """One engine, one database, for many walks."""

    def __init__(self, engine: Engine, runner: asyncio.Runner) -> None:
        self.engine, self.runner = engine, runner
        self.actors = Actors(engine)
        self.lanes: tuple[Session, Session] = (engine.session("left"), engine.session("right"))
        self._look = prepare(engine)
        # Only where the second does not have to wait for the first anyhow.
        pause = [Step(f"select pg_sleep({LINGER})")] if engine.can.cursor else []
        engine.dialect.steps["linger"] = pause

    @classmethod
    @contextmanager
    def open(cls, engine: Engine) -> Iterator[Lab]:
        """With two lanes beside the engine's own connections."""
        with asyncio.Runner() as runner:
            lab = cls(engine, runner)
            try:
                yield lab
            finally:
                for lane in lab.lanes:
                    runner.run(lane.aclose())

    def reset(self) -> None:
        """An empty queue."""
        self.cuts = cycle(CUTS)
        for table in TABLES:
            self.actors.sql(f"delete from dibs.{table}")

    def look(self) -> Look:
        """Everything there is, now."""
        return self.engine.run(self._look)

    def carry(self, operation: Operation[Any], fate: Fate, *, once: bool = False) -> Answer:
        """Carry an operation and, as the engines do, again when the answer is missing and that is safe.

        `once`: not again in any case, as a lane does with its turns.
        """
        times = 0
        if fate is not Fate.ANSWERED:
            times = self._break_off(operation, fate)
            if once:
                return Answer(times=times, heard=False)
            try:
                Patience(operation, PATIENCE).pause(ConnectionLost("no answer"))
            except OutcomeUnknown as error:
                return Answer(error=error, times=times, heard=False)
        try:
            return Answer(self.engine.run_once(operation), times=times + 1)
        except DibsError as error:
            return Answer(error=error, times=times + 1)

    def _break_off(self, operation: Operation[Any], fate: Fate) -> int:
        """How often it was carried out, nobody having heard of it."""
        try:
            if fate is Fate.LOST:
                self.engine.run_once(operation)
                return 1
            if fate is Fate.HALF and operation.atomic:
                self.engine.run_once(_cut_short(operation, next(self.cuts)))
        except DibsError:
            return int(fate is Fate.LOST)
        return 0

    def race(self, left: Operation[Any], right: Operation[Any], *, linger: bool) -> tuple[Answer, Answer]:
        """Both at once, each on a connection of its own; the first may take its time to commit, once it has begun."""

        async def both() -> tuple[Answer, Answer]:
            first, second = self.lanes
            if not linger:
                return await asyncio.gather(_answer(first, left), _answer(second, right))
            begun, loop = asyncio.Event(), asyncio.get_running_loop()
            lingering = _lingering(left, lambda: loop.call_soon_threadsafe(begun.set))
            slow = asyncio.create_task(_answer(first, lingering))
            waiting = asyncio.create_task(begun.wait())
            await asyncio.wait([slow, waiting], return_when=asyncio.FIRST_COMPLETED)  # it may be refused before
            waiting.cancel()
            fast = await _answer(second, right)
            return await slow, fast

        return self.runner.run(both())

    def pass_time(self, seconds: int) -> None:
        """Everything in the database is so much longer ago, or so much nearer."""
        shift = self._shift(seconds)
        self.actors.sql(f"update dibs.jobs set run_at = run_at - {shift}")
        self.actors.sql(f"update dibs.workers set beat_at = beat_at - {shift}, steady_since = steady_since - {shift}")
        self.actors.sql(f"update dibs.unique_keys set until = until - {shift}")
        self.actors.sql(f"update dibs.dead set finished_at = finished_at - {shift}")
        self.actors.sql(f"update dibs.history set finished_at = finished_at - {shift}")
        if days := seconds * SECOND // DAY:
            # A day of expiry on one engine, a moment on the other.
            shift = str(days) if self.engine.name == "postgres" else self._shift(seconds)
            self.actors.sql(f"update dibs.history set expires = expires - {shift}")

    def _shift(self, seconds: int) -> str:
        return f"interval '{seconds} s'" if self.engine.name == "postgres" else f"{seconds * SECOND}"


async def _answer(lane: Session, operation: Operation[Any]) -> Answer:
    try:
        return Answer(await lane.arun(operation))
    except DibsError as error:
        return Answer(error=error)


def _lingering(operation: Operation[T], begun: Callable[[], object]) -> Operation[T]:
    """The same operation, with a pause before its commit; `begun` is called when all that it writes is written."""

    def conversation() -> Conversation[T]:
        value = yield from operation.start()
        begun()
        yield Statement("linger")
        return value

    return Operation(conversation, operation.name, repeatable=operation.repeatable, atomic=True, reads=operation.reads)


def _cut_short(operation: Operation[T], statements: int) -> Operation[T]:
    """The same operation, whose connection breaks after so many statements, or all of them if there are fewer."""

    def conversation() -> Conversation[T]:
        whole, rows = operation.start(), None
        for _ in range(statements):
            try:
                statement = whole.send(rows)  # type: ignore[arg-type]  # None starts a generator
            except StopIteration:
                break
            rows = yield statement
        raise ConnectionLost("cut before the commit")

    return Operation(conversation, operation.name, repeatable=operation.repeatable, atomic=True, reads=operation.reads)
