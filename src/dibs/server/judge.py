"""Workers over HTTP may be the only ones: then somebody has to notice when one of them has died. A server does, from
its first claim on, by the rules that hold for every judge."""

from __future__ import annotations

import asyncio
import logging

from dibs.app import Dibs
from dibs.operations import workers
from dibs.worker.heart import Heart, Pulse
from dibs.worker.identity import enlist, new_name
from dibs.worker.tallies import Tallies

log = logging.getLogger("dibs")


class Judge:
    """Beats like a worker, claims nothing, recovers the jobs of the dead."""

    def __init__(self, app: Dibs) -> None:
        self.app = app
        self.heart: Heart | None = None
        self.begun = False
        self.tallies = Tallies(app.engine)
        self.adding: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Once."""
        if self.begun:
            return
        self.begun = True
        settings, engine = self.app.settings, self.app.engine
        try:
            row = await enlist(engine, f"server-{new_name()}", lease=settings.lease, beat=settings.beat)
        except BaseException:
            self.begun = False
            raise
        self.heart = Heart(
            engine,
            [row],
            lease=settings.lease,
            beat=settings.beat,
            held=list,
            tell=self._heard,
            asking=list,
            judge=True,
        )
        self.heart.start()
        self.adding = asyncio.create_task(self.tallies.run(), name="tallies")

    def _heard(self, pulse: Pulse) -> None:
        if pulse.recovered.jobs:
            log.warning("Recovered %d jobs of workers that died", len(pulse.recovered.jobs))

    async def aclose(self) -> None:
        """Leave."""
        heart, self.heart = self.heart, None
        if heart is None:
            return
        if self.adding is not None:
            self.adding.cancel()
        await self.tallies.run_once()
        await asyncio.to_thread(heart.stop)
        await self.app.engine.arun(workers.leave(heart.rows))
