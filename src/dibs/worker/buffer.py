"""Jobs in our hands that have not begun, and how many more to ask for. Pure: the clock is an argument.

It adapts: as many are held as end within a quarter of a second, so that the next one is there when a slot becomes free,
and none waits here that another worker could start. A given number is held while nobody else asks for jobs. Jobs on
their last attempt and suspects are never held: slots are kept free for them while they are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from dibs.job import LEVELS, Claimed, Lease

START_WITHIN = 0.25  # seconds that a job may be held before it begins
TOO_LONG = 0.5  # then it is handed back, for others
SHARED = 5.0  # seconds for which a given number is not held, after others have asked for jobs
MOST = 200  # jobs that one turn asks for
TURN = 0.002  # seconds that a turn takes, or so
IN_TURN = 0.02  # seconds after which those that are not held have their turn again, beside others that are
WINDOW = 0.02  # seconds over which the rate of ends is measured


class Wish(NamedTuple):
    """How many to ask for. `at_once`: slots are kept for all of them."""

    limit: int
    at_once: bool
    suspects: int


@dataclass(slots=True)
class Buffer:
    """What a worker holds: running, waiting, and on its way."""

    concurrency: int
    prefetch: int | None = None  # None adapts
    waiting: deque[tuple[Claimed, float]] = field(default_factory=deque)
    running: int = 0
    coming: int = 0  # that asks under way may bring, to wait here
    kept: int = 0  # slots for what asks under way may bring, to start at once
    keep: int = 0  # slots to be kept as soon as they become free
    keep_some: int = 0  # likewise, for those that are not held
    asked_some: float = 0.0
    suspects: int = 0  # running, or on their way
    plain_dry: bool = False  # of jobs that may be held, the last ask took all there were
    asked_at_once: float = 0.0
    rate: float = 0.0  # jobs that end in a second
    ended: int = 0
    since: float = 0.0
    shared_until: float = -SHARED

    def wish(self, now: float) -> Wish | None:
        """What to ask for now, if anything; to be followed by `came`."""
        self._measure(now)
        free = self.concurrency - self.running - self.kept
        hold = self._hold(now)
        missing = self.concurrency + hold - self.running - self.kept - len(self.waiting) - self.coming
        if self.waiting or self.coming:
            if now - self.asked_at_once > START_WITHIN:
                self.keep = max(1, min(self.concurrency // 2, int(self.rate * TURN)))
            if not self.keep or free < self.keep:
                return self._to_hold(missing)
            return self._at_once(self.keep, now)
        if free > 0 and (min(missing, hold) <= free or self.plain_dry or now - self.asked_at_once > START_WITHIN):
            return self._at_once(min(free, MOST), now)
        if self.kept and hold <= self.concurrency:
            return None  # few jobs come: first see whether those that were asked for fill the slots
        return self._to_hold(missing)

    def wish_some(self, most: int, now: float) -> Wish | None:
        """Some that begin at once, of a kind that is not held. Beside others that wait here they have their turn: slots
        are kept for them as they become free."""
        free = self.concurrency - self.running - self.kept
        limit = min(free - len(self.waiting), most)
        if limit <= 0 and self.waiting:
            if not self.keep_some and now - self.asked_some > IN_TURN:
                self.keep_some = max(1, min(most, self.concurrency // 2))
            limit = self.keep_some if self.keep_some <= free else 0
        if limit <= 0:
            return None
        self.keep_some, self.asked_some = 0, now
        self.kept += limit
        suspects = 0 if self.suspects else 1
        self.suspects += suspects
        return Wish(limit, at_once=True, suspects=suspects)

    def spare_suspects(self, wish: Wish) -> Wish:
        """The same wish, for others than suspects."""
        self.suspects -= wish.suspects
        return wish._replace(suspects=0)

    def came(self, wish: Wish, jobs: Sequence[Claimed], now: float) -> list[Claimed]:
        """What a wish brought; those that begin now. Others wait."""
        if wish.at_once:
            self.kept -= wish.limit
            self.suspects += sum(job.suspect for job in jobs) - wish.suspects
            if any(job.rank < LEVELS for job in jobs):
                self.plain_dry = False
            elif len(jobs) == wish.limit:
                self.asked_at_once = 0.0  # there are more that may not be held: ask again soon
            self.running += len(jobs)
            return [*jobs, *self.take(now)]
        self.coming -= wish.limit
        self.plain_dry = len(jobs) < wish.limit
        self.waiting.extend((job, now) for job in jobs)
        return list(self.take(now))

    def take(self, now: float) -> Iterator[Claimed]:
        """Those for which there is a slot now."""
        while self.waiting and self.running + self.kept + self.keep + self.keep_some < self.concurrency:
            job, _ = self.waiting.popleft()
            self.running += 1
            yield job

    def end(self, job: Claimed) -> None:
        """A job that ran runs no more."""
        self.running -= 1
        self.ended += 1
        self.suspects -= job.suspect

    def hand_back(self, queues: Collection[str] | None = None) -> list[Claimed]:
        """All that wait, or those of these queues, to be given back."""
        back = [job for job, _ in self.waiting if queues is None or job.queue in queues]
        self.waiting = deque(each for each in self.waiting if queues is not None and each[0].queue not in queues)
        return back

    def drop(self, lost: Set[Lease]) -> None:
        """They are no longer ours."""
        self.waiting = deque(each for each in self.waiting if each[0].lease not in lost)

    def overdue(self, now: float) -> bool:
        """Something waits here that others could have started."""
        return self.adapts(now) and self.holds_long(now)

    def holds_long(self, now: float) -> bool:
        """Something has waited here for long."""
        return bool(self.waiting) and now - self.waiting[0][1] > TOO_LONG

    def adapts(self, now: float) -> bool:
        """Nothing may wait here for long: no number is given, or others ask."""
        return self.prefetch is None or now < self.shared_until

    def share(self, now: float) -> None:
        """Others ask: for a while no more is held than would be if no number were given."""
        self.shared_until = now + SHARED

    def woken(self) -> None:
        """There may be something new."""
        self.plain_dry = False

    def _hold(self, now: float) -> int:
        ending = int(self.rate * START_WITHIN)
        if self.prefetch is None:
            return ending
        return min(ending, self.prefetch) if self.adapts(now) else self.prefetch

    def _to_hold(self, missing: int) -> Wish | None:
        limit = min(missing, MOST)
        if limit <= 0 or self.plain_dry:
            return None
        self.coming += limit
        return Wish(limit, at_once=False, suspects=0)

    def _at_once(self, limit: int, now: float) -> Wish:
        self.keep, self.asked_at_once = 0, now
        self.kept += limit
        suspects = 0 if self.suspects else 1
        self.suspects += suspects
        return Wish(limit, at_once=True, suspects=suspects)

    def _measure(self, now: float) -> None:
        elapsed = now - self.since
        if elapsed >= WINDOW:
            rate = self.ended / elapsed
            self.rate = rate if elapsed >= START_WITHIN else (self.rate + rate) / 2
            self.ended, self.since = 0, now
