"""The cursor: where a claim starts reading, and how long a row can wait that became visible behind it."""

import heapq
import random
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from dibs.ladder import LAG, START, TICK, TOP, WARM, Key, Ladder, Ladders, Place, Read, look_back, looks, ranges

KEY: Key = ("default", 4)
OTHER: Key = ("default", 5)
NOW = 1_000_000.0  # seconds since 1970; a tick begins here


def moment(seconds: float) -> datetime:
    return START.at + timedelta(seconds=seconds)


def place(seconds: float, job_id: int = 0) -> Place:
    return Place(moment(seconds), job_id)


def read(
    seconds: float, limit: int, *rows: tuple[Key, Place], paused: frozenset[str] = frozenset(), others: int = 0
) -> Read:
    """`others`: suspects, or jobs that were found and went to somebody quicker."""
    return Read(moment(seconds), limit, len(rows) + others, dict(rows), paused)


def start(ladders: Ladders, key: Key = KEY, now: float = NOW) -> Place:
    """Where a claim of this one range would begin."""
    ((_, _, at, job_id),) = ladders.ask([key], now)
    return Place(at, job_id)


# One claim after the other


def test_the_first_claim_begins_at_the_beginning() -> None:
    assert start(Ladders()) == START


def test_a_range_read_to_its_end_is_left_a_little_behind_the_clock() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 10, (KEY, place(NOW - 5, 7))))
    assert start(ladders) == Place(moment(NOW) - LAG, 0)


def test_a_range_that_filled_the_batch_goes_on_after_its_last_row() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 2, (KEY, place(NOW - 9, 6)), (KEY, place(NOW - 5, 7))))
    assert start(ladders) == place(NOW - 5, 7)


def test_a_claim_that_came_short_because_others_were_quicker_has_not_read_to_the_end() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 2, (KEY, place(NOW - 5, 7)), others=1))
    assert start(ladders) == place(NOW - 5, 7)
    ladders.took([KEY], read(NOW, 2, others=2))
    assert start(ladders) == place(NOW - 5, 7)


def test_what_one_kind_of_claim_has_asked_for_the_other_may_not_have() -> None:
    """Jobs on their last attempt are asked for only by some claims, which may not be the first of their tick."""
    ladders = Ladders()
    plain, every = ranges(("q",), last=False), ranges(("q",), last=True)
    assert len(ladders.ask(plain, NOW)) == len(plain)
    assert len(ladders.ask(every, NOW)) == len(every)
    assert len(ladders.ask(every, NOW)) == 1


def test_a_place_may_move_back_and_is_never_the_maximum() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 1, (KEY, place(NOW - 5, 7))))
    ladders.took([KEY], read(NOW, 1, (KEY, place(NOW - 50, 3))))
    assert start(ladders) == place(NOW - 50, 3)


def test_ranges_after_the_one_that_filled_the_batch_were_not_read() -> None:
    ladders = Ladders()
    ladders.ask([KEY, OTHER], NOW)
    ladders.took([KEY, OTHER], read(NOW, 1, (KEY, place(NOW - 5, 7))))
    assert start(ladders, OTHER) == START


def test_ranges_before_it_were_read_to_their_end() -> None:
    ladders = Ladders()
    ladders.ask([KEY, OTHER], NOW)
    ladders.took([KEY, OTHER], read(NOW, 2, (KEY, place(NOW - 5, 7)), (OTHER, place(NOW - 9, 8))))
    places = {(queue, rank): Place(at, number) for queue, rank, at, number in ladders.ask([KEY, OTHER], NOW)}
    assert places == {KEY: Place(moment(NOW) - LAG, 0), OTHER: place(NOW - 9, 8)}


def test_a_paused_queue_keeps_its_place() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 10, paused=frozenset({"default"})))
    assert start(ladders) == START


def test_a_suspect_does_not_move_the_cursor() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 1, others=1))
    assert start(ladders) == START


