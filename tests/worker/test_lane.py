"""A lane: what it remembers from one turn to the next, and what it does when an answer does not come."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dibs.engines.engine import Capabilities, Engine, Session
from dibs.errors import Conflict, ConnectionLost, DatabaseError, DeadlineExceeded, Refused, Unreachable
from dibs.job import Claimed, JobId, JobState, Lease, WorkerId
from dibs.ladder import LAG, START
from dibs.lifecycle import Done
from dibs.operations.claims import CLAIM_BITS, Settle, Turn
from dibs.operations.operation import Operation, Statement
from dibs.payload import decode
from dibs.worker import lane as module
from dibs.worker.lane import EVENTS_EVERY, Ask, Lane

ME = WorkerId(7)
NOW = datetime(2026, 5, 17, 12, tzinfo=UTC)
ASK = Ask(["q"], limit=2)
SETTLES = [Settle(Lease(JobId(n), 100 + n), Done(JobState.SUCCESSFUL), attempt=2) for n in (1, 2, 3)]

Answer = Turn | DatabaseError


def claimed(number: int, *, rank: int = 4, at: datetime = NOW) -> Claimed:
    return Claimed(JobId(number), number, "task", "q", None, 1, 3, rank, at, 0, 0)


def turn(*jobs: Claimed, clock: Any = NOW, **more: Any) -> Turn:
    return Turn([*jobs], clock, **{"picked": len(jobs), **more})


@dataclass
class Script(Session):
    """A session, and the rest of the engine, that give the answers in a list and note what was asked."""

    answers: list[Answer] = field(default_factory=list)
    said: list[Statement] = field(default_factory=list)

    async def arun(self, operation: Operation[Any]) -> Any:
        self.said.append(next(iter(operation)))
        answer = self.answers.pop(0) if self.answers else turn()
        if isinstance(answer, DatabaseError):
            raise answer
        return answer

    async def aclose(self) -> None: ...

    def settled(self) -> list[list[int]]:
        return [[row[0] for row in said.values["done"].rows] for said in self.said if said.name == "turn"]

    def numbers(self) -> list[int]:
        return [said.values["claim"] for said in self.said]

    def ranges(self) -> list[list[Any]]:
        return [list(said.values["ranges"].rows) for said in self.said]


@dataclass
class Stage:
    """A lane on a played database."""

    session: Script
    rest: Script
    engine: Any
    doubts: list[tuple[int, int]]
    lane: Lane


@pytest.fixture
def stage() -> Stage:
    session, rest = Script(), Script()
    can = Capabilities(push_wakeups=True, listens=True, notifies=True, cursor=True, lanes=2)
    engine = SimpleNamespace(can=can, deadline=5.0, reached=True, arun=rest.arun, arun_once=rest.arun)
    doubts: list[tuple[int, int]] = []
    lane = Lane(cast(Engine, engine), session, ME, lambda worker, number: doubts.append((worker, number)))
    return Stage(session, rest, engine, doubts, lane)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The lane's own clocks, which stand still."""
    times = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: times.now, time=lambda: NOW.timestamp() + times.now - 1000.0)
    )
    return times


async def test_a_turn_settles_and_claims(stage: Stage) -> None:
    stage.session.answers = [turn(claimed(9))]
    done = await stage.lane.turn(ASK, SETTLES)
    (said,) = stage.session.said
    assert ([job.id for job in done.claimed], stage.session.settled()) == ([9], [[1, 2, 3]])
    assert (said.values["worker"], said.values["limit"], said.values["suspects"]) == (ME, 2, 1)


async def test_a_turn_may_only_settle(stage: Stage) -> None:
    await stage.lane.turn(None, SETTLES)
    (said,) = stage.session.said
    assert (said.values["limit"], said.values["claim"], list(said.values["ranges"].rows)) == (0, 0, [])


async def test_every_claim_has_a_number_of_its_own(stage: Stage) -> None:
    stage.lane.number = (1 << CLAIM_BITS) - 3
    for _ in range(4):
        await stage.lane.turn(ASK)
    assert stage.session.numbers() == [(1 << CLAIM_BITS) - 2, (1 << CLAIM_BITS) - 1, 0, 1]


# Which ranges


@pytest.mark.parametrize("at_once, ranks", [(True, range(20)), (False, range(10))])
async def test_last_attempts_only_in_a_claim_that_starts_all_it_takes(
    stage: Stage, at_once: bool, ranks: range
) -> None:
    await stage.lane.turn(replace(ASK, at_once=at_once))
    assert sorted(rank for _, rank, *_ in stage.session.ranges()[0]) == list(ranks)


async def test_queues_and_levels_come_in_order(stage: Stage) -> None:
    await stage.lane.turn(replace(ASK, queues=["b", "a"], at_once=False))
    assert [(queue, rank) for queue, rank, *_ in stage.session.ranges()[0]] == [
        (queue, rank) for queue in ("b", "a") for rank in range(10)
    ]


