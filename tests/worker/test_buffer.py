"""How many jobs a worker holds and asks for: by chance and by hand, never more than it may."""

from hypothesis import given, settings
from hypothesis import strategies as some

from dibs.job import Claimed, JobId, Lease
from dibs.worker.buffer import MOST, SHARED, START_WITHIN, TOO_LONG, Buffer, Wish

PLAIN, LAST, SUSPECT = 4, 14, 24
STEPS = ["ask", "answer", "end", "wake", "wait"]


def job(number: int, rank: int = PLAIN) -> Claimed:
    return Claimed(JobId(number), number, "task", "q", None, 1, 3, rank, None, 0, 0)


def jobs(count: int, rank: int = PLAIN) -> list[Claimed]:
    return [job(number, rank) for number in range(count)]


def test_at_first_only_what_can_begin_at_once_is_asked_for() -> None:
    buffer = Buffer(10)
    assert buffer.wish(0.0) == Wish(10, at_once=True, suspects=1)
    assert buffer.wish(0.0) is None


def test_what_comes_begins() -> None:
    buffer = Buffer(10)
    wish = buffer.wish(0.0)
    assert wish is not None
    assert len(buffer.came(wish, jobs(3), 0.0)) == 3
    assert (buffer.running, buffer.kept) == (3, 0)


def test_as_many_are_held_as_end_in_a_quarter_of_a_second() -> None:
    buffer = Buffer(2, rate=40, since=1.0, asked_at_once=1.0, running=2)
    assert buffer.wish(1.0) == Wish(10, at_once=False, suspects=0)
    assert buffer.wish(1.0) is None


def test_where_few_jobs_come_one_ask_does() -> None:
    """Also after some have ended lately: a second ask beside the first one would only be in its way."""
    buffer = Buffer(10, rate=30, since=1.0, asked_at_once=1.0)
    assert buffer.wish(1.0) == Wish(10, at_once=True, suspects=1)
    assert buffer.wish(1.0) is None
    buffer.came(Wish(10, at_once=True, suspects=1), jobs(10), 1.0)
    assert buffer.wish(1.0) == Wish(7, at_once=False, suspects=0)


def test_where_many_come_all_that_can_be_held_are_asked_for() -> None:
    buffer = Buffer(10, rate=1000, since=1.0, asked_at_once=1.0)
    assert buffer.wish(1.0) == Wish(MOST, at_once=False, suspects=0)
    assert buffer.wish(1.0) == Wish(60, at_once=False, suspects=0)


def test_a_turn_has_a_limit() -> None:
    buffer = Buffer(2, rate=100_000, since=1.0, asked_at_once=1.0, running=2)
    wish = buffer.wish(1.0)
    assert wish is not None
    assert wish.limit == MOST


def test_slow_jobs_are_not_held() -> None:
    assert Buffer(10, rate=3.9, since=1.0, running=10).wish(1.0) is None


def test_a_given_number_is_held() -> None:
    assert Buffer(10, prefetch=7, since=1.0, running=10).wish(1.0) == Wish(7, at_once=False, suspects=0)


def test_what_was_taken_to_the_last_is_not_asked_for_again_until_woken() -> None:
    buffer = Buffer(1, prefetch=5, running=1, asked_at_once=1.0, since=1.0)
    wish = buffer.wish(1.0)
    assert wish is not None
    buffer.came(wish, jobs(2), 1.0)
    assert buffer.wish(1.0) is None
    buffer.woken()
    assert buffer.wish(1.0) == Wish(3, at_once=False, suspects=0)


def test_now_and_then_slots_are_kept_for_jobs_that_may_not_wait_here() -> None:
    buffer = Buffer(2, prefetch=2, since=1.0, asked_at_once=1.0, running=2)
    wish = buffer.wish(1.0)
    assert wish is not None
    assert buffer.came(wish, jobs(2), 1.0) == []
    later = 1.0 + 2 * START_WITHIN
    assert buffer.wish(later) is None  # no slot is free
    buffer.end(job(9))
    assert list(buffer.take(later)) == []  # this one is kept
    assert buffer.wish(later) == Wish(1, at_once=True, suspects=1)
    assert list(buffer.take(later)) == []
    assert buffer.came(Wish(1, at_once=True, suspects=1), [job(5, LAST)], later) == [job(5, LAST)]
    assert (buffer.running, len(buffer.waiting)) == (2, 2)