def test_a_suspect_counts_when_asking_whether_the_batch_was_full() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 2, (KEY, place(NOW - 5, 7)), others=1))
    assert start(ladders) == place(NOW - 5, 7)


def test_a_wake_up_lowers_the_place() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 10))
    ladders.lower(KEY, moment(NOW - 3))
    assert start(ladders) <= place(NOW - 3)
    ladders.lower(KEY, moment(NOW - 1))
    assert start(ladders) <= place(NOW - 3)
    ladders.lower(OTHER, moment(NOW))  # a range that was never asked begins at the beginning anyway
    assert start(ladders, OTHER) == START


def test_a_wake_up_makes_the_next_claim_ask_every_range() -> None:
    ladders = Ladders()
    ladders.ask([KEY, OTHER], NOW)
    assert len(ladders.ask([KEY, OTHER], NOW)) == 1
    ladders.lower(OTHER, moment(NOW))
    assert len(ladders.ask([KEY, OTHER], NOW)) == 2


def test_a_lost_connection_forgets_everything() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 10))
    ladders.forget()
    assert start(ladders) == START


def test_between_ticks_only_warm_ranges_are_asked() -> None:
    ladders = Ladders()
    ladders.ask([KEY, OTHER], NOW)
    ladders.took([KEY, OTHER], read(NOW, 10, (OTHER, place(NOW - 1, 1))))
    assert [rank for _, rank, *_ in ladders.ask([KEY, OTHER], NOW + TICK / 2)] == [OTHER[1]]
    assert len(ladders.ask([KEY, OTHER], NOW + TICK)) == 2


def test_a_range_cools_down() -> None:
    ladders = Ladders()
    ladders.ask([KEY, OTHER], NOW)
    ladders.took([KEY, OTHER], read(NOW, 10, (OTHER, place(NOW - 1, 1))))
    ladders.ask([KEY, OTHER], NOW + WARM)
    assert [rank for _, rank, *_ in ladders.ask([KEY, OTHER], NOW + WARM)] == [KEY[1]]


# Looks


def test_looks_follow_the_ruler() -> None:
    assert [look_back(k - 1, k, 0, 1) for k in range(1, 17)] == [2, 4, 2, 8, 2, 4, 2, 16, 2, 4, 2, 8, 2, 4, 2, 32]


def test_looks_are_shared_among_claimers() -> None:
    shared = [[look_back(k - 1, k, index, 4) for index in range(4)] for k in range(1, 17)]
    assert [max(backs) for backs in shared] == [look_back(k - 1, k, 0, 1) for k in range(1, 17)]
    assert all(sum(back > 0 for back in backs) == 2 for backs in shared)


def test_missed_ticks_are_made_up_for_by_their_longest_look() -> None:
    assert look_back(1, 7, 0, 1) == 8
    ours = [k for k in range(2, 10) if looks(1, k, 4)]
    assert look_back(1, 9, 1, 4) == max(2 * (k & -k) for k in ours)
    assert [look_back(k - 1, k, 0, 4) for k in ours] == [0] * len(ours)


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("length", [1, 2, 4, 8, 64])
def test_looks_of_each_length_go_round_and_are_made_twice(count: int, length: int) -> None:
    ticks = [length * (2 * n + 1) for n in range(count)]
    lookers = [[index for index in range(count) if looks(index, tick, count)] for tick in ticks]
    assert all(min(count, 2) <= len(each) <= 3 for each in lookers)
    assert {index for each in lookers for index in each} == set(range(count))


def test_a_look_starts_where_the_cursor_was() -> None:
    ladder = Ladder(100)
    for tick in range(100, 120):
        ladder.start(tick, 0)
        ladder.stopped(place(tick))
    assert ladder.start(120, 8, wide=True) == place(111)
    assert ladder.start(120, 0) == place(119)


