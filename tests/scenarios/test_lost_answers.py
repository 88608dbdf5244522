"""Answers that are lost on the way: what was done is done once, what was taken is handed back, what is unknown is said.

The network is a proxy that loses the answer to a statement just after the server has committed it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from dibs import Dibs, Task
from dibs.engines.postgres.engine import PostgresEngine
from dibs.errors import DeadlineExceeded, OutcomeUnknown
from dibs.job import Claimed, JobState
from dibs.lifecycle import Back, Change, Done, Way, failure
from dibs.operations.claims import Settle
from dibs.payload import encode
from dibs.worker.heart import Heart
from dibs.worker.lane import Ask, Lane
from tests.actors import Actors
from tests.engines import Engines
from tests.scenarios.claimer import success
from tests.servers.proxy import Proxy

LEASE = 15.0
BOOM = encode(failure(1, "boom"))
ASK = Ask(["default"], 3)


@pytest.fixture
def direct(engines: Engines) -> Iterator[Actors]:
    """Those whose network is sound."""
    with engines.open("postgres18") as engine:
        yield Actors(engine)


@pytest.fixture
def proxy(direct: Actors) -> Iterator[Proxy]:
    """A network that is not."""
    assert isinstance(direct.engine, PostgresEngine)
    with Proxy.before(direct.engine.server.url) as proxy:
        yield proxy


@dataclass
class Worker:
    """A worker beyond that network, whose heart beats when told to."""

    lane: Lane
    heart: Heart

    async def beat(self) -> None:
        """One beat, and what rides in it."""
        pulse = await asyncio.to_thread(self.heart.run_once)
        assert pulse.beat is not None


@pytest.fixture
async def worker(direct: Actors, proxy: Proxy) -> AsyncIterator[Worker]:
    """Enlisted and connected."""
    engine = PostgresEngine(proxy.url, deadline=2.0)
    number = direct.worker(lease=LEASE, beat=3.0).id
    session = engine.session("lane")
    heart = Heart(engine, [number], lease=LEASE, beat=3.0, held=lambda: [], tell=lambda pulse: None)
    worker = Worker(Lane(engine, session, number, heart.doubt), heart)
    await worker.lane.turn(ASK)
    worker.lane.ladders.forget()  # else it would not look again in the same quarter of a second
    yield worker
    await worker.lane.aclose()
    await engine.aclose()


async def test_a_claim_whose_answer_was_lost_is_handed_back(direct: Actors, proxy: Proxy, worker: Worker) -> None:
    ids = direct.add_many(3)
    proxy.lose_answer()
    assert (await worker.lane.turn(ASK)).claimed == []
    assert proxy.spoiled == 1
    assert [(direct.get(job_id).state, direct.get(job_id).attempts) for job_id in ids] == [(JobState.RUNNING, 1)] * 3
    await worker.beat()
    assert [(direct.get(job_id).state, direct.get(job_id).attempts) for job_id in ids] == [(JobState.PENDING, 0)] * 3
    again = (await worker.lane.turn(ASK)).claimed
    assert [(job.id, job.attempts) for job in again] == [(job_id, 1) for job_id in ids]
    await worker.beat()  # and the doubt was about the first claim alone
    assert [direct.state(job_id) for job_id in ids] == [JobState.RUNNING] * 3


@pytest.mark.slow
async def test_a_claim_that_arrives_late_is_handed_back_too(direct: Actors, proxy: Proxy, worker: Worker) -> None:
    job_id = direct.add()
    proxy.freeze()
    assert (await worker.lane.turn(ASK)).claimed == []  # it gave up waiting, and the claim is still on its way
    await worker.beat()
    assert direct.state(job_id) is JobState.PENDING
    proxy.thaw()
    while direct.state(job_id) is JobState.PENDING:
        pass
    await worker.beat()
    assert (direct.state(job_id), direct.get(job_id).attempts) == (JobState.PENDING, 0)


def outcomes(claimed: list[Claimed]) -> list[Settle]:
    changes: list[Change] = [
        Done(JobState.SUCCESSFUL),
        Back(Way.RETRY, 60.0, BOOM),
        Done(JobState.FAILED, failure=BOOM),
    ]
    return [Settle(job.lease, change) for job, change in zip(claimed, changes, strict=True)]


async def test_a_settle_whose_answer_was_lost_counts_once(direct: Actors, proxy: Proxy, worker: Worker) -> None:
    ids = direct.add_many(4)
    held = (await worker.lane.turn(ASK)).claimed
    back = [Settle(job.lease, Back(Way.RELEASE)) for job in held]
    worker.lane.ladders.forget()
    settles = outcomes((await worker.lane.turn(ASK, back)).claimed)  # from here on the server knows the statement
    proxy.lose_answer()
    turn = await worker.lane.turn(ASK, settles)  # and with it the claim of the fourth
    assert proxy.spoiled == 1
    assert (turn.lost, turn.claimed) == (frozenset(), [])
    states = [JobState.SUCCESSFUL, JobState.RETRY, JobState.FAILED]
    assert turn.before == dict(zip(ids, states, strict=False))
    assert [direct.state(job_id) for job_id in ids] == [*states, JobState.RUNNING]
    await worker.beat()
    found = [direct.get(job_id) for job_id in ids]
    assert [(job.attempts, len(job.failures)) for job in found] == [(1, 0), (1, 1), (1, 1), (0, 0)]
    assert direct.sql("select count(*) from dibs.history") == [(1,)]


async def test_a_settle_that_never_left_counts_once(direct: Actors, proxy: Proxy, worker: Worker) -> None:
    ids = direct.add_many(3)
    settles = outcomes((await worker.lane.turn(ASK)).claimed)
    proxy.reset()
    turn = await worker.lane.turn(ASK, settles)
    assert (turn.lost, turn.before) == (frozenset(), {})
    assert [(direct.get(job_id).attempts, len(direct.get(job_id).failures)) for job_id in ids] == [
        (1, 0),
        (1, 1),
        (1, 1),
    ]


async def test_a_settle_that_comes_too_late_is_refused(direct: Actors, proxy: Proxy, worker: Worker) -> None:
    """The answer was lost, and before the settle was sent again the job went on without us."""
    job_id = direct.add()
    (job,) = (await worker.lane.turn(ASK)).claimed
    proxy.lose_answer()
    assert (await worker.lane.turn(None, [Settle(job.lease, Back(Way.RETRY))])).lost == frozenset()
    (other,) = direct.worker().claim()
    assert (await worker.lane.turn(None, [success(job.lease)])).lost == {job_id}
    assert (direct.state(job_id), other.attempts) == (JobState.RUNNING, 2)


@pytest.fixture
def app(proxy: Proxy) -> Iterator[Dibs]:
    """An app beyond that network."""
    with closing(Dibs(proxy.url, deadline=2.0)) as app:
        yield app


@pytest.fixture
def mail(app: Dibs) -> Task[..., None]:
    """A task of it, whose statements are prepared: else each would have an answer of its own to that."""

    @app.task(name="mail")
    def mail(to: str) -> None: ...

    mail.enqueue(to="warm")
    mail.using(unique_key="warm").enqueue(to="warm")
    app.enqueue_many([mail.call(to="warm")])
    return mail


def count(direct: Actors) -> int:
    return int(direct.sql("select count(*) from dibs.jobs where payload ->> 'to' <> 'warm'")[0][0])


def test_an_enqueue_without_an_answer_is_unknown(direct: Actors, proxy: Proxy, mail: Task[..., None]) -> None:
    proxy.lose_answer()
    with pytest.raises(OutcomeUnknown):
        mail.enqueue(to="ann")
    assert (count(direct), proxy.spoiled) == (1, 1)


@pytest.mark.parametrize("size", [0, 1, 30])
def test_half_an_answer_is_none(size: int, direct: Actors, proxy: Proxy, mail: Task[..., None]) -> None:
    proxy.cut_after(size)
    with pytest.raises(OutcomeUnknown):
        mail.enqueue(to="ann")
    assert (count(direct), proxy.spoiled) == (1, 1)


def test_an_enqueue_that_never_left_is_sent(direct: Actors, proxy: Proxy, mail: Task[..., None]) -> None:
    """A connection that broke while nobody used it is no reason for doubt."""
    proxy.reset()
    assert direct.get(mail.enqueue(to="ann").id).payload == {"to": "ann"}
    assert count(direct) == 1


@pytest.mark.parametrize("answer", range(1, 5))
def test_with_a_key_there_is_one_job(answer: int, direct: Actors, proxy: Proxy, mail: Task[..., None]) -> None:
    """Whichever answer of the conversation is lost: that to begin, to the insert, to the wake-up, to commit."""
    proxy.lose_answer(answer)
    job = mail.using(unique_key="welcome").enqueue(to="ann")
    assert (direct.get(job.id).payload, count(direct), proxy.spoiled) == ({"to": "ann"}, 1, 1)


@pytest.mark.parametrize("answer", range(1, 5))
def test_many_are_there_all_or_none(
    answer: int, direct: Actors, proxy: Proxy, app: Dibs, mail: Task[..., None]
) -> None:
    proxy.lose_answer(answer)
    with pytest.raises(OutcomeUnknown):
        app.enqueue_many([mail.call(to="ann"), mail.call(to="bob")])
    assert (count(direct), proxy.spoiled) == (2 if answer == 4 else 0, 1)


# What people do


LOOK_FIRST = r"It may or may not have been done: look before you do it again"


def test_a_retry_without_an_answer_is_unknown(direct: Actors, proxy: Proxy, app: Dibs, mail: Task[..., None]) -> None:
    """It was said that the job could not be retried, for it waited already: by this very retry."""
    warm, job = mail.enqueue(to="ann"), mail.enqueue(to="bob")
    assert (app.cancel(warm.id), app.cancel(job.id), app.retry(warm.id).state) == (True, True, JobState.PENDING)
    proxy.lose_answer()
    with pytest.raises(OutcomeUnknown, match=LOOK_FIRST):
        app.retry(job.id)
    assert (direct.state(job.id), proxy.spoiled) == (JobState.PENDING, 1)


def test_a_cancel_without_an_answer_is_unknown(direct: Actors, proxy: Proxy, app: Dibs, mail: Task[..., None]) -> None:
    """It was said that the job was not cancelled, for it was final already: by this very cancel."""
    warm, job = mail.enqueue(to="ann"), mail.enqueue(to="bob")
    assert app.cancel(warm.id)
    proxy.lose_answer()
    with pytest.raises(OutcomeUnknown, match=LOOK_FIRST):
        app.cancel(job.id)
    assert (direct.state(job.id), proxy.spoiled) == (JobState.CANCELLED, 1)
    assert app.cancel(job.id) is False


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_not_waited_for(proxy: Proxy, app: Dibs, mail: Task[..., None]) -> None:
    app.engine.close()
    app.engine.deadline = 0.5
    mail.enqueue(to="warm")  # on a connection that knows this deadline
    proxy.swallow_answers()
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        mail.enqueue(to="ann")
    assert 0.5 <= time.monotonic() - began < 5.0
    with pytest.raises(DeadlineExceeded):
        mail.using(unique_key="welcome").enqueue(to="ann")
