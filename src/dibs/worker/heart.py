"""The heart of a worker: it beats from its own thread and connection, so that user code which blocks the event loop
does not make the worker look dead.

Each beat names the leases held and learns which are lost; hands back claims in doubt; and, if this worker judges,
recovers the jobs of the dead. A worker that could not beat for a lease less a margin says so before others may take
its jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dibs.engines.engine import Engine
from dibs.errors import DibsError
from dibs.job import Lease, WorkerId
from dibs.operations import workers
from dibs.operations.workers import NOTHING, Beat, Recovered

MARGIN = 0.2  # of the lease: stop our jobs that much before others may take them


CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def suspend_clock() -> float:
    """Seconds by a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(CLOCK)


@dataclass(frozen=True, slots=True)
class Pulse:
    """What one beat brought."""

    beat: Beat | None  # None: it failed
    recovered: Recovered = NOTHING
    error: DibsError | None = None


class Heart:
    """Beats for the rows of one worker until told to stop."""

    def __init__(
        self,
        engine: Engine,
        rows: Sequence[WorkerId],
        *,
        lease: float,
        beat: float,
        held: Callable[[], Sequence[Lease]],
        tell: Callable[[Pulse], Any],
        asking: Callable[[], Sequence[WorkerId]] | None = None,
        judge: bool = False,
        clock: Callable[[], float] = suspend_clock,
    ) -> None:
        self.engine, self.rows, self.lease, self.every = engine, tuple(rows), lease, beat
        self.held, self.tell, self.judge, self.clock = held, tell, judge, clock
        self.asking = asking or (lambda: self.rows)
        self.beaten_at = clock()
        self.failed = False
        self.in_doubt = False  # a claim whose answer never came has not been handed back yet
        self._doubts: dict[tuple[WorkerId, int], float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, name="dibs-heart", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; returns when the thread has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def doubt(self, worker: WorkerId, number: int) -> None:
        """The answer of this claim never came: what it took is handed back by the next beat, and once more a lease
        later, in case the server only then got to it."""
        with self._lock:
            self._doubts[worker, number] = self.clock() + self.lease
            self.in_doubt = True

    @property
    def expired(self) -> bool:
        """Others may soon think us dead: stop our jobs now."""
        return self.clock() - self.beaten_at > self.lease * (1 - MARGIN)

    def run(self) -> None:
        """Pace `run_once`."""
        while not self._stop.wait(self.every):
            self.tell(self.run_once())

    def run_once(self) -> Pulse:
        """One beat, and what rides in it."""
        now = self.clock()
        steady = now - self.beaten_at <= 2 * self.every
        held = list(self.held())
        try:
            beat = self.engine.run_once(
                workers.beat(self.rows, held, steady=steady, asking=self.asking()), within=self.lease / 3
            )
            self.beaten_at, self.failed = now, False
            beat = replace(beat, lost=self._lost(beat.lost))
            self._hand_back()
            judges = self.judge and steady and beat.silent
            recovered = self.engine.run_once(workers.recover(judge=self.rows[0])) if judges else NOTHING
        except DibsError as error:
            self.failed = True
            return Pulse(None, error=error)
        return Pulse(beat, recovered)

    def _lost(self, missing: frozenset[Lease]) -> frozenset[Lease]:
        """Of those that the database does not know us to hold. Some have ended meanwhile; and a job whose own
        transaction ended it may go on for as long as it likes."""
        missing &= frozenset(self.held()) if missing else missing
        if not missing:
            return missing
        ended = self.engine.run_once(workers.ended(missing))
        return missing - ended

    def _hand_back(self) -> None:
        with self._lock:
            doubts = dict(self._doubts)
        if not doubts:
            return
        self.engine.run_once(workers.hand_back(self.rows, list(doubts), list(self.held())))
        with self._lock:
            self.in_doubt = self._doubts.keys() > doubts.keys()
            for claim, until in doubts.items():
                if self.clock() >= until:
                    self._doubts.pop(claim, None)