def test_a_wide_look_beyond_the_first_tick_starts_at_the_beginning() -> None:
    ladder = Ladder(100)
    ladder.stopped(place(100))
    assert ladder.start(105, 32, wide=True) == START


def test_other_looks_start_at_the_due_times_of_then_at_the_earliest() -> None:
    ladder = Ladder(100)
    ladder.stopped(place(100))
    assert ladder.start(105, 16) == place(89 * TICK)


def test_a_queue_that_is_behind_is_looked_at_only_for_what_was_handed_back() -> None:
    ladder = Ladder(4000)
    for tick in range(4000, 4040):
        ladder.start(tick, 0)
        ladder.stopped(place(tick * TICK - 900))
    assert [ladder.start(4040, back) for back in (2, 8, 32)] == [ladder.place] * 3
    assert [ladder.start(4040, back, wide=True) for back in (8, 32)] == [
        place(then * TICK - 900) for then in (4031, 4007)
    ]


@pytest.mark.parametrize("told, expected", [(False, {8, 32, 128, 512, 2048}), (True, {2048, 4096})])
def test_wide_looks_are_for_what_was_handed_back_and_rare_where_wake_ups_tell_of_it(
    told: bool, expected: set[int]
) -> None:
    ladders = Ladders(told=told)
    found = set()
    for tick in range(100 * TOP, 102 * TOP):
        now = tick * TICK
        began = start(ladders, KEY, now)
        if began < ladders.ladders[KEY].place:
            found.add(2 * (tick & -tick))
        behind = place(now - 2000, tick)  # it is behind by half an hour
        ladders.took([KEY], read(now, 1, (KEY, behind)))
    assert {back for back in found if back <= TOP} == expected


def test_who_begins_to_hear_wake_ups_has_missed_those_before() -> None:
    ladders = Ladders()
    start(ladders)
    ladders.took([KEY], read(NOW, 10))
    ladders.hear(True)
    assert start(ladders) == START
    ladders.took([KEY], read(NOW, 10))
    assert start(ladders) > START


def test_a_look_beyond_the_top_starts_at_the_beginning() -> None:
    ladder = Ladder(0)
    ladder.stopped(place(1))
    assert ladder.start(10 * TOP, 2 * TOP) == START


def test_when_the_cursor_moves_back_so_do_the_places_above_it() -> None:
    ladder = Ladder(0)
    for tick in range(10):
        ladder.start(tick, 0)
        ladder.stopped(place(tick))
    ladder.stopped(place(3))
    assert [ladder.start(10, back, wide=True) for back in (1, 2, 4, 8)] == [place(3), place(3), place(3), place(1)]


