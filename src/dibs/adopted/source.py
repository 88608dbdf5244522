"""An adopted table in an app: what was said of it, the function for its rows, and the source that comes of both."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable
from typing import Any

from dibs.adopted.compile import compiled
from dibs.adopted.inspect import Found, inspect
from dibs.adopted.mapping import Adoption
from dibs.adopted.processor import Processor, RowSignature, readers
from dibs.engines.engine import Engine, Patience, Session
from dibs.errors import ConfigError, Conflict, ConnectionLost, DatabaseError, DibsError, NotAdoptable, Unreachable
from dibs.operations import adopted
from dibs.operations.adopted import Source
from dibs.operations.operation import Operation

PASSING = (Conflict, ConnectionLost, Unreachable)  # say nothing of the table


class Adopted:
    """A table of yours as a queue. `process` decorates the function that works on a row.

    >>> from dibs import Dibs
    >>> app = Dibs("sqlite:///shop.db")
    >>> stickers = app.adopt("stickers", key="id", status="status",
    ...     states=dict(PENDING="queued", RUNNING="started", SUCCESSFUL="completed", FAILED="failed"))
    >>> @stickers.process
    ... def render(row):
    ...     print("sticker", row["id"])
    >>> stickers.name
    'stickers'
    """

    def __init__(self, adoption: Adoption, declare: Callable[[Processor], None], said: dict[str, Any]) -> None:
        self.adoption, self._declare, self._said = adoption, declare, said
        self.processor: Processor | None = None

    @property
    def name(self) -> str:
        """Of the table, and so of the queue."""
        return self.adoption.name

    def process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """This function works on a row: async or not, with one argument. It stays an ordinary function when called."""
        if self.processor is not None:
            raise ConfigError(
                f"The rows of {self.name} have a function already: {self.processor.function.__qualname__}."
            )
        self.processor = Processor(function, self.adoption, **self._said)
        self._declare(self.processor)
        return function

    def source(self, engine: Engine) -> Source:
        """Look at the table, and compile; a NotAdoptable says what does not fit."""
        return self._compiled(engine.run(inspect(self.adoption)), engine)

    def understood(self, engine: Engine) -> Source:
        """The same; and see that its condition is understood."""
        source = self.source(engine)
        try:
            engine.run(adopted.waiting(source))
        except DatabaseError as error:
            raise self._told(error) from error
        return source

    async def asource(self, engine: Engine) -> Source:
        """The same as `source`, for async code."""
        return self._compiled(await engine.arun(inspect(self.adoption)), engine)

    async def aready(self, engine: Engine, within: float | None = None) -> Source:
        """For a worker: every statement is tried and nothing done, so that nothing starts which could not work. A table
        that somebody has locked is waited for, so many seconds at most."""
        source = await self.asource(engine)
        session, trials = engine.session("rows"), (adopted.waiting(source), adopted.rehearse(source))
        patience = Patience(trials[-1], min(engine.deadline, within or engine.deadline), reached=engine.reached)
        try:
            for trial in trials:
                while not await self._tried(session, trial, patience):
                    pass
        finally:
            await session.aclose()
        return source

    async def _tried(self, session: Session, trial: Operation[Any], patience: Patience) -> bool:
        try:
            await session.arun(trial)
        except PASSING as error:
            await sleep(patience.pause(error))
            return False
        except DatabaseError as error:
            raise self._told(error) from error
        return True

    def counted(self, engine: Engine, most: int) -> int | DibsError:
        """How many rows wait that have no job yet, up to `most`; or why nobody can tell."""
        try:
            return engine.run_once(adopted.counted(self.source(engine), most))[0]
        except DatabaseError as error:
            return self._told(error)
        except NotAdoptable as error:
            return error

    async def acounted(self, engine: Engine, most: int) -> int | DibsError:
        """The same for async code."""
        try:
            source = await self.asource(engine)
            return (await engine.arun_once(adopted.counted(source, most)))[0]
        except DatabaseError as error:
            return self._told(error)
        except NotAdoptable as error:
            return error

    def _told(self, error: DatabaseError) -> DibsError:
        """What the database says of the table, or that it says nothing for now."""
        if isinstance(error, PASSING):
            return error
        said = str(error.__cause__ or error).splitlines()[0]  # without what is advised when a table of ours is missing
        where = "" if self.adoption.where is None else f" (where={self.adoption.where!r})"
        return NotAdoptable(self.name, f"the database does not understand what is said of it{where}: {said}")

    def _compiled(self, found: Found, engine: Engine) -> Source:
        if self.processor is not None and isinstance(self.processor.signature, RowSignature):
            self.processor.signature.readers = readers(found.table.columns, engine.name)
        return compiled(self.adoption, found, engine)
