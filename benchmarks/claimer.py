"""A claimer: the worker's own lane, heart and ear on sync connections, to be measured beside a floor that is sync.

The lane is written for async sessions. Over a session that never waits for an event loop, its turn runs to the end in
one step, and costs what it costs in a worker less the loop.
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import psycopg

from dibs.engines.engine import Engine, Session
from dibs.engines.postgres.connection import carry
from dibs.engines.postgres.engine import ROW_SETTINGS, PostgresEngine
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.errors import Conflict
from dibs.job import Claimed, Lease, WorkerId
from dibs.lifecycle import Outcome, Successful, after
from dibs.operations import workers
from dibs.operations.claims import Settle, Turn
from dibs.operations.operation import Operation
from dibs.operations.workers import NUMBER_BITS
from dibs.retry import Policy, fixed
from dibs.worker.heart import Heart, Pulse
from dibs.worker.lane import Ask, Lane
from dibs.worker.wakeups import Woken, decode_woken

T = TypeVar("T")

LEASE, BEAT = 15.0, 3.0
RETRY_AFTER = fixed(0.05)
DONE = Successful()


class Run(Protocol):
    """Carries an operation, once."""

    def __call__(self, operation: Operation[T], /) -> T: ...


class Claimer:
    """One row among the workers, with a lane and a heart that beats in a thread of its own."""

    def __init__(
        self, engine: Engine, queues: Sequence[str] = ("default",), *, listens: bool = True, settings: bool = False
    ) -> None:
        self.queues = queues
        self.jobs: list[Claimed] = []
        worker = WorkerId(secrets.randbits(NUMBER_BITS))
        engine.run(workers.enlist(worker, f"claimer-{worker:x}", lease=LEASE, beat=BEAT))
        self.heart = Heart(
            engine, [worker], lease=LEASE, beat=BEAT, held=self._held, tell=self._tell, asking=self._asking
        )
        self.session = SyncSession(engine, settings=settings)
        self.lane = Lane(engine, self.session, worker, self.heart.doubt, alone=False)
        self.ear = Ear(engine) if isinstance(engine, PostgresEngine) and listens else None
        self.lane.ladders.hear(self.ear is not None)
        self.heart.start()

    def turn(self, settles: Sequence[Settle], limit: int) -> list[Claimed]:
        """Settle what is done and claim what is next, in one round trip."""
        while self.ear is not None and self.ear.heard:
            told = self.ear.heard.popleft()
            self.lane.ladders.lower((told.queue, told.rank), told.run_at)
        turn = finished(self.lane.turn(Ask(self.queues, limit), settles))
        _refuse_losses(turn)
        self.jobs = turn.claimed
        return turn.claimed

    def claim(self, limit: int) -> list[Claimed]:
        """Claim alone."""
        return self.turn((), limit)

    def settle(self, settles: Sequence[Settle]) -> None:
        """Settle alone."""
        _refuse_losses(finished(self.lane.turn(None, settles)))
        self.jobs = []

    def share(self) -> None:
        """Beat now: learn how many others share the looks."""
        self._tell(self.heart.run_once())

    def close(self) -> None:
        """Stop beating, and close the connection."""
        self.heart.stop()
        if self.ear is not None:
            self.ear.close()
        self.session.close()

    def _held(self) -> list[Lease]:
        return [job.lease for job in self.jobs]

    def _asking(self) -> list[WorkerId]:
        return [self.lane.worker] if self.lane.has_asked() else []

    def _tell(self, pulse: Pulse) -> None:
        if pulse.beat is not None:
            self.lane.ladders.share(pulse.beat.alive[self.lane.worker], pulse.beat.claimers)


class Ear:
    """Hears wake-ups in a thread of its own."""

    def __init__(self, engine: PostgresEngine) -> None:
        self.raw = psycopg.connect(engine.server.url, autocommit=True)
        self.raw.execute("listen dibs_wake")
        self.heard: deque[Woken] = deque()
        self.over = False
        self.thread = threading.Thread(target=self._listen, name="ear", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Hear no more."""
        self.over = True
        self.thread.join()
        self.raw.close()

    def _listen(self) -> None:
        while not self.over:
            for notification in self.raw.notifies(timeout=0.5):
                self.heard.append(decode_woken(notification.payload))


class SyncSession(Session):
    """A sync connection in the shape of a session. What is refused for now is repeated: the server counts deadlocks."""

    def __init__(self, engine: Engine, *, settings: bool = False) -> None:
        self.run, self.close = _connected(engine, settings=settings)

    async def arun(self, operation: Operation[T]) -> T:
        """Carry an operation, once, or until it is not refused."""
        while True:
            try:
                return self.run(operation)
            except Conflict:
                continue

    async def aclose(self) -> None:
        """Close the connection."""
        self.close()


def settled(job: Claimed, outcome: Outcome = DONE, policy: Policy = RETRY_AFTER, *, key: Any = None) -> Settle:
    """The write-back of an outcome; `key`: of an adopted row."""
    return Settle(job.lease, after(job, outcome, policy), key=key)


def _connected(engine: Engine, *, settings: bool) -> tuple[Run, Callable[[], None]]:
    """A connection of its own: how it carries operations, and how it is closed; with the settings for adopted rows."""
    match engine:
        case PostgresEngine():
            raw = engine.connect()
            if settings:
                raw.execute(ROW_SETTINGS.removeprefix("; "), prepare=False)  # type: ignore[arg-type]  # a constant
            return lambda operation: carry(raw, engine.dialect, operation, engine.server.where), raw.close
        case SqliteEngine():
            role = f"lane-{secrets.token_hex(4)}"
            return engine.connection(role).run, lambda: engine.release(role)
        case _:
            raise TypeError(f"no sync connection to {engine.name}")


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the coroutine's result
    raise AssertionError("it waited for an event loop")


def _refuse_losses(turn: Turn) -> None:
    if turn.lost:
        raise AssertionError(f"{len(turn.lost)} jobs were lost, and nobody else could have had them")
