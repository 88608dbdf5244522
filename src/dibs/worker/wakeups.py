"""When to look for jobs again: when told, when one becomes due, and after a while in any case.

Notifications are hints. When every one of them is lost, the looks underneath find everything, a little later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from dibs.engines.engine import Engine, Hint
from dibs.errors import DibsError
from dibs.operations import claims
from dibs.operations.claims import Upcoming
from dibs.worker.lane import Lane

log = logging.getLogger("dibs")

FIRST_LOOK = 0.25  # seconds; doubled while nothing is found, up to the setting
AGAIN = 2.0  # seconds before listening again, at most
BUSY = 0.02  # seconds between looks that our own writes bring about, while there is work enough


class Woken(msgspec.Struct):
    """What a notification says: which range has something, and since when. Neither, of a queue that was resumed."""

    queue: str
    rank: int | None
    run_at: datetime | None = msgspec.field(name="runAt")


decode_woken = msgspec.json.Decoder(Woken).decode


async def at_most(seconds: float, event: asyncio.Event) -> None:
    """Wait until it happens, from now on, or not any longer."""
    event.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


@dataclass(slots=True)
class Wakeups:
    """Calls `woken` whenever a claim may find something."""

    engine: Engine
    look: float
    lanes: Sequence[Lane]
    queues: Callable[[], Sequence[str]]
    every: bool  # queue that there is, or only those
    woken: Callable[[], None]
    learned: Callable[[Sequence[str]], None]
    is_idle: Callable[[], bool]
    stirred: Callable[[], None] = lambda: None  # somebody has written something, which may concern an adopted table
    looked: Callable[[], None] | None = None  # a while is over: there may be something in the queues; else `woken`
    pause: float = FIRST_LOOK
    due: float = float("inf")  # when something becomes due, by time.time()
    sooner: asyncio.Event = field(default_factory=asyncio.Event)
    rested: asyncio.Event = field(default_factory=asyncio.Event)  # there is nothing more to claim

    async def run(self) -> None:
        """Listen and look, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.engine.can.listens:
                group.create_task(self._listen(), name="listen")
            else:
                log.info("Notifications cannot be heard through this pooler: looking every %g s", FIRST_LOOK)
            group.create_task(self._look(), name="look")

    def found(self) -> None:
        """There was something: look again soon."""
        self.pause = FIRST_LOOK

    async def _look(self) -> None:
        looked = 0.0
        while True:
            await self._wait()
            if time.monotonic() - looked < self.look and not self.is_idle():
                continue
            self.due = float("inf")
            (self.looked or self.woken)()
            looked = time.monotonic()
            await self._ask_ahead()
            if self.engine.can.listens:
                self.pause = min(2 * self.pause, self.look)

    async def _wait(self) -> None:
        await at_most(max(0.0, min(self.pause, self.due - time.time())), self.sooner)

    async def _ask_ahead(self) -> None:
        """Which queues there are, and when the next job becomes due."""
        try:
            upcoming: Upcoming = await self.engine.arun(
                claims.upcoming(self.queues(), self._places(), every=self.every)
            )
        except DibsError as error:
            log.warning("A look failed: %s", error)
            return
        self.learned(upcoming.queues)
        if upcoming.seconds is not None:
            self._due_at(time.time() + upcoming.seconds)

    def _places(self) -> list[tuple[str, int, Any, int]]:
        """What has been read already: it need not be read again."""
        ladders = self.lanes[0].ladders.ladders
        return [(*key, *ladder.place) for key, ladder in ladders.items()]

    async def _listen(self) -> None:
        """Hear, and listen again whenever the connection breaks."""
        again = FIRST_LOOK
        while True:
            try:
                async with self.engine.listen("dibs_wake") as hints:
                    self._hear(told=True)
                    self.woken()  # what was said while nobody listened
                    async for hint in hints:
                        again = FIRST_LOOK
                        await self._heard(hint)
            except DibsError as error:
                log.warning("Listening for wake-ups failed, and goes on: %s", error)
            self._hear(told=False)
            await asyncio.sleep(again)
            again = min(2 * again, AGAIN)

    def _hear(self, *, told: bool) -> None:
        for lane in self.lanes:
            lane.ladders.hear(told)

    async def _heard(self, hint: Hint) -> None:
        if not hint.payload:  # somebody has written something: look, without taking the write lock
            self.stirred()
            if not self.is_idle():
                await at_most(BUSY, self.rested)
            seconds = await self.engine.arun(claims.next_due(list(self.queues())))
            if seconds is not None:
                self._due_at(time.time() + seconds)
            return
        try:
            told = decode_woken(hint.payload)
        except msgspec.MsgspecError:
            return  # not ours
        if told.queue not in self.queues():
            if not self.every:
                return
            self.learned([*self.queues(), told.queue])
        if told.rank is None or told.run_at is None:
            for lane in self.lanes:
                lane.ladders.ask_all()
            self.woken()
            return
        for lane in self.lanes:
            lane.ladders.lower((told.queue, told.rank), told.run_at)
        self._due_at(told.run_at.timestamp() - self.lanes[0].ahead)

    def _due_at(self, moment: float) -> None:
        if moment <= time.time():
            self.woken()
        elif moment < self.due:
            self.due = moment
            self.sooner.set()