def test_one_suspect_at_a_time() -> None:
    buffer = Buffer(4)
    first = buffer.wish(0.0)
    assert first is not None
    buffer.came(first, [job(1, SUSPECT)], 0.0)
    second = buffer.wish(0.0)
    assert second is not None
    assert (first.suspects, second.suspects) == (1, 0)
    buffer.came(second, [], 0.0)
    buffer.end(job(1, SUSPECT))
    third = buffer.wish(0.0)
    assert third is not None
    assert third.suspects == 1


def test_a_given_number_is_not_held_for_a_while_when_others_ask() -> None:
    buffer = Buffer(1, prefetch=7, running=1, rate=8, since=1.0, asked_at_once=1.0)
    assert not buffer.adapts(1.0)
    buffer.share(1.0)
    assert buffer.adapts(1.0 + SHARED / 2)
    assert buffer.wish(1.0) == Wish(2, at_once=False, suspects=0)
    buffer.came(Wish(2, at_once=False, suspects=0), [], 1.0)
    buffer.woken()
    assert not buffer.adapts(1.0 + SHARED)


def test_jobs_of_some_queues_are_handed_back() -> None:
    buffer = Buffer(1, prefetch=7, running=1)
    mine, others = jobs(2), [each._replace(queue="paused") for each in jobs(2)]
    buffer.came(Wish(4, at_once=False, suspects=0), [mine[0], *others, mine[1]], 1.0)
    assert buffer.hand_back({"paused", "empty"}) == others
    assert [each for each, _ in buffer.waiting] == mine
    assert buffer.hand_back() == mine
    assert not buffer.waiting


def test_what_waits_too_long_is_handed_back() -> None:
    buffer = Buffer(1, running=1, rate=100, since=0.0, asked_at_once=0.0)
    wish = buffer.wish(0.0)
    assert wish is not None
    buffer.came(wish, jobs(3), 0.0)
    assert not buffer.overdue(TOO_LONG)
    assert buffer.overdue(TOO_LONG + 0.01)
    assert buffer.hand_back() == jobs(3)
    assert not buffer.overdue(99.0)


def test_with_a_given_number_nothing_is_handed_back_by_itself() -> None:
    buffer = Buffer(1, prefetch=3, running=1)
    buffer.waiting.append((job(1), 0.0))
    assert not buffer.overdue(99.0)


def test_what_was_lost_is_dropped() -> None:
    buffer = Buffer(1, running=1)
    buffer.waiting.extend((each, 0.0) for each in jobs(3))
    buffer.drop({Lease(JobId(1), 1)})
    assert [each.id for each, _ in buffer.waiting] == [0, 2]


@given(
    concurrency=some.integers(1, 20),
    prefetch=some.none() | some.integers(0, 30),
    steps=some.lists(some.tuples(some.sampled_from(STEPS), some.randoms()), max_size=80),
)
@settings(max_examples=200, deadline=None)
def test_never_too_many_and_never_a_suspect_or_a_last_attempt_unstarted(
    concurrency: int, prefetch: int | None, steps: list[tuple[str, object]]
) -> None:
    buffer = Buffer(concurrency, prefetch)
    asked: list[Wish] = []
    running: list[Claimed] = []
    now, number = 0.0, 0
    for step, chance in steps:
        now += 0.01
        match step:
            case "ask":
                wish = buffer.wish(now)
                if wish is not None:
                    asked.append(wish)
            case "answer" if asked:
                wish = asked.pop(0)
                ranks = [PLAIN] * chance.randint(0, wish.limit)  # type: ignore[attr-defined]  # a Random
                if wish.at_once and ranks:
                    ranks[0] = SUSPECT if wish.suspects else LAST
                came = [job(number + n, rank) for n, rank in enumerate(ranks)]
                number += len(came)
                began = buffer.came(wish, came, now)
                assert not wish.at_once or set(came) <= set(began)
                running += began
            case "end" if running:
                buffer.end(running.pop(chance.randrange(len(running))))  # type: ignore[attr-defined]  # a Random
                running += buffer.take(now)
            case "wake":
                buffer.woken()
            case "wait":
                now += START_WITHIN
        assert buffer.running == len(running) <= concurrency
        assert sum(each.suspect for each in running) <= 1
        assert all(each.rank == PLAIN for each, _ in buffer.waiting)
        assert min(buffer.coming, buffer.kept, buffer.suspects) >= 0
        if prefetch is not None:
            assert len(buffer.waiting) + buffer.coming <= concurrency + prefetch
