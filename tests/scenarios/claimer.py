"""A claimer as a worker is one: enlisted, with a heart that beats and a lane that takes turns."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from dibs.engines.engine import Engine
from dibs.job import JobState, Lease, WorkerId
from dibs.lifecycle import Done
from dibs.operations.claims import Settle, Turn
from dibs.worker.heart import Heart, Pulse
from dibs.worker.identity import enlist, new_name
from dibs.worker.lane import Ask, Lane


@dataclass
class Claimer:
    """One worker with one lane."""

    engine: Engine
    worker: WorkerId
    lane: Lane
    heart: Heart
    held: list[Lease] = field(default_factory=list)

    async def turn(self, limit: int, settles: Sequence[Settle] = (), **ask: object) -> Turn:
        """Settle, and claim so many; nothing is claimed while the heart is in trouble."""
        want = Ask(["default"], limit, **ask) if limit and not self.in_trouble else None  # type: ignore[arg-type]
        turn = await self.lane.turn(want, settles)
        self.held = [job.lease for job in turn.claimed]
        return turn

    @property
    def in_trouble(self) -> bool:
        """No job may start now."""
        return self.heart.failed or self.heart.expired


@asynccontextmanager
async def at_work(
    engine: Engine,
    *,
    lease: float = 2.0,
    beat: float = 0.3,
    judge: bool = False,
    heard: Callable[[Pulse], None] = lambda pulse: None,
) -> AsyncIterator[Claimer]:
    """A claimer that beats until the end of the block; then it leaves."""
    worker = await enlist(engine, new_name(), lease=lease, beat=beat)
    session = engine.session("lane")

    def tell(pulse: Pulse) -> None:
        if pulse.beat is not None and worker in pulse.beat.alive:
            claimer.lane.ladders.share(pulse.beat.alive[worker], pulse.beat.claimers)
        heard(pulse)

    heart = Heart(engine, [worker], lease=lease, beat=beat, held=lambda: claimer.held, tell=tell, judge=judge)
    claimer = Claimer(engine, worker, Lane(engine, session, worker, heart.doubt), heart)
    heart.start()
    try:
        yield claimer
    finally:
        heart.stop()
        await claimer.lane.aclose()
        await engine.aclose()


def success(lease: Lease, result: bytes | None = None) -> Settle:
    """It ran."""
    return Settle(lease, Done(JobState.SUCCESSFUL, result))