async def test_an_engine_without_a_cursor_starts_at_the_beginning(stage: Stage) -> None:
    stage.engine.can = Capabilities(push_wakeups=False, listens=False, notifies=False, cursor=True, lanes=2)
    stage.session.answers = [turn(clock=1_700_000_000_000_000)] * 2
    for _ in range(2):
        await stage.lane.turn(ASK)
    assert {row[2:] for ranges in stage.session.ranges() for row in ranges} == {START}


async def test_the_cursor_follows_what_was_read(stage: Stage, clock: SimpleNamespace) -> None:
    """A range that filled the claim goes on after its last row; one read to its end, a little before the clock."""
    full = [claimed(1, at=NOW - timedelta(minutes=2)), claimed(2, at=NOW - timedelta(minutes=1))]
    stage.session.answers = [turn(*full), turn(claimed(3))]
    for _ in range(3):
        await stage.lane.turn(ASK)
    starts = [{row[1]: row[2:] for row in ranges} for ranges in stage.session.ranges()]
    assert starts[0][4] == START
    assert starts[1][4] == (NOW - timedelta(minutes=1), 2)
    assert starts[2][4] == (NOW - LAG, 0)


async def test_where_another_was_quicker_there_is_more(stage: Stage) -> None:
    stage.session.answers = [turn(claimed(5), picked=2), turn()]
    await stage.lane.turn(ASK)
    await stage.lane.turn(ASK)
    (_, second) = stage.session.ranges()
    assert ("q", 4, NOW, 5) in second


async def test_a_suspect_does_not_move_the_cursor(stage: Stage) -> None:
    stage.session.answers = [turn(claimed(1, rank=24), claimed(2, rank=24))]
    for _ in range(2):
        await stage.lane.turn(ASK)
    assert {row[2:] for row in stage.session.ranges()[1]} == {START}


async def test_where_a_suspect_was_there_may_be_more(stage: Stage) -> None:
    """Between ticks only ranges that gave something are asked, and suspects come one at a time."""
    stage.session.answers = [turn(claimed(1, rank=27)), turn(claimed(2, rank=27))]
    for _ in range(3):
        await stage.lane.turn(ASK)
    assert [len(ranges) for ranges in stage.session.ranges()] == [20, 1, 1]
    assert {row[:2] for row in stage.session.ranges()[1]} == {("q", 7)}


async def test_the_databases_clock_counts(stage: Stage) -> None:
    ahead = timedelta(hours=3)
    stage.session.answers = [turn(clock=NOW + ahead)]
    await stage.lane.turn(ASK)
    assert stage.lane.ahead == pytest.approx(ahead.total_seconds())


# When it goes wrong


@pytest.mark.parametrize("error", [Conflict("for now"), Unreachable("nobody there")])
async def test_what_was_not_done_is_tried_again_whole(stage: Stage, error: DatabaseError) -> None:
    stage.session.answers = [error, error, turn(claimed(9))]
    done = await stage.lane.turn(ASK, SETTLES)
    assert [job.id for job in done.claimed] == [9]
    assert stage.session.settled() == [[1, 2, 3]] * 3
    assert stage.session.numbers() == [1, 2, 3]
    assert (stage.rest.said, stage.doubts) == ([], [])


async def test_not_for_ever(stage: Stage) -> None:
    stage.engine.deadline = 0.01
    stage.session.answers = [Conflict("for now")] * 100
    with pytest.raises(DeadlineExceeded):
        await stage.lane.turn(ASK, SETTLES)


async def test_a_server_that_was_never_seen_is_not_waited_for(stage: Stage) -> None:
    stage.engine.reached = False
    stage.session.answers = [Unreachable("nobody there")]
    with pytest.raises(Unreachable):
        await stage.lane.turn(ASK)


async def test_a_lost_answer_has_two_halves(stage: Stage) -> None:
    """The settles are sent again, alone; the claim is in doubt."""
    stage.session.answers = [ConnectionLost("cut off")]
    stage.rest.answers = [turn(before={JobId(1): JobState.SUCCESSFUL}, lost=frozenset({JobId(2)}))]
    done = await stage.lane.turn(ASK, SETTLES)
    (again,) = stage.rest.said
    assert (again.values["limit"], stage.rest.settled()) == (0, [[1, 2, 3]])
    assert stage.doubts == [(ME, 1)]
    assert (len(done.claimed), set(done.lost)) == (0, {JobId(2)})
    assert done.before == {JobId(1): JobState.SUCCESSFUL}


async def test_without_a_claim_there_is_no_doubt(stage: Stage) -> None:
    stage.session.answers = [ConnectionLost("cut off")]
    await stage.lane.turn(None, SETTLES)
    assert (stage.doubts, stage.rest.settled()) == ([], [[1, 2, 3]])


