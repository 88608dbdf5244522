"""A worker inside a process: what it claims, runs, hands back and survives."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest

from dibs import Dibs, JobState, current_job
from dibs.engines.sqlite import wakeups as sqlite_wakeups
from dibs.engines.sqlite.engine import SqliteEngine
from dibs.errors import ConfigError, InvalidOption, NotMigrated, Unreachable
from dibs.job import Claimed, JobId, WorkerId
from dibs.operations import holding, queues, workers
from dibs.operations.claims import Settle, Turn
from dibs.worker import wakeups
from dibs.worker.buffer import Wish
from dibs.worker.feed import Feed
from dibs.worker.holding import Holding
from dibs.worker.lane import Ask, Lane
from dibs.worker.progress import Progress
from dibs.worker.wakeups import Wakeups
from dibs.worker.worker import Worker
from tests.actors import Actors
from tests.apps import on_postgres, on_sqlite
from tests.servers.fixtures import FreshDatabase
from tests.worker.sessions import make_faulty

PATIENCE = 30.0
LEASE, BEAT = 4.0, 0.1


@pytest.fixture
async def app(url: str) -> AsyncIterator[Dibs]:
    app = Dibs(url, lease=LEASE, beat=BEAT)
    yield app
    await app.aclose()


async def until(happened: Callable[[], bool]) -> None:
    """Go on as soon as it has happened."""
    async with asyncio.timeout(PATIENCE):
        while not happened():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


async def states(app: Dibs, *ids: int) -> list[str]:
    return [(await app.aget(job_id)).state.value for job_id in ids]


@asynccontextmanager
async def at_work(app: Dibs, **options: Any) -> AsyncIterator[Worker]:
    async with asyncio.timeout(2 * PATIENCE), app.running(**options) as worker:
        yield worker


async def sql(app: Dibs, text: str) -> Any:
    return await asyncio.to_thread(Actors(app.engine).sql, text)


# Working


async def test_a_job_does_not_see_what_another_one_has_set(app: Dibs) -> None:
    user, seen = ContextVar("user", default="nobody"), list[str]()
    everyone = asyncio.Event()

    @app.task
    async def task(n: int) -> None:
        seen.append(user.get())
        user.set(f"user {n}")
        if len(seen) == 5:
            everyone.set()

    await app.aenqueue_many(task.call(n) for n in range(5))
    async with at_work(app, concurrency=1):
        await everyone.wait()
    assert seen == ["nobody"] * 5


async def test_the_next_suspect_is_not_claimed_before_the_last_one_is_settled(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could kill the worker while the outcome of the last one is on its way, which would be charged for it."""
    begun, go, asked = [], asyncio.Event(), list[int]()
    turn, wish = Lane.turn, Worker._wish

    @app.task(name="suspect")
    async def suspect(n: int) -> None:
        begun.append(n)

    async def slow_turn(lane: Lane, ask: Ask | None, settles: Sequence[Settle] = ()) -> Turn:
        if settles and len(begun) == 1:
            await go.wait()
        elif ask and begun and not go.is_set():
            asked.append(ask.suspects)
        return await turn(lane, ask, settles)

    def settles_alone(worker: Worker, feed: Feed, *, settling: bool) -> Wish | None:
        return None if settling and not go.is_set() else wish(worker, feed, settling=settling)

    monkeypatch.setattr(type(app.engine), "can", replace(app.engine.can, lanes=2))
    monkeypatch.setattr(Lane, "turn", slow_turn)
    monkeypatch.setattr(Worker, "_wish", settles_alone)
    actors = Actors(app.engine)
    dead = await asyncio.to_thread(actors.worker)
    await app.aenqueue_many([suspect.call(n=n) for n in range(2)])
    await asyncio.to_thread(dead.claim, 2)
    await asyncio.to_thread(actors.recover, dead)
    await asyncio.to_thread(actors.make_due)
    async with at_work(app, concurrency=1):
        await until(lambda: bool(asked))
        go.set()
        assert set(asked) == {0}
        await until(lambda: len(begun) == 2)


