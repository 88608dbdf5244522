"""Where a claim starts reading each (queue, rank) range of the claim index, on an engine whose dead rows linger.

Only a hint: a claim is safe from any start. The rule bounds how long a row can wait that became visible behind the
cursor: L seconds late, it is read within max(tick, 2 L) plus one tick; at once if a wake-up tells of it. The argument
is in docs/design/cursor.md. Pure: the database's clock is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from dibs.job import LEVELS

TICK = 0.25
TOP = 4096  # ticks; a look from further back starts at the very beginning
WIDE = 0b1010_1010_1000  # looks of so many ticks go all the way: 8, 32, 128, 512, 2048
SHORT, LONG = 32, 2048  # ticks; who hears wake-ups looks no longer than that, and now and then so far
LAG = timedelta(seconds=0.25)  # a range read to its end is left this far behind the clock: commits under way
WARM = 60.0  # between ticks only the ranges are asked that gave a row in the last minute

Key: TypeAlias = tuple[str, int]


class Place(NamedTuple):
    """A position in a range: after this row."""

    at: datetime
    id: int


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = Place(EPOCH, 0)


class Ladder:
    """One range: where its cursor is now, and where it was at each tick."""

    def __init__(self, tick: int) -> None:
        self.place = START
        self.first = tick
        self.places = [START]  # places[n]: where the cursor was at tick first + n

    def start(self, tick: int, back: int, *, wide: bool = False) -> Place:
        """Where to begin at this tick: where the cursor was `back` ticks ago, or at the due times of then.

        A row that was committed late is due later than that. Only one that was handed back can lie further behind, in
        a queue that is behind itself; a wide look goes all the way for those.
        """
        self._note(tick)
        if back == 0:
            return self.place
        then = tick - back - self.first
        place = START if then < 0 or back > TOP else self.places[then]
        if back <= TOP and not wide:
            place = max(place, Place(EPOCH + timedelta(seconds=(tick - back) * TICK), 0))
        return min(place, self.place)

    def stopped(self, place: Place) -> None:
        """The claim read this range up to `place`, even if that is further back: never the maximum."""
        self.place = place
        for n in range(len(self.places) - 1, -1, -1):
            if self.places[n] <= place:
                break
            self.places[n] = place

    def lower(self, at: datetime) -> None:
        """Something became visible that is due since `at`: read from there."""
        place = Place(at, 0)
        if place < self.place:
            self.stopped(place)

    def _note(self, tick: int) -> None:
        missing = tick - self.first - len(self.places) + 1
        if missing > TOP:
            self.first, self.places = tick - TOP, [self.place] * (TOP + 1)
        elif missing > 0:
            self.places += [self.place] * missing
        if len(self.places) > 3 * TOP:
            self.first += TOP
            del self.places[:TOP]


def look_back(since: int, tick: int, index: int, count: int, *, told: bool = False) -> int:
    """How many ticks back to look at this tick, having looked last at `since`: the ruler sequence, `2 * (k & -k)`.

    Looks are shared; ticks of ours that passed without a claim are made up for by the longest of their looks. 0 when
    it is nobody's turn but others'. A long look is dear where dead rows linger, for it reads again all that was
    finished in its time: who is told of late rows makes few of them.

    >>> [look_back(k - 1, k, 0, 1) for k in range(1, 9)]
    [2, 4, 2, 8, 2, 4, 2, 16]
    """
    ticks = range(max(since + 1, tick - TOP), tick + 1)
    back = max((2 * (k & -k) for k in ticks if looks(index, k, count)), default=0)
    if not told or back <= SHORT or back > TOP:
        return back
    return LONG if back >= LONG else SHORT


def looks(index: int, tick: int, count: int) -> bool:
    """Whether this tick's look is ours. Looks of each length go round, and each is made by two (or three), so that
    those without room, who do not claim and so do not look, are not missed.

    >>> [[index for index in range(4) if looks(index, tick, 4)] for tick in (1, 3, 5, 2, 6)]
    [[1, 3], [0, 2], [1, 3], [0, 2], [1, 3]]
    """
    length = tick & -tick
    return (tick // length // 2 + length.bit_length() - index) % max(count // 2, 1) == 0


class Read(NamedTuple):
    """What a claim told about the ranges it was asked to read."""

    clock: datetime
    limit: int
    picked: int  # jobs found, suspects among them
    last: dict[Key, Place]  # the last row of each range that gave some, in the order read; suspects left out
    paused: Collection[str] = ()
    suspects: Collection[Key] = ()  # ranges that gave a suspect: there may be more of them


@dataclass(slots=True)
class Ladders:
    """All ranges of one claimer (one lane): which to ask, and from where."""

    index: int = 0
    count: int = 1
    told: bool = False  # by wake-ups, of what lies behind
    untold: bool = False  # some may have been missed: look everywhere once
    ladders: dict[Key, Ladder] = field(default_factory=dict)
    warm: dict[Key, float] = field(default_factory=dict)
    # The last ticks at which every range was asked, and looked into. Claims with and without jobs on their last attempt
    # are told apart, by the number of their ranges: what one has asked for, the other may not have.
    asked_all: dict[int, int] = field(default_factory=dict)
    looked: dict[int, int] = field(default_factory=dict)

    def ask(self, keys: Sequence[Key], now: float) -> list[tuple[str, int, datetime, int]]:
        """The ranges of a claim, in the order wanted, each with its place to start after; by the database's clock."""
        tick, back = int(now / TICK), 0
        kind = len(keys)
        if self.rests(keys, now):
            keys = [key for key in keys if self.warm.get(key, -WARM) > now - WARM] or keys[:1]
        else:
            back = look_back(self.looked.get(kind, -1), tick, self.index, self.count, told=self.told)
            if self.untold:
                back, self.untold = 2 * TOP, False
            self.asked_all[kind] = tick
            if back:
                self.looked[kind] = tick
        wide = back == LONG if self.told else bool(back & WIDE)
        return [(*key, *self._ladder(key, tick).start(tick, back, wide=wide)) for key in keys]

    def rests(self, keys: Sequence[Key], now: float) -> bool:
        """Whether every one of these was asked at this tick already."""
        return int(now / TICK) == self.asked_all.get(len(keys))

    def ask_all(self) -> None:
        """With the next claim, though it may be in the same tick."""
        self.asked_all.clear()

    def took(self, asked: Iterable[Key], read: Read) -> None:
        """Move the cursors by what the claim gave."""
        now = read.clock.timestamp()
        self.warm.update(dict.fromkeys(read.last, now))
        self.warm.update(dict.fromkeys(read.suspects, now))
        full = read.picked >= read.limit
        final = next(reversed(read.last), None) if full else None
        if full and final is None:
            return  # suspects filled it, or others took all: where reading stopped is not known
        for key in asked:
            if key[0] in read.paused:
                continue  # a paused queue was not read: its cursor stays
            if key == final:
                self.ladders[key].stopped(read.last[key])
                return  # ranges after the one that filled the batch were not reached
            self.ladders[key].stopped(Place(read.clock - LAG, 0))

    def lower(self, key: Key, at: datetime) -> None:
        """A wake-up named this range."""
        self.ask_all()
        if key in self.ladders:
            self.ladders[key].lower(at)

    def hear(self, told: bool) -> None:
        """From now on wake-ups are heard, or no longer. What was said before was missed."""
        self.told, self.untold = told, told
        self.ask_all()

    def forget(self) -> None:
        """The connection was lost, and with it what we knew."""
        self.ladders.clear()
        self.asked_all.clear()
        self.looked.clear()

    def share(self, index: int, count: int) -> None:
        """Looks are shared among all claimers."""
        self.index, self.count = index, max(count, 1)

    def _ladder(self, key: Key, tick: int) -> Ladder:
        found = self.ladders.get(key)
        return found if found is not None else self.ladders.setdefault(key, Ladder(tick))


@lru_cache(64)
def ranges(queues: tuple[str, ...], *, last: bool, coin: bool = False) -> tuple[Key, ...]:
    """Every range to ask, in order: queue by queue, level by level; jobs on their last attempt before or after the
    plain ones of their level, as the coin fell, and only in a claim that starts all it takes at once.

    >>> ranges(("mail",), last=False)[:3], ranges(("mail",), last=True, coin=True)[:3]
    ((('mail', 0), ('mail', 1), ('mail', 2)), (('mail', 10), ('mail', 0), ('mail', 11)))
    """
    classes = ((LEVELS, 0) if coin else (0, LEVELS)) if last else (0,)
    return tuple((queue, level + more) for queue in queues for level in range(LEVELS) for more in classes)