async def test_a_lost_connection_takes_the_cursors_along(stage: Stage) -> None:
    """Whoever commits meanwhile sends wake-ups that we do not hear."""
    stage.session.answers = [turn(), ConnectionLost("cut off")]
    for _ in range(3):
        await stage.lane.turn(ASK)
    assert {row[2:] for row in stage.session.ranges()[2]} == {START}


async def test_only_the_culprit_fails(stage: Stage) -> None:
    stage.session.answers = [Refused("not JSON")]
    stage.rest.answers = [turn(), Refused("not JSON"), turn(), turn(lost=frozenset({JobId(3)}))]
    done = await stage.lane.turn(ASK, SETTLES)
    assert stage.rest.settled() == [[1], [2], [2], [3]]
    ((job_id, token, state, _, result, entry, _),) = stage.rest.said[2].values["done"].rows
    assert (job_id, token, state, result) == (2, 102, JobState.FAILED.code, None)
    assert decode(entry) == {"attempt": 2, "error": "The outcome of this job could not be stored: not JSON"}
    assert (set(done.culprits), set(done.lost), len(done.claimed)) == ({JobId(2)}, {JobId(3)}, 0)
    assert stage.doubts == []


async def test_a_refusal_that_is_nobodys_fault_is_told(stage: Stage) -> None:
    stage.session.answers = [Refused("odd")]
    with pytest.raises(Refused):
        await stage.lane.turn(ASK)


# Events


async def test_a_turn_tells_what_changed_before(stage: Stage, clock: SimpleNamespace) -> None:
    stage.session.answers = [turn(claimed(9))]
    await stage.lane.turn(ASK, SETTLES)
    clock.now += 2 * EVENTS_EVERY
    await stage.lane.turn(ASK)
    clock.now += 2 * EVENTS_EVERY
    await stage.lane.turn(ASK)
    assert [said.values["events"] for said in stage.session.said] == ['{"jobIds":[1,2,3]}', '{"jobId":9}', None]


async def test_not_more_often_than_every_so_often(stage: Stage, clock: SimpleNamespace) -> None:
    for n in range(3):
        await stage.lane.turn(None, [SETTLES[n]])
        clock.now += EVENTS_EVERY * 0.4
    clock.now += 2 * EVENTS_EVERY
    await stage.lane.turn(ASK)
    assert [said.values["events"] for said in stage.session.said] == [
        '{"jobId":1}',
        None,
        None,
        '{"jobIds":[2,3]}',
    ]


async def test_many_are_told_in_several_notifications(stage: Stage) -> None:
    ids = [10**15 + n for n in range(1000)]
    stage.lane.events = dict.fromkeys(ids)
    await stage.lane.turn(ASK)
    texts = stage.session.said[-1].values["events"].splitlines()
    assert all(len(text) < 8000 for text in texts)  # PostgreSQL's limit
    assert [job_id for text in texts for job_id in decode(text)["jobIds"]] == ids
    assert stage.lane.events == {}


async def test_a_job_is_told_once_though_it_changed_twice(stage: Stage, clock: SimpleNamespace) -> None:
    stage.session.answers = [turn(), turn(claimed(1))]
    await stage.lane.turn(None, SETTLES[1:2])
    await stage.lane.turn(ASK)
    await stage.lane.turn(None, SETTLES[:1])
    clock.now += 2 * EVENTS_EVERY
    await stage.lane.turn(ASK)
    assert stage.session.said[-1].values["events"] == '{"jobId":1}'


async def test_what_a_refused_turn_would_have_told_is_told_by_the_next(stage: Stage) -> None:
    stage.session.answers = [Conflict("again")]
    await stage.lane.turn(ASK, SETTLES)
    assert [said.values["events"] for said in stage.session.said] == ['{"jobIds":[1,2,3]}'] * 2


async def test_nothing_is_gathered_where_nobody_can_be_told(stage: Stage) -> None:
    stage.engine.can = Capabilities(push_wakeups=False, listens=False, notifies=False, cursor=True, lanes=2)
    stage.session.answers = [turn(claimed(9))]
    await stage.lane.turn(ASK, SETTLES)
    assert stage.lane.events == {}


async def test_one_that_shall_not_tell_gathers_nothing(stage: Stage) -> None:
    stage.lane.tells = False
    stage.session.answers = [turn(claimed(9))]
    await stage.lane.turn(ASK, SETTLES)
    assert ([said.values["events"] for said in stage.session.said], stage.lane.events) == ([None], {})


async def test_what_is_left_is_told_at_the_end(stage: Stage) -> None:
    stage.lane.events = {4: None, 5: None}
    await stage.lane.aclose()
    await stage.lane.aclose()
    (said,) = stage.rest.said
    assert (said.name, said.values) == ("notify", {"channel": "job_events", "payload": '{"jobIds":[4,5]}'})