async def test_it_runs_what_waits_and_what_comes(app: Dibs) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    before = await double.aenqueue(n=1)
    async with at_work(app):
        assert (await before.ajoin(PATIENCE)).result == 2
        assert (await (await double.aenqueue(n=2)).ajoin(PATIENCE)).result == 4


async def test_what_comes_while_it_asks_is_asked_for_again(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that is on its way cannot know of it."""
    asks, turn = 0, Lane.turn

    async def told_meanwhile(lane: Lane, ask: Ask | None, settles: Sequence[Settle] = ()) -> Turn:
        nonlocal asks
        answer = await turn(lane, ask, settles)
        asks += 1
        if asks == 1:
            worker._woken()
        return answer

    async def never(wakeups: Wakeups) -> None:
        await asyncio.Event().wait()

    @app.task
    async def it() -> None: ...

    monkeypatch.setattr(type(app.engine), "can", replace(app.engine.can, lanes=1))
    monkeypatch.setattr(Lane, "turn", told_meanwhile)
    monkeypatch.setattr(Wakeups, "run", never)
    async with at_work(app) as worker:
        await until(lambda: asks == 2)


async def test_a_job_that_is_cancelled_and_retried_at_once_does_not_run_beside_itself_for_long(app: Dibs) -> None:
    begun, stopped = 0, asyncio.Event()

    @app.task
    async def wait() -> str:
        nonlocal begun
        begun += 1
        if begun == 2:
            await stopped.wait()
            return "second"
        try:
            await asyncio.Event().wait()
        finally:
            assert current_job().cancelled
            stopped.set()
        return "first"

    async with at_work(app):
        job = await wait.aenqueue()
        await until(lambda: begun == 1)
        assert await app.acancel(job.id)
        await app.aretry(job.id)
        assert (await job.ajoin(PATIENCE)).result == "second"


async def test_a_server_outlives_a_task_of_a_job_that_would_end_the_process(app: Dibs) -> None:
    @app.task(max_attempts=1)
    async def begins() -> None:
        await asyncio.gather(leaves())

    async def leaves() -> None:
        raise SystemExit(7)

    @app.task
    async def fine() -> None: ...

    async with at_work(app):
        failed = await (await begins.aenqueue()).ajoin(PATIENCE)
        assert (failed.state, failed.attempts) == (JobState.FAILED, 1)
        assert "SystemExit: 7, in a task that the job began" in str(failed.error)
        assert (await (await fine.aenqueue()).ajoin(PATIENCE)).state is JobState.SUCCESSFUL


@pytest.mark.parametrize("says", [True, False])
async def test_a_job_that_stops_itself_has_failed_and_leaves_its_place(app: Dibs, says: bool) -> None:
    @app.task(max_attempts=1)
    async def stops() -> None:
        if says:
            current_job().progress(1)  # which is stored when the job ends, and so waits
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if not says:
            await asyncio.Event().wait()

    async with at_work(app, concurrency=1) as worker:
        for _ in range(2):
            ended = await (await stops.aenqueue()).ajoin(PATIENCE)
            assert (ended.state, ended.attempts) == (JobState.SUCCESSFUL if says else JobState.FAILED, 1)
        assert worker.stats.released == 0


async def test_many_jobs_are_run_once_each(app: Dibs) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    await app.aenqueue_many(note.call(n=n) for n in range(2000))
    async with at_work(app) as worker:
        await until(lambda: worker.stats.successful >= 2000)
    assert sorted(ran) == list(range(2000))
    assert worker.stats.refused == 0  # on a slow machine some may have been handed back before they began


async def test_two_workers_share_the_jobs(app: Dibs, url: str) -> None:
    ran: list[int] = []
    who: set[str] = set()
    both = asyncio.Event()
    other = Dibs(url, lease=LEASE, beat=BEAT)
    for each in (app, other):

        @each.task(name="note")
        async def note(n: int) -> None:
            ran.append(n)
            who.add(current_job().worker)
            if len(who) == 2:
                both.set()
            await both.wait()

    await app.aenqueue_many(app_task(app, "note").call(n=n) for n in range(300))
    async with at_work(app), at_work(other):
        await until(lambda: len(ran) >= 300)
    assert sorted(ran) == list(range(300))
    await other.aclose()


def app_task(app: Dibs, name: str) -> Any:
    from dibs.calls import Task

    return Task(app, app.tasks[name])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_never_more_at_once_than_said(app: Dibs, kind: str) -> None:
    now: list[int] = [0]
    most: list[int] = [0]
    lock = threading.Lock()

    def change(by: int) -> None:
        with lock:
            now[0] += by
            most[0] = max(most[0], now[0])

    def work() -> None:
        change(1)
        threading.Event().wait(0.002)
        change(-1)

    async def work_too() -> None:
        change(1)
        await asyncio.sleep(0.002)
        change(-1)

    task = app.task(name="work")(work if kind == "sync" else work_too)
    await app.aenqueue_many(task.call() for _ in range(200))
    async with at_work(app, concurrency=4) as worker:
        await until(lambda: worker.stats.successful >= 200)
    assert most[0] == 4


async def test_jobs_due_later_are_run_when_they_are_due(app: Dibs) -> None:
    @app.task
    async def later() -> None: ...

    async with at_work(app):
        job = await later.using(delay=0.3).aenqueue()
        done = await job.ajoin(PATIENCE)
    assert done.started_at is not None
    assert done.run_at is not None
    assert 0 <= (done.started_at - done.run_at).total_seconds() < 2


async def test_a_retry_is_run_by_the_same_worker(app: Dibs) -> None:
    ran: list[int] = []

    @app.task(retry=0.05, max_attempts=3)
    async def fails() -> None:
        ran.append(current_job().attempt)
        if len(ran) < 3:
            raise ValueError("no")

    job = await fails.aenqueue()
    async with at_work(app):
        assert (await job.ajoin(PATIENCE)).state == "SUCCESSFUL"
    assert ran == [1, 2, 3]


async def test_jobs_on_their_last_attempt_are_run_beside_a_stream_of_others(app: Dibs) -> None:
    """They are never held, so slots are kept for them now and then."""

    enough = asyncio.Event()

    @app.task
    async def quick() -> None:
        if not enough.is_set():
            await asyncio.sleep(0.005)

    @app.task(max_attempts=1)
    async def only_once() -> None: ...

    await app.aenqueue_many(quick.call() for _ in range(3000))
    job = await only_once.aenqueue()
    async with at_work(app) as worker:
        await job.ajoin(PATIENCE)
        assert worker.stats.successful < 2500
        enough.set()


async def test_queues_in_strict_order(app: Dibs) -> None:
    ran: list[str] = []

    @app.task
    async def note(queue: str) -> None:
        ran.append(queue)

    for queue in ("low", "high"):
        await app.aenqueue_many(note.using(queue=queue).call(queue=queue) for _ in range(100))
    async with at_work(app, queues=["high", "low"], concurrency=1) as worker:
        await until(lambda: worker.stats.successful >= 200)
    # With two turns in flight one may take of the second queue while the other has all that is left of the first.
    assert ran[:100].count("high") > 90


async def test_queues_by_weight(app: Dibs) -> None:
    """The larger its weight, the likelier a queue is asked first; every queue is asked."""
    worker = Worker(app.engine, app.tasks, app.settings, queues={"often": 9, "seldom": 1})
    orders = [tuple(worker._order()) for _ in range(1000)]
    assert set(orders) == {("often", "seldom"), ("seldom", "often")}
    assert 800 < orders.count(("often", "seldom")) < 980


async def test_a_paused_queue_is_left_alone_until_resumed(app: Dibs) -> None:
    @app.task
    async def note() -> None: ...

    await app.engine.arun(queues.pause("held up"))
    held = await note.using(queue="held up").aenqueue()
    other = await note.aenqueue()
    async with at_work(app):
        await other.ajoin(PATIENCE)
        assert await states(app, held.id) == ["PENDING"]
        await app.engine.arun(queues.resume("held up"))
        await held.ajoin(PATIENCE)


@pytest.mark.parametrize("takes_turns", [True, False])
async def test_what_is_held_of_a_queue_that_is_paused_goes_back(
    url: str, takes_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next turn; and soon where none is taken, because all that runs takes long."""
    app = Dibs(url, lease=LEASE, beat=BEAT, prefetch=20, concurrency=1)
    go, ran, paused = asyncio.Event(), list[str](), asyncio.Event()
    turn, let_go = Lane.turn, Holding.let_go
    held: list[set[str]] = []  # when it asked, since the queue was paused

    async def never(holding: Holding) -> None:
        await asyncio.Event().wait()

    def note_held() -> None:
        if paused.is_set():
            held.append({job.queue for job, _ in worker.buffer.waiting})

    async def noted_turn(lane: Lane, ask: Ask | None, settles: Sequence[Settle] = ()) -> Turn:
        if ask:
            note_held()
        return await turn(lane, ask, settles)

    async def noted_let_go(holding: Holding) -> None:
        note_held()
        await let_go(holding)

    @app.task
    async def waits() -> None:
        await go.wait()

    @app.task
    async def note(queue: str) -> None:
        ran.append(queue)

    if takes_turns:
        monkeypatch.setattr(Holding, "run", never)
        monkeypatch.setattr(Lane, "turn", noted_turn)
    monkeypatch.setattr(Holding, "let_go", noted_let_go)
    ids = [(await waits.aenqueue()).id]
    async with at_work(app, queues=["default", "paused", "other"]) as worker:
        await until(lambda: bool(worker.running))
        ids += await app.aenqueue_many(note.using(queue=queue).call(queue=queue) for queue in ("paused", "other"))
        await until(lambda: len(worker.buffer.waiting) == 2)
        await app.engine.arun(queues.pause("paused"))
        paused.set()
        if takes_turns:
            await note.using(queue="other").aenqueue(queue="other")
        await until(lambda: {job.queue for job, _ in worker.buffer.waiting} == {"other"})
        await until(lambda: worker.stats.released == 1)
        at_once = app.engine.can.lanes if takes_turns else 1
        assert all("paused" not in queues for queues in held[at_once:])
        go.set()
        await app.ajoin(ids[2], PATIENCE)
        held = await app.aget(ids[1])
        assert (set(ran), held.state, held.attempts) == ({"other"}, JobState.PENDING, 0)
    await app.aclose()


@pytest.mark.slow
async def test_what_others_could_start_goes_back_after_a_few_questions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first one after it was held for half a second, of which there are four in a second."""
    app = Dibs(url, lease=LEASE, beat=BEAT, prefetch=20, concurrency=1)
    go, questions, let_go = asyncio.Event(), list[int](), Holding.let_go

    async def noted(holding: Holding) -> None:
        questions.append(len(holding.buffer.waiting))
        await let_go(holding)

    @app.task
    async def waits() -> None:
        await go.wait()

    monkeypatch.setattr(Holding, "let_go", noted)
    async with at_work(app) as worker:
        await app.aenqueue_many([waits.call()] * 4)
        await until(lambda: len(worker.buffer.waiting) == 3)
        before = len(questions)
        other = await asyncio.to_thread(Actors(app.engine).worker)
        await app.engine.arun(holding.ask([other.id]))
        await until(lambda: worker.stats.released >= 3)
        assert sum(held == 3 for held in questions[before:]) <= 3
        go.set()
    await app.aclose()


async def test_a_queue_that_is_resumed_wakes_an_idle_worker(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not with its next look, of which there are none here."""

    async def never(wakeups: Wakeups) -> None:
        await asyncio.Event().wait()

    @app.task
    async def note() -> None: ...

    monkeypatch.setattr(Wakeups, "_look", never)
    async with at_work(app, queues=["default", "other"]) as worker:
        await app.engine.arun(queues.pause("default"))
        held, other = await note.aenqueue(), await note.using(queue="other").aenqueue()
        await other.ajoin(PATIENCE)
        await until(lambda: worker.feed.dry)
        assert await states(app, held.id) == ["PENDING"]
        await app.engine.arun(queues.resume("default"))
        await held.ajoin(PATIENCE)


@pytest.mark.parametrize("runs", ["worker", "drain"])
async def test_a_queue_that_nobody_has_heard_of_is_named(
    app: Dibs, runs: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="mail")
    async def note() -> None: ...

    await note.using(queue="found", delay=3600).aenqueue()
    named = ["mail", "found", "mial"]
    if runs == "worker":
        async with at_work(app, queues=named):
            await until(lambda: bool(caplog.messages))
    else:
        await app.adrain(queues=named)
    said = [message for message in caplog.messages if "No task declares" in message]
    assert said == ["No task declares the queue 'mial', and no job waits in it. There is: found, mail"]


async def test_a_queue_that_nobody_declared_is_found(app: Dibs) -> None:
    @app.task
    async def note() -> None: ...

    async with at_work(app):
        job = await note.using(queue="found").aenqueue()
        assert (await job.ajoin(PATIENCE)).state == "SUCCESSFUL"


async def test_tasks_that_are_not_known_here_are_left_for_others(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs")

    @app.task
    async def known() -> None: ...

    unknown = await asyncio.to_thread(Actors(app.engine).add, "unknown")
    job = await known.aenqueue()
    async with at_work(app):
        await job.ajoin(PATIENCE)
    left = await app.aget(unknown)
    assert (left.state, left.attempts) == (JobState.PENDING, 0)
    assert "No task is named 'unknown' here" in caplog.text


async def test_the_log_has_the_three_lines(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs")

    @app.task
    async def it() -> None: ...

    async with at_work(app) as worker:
        job = await it.aenqueue()
        await job.ajoin(PATIENCE)
    assert f"Worker started: {worker.name}" in caplog.messages
    assert f"Job {job.id} claimed by {worker.name}" in caplog.messages
    assert f"Job {job.id} completed in 0.0s" in caplog.messages


# Hints, and the looks beneath


async def test_queues_keep_the_order_that_was_asked_for(app: Dibs) -> None:
    @app.task(queue="a")
    async def it() -> None: ...

    await it.aenqueue()
    async with app.running(queues=["b", "a"]) as worker:
        await worker.wakeups._ask_ahead()
        assert worker.names == ["b", "a"]


async def test_everything_works_though_every_hint_is_lost(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(self: wakeups.Wakeups) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(wakeups.Wakeups, "_listen", deaf)

    @app.task
    async def it() -> None: ...

    async with at_work(app) as worker:
        await until(lambda: worker.feed.dry)
        for _ in range(3):
            await (await it.aenqueue()).ajoin(PATIENCE)


@on_postgres
async def test_listening_begins_again_when_its_connection_breaks(app: Dibs) -> None:
    @app.task
    async def it() -> None: ...

    listening = (
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and query ilike 'listen%' and pid <> pg_backend_pid()"
    )
    async with at_work(app):
        await (await it.aenqueue()).ajoin(PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while not await sql(app, listening):  # noqa: ASYNC110  # the server has no event for us
                await asyncio.sleep(0.01)
        await (await it.aenqueue()).ajoin(PATIENCE)


# Cancelling, losing, outages


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_job_that_is_cancelled_is_told(app: Dibs, kind: str) -> None:
    told: list[str] = []
    began = threading.Event()

    async def waits() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(f"cancelled: {current_job().cancelled}")
            raise

    def waits_too() -> None:
        began.set()
        while not current_job().cancelled:
            threading.Event().wait(0.01)
        told.append("cancelled: True")

    job = await app.task(name="waits")(waits if kind == "async" else waits_too).aenqueue()
    async with at_work(app):
        await until(began.is_set)
        assert await job.acancel()
        await until(lambda: bool(told))
    assert told == ["cancelled: True"]
    assert (await job.arefresh()).state == "CANCELLED"


async def test_a_thread_that_overruns_is_replaced_and_refused(app: Dibs) -> None:
    """Its slot is free again, and what it says in the end is not accepted."""
    release, ended = threading.Event(), threading.Event()

    @app.task(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        release.wait(PATIENCE)
        try:
            with current_job().transaction():
                pass
        finally:
            ended.set()

    @app.task
    def fine() -> str:
        return "ran"

    async with at_work(app, concurrency=1):
        job = await stuck.aenqueue()
        assert "it ran longer than 0.05 s" in ((await job.ajoin(PATIENCE)).error or "")
        assert (await (await fine.aenqueue()).ajoin(PATIENCE)).result == "ran"
        release.set()
        assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert (await job.arefresh()).state == "FAILED"


async def test_a_worker_thought_dead_goes_on_as_somebody_new(app: Dibs) -> None:
    began = asyncio.Event()

    @app.task(max_attempts=5)
    async def waits() -> str:
        if current_job().attempt == 1:
            began.set()
            await asyncio.Event().wait()
        return "ran again"

    job = await waits.aenqueue()
    async with at_work(app) as worker:
        await began.wait()
        before = [lane.worker for lane in worker.lanes]
        await app.engine.arun(workers.recover(known=before))
        assert (await job.ajoin(PATIENCE)).result == "ran again"
        assert [lane.worker for lane in worker.lanes] != before


async def test_it_goes_on_under_one_number_however_often_it_hears_that_it_was_thought_dead(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two, the jobs claimed under the first would be beaten by nobody."""
    go, enlisted, enlist, heard, pulse = asyncio.Event(), list[WorkerId](), Worker._enlist, list[Any](), Worker._pulse

    async def slow(worker: Worker) -> WorkerId:
        if worker.begun.is_set():
            await go.wait()
        enlisted.append(await enlist(worker))
        return enlisted[-1]

    def hears(worker: Worker, told: Any) -> None:
        heard.append(told)
        pulse(worker, told)

    @app.task
    async def it() -> None: ...

    monkeypatch.setattr(Worker, "_enlist", slow)
    monkeypatch.setattr(Worker, "_pulse", hears)
    async with at_work(app) as worker:
        before = [lane.worker for lane in worker.lanes]
        await app.engine.arun(workers.recover(known=before))
        await until(lambda: sum(told.beat is not None and not told.beat.alive for told in heard) >= 3)
        go.set()
        await until(lambda: [lane.worker for lane in worker.lanes] != before)
        worker._thought_dead(set(before))  # by a beat that began before
        seen = len(heard)
        await until(lambda: len(heard) >= seen + 3)
        assert len(enlisted) == 2 * len(before)
        assert [lane.worker for lane in worker.lanes] == list(worker.heart.rows) == enlisted[len(before) :]
        assert heard[-1].beat.alive.keys() == set(worker.heart.rows)
        await (await it.aenqueue()).ajoin(PATIENCE)


async def test_that_it_is_forgotten_is_survived_though_enlisting_fails_at_first(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    enlist, failed = Worker._enlist, list[int]()

    async def fails_once(worker: Worker) -> WorkerId:
        if worker.begun.is_set() and not failed:
            failed.append(1)
            raise Unreachable("away")
        return await enlist(worker)

    monkeypatch.setattr(Worker, "_enlist", fails_once)
    async with at_work(app) as worker:
        before = [lane.worker for lane in worker.lanes]
        await app.engine.arun(workers.recover(known=before))
        await until(lambda: not {lane.worker for lane in worker.lanes} & set(before))
    assert failed


async def test_every_other_answer_is_lost(app: Dibs) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    ids = await app.aenqueue_many(note.call(n=n) for n in range(50))
    make_faulty(app.engine, cut_off=lambda number, turn: number % 2 == 0)
    async with at_work(app) as worker:
        for job_id in ids:
            assert (await app.ajoin(job_id, PATIENCE)).state == "SUCCESSFUL"
    assert sorted(ran) == list(range(50))
    assert worker.stats.refused == 0


async def test_a_claim_whose_answer_is_lost_is_handed_back_within_two_beats(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, beats, lost_at, back_at = list[int](), 0, list[int](), list[int]()
    run_once = app.engine.run_once

    def counted(operation: Any, **more: Any) -> Any:
        nonlocal beats
        done = run_once(operation, **more)
        beats += operation.name == "beat"
        if operation.name == "hand_back" and done:
            back_at.append(beats)
        return done

    def cut_off(number: int, turn: Any) -> bool:
        if lost_at or not turn.claimed:
            return False
        lost_at.append(beats)
        return True

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    ids = await app.aenqueue_many(note.call(n=n) for n in range(5))
    monkeypatch.setattr(app.engine, "run_once", counted)
    make_faulty(app.engine, cut_off=cut_off)
    async with at_work(app):
        for job_id in ids:
            done = await app.ajoin(job_id, PATIENCE)
            assert (done.state, done.attempts) == (JobState.SUCCESSFUL, 1)
    assert sorted(ran) == list(range(5))
    assert back_at[0] - lost_at[0] <= 2


async def test_an_outage_is_waited_out(app: Dibs) -> None:
    @app.task
    async def it() -> None: ...

    job = await it.aenqueue()
    make_faulty(app.engine, refuse=lambda number: Unreachable("away") if number < 5 else None)
    async with at_work(app):
        assert (await job.ajoin(PATIENCE)).state == "SUCCESSFUL"


# Stopping


async def test_what_runs_may_finish_and_what_waits_goes_back(url: str) -> None:
    app = Dibs(url, lease=LEASE, beat=BEAT, prefetch=20, concurrency=5)
    finish = asyncio.Event()

    @app.task
    async def slow() -> str:
        await finish.wait()
        return "finished"

    ids = await app.aenqueue_many(slow.call() for _ in range(25))
    async with at_work(app) as worker:
        await until(lambda: len(worker.running) == 5 and len(worker.buffer.waiting) == 20)
        worker.stop()
        await until(lambda: worker.stats.released == 20)
        waiting = [await app.aget(job_id) for job_id in ids]
        assert (
            sorted((job.state.value, job.attempts) for job in waiting) == [("PENDING", 0)] * 20 + [("RUNNING", 1)] * 5
        )
        finish.set()
    assert worker.stats.successful == 5
    assert await app.engine.arun(workers.list_workers()) == []
    await app.aclose()


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_what_does_not_finish_in_time_goes_back_too(url: str, kind: str) -> None:
    app = Dibs(url, lease=LEASE, beat=BEAT, grace=0.1)
    began, release = threading.Event(), threading.Event()

    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    def endless_too() -> None:
        began.set()
        release.wait(PATIENCE)

    job = await app.task(name="endless")(endless if kind == "async" else endless_too).aenqueue()
    async with at_work(app):
        await until(began.is_set)
    release.set()
    back = await job.arefresh()
    assert (back.state, back.attempts) == (JobState.PENDING, 0)
    await app.aclose()


async def test_told_twice_it_stops_now(app: Dibs) -> None:
    began = asyncio.Event()

    @app.task
    async def endless() -> None:
        began.set()
        await asyncio.Event().wait()

    job = await endless.aenqueue()
    async with at_work(app) as worker:
        await began.wait()
        worker.stop()
        worker.stop()
    back = await job.arefresh()
    assert (back.state, back.attempts) == (JobState.PENDING, 0)


async def test_a_lane_that_pauses_while_the_last_job_ends_stops_with_the_worker(app: Dibs) -> None:
    """It misses the signal, and nobody else would give one before the next beat."""
    worker = Worker(app.engine, {}, app.settings)
    worker.in_flight, worker.stopping = 1, True
    worker.buffer.waiting.append((Claimed(JobId(1), 1, "task", "default", None, 1, 3, 4, None, 0, 0), 0.0))

    def end() -> None:
        worker.buffer.waiting.clear()
        worker.over = True
        worker.signal.set()

    asyncio.get_running_loop().call_soon(end)  # while the lane pauses, because the other one is under way
    async with asyncio.timeout(PATIENCE):
        await worker._turns(Lane(app.engine, app.engine.session("lane"), WorkerId(1), lambda *_: None), worker.feed)


# Beginning


async def test_a_database_without_tables_is_told_at_once(postgres_url: FreshDatabase) -> None:
    app = Dibs(postgres_url("postgres18"))
    with pytest.raises(NotMigrated, match="dibs db migrate"):
        async with at_work(app):
            pass
    await app.aclose()


@pytest.mark.parametrize(
    "options, named",
    [
        ({"concurrency": 0}, "concurrency"),
        ({"queues": []}, "queues"),
        ({"queues": "mail"}, "queues"),
        ({"queues": {"mail": 0}}, "queues"),
        ({"queues": {"mail": -1}}, "queues"),
    ],
)
async def test_wrong_options_are_named(app: Dibs, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        async with at_work(app, **options):
            pass


class Broken(Exception):
    """A bug."""


def breaks(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A service of the worker that raises when told to."""
    broken = threading.Event()

    async def run(progress: Progress) -> None:
        while not broken.is_set():  # noqa: ASYNC110  # it comes from another thread
            await asyncio.sleep(0.005)
        raise Broken("a service fell over")

    monkeypatch.setattr(Progress, "run", run)
    return broken


def test_a_worker_in_a_thread_that_ends_by_itself_says_so_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And another may begin."""
    broken = breaks(monkeypatch)
    app = Dibs(url, grace=0.0)
    app.start()
    assert app._thread is not None
    thread = app._thread.thread
    broken.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    said = "The worker in this process has ended, and runs no more jobs: Broken: a service fell over"
    assert said in caplog.messages
    broken.clear()
    app.start()
    app.stop()
    app.close()


async def test_a_worker_in_a_block_that_ends_by_itself_says_so_at_once(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, heard = breaks(monkeypatch), False
    with suppress(ExceptionGroup):
        async with at_work(app):
            broken.set()
            await until(lambda: "The worker in this process has ended" in caplog.text)
            heard = True
    assert heard


@on_sqlite
async def test_a_file_that_cannot_be_watched_for_a_while_is_looked_at(
    app: Dibs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever SQLite says of the connection that watches, the worker goes on."""

    class Torn:
        """A connection whose file cannot be read."""

        def execute(self, text: str) -> Any:
            raise sqlite3.OperationalError("disk I/O error")

        def close(self) -> None: ...

    @app.task
    async def it() -> None: ...

    connect = sqlite_wakeups.connect
    assert isinstance(app.engine, SqliteEngine)
    async with at_work(app):
        monkeypatch.setattr(sqlite_wakeups, "connect", lambda place: Torn())
        for watch in list(app.engine._watches):
            watch.close()
        await until(lambda: caplog.text.count("Listening for wake-ups failed, and goes on: SQLite says: disk I/O") >= 2)
        await (await it.aenqueue()).ajoin(PATIENCE)
        monkeypatch.setattr(sqlite_wakeups, "connect", connect)
        await (await it.aenqueue()).ajoin(PATIENCE)


def test_one_worker_by_thread_at_a_time(url: str) -> None:
    app = Dibs(url)
    app.start()
    try:
        with pytest.raises(ConfigError, match="running in this process already"):
            app.start()
    finally:
        app.stop()
    app.stop()  # a second time does nothing
    app.start()
    app.stop()
    app.close()


def test_what_keeps_a_thread_from_beginning_is_raised(postgres_url: FreshDatabase) -> None:
    app = Dibs(postgres_url("postgres18"))
    with pytest.raises(NotMigrated):
        app.start()
    app.close()
