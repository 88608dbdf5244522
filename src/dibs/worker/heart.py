"""The heart of a worker: it beats from its own thread and connection, so that user code which blocks the event loop
does not make the worker look dead.

Each beat names the leases held and learns which are lost; hands back claims in doubt; and, if this worker judges,
recovers the jobs of the dead.

A second thread asks nobody and watches the clock: when no beat went through for a lease less a margin, the worker is
told to stop its jobs, before others may take them. A beat may then still wait for an answer, or for a connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dibs.engines.engine import Engine
from dibs.errors import DatabaseError, DibsError
from dibs.job import Lease, WorkerId
from dibs.operations import workers
from dibs.operations.operation import Operation
from dibs.operations.workers import NOTHING, Beat, Recovered

T = TypeVar("T")

log = logging.getLogger("dibs")

MARGIN = 0.2  # of the lease: stop our jobs that much before others may take them
LOOK = MARGIN  # of the lease: how soon a watch that slept with the machine looks again; every look costs a little
ANSWER = 1 / 3  # of the lease: so long a beat waits for its answer
ROUND = 1 / 2  # of the lease: when so much has passed since the beat, what rides in it has to be done

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def suspend_clock() -> float:
    """Seconds by a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(CLOCK)


@dataclass(frozen=True, slots=True)
class Pulse:
    """What one beat brought."""

    beat: Beat | None  # None: it failed
    recovered: Recovered = NOTHING
    error: Exception | None = None


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
        over: Callable[[], Any] = lambda: None,
        asking: Callable[[], Sequence[WorkerId]] | None = None,
        judge: bool = False,
        since: float | None = None,
        clock: Callable[[], float] = suspend_clock,
    ) -> None:
        self.engine, self.rows, self.lease, self.every = engine, tuple(rows), lease, beat
        self.held, self.tell, self.over, self.judge, self.clock = held, tell, over, judge, clock
        self.asking = asking or (lambda: self.rows)
        self.beaten_at = clock() if since is None else since  # when the first of the rows was asked for
        self.failed = False
        self.in_doubt = False  # a claim whose answer never came has not been handed back yet
        self._doubts: dict[tuple[WorkerId, int], float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self.run, name="dibs-heart", daemon=True),
            threading.Thread(target=self.watch, name="dibs-heart-watch", daemon=True),
        ]

    def start(self) -> None:
        """Begin to beat, and to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Beat no more; returns when the threads have ended."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def doubt(self, worker: WorkerId, number: int) -> None:
        """The answer of this claim never came: what it took is handed back by the next beat, and by those of one lease,
        in case the server only then got to it."""
        with self._lock:
            self._doubts[worker, number] = self.clock() + self.lease
            self.in_doubt = True

    @property
    def silence(self) -> float:
        """Seconds since the last beat that went through was sent."""
        return self.clock() - self.beaten_at

    @property
    def left(self) -> float:
        """Seconds until others may soon think us dead."""
        return self.lease * (1 - MARGIN) - self.silence

    @property
    def expired(self) -> bool:
        """Others may soon think us dead: stop our jobs now."""
        return self.left < 0

    def run(self) -> None:
        """Pace `run_once`."""
        while not self._stop.wait(self.every):
            self.tell(self._beat())

    def watch(self) -> None:
        """Tell, once for each silence, when it has lasted too long. It asks nobody but the clock."""
        told, look = False, self.lease * LOOK
        while not self._stop.wait(look if told else min(self.left + 0.001, look)):
            expired = self.expired
            if expired and not told:
                self.over()
            told = expired

    def _beat(self) -> Pulse:
        """Whatever goes wrong is told, and the next beat tries again."""
        try:
            return self.run_once()
        except Exception as error:
            log.exception("A beat failed in a way that nobody has thought of")
            self.failed = True
            return Pulse(None, error=error)

    def run_once(self) -> Pulse:
        """One beat, and what rides in it."""
        now = self.clock()
        steady = now - self.beaten_at <= 2 * self.every
        held = list(self.held())
        try:
            beat = self.engine.run_once(
                workers.beat(self.rows, held, steady=steady, asking=self.asking()), within=self.lease * ANSWER
            )
            self.beaten_at, self.failed = now, False
            beat = replace(beat, lost=self._lost(beat.lost))
            self._hand_back()
            judges = self.judge and steady and beat.silent
            recovered = self._ask(workers.recover(judge=self.rows[0])) if judges else NOTHING
        except DibsError as error:
            self.failed = True
            return Pulse(None, error=error)
        return Pulse(beat, recovered)

    def _ask(self, operation: Operation[T]) -> T:
        """What rides in a beat must not make the next one late."""
        within = self.lease * ROUND - self.silence
        if within <= 0:
            raise DatabaseError(f"The database is slow: {operation.name!r} is put off until after the next beat")
        return self.engine.run_once(operation, within=within)

    def _lost(self, missing: frozenset[Lease]) -> frozenset[Lease]:
        """Of those that the database does not know us to hold. Some have ended meanwhile; and a job whose own
        transaction ended it may go on for as long as it likes."""
        missing &= frozenset(self.held()) if missing else missing
        if not missing:
            return missing
        ended = self._ask(workers.ended(missing))
        return missing - ended

    def _hand_back(self) -> None:
        with self._lock:
            doubts = dict(self._doubts)
        if not doubts:
            return
        self._ask(workers.hand_back(self.rows, list(doubts), list(self.held())))
        with self._lock:
            self.in_doubt = self._doubts.keys() > doubts.keys()
            for claim, until in doubts.items():
                if self.clock() >= until:
                    self._doubts.pop(claim, None)
