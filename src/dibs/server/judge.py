"""Workers over HTTP may be the only ones: then somebody has to notice when one of them has died. A server does, from
its first claim on, by the rules that hold for every judge."""

from __future__ import annotations

import asyncio
import logging

from dibs.app import Dibs
from dibs.errors import DibsError
from dibs.job import WorkerId
from dibs.operations import workers
from dibs.worker.heart import Heart, Pulse
from dibs.worker.housekeeping import Housekeeping
from dibs.worker.identity import enlist, new_name
from dibs.worker.tallies import Tallies

log = logging.getLogger("dibs")


class Judge:
    """Beats like a worker, claims nothing, recovers the jobs of the dead, and keeps house."""

    def __init__(self, app: Dibs) -> None:
        self.app = app
        self.heart: Heart | None = None
        self.begun = False
        self.name = f"server-{new_name()}"
        self.tallies = Tallies(app.engine)
        self.tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Once."""
        if self.begun:
            return
        self.begun = True
        try:
            row = await self._enlist()
        except BaseException:
            self.begun = False
            raise
        self.loop = asyncio.get_running_loop()
        self.heart = Heart(
            self.app.engine,
            [row],
            lease=self.app.settings.lease,
            beat=self.app.settings.beat,
            held=list,
            tell=lambda pulse: self.loop.call_soon_threadsafe(self._heard, pulse),
            asking=list,
            judge=True,
        )
        self.heart.start()
        services = (self.tallies, Housekeeping(self.app.engine))
        self.tasks = {asyncio.create_task(service.run(), name=type(service).__name__) for service in services}

    async def _enlist(self) -> WorkerId:
        settings = self.app.settings
        return await enlist(self.app.engine, self.name, lease=settings.lease, beat=settings.beat)

    def _heard(self, pulse: Pulse) -> None:
        if pulse.recovered.jobs:
            log.warning("Recovered %d jobs of workers that died", len(pulse.recovered.jobs))
        if self.heart is not None and pulse.beat is not None and not pulse.beat.alive:
            again = self.loop.create_task(self._enlist_again(), name="enlist again")
            self.tasks.add(again)
            again.add_done_callback(self.tasks.discard)

    async def _enlist_again(self) -> None:
        """Another judge thought us dead."""
        try:
            row = await self._enlist()
        except DibsError as error:
            log.warning("Nobody is judged until the next beat: %s", error)
            return
        if self.heart is not None:
            self.heart.rows = (row,)

    async def aclose(self) -> None:
        """Leave."""
        heart, self.heart = self.heart, None
        if heart is None:
            return
        for task in self.tasks:
            task.cancel()
        await self.tallies.run_once()
        await asyncio.to_thread(heart.stop)
        await self.app.engine.arun(workers.leave(heart.rows))