def test_a_ladder_does_not_grow_for_ever() -> None:
    ladder = Ladder(0)
    for tick in range(0, 20 * TOP, 7):
        ladder.start(tick, 0)
        ladder.stopped(place(tick))
    assert len(ladder.places) <= 3 * TOP + 7
    assert ladder.start(tick + 1, TOP, wide=True) == place((tick + 1 - TOP - 1) // 7 * 7)


# The bound of docs/design/cursor.md, by simulation


@dataclass
class Database:
    """One range: rows become visible, some later than they are due; a claim takes them in order from its start."""

    coming: list[tuple[float, float, int, float]] = field(default_factory=list)
    waiting: list[tuple[float, int, float, float]] = field(default_factory=list)

    def add(self, run_at: float, late: float) -> None:
        heapq.heappush(self.coming, (run_at + late, run_at, len(self.coming), late))

    def claim(self, now: float, after: Place, limit: int) -> list[tuple[float, int, float, float]]:
        while self.coming and self.coming[0][0] <= now:
            visible, run_at, job_id, late = heapq.heappop(self.coming)
            insort(self.waiting, (run_at, job_id, visible, late))
        begin = bisect_right(self.waiting, ((after.at - START.at).total_seconds(), after.id, float("inf")))
        rows = [row for row in self.waiting[begin : begin + limit] if row[0] <= now]
        del self.waiting[begin : begin + len(rows)]
        return rows


def longest_waits(
    pauses: list[float],
    lateness: list[float],
    seed: int,
    seconds: float = 60.0,
    absent: int = 0,
    told: bool = False,
) -> dict[float, float]:
    """By lateness, the longest time from visible to claimed, under a stream that keeps the cursors at the present.

    There is one claimer for each of the pauses; each asks again after a random part of its own. Those absent have no
    room: they never ask, and so never look.
    """
    rng = random.Random(seed)
    begin = NOW + rng.random() * 5000
    database = Database()
    for _ in range(int(20 * seconds)):
        database.add(begin + rng.random() * seconds, 0.0)
    for late in lateness * 20:
        database.add(begin + 20 + rng.random() * (seconds - 20), late)
    claimers = [Ladders(absent + index, absent + len(pauses), told) for index in range(len(pauses))]
    asks = [(begin + rng.random() * pause, index) for index, pause in enumerate(pauses)]
    heapq.heapify(asks)
    waits = dict.fromkeys(lateness, 0.0)
    while asks[0][0] < begin + 3 * seconds:
        now, index = heapq.heappop(asks)
        rows = database.claim(now, start(claimers[index], KEY, now), 200)
        for *_, visible, late in rows:
            if late:
                waits[late] = max(waits[late], now - visible)
        last = {KEY: place(*rows[-1][:2])} if rows else {}
        claimers[index].took([KEY], Read(moment(now), 200, len(rows), last))
        heapq.heappush(asks, (now + rng.random() * pauses[index], index))
    assert not database.waiting
    assert not database.coming
    return waits


@pytest.mark.parametrize(
    "pauses",
    [[0.1], [0.1] * 4, [0.2] * 8, [1.0] * 4, [5.0], [0.1, 0.1, 5.0], [5.0] * 8],
    ids=["one", "four", "eight", "four slow", "one idle", "one idle of three", "eight idle"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_late_row_is_found_in_time(pauses: list[float], seed: int) -> None:
    waits = longest_waits(pauses, [0.05, 0.5, 1.0, 3.0, 10.0], seed)
    for late, wait in waits.items():
        assert wait <= max(TICK, 2 * late) + TICK + max(pauses)


@pytest.mark.parametrize("pauses", [[0.1], [0.1] * 4, [1.0] * 4], ids=["one", "four", "four slow"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_row_up_to_four_seconds_late_is_found_although_a_wake_up_that_should_tell_of_it_does_not_come(
    pauses: list[float], seed: int
) -> None:
    waits = longest_waits(pauses, [0.05, 0.5, 1.0, 3.0, 3.7], seed, told=True)
    for late, wait in waits.items():
        assert wait <= max(TICK, 2 * late) + TICK + max(pauses)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("present, absent", [(1, 1), (3, 1), (2, 2), (7, 1)])
def test_claimers_without_room_delay_no_late_row(present: int, absent: int, seed: int) -> None:
    waits = longest_waits([0.1] * present, [0.05, 0.5, 1.0, 3.0, 10.0], seed, absent=absent)
    for late, wait in waits.items():
        assert wait <= max(TICK, 2 * late) + TICK + 0.1


# Ranges


def test_ranges_go_queue_by_queue_and_level_by_level() -> None:
    assert ranges(("b", "a"), last=False) == tuple((queue, level) for queue in "ba" for level in range(10))


@pytest.mark.parametrize("coin", [False, True])
def test_last_attempts_come_before_or_after_the_plain_ones_of_their_level(coin: bool) -> None:
    found = ranges(("q",), last=True, coin=coin)
    assert [{found[n], found[n + 1]} for n in range(0, 20, 2)] == [{("q", n), ("q", n + 10)} for n in range(10)]
    assert found[0] == ("q", 10 if coin else 0)
