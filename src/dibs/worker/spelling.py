"""Queues that a worker is told to serve and nobody has ever heard of: most likely a slip."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from dibs.engines.engine import Engine
from dibs.errors import DibsError
from dibs.operations import queues
from dibs.task import Declared

log = logging.getLogger("dibs")


async def mind_spelling(
    engine: Engine, wanted: Iterable[str], tasks: Iterable[Declared], sources: Collection[str]
) -> None:
    """Say which they are; they are served all the same."""
    declared = {task.options.queue for task in tasks}
    unheard = [name for name in wanted if name not in declared and name not in sources]
    if not unheard:
        return
    try:
        found = await engine.arun(queues.names())
    except DibsError as error:
        log.info("Whether these queues are known could not be asked: %s", error)
        return
    for name in unheard:
        if name not in found:
            known = ", ".join(sorted({*declared, *found, *sources}))
            log.warning("No task declares the queue %r, and no job waits in it. There is: %s", name, known)
