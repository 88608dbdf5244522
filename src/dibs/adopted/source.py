"""An adopted table in an app: what was said of it, the function for its rows, and the source that comes of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.adopted.compile import compiled
from dibs.adopted.inspect import Found, inspect
from dibs.adopted.mapping import Adoption
from dibs.adopted.processor import Processor, RowSignature, readers
from dibs.engines.engine import Engine
from dibs.errors import ConfigError, Conflict, ConnectionLost, DatabaseError, NotAdoptable, Unreachable
from dibs.operations import adopted
from dibs.operations.adopted import Source


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

    async def asource(self, engine: Engine) -> Source:
        """The same for async code; and see that its condition is understood."""
        source = self._compiled(await engine.arun(inspect(self.adoption)), engine)
        try:
            await engine.arun(adopted.waiting(source))
        except DatabaseError as error:
            if self.adoption.where is None or isinstance(error, Conflict | ConnectionLost | Unreachable):
                raise
            problem = f"the database does not understand its condition {self.adoption.where!r}: {error}"
            raise NotAdoptable(self.name, problem) from error
        return source

    def counted(self, engine: Engine, most: int) -> int:
        """How many rows wait that have no job yet, up to `most`."""
        return engine.run(adopted.counted(self.source(engine), most))[0]

    async def acounted(self, engine: Engine, most: int) -> int:
        """The same for async code."""
        return (await engine.arun(adopted.counted(await self.asource(engine), most)))[0]

    def _compiled(self, found: Found, engine: Engine) -> Source:
        if self.processor is not None and isinstance(self.processor.signature, RowSignature):
            self.processor.signature.readers = readers(found.table.columns, engine.name)
        return compiled(self.adoption, found, engine)
