"""One-shot work: what a drain claims, runs, settles, hands back and reports."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from dibs import Dibs, DrainReport, JobState, Task
from dibs import payload as payloads
from dibs.errors import ConfigError, Conflict, InvalidOption, InvalidPayload, NotMigrated, Unreachable
from dibs.job import Claimed, NewJob
from dibs.operations import jobs, workers
from dibs.operations.claims import Settle, Turn
from dibs.operations.operation import Operation
from dibs.worker import drain, run
from dibs.worker.lane import Ask, Lane
from dibs.worker.run import UNSTOPPABLE
from tests.actors import Actors
from tests.apps import POSTGRES, count_jobs, on_postgres
from tests.servers.fixtures import FreshDatabase
from tests.worker.sessions import FaultySession, make_faulty

LEASE, BEAT = 4.0, 0.1  # quick beats, and a lease that a busy machine does not miss
PATIENCE = 30.0


async def told_to_stop() -> None:
    """Run until cancelled."""
    await asyncio.Event().wait()


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    app = Dibs(url, lease=LEASE, beat=BEAT)
    yield app
    app.close()


@pytest.fixture
def actors(app: Dibs) -> Actors:
    return Actors(app.engine)


def work(app: Dibs, **options: Any) -> DrainReport:
    """Drain; a test that hangs says so."""

    async def bounded() -> DrainReport:
        try:
            return await asyncio.wait_for(app.adrain(**options), PATIENCE)
        finally:
            await app.aclose()

    return asyncio.run(bounded())


def states(app: Dibs, *ids: int) -> list[JobState]:
    return [app.get(job_id).state for job_id in ids]


def simple(app: Dibs) -> Task[..., int]:
    @app.task(name="simple")
    def simple(n: int = 0) -> int:
        return n

    return simple


# What it reports


def test_a_drain_says_what_it_did(app: Dibs) -> None:
    task = simple(app)
    app.enqueue_many(task.call(n=n) for n in range(5))
    report = work(app)
    assert (report.available, report.claimed, report.successful) == (5, 5, 5)
    assert str(report) == f"claimed 5 of 5 jobs in {report.seconds:.1f} s: 5 successful"
    assert report.as_dict() == {
        "recovered": 0,
        "available": 5,
        "claimed": 5,
        "successful": 5,
        "retried": 0,
        "failed": 0,
        "processing": 0,
        "released": 0,
        "refused": 0,
        "seconds": report.seconds,
    }


def test_an_empty_drain_ends(app: Dibs) -> None:
    report = work(app)
    assert (report.claimed, str(report)) == (0, f"claimed 0 of 0 jobs in {report.seconds:.1f} s")


def test_a_drain_leaves_nobody_behind(app: Dibs) -> None:
    simple(app).enqueue()
    assert app.drain().successful == 1
    assert app.engine.run(workers.list_workers()) == []
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dibs-heart")]


@on_postgres
def test_a_drain_closes_its_connections(url: str, app: Dibs) -> None:
    simple(app).enqueue()
    app.drain()
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(url, autocommit=True) as raw:
        question = (
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'dibs'"
        )
        while raw.execute(question).fetchone() != (0,):
            assert time.monotonic() < deadline


def test_a_running_job_shows_who_runs_it(app: Dibs) -> None:
    @app.task
    def look(job: int) -> list[Any]:
        found = app.get(job)
        return [found.state, found.worker, found.attempts]

    job = look.using(unique_key="k").enqueue(job=1)
    work(app)
    done = app.get(job.id)
    assert done.result == ["RUNNING", done.worker, 1]
    assert done.worker


# How much


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_holds(app: Dibs, limit: int) -> None:
    task = simple(app)
    app.enqueue_many(task.call(n=n) for n in range(5))
    report = work(app, limit=limit, concurrency=2)
    assert (report.available, report.claimed, report.successful) == (5, limit, limit)
    assert work(app).successful == 5 - limit


def test_attempts_count_towards_the_limit(app: Dibs) -> None:
    @app.task(retry=0)
    def broken() -> None:
        raise ValueError

    job = broken.enqueue()
    assert work(app, limit=2).claimed == 2
    assert (app.get(job.id).state, app.get(job.id).attempts) == (JobState.RETRY, 2)


def test_so_many_run_at_once_and_never_more(app: Dibs) -> None:
    running, peak = 0, 0
    barrier: asyncio.Barrier | None = None

    @app.task
    async def together() -> None:
        nonlocal running, peak, barrier
        barrier = barrier or asyncio.Barrier(3)
        running += 1
        peak = max(peak, running)
        await barrier.wait()  # nobody passes alone
        running -= 1

    app.enqueue_many([together.call()] * 12)
    assert work(app, concurrency=3).successful == 12
    assert peak == 3


def test_sync_tasks_run_in_threads_and_never_more(app: Dibs) -> None:
    lock, barrier = threading.Lock(), threading.Barrier(3)
    names: set[str] = set()
    running, peak = 0, 0

    @app.task
    def together() -> None:
        nonlocal running, peak
        with lock:
            names.add(threading.current_thread().name)
            running += 1
            peak = max(peak, running)
        barrier.wait(PATIENCE)
        with lock:
            running -= 1

    app.enqueue_many([together.call()] * 9)
    assert work(app, concurrency=3).successful == 9
    assert peak == 3
    assert threading.current_thread().name not in names


def test_sync_and_async_tasks_run_side_by_side(app: Dibs) -> None:
    """A sync task that waits does not hold up the event loop."""
    passed = threading.Event()

    @app.task(priority=9)
    def waits() -> bool:
        return passed.wait(PATIENCE)

    @app.task(priority=1)
    async def passes() -> None:
        passed.set()

    waiting = waits.enqueue()
    passes.enqueue()
    assert work(app, concurrency=2).successful == 2
    assert app.get(waiting.id).result is True


@pytest.mark.parametrize(
    "options, named",
    [
        ({"limit": -1}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -1}, "concurrency"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": -1}, "deadline"),
        ({"queues": "mail"}, "queues"),
        ({"queues": ["mail", ""]}, "queues"),
        ({"queues": []}, "queues"),
    ],
)
def test_wrong_limits_are_named(app: Dibs, options: dict[str, Any], named: str) -> None:
    simple(app).enqueue()
    with pytest.raises(InvalidOption) as caught:
        work(app, **options)
    assert caught.value.option == named
    assert app.get(1).state is JobState.PENDING


# What, and in which order


def test_queues_are_served_in_the_order_given(app: Dibs) -> None:
    order: list[str] = []

    @app.task
    def note(queue: str) -> None:
        order.append(queue)

    for queue in ("a", "b", "c", "a"):
        note.using(queue=queue).enqueue(queue=queue)
    report = work(app, queues=["b", "a"], concurrency=1)
    assert (order, report.available) == (["b", "a", "a"], 3)


def test_every_queue_is_served_declared_or_found(app: Dibs) -> None:
    task = simple(app)
    for queue in ("declared nowhere", "default", "ünïcode"):
        task.using(queue=queue).enqueue()
    assert work(app).successful == 3


def test_a_paused_queue_is_left_alone(app: Dibs, actors: Actors) -> None:
    job = simple(app).enqueue()
    actors.pause()
    report = work(app)
    assert (report.claimed, report.available, app.get(job.id).state) == (0, 0, JobState.PENDING)


def test_what_is_due_within_a_second_is_waited_for(app: Dibs) -> None:
    task = simple(app)
    soon, later = task.using(delay=0.2).enqueue(), task.using(delay=60).enqueue()
    assert work(app).successful == 1
    assert states(app, soon.id, later.id) == [JobState.SUCCESSFUL, JobState.PENDING]


def test_jobs_that_jobs_add_are_run_too(app: Dibs) -> None:
    @app.task
    def countdown(n: int) -> None:
        if n:
            countdown.enqueue(n=n - 1)

    countdown.enqueue(n=3)
    assert work(app).successful == 4


def test_an_async_task_may_use_the_app(app: Dibs) -> None:
    task = simple(app)

    @app.task
    async def adds() -> int:
        return (await task.aenqueue(n=7)).id

    job = adds.enqueue()
    assert work(app).successful == 2
    assert app.get(app.get(job.id).result).state is JobState.SUCCESSFUL


def test_a_task_that_is_not_known_here_is_left_untouched(app: Dibs, actors: Actors) -> None:
    mine = simple(app).enqueue()
    others = [actors.add("of a newer version") for _ in range(3)]
    before = [app.get(job_id) for job_id in others]
    assert work(app).claimed == 1
    assert app.get(mine.id).state is JobState.SUCCESSFUL
    for old, new in zip(before, map(app.get, others), strict=True):
        assert (new.state, new.attempts, new.run_at, new.failures) == (JobState.PENDING, 0, old.run_at, ())


def test_the_known_behind_many_unknown_are_reached(app: Dibs, actors: Actors) -> None:
    for n in range(20):
        actors.add(f"unknown {n % 4}")
    simple(app).enqueue()
    assert work(app, concurrency=2).successful == 1


# Failing


def test_a_failure_is_tried_again(app: Dibs) -> None:
    tries: list[int] = []

    @app.task(retry=0)
    async def third_time() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(f"try {len(tries)}")
        return "done"

    job = third_time.enqueue()
    report = work(app)
    assert (report.claimed, report.successful, report.retried, report.failed) == (3, 1, 2, 0)
    done = app.get(job.id)
    assert (done.state, done.attempts, done.result) == (JobState.SUCCESSFUL, 3, "done")
    assert [failure["error"] for failure in done.failures] == ["ValueError: try 1", "ValueError: try 2"]


def test_the_last_failure_is_final(app: Dibs) -> None:
    @app.task(max_attempts=2, retry=0)
    def broken() -> None:
        raise LookupError("nothing there")

    job = broken.enqueue()
    report = work(app)
    assert (report.claimed, report.retried, report.failed) == (2, 1, 1)
    failed = app.get(job.id)
    assert (failed.state, failed.attempts, failed.error) == (JobState.FAILED, 2, "LookupError: nothing there")
    assert [failure["attempt"] for failure in failed.failures] == [1, 2]
    trace = failed.failures[0]["traceback"]
    assert 'raise LookupError("nothing there")' in trace
    assert (trace.count("Traceback"), trace.count("File ")) == (1, 1)  # the task's own line, and none of ours
    assert failed.failures[0]["worker"] == failed.worker
    assert 0 <= failed.failures[0]["seconds"] < PATIENCE


@pytest.mark.parametrize("retry", [60, [60], lambda attempt: 60 * attempt, None])
def test_a_retry_waits_as_its_policy_says(app: Dibs, retry: Any) -> None:
    @app.task(max_attempts=2, retry=retry)
    def broken() -> None:
        raise ValueError

    job = broken.enqueue()
    work(app, limit=1)
    found = app.get(job.id)
    assert found.state is JobState.RETRY
    assert found.run_at is not None
    assert found.started_at is not None
    waits = (found.run_at - found.started_at).total_seconds()
    assert waits >= 60 if retry else waits < 20


@pytest.mark.slow
@pytest.mark.parametrize("answer", [float("nan"), -5, "soon", None, 10**12])
def test_a_policy_may_answer_anything(app: Dibs, answer: Any) -> None:
    """It is user code too: a bad answer costs the job an attempt, and nobody else anything."""

    @app.task(max_attempts=2, retry=lambda attempt: answer)
    def broken() -> None:
        raise ValueError("boom")

    job, fine = broken.enqueue(), simple(app).enqueue()
    report = work(app)
    assert (report.successful, app.get(fine.id).state) == (1, JobState.SUCCESSFUL)
    assert app.get(job.id).state in (JobState.RETRY, JobState.FAILED)
    assert app.get(job.id).error == "ValueError: boom"
    assert ("retry_error" in app.get(job.id).failures[0]) == (answer in ("soon", None))


@pytest.mark.parametrize(
    "payload", [b'{"n": "seven"}', b'{"m": 7}', b"{}", None, b"[]", b'"text"', b"null", b"[" * 500 + b"]" * 500]
)
def test_a_bad_payload_put_in_by_others_fails_at_once(app: Dibs, payload: bytes | None) -> None:
    @app.task(name="needs n", retry=0)
    def needs(n: int) -> None:
        raise AssertionError

    added = app.engine.run(jobs.add(NewJob("needs n", payload)))
    report = work(app)
    assert (report.claimed, report.failed, report.retried) == (1, 1, 0)
    failed = app.get(added.id)
    assert (failed.state, failed.attempts, failed.max_attempts) == (JobState.FAILED, 1, 3)
    assert failed.error is not None
    assert "needs" in failed.error


@pytest.mark.parametrize(
    "result, said",
    [
        (object(), "cannot be written as JSON"),
        (float("nan"), "result is nan"),
        ({1: 2}, "keys must be texts"),
        ("\x00", "u0000"),
        ("\ud800", "surrogate"),
        ("x" * 1024 * 1024, "1,048,578 bytes of JSON"),
    ],
)
def test_a_result_that_is_not_json_is_a_failure(app: Dibs, result: Any, said: str) -> None:
    """For good: the function has run, and would give the same again."""
    runs: list[int] = []

    @app.task(retry=0)
    def gives() -> Any:
        runs.append(1)
        return result

    job = gives.enqueue()
    assert work(app).failed == 1
    failed = app.get(job.id)
    assert (failed.state, len(runs)) == (JobState.FAILED, 1)
    assert said in (failed.error or "")


class Odd(BaseException):
    """Not even an Exception."""


ODDITIES = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Odd("odd"), StopIteration(7), asyncio.CancelledError()]


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("error", ODDITIES, ids=lambda error: type(error).__name__)
def test_whatever_a_task_raises_the_others_go_on(app: Dibs, error: BaseException, kind: str) -> None:
    def raises() -> None:
        raise error

    async def raises_too() -> None:
        raise error

    odd = app.task(name="odd", max_attempts=2, retry=0)(raises if kind == "sync" else raises_too)
    job, fine = odd.enqueue(), simple(app).enqueue()
    report = work(app)
    assert (report.successful, report.retried, report.failed, report.released) == (1, 1, 1, 0)
    assert states(app, job.id, fine.id) == [JobState.FAILED, JobState.SUCCESSFUL]
    assert type(error).__name__ in (app.get(job.id).error or "")


async def gathered(coroutine: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(coroutine)


async def grouped(coroutine: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(coroutine)


async def nested(coroutine: Coroutine[Any, Any, None]) -> None:
    await asyncio.create_task(gathered(coroutine))


@pytest.mark.parametrize("begun", [gathered, grouped, nested], ids=lambda begun: begun.__name__)
@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
def test_what_would_end_the_process_in_a_task_of_a_job_fails_that_job_alone(
    app: Dibs, error: BaseException, begun: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]
) -> None:
    async def leaves() -> None:
        raise error

    @app.task(max_attempts=1)
    async def begins() -> None:
        await begun(leaves())

    @app.task(max_attempts=1)
    async def asks() -> None:
        await asyncio.sleep(0.05)

    job, fine = begins.enqueue(), asks.enqueue()
    report = work(app)
    assert (report.failed, report.successful, report.released) == (1, 1, 0)
    failed = app.get(job.id)
    assert (failed.state, failed.attempts, app.get(fine.id).attempts) == (JobState.FAILED, 1, 1)
    assert type(error).__name__ in failed.failures[0]["traceback"]


@pytest.mark.parametrize("waits", [True, False])
def test_who_stops_himself_has_failed(app: Dibs, waits: bool) -> None:
    """Whom we told to stop keeps his attempt; but nobody told this one. Unless he returns after all."""

    @app.task(max_attempts=1)
    async def stops() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await told_to_stop()
        return "done"

    job = stops.enqueue()
    report = work(app, limit=20)
    assert (report.failed, report.successful, report.released) == ((1, 0, 0) if waits else (0, 1, 0))
    ended = app.get(job.id)
    assert (ended.attempts, ended.result) == (1, None if waits else "done")


def test_our_own_errors_are_failures_like_any_other(app: Dibs) -> None:
    """A task that adds a wrong job has failed; its own payload was right, so it is tried again."""
    task = simple(app)

    @app.task(max_attempts=2, retry=0)
    def adds() -> None:
        task.enqueue(n="seven")

    job = adds.enqueue()
    assert work(app).retried == 1
    failed = app.get(job.id)
    assert (failed.state, failed.attempts) == (JobState.FAILED, 2)
    assert (failed.error or "").startswith(InvalidPayload.__name__)


@pytest.mark.parametrize("text", ["\x00", "\ud800", "x" * 100_000, "ünï ☃ 𝄞"])
def test_any_text_of_an_error_is_kept_as_well_as_can_be(app: Dibs, text: str) -> None:
    @app.task(max_attempts=1)
    def broken() -> None:
        raise ValueError(text)

    job = broken.enqueue()
    assert work(app).failed == 1
    error = app.get(job.id).error
    assert error is not None
    assert len(error) <= run.LONGEST_ERROR
    assert error.endswith(text[-100:]) or text in ("\x00", "\ud800")


def test_an_error_whose_text_raises(app: Dibs) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    @app.task(max_attempts=1)
    def broken() -> None:
        raise Rude

    job, fine = broken.enqueue(), simple(app).enqueue()
    assert work(app).failed == 1
    assert states(app, job.id, fine.id) == [JobState.FAILED, JobState.SUCCESSFUL]
    assert "Rude" in (app.get(job.id).error or "")


# Time


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_task_that_takes_too_long_has_failed(app: Dibs, kind: str) -> None:
    over = threading.Event()

    async def sleeps() -> None:
        await told_to_stop()

    def waits() -> None:
        over.wait(PATIENCE)

    slow = app.task(name="slow", timeout=0.05, max_attempts=1)(waits if kind == "sync" else sleeps)
    job, fine = slow.enqueue(), simple(app).enqueue()
    report = work(app)
    over.set()
    assert (report.failed, report.successful) == (1, 1)
    assert states(app, job.id, fine.id) == [JobState.FAILED, JobState.SUCCESSFUL]
    assert app.get(job.id).error == "TimeoutError: it ran longer than 0.05 s" + (UNSTOPPABLE if kind == "sync" else "")


def test_a_timeout_of_the_task_itself_is_told_apart(app: Dibs) -> None:
    @app.task(timeout=PATIENCE, max_attempts=1)
    async def broken() -> None:
        async with asyncio.timeout(0):
            await told_to_stop()

    job = broken.enqueue()
    work(app)
    assert "longer than" not in (app.get(job.id).error or "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_deadline_hands_back_what_runs(app: Dibs, kind: str) -> None:
    over = threading.Event()

    async def sleeps() -> None:
        await told_to_stop()

    def waits() -> None:
        over.wait(PATIENCE)

    endless = app.task(name="endless")(waits if kind == "sync" else sleeps)
    ids = app.enqueue_many([endless.call()] * 3)
    report = work(app, deadline=0.5, concurrency=2)
    over.set()
    assert (report.claimed, report.released, report.failed) == (2, 2, 0)
    assert report.seconds < PATIENCE / 2
    for job in map(app.get, ids):
        assert (job.state, job.attempts, job.failures) == (JobState.PENDING, 0, ())


@pytest.mark.slow
def test_the_deadline_comes_although_a_task_does_not_listen(app: Dibs) -> None:
    stubborn = True

    @app.task
    async def deaf() -> None:
        while stubborn:
            try:
                await told_to_stop()
            except asyncio.CancelledError:
                continue

    job = deaf.enqueue()

    async def bounded() -> DrainReport:
        nonlocal stubborn
        report = await app.adrain(deadline=0.3)
        stubborn = False
        await app.aclose()
        return report

    assert asyncio.run(bounded()).seconds < PATIENCE / 2
    assert (app.get(job.id).state, app.get(job.id).attempts) == (JobState.PENDING, 0)


@pytest.mark.slow
@pytest.mark.parametrize("patient", [True, False])
async def test_a_drain_that_is_told_to_stop(url: str, patient: bool) -> None:
    """It claims no more and lets what runs finish, for a while; told twice it hands that back at once."""
    app = Dibs(url, lease=LEASE, beat=BEAT, grace=0.3 if patient else PATIENCE)
    begun, go = asyncio.Barrier(3), asyncio.Event()  # two jobs, and we

    @app.task
    async def waits(how: str) -> None:
        await begun.wait()
        await (go.wait() if how == "ends" else told_to_stop())

    ids = await app.aenqueue_many([waits.call(how=how) for how in ("ends", "endless", "late")])
    drain = app.drainer(concurrency=2)
    draining = asyncio.create_task(drain.run())
    async with asyncio.timeout(PATIENCE / 2):
        await begun.wait()
        drain.stop()
        if patient:
            go.set()
        else:
            drain.stop()
        report = await draining
    assert (report.claimed, report.successful, report.released) == (2, int(patient), 2 - int(patient))
    found = [await app.aget(job_id) for job_id in ids]
    assert [job.state for job in found] == ["SUCCESSFUL" if patient else "PENDING", "PENDING", "PENDING"]
    assert [job.attempts for job in found] == [int(patient), 0, 0]
    assert await app.engine.arun(workers.list_workers()) == []
    await app.aclose()


def test_a_task_that_makes_an_error_of_being_stopped_keeps_its_attempt(app: Dibs) -> None:
    @app.task
    async def clumsy() -> None:
        try:
            await told_to_stop()
        except asyncio.CancelledError:
            raise ConnectionError("broken off") from None

    job = clumsy.enqueue()
    report = work(app, deadline=0.2)
    assert (report.released, report.retried) == (1, 0)
    assert (app.get(job.id).state, app.get(job.id).attempts) == (JobState.PENDING, 0)


async def test_drain_in_an_event_loop_says_what_to_use(async_app: Dibs) -> None:
    with pytest.raises(ConfigError, match=r"await app.adrain\(\)"):
        async_app.drain()


async def test_a_drain_that_is_cancelled_hands_back(url: str) -> None:
    app = Dibs(url, lease=LEASE, beat=BEAT)
    started = asyncio.Event()

    @app.task
    async def endless() -> None:
        started.set()
        await told_to_stop()

    job = await endless.aenqueue()
    draining = asyncio.create_task(app.adrain())
    await started.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    found = await app.aget(job.id)
    assert (found.state, found.attempts) == (JobState.PENDING, 0)
    assert await app.engine.arun(workers.list_workers()) == []
    await app.aclose()


@pytest.mark.parametrize("runs", ["drain", "worker"])
def test_whose_loop_ends_hands_back(app: Dibs, runs: str) -> None:
    """Whoever ends a loop cancels all that is in it: us, and our jobs without our word."""
    begun = asyncio.Barrier(21)  # twenty jobs, and we

    @app.task(name="endless")
    async def endless(n: int) -> None:
        await begun.wait()
        await told_to_stop()

    ids = app.enqueue_many([endless.call(n=n) for n in range(20)])

    async def works() -> None:
        try:
            await (app.worker if runs == "worker" else app.drainer)(concurrency=20).run()
        finally:
            await app.aclose()

    async def ends() -> None:
        working = asyncio.create_task(works())
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        assert not working.done()

    asyncio.run(ends())
    assert {(job.state, job.attempts, job.failures) for job in map(app.get, ids)} == {("PENDING", 0, ())}


# Owning, losing, taking over


def test_who_has_no_room_is_not_counted_as_a_claimer(app: Dibs, actors: Actors) -> None:
    asked: list[bool] = []

    @app.task
    async def long() -> None:
        while not asked or asked[-1]:
            await asyncio.sleep(BEAT)
            asked.extend(bool(row[0]) for row in actors.sql("select asking from dibs.workers"))

    long.enqueue()
    assert work(app, concurrency=1).successful == 1
    assert asked[-1] is False


@pytest.mark.slow
def test_a_task_that_blocks_the_event_loop_keeps_its_lease(url: str) -> None:
    """The heart beats from a thread of its own: a careful judge finds nobody dead."""
    lease = 1.0
    app, judge = Dibs(url, lease=lease, beat=0.1), Actors(Dibs(url).engine)

    @app.task
    async def blocks(job: int) -> int:
        trusted = judge.worker(lease=lease, beat=0.1)
        recovered, deadline = 0, time.monotonic() + PATIENCE
        while True:  # all of it on the event loop, which gets no turn
            trusted.beat()
            judge.trust(trusted)
            recovered += len(judge.engine.run(workers.recover(judge=trusted.id)).jobs)
            (me,) = (row for row in judge.engine.run(workers.list_workers()) if row.id != trusted.id)
            since = judge.get(job).started_at
            assert me.beat_at is not None
            assert since is not None
            if (me.beat_at - since).total_seconds() > lease or time.monotonic() > deadline:
                judge.engine.run(workers.leave([trusted.id]))
                return recovered

    job = blocks.enqueue(job=1)
    report = work(app)
    judge.engine.close()
    assert (report.successful, report.refused) == (1, 0)
    assert app.get(job.id).result == 0
    app.close()


@pytest.mark.slow
def test_a_lease_lost_in_the_middle_is_refused_and_reported(app: Dibs, actors: Actors) -> None:
    runs: list[int] = []

    @app.task
    async def taken_over() -> str:
        runs.append(1)
        if len(runs) == 1:
            me = app.engine.run(workers.list_workers())[0]
            app.engine.run(workers.recover(known=[me.id]))  # type: ignore[list-item]  # a worker's number
            await told_to_stop()  # by a beat
        return "second"

    job = taken_over.enqueue()
    report = work(app)
    assert (report.claimed, report.refused, report.successful) == (1, 1, 0)
    assert app.get(job.id).state is JobState.RETRY
    actors.make_due()
    work(app)
    done = app.get(job.id)
    assert (done.state, done.result, done.attempts) == (JobState.SUCCESSFUL, "second", 2)


@pytest.mark.slow
def test_an_owner_who_finishes_too_late_is_refused(app: Dibs, actors: Actors) -> None:
    @app.task
    def late() -> str:
        me = app.engine.run(workers.list_workers())[0]
        app.engine.run(workers.recover(known=[me.id]))  # type: ignore[list-item]  # a worker's number
        return "too late"

    job = late.enqueue()
    report = work(app)
    assert (report.refused, report.successful) == (1, 0)
    assert (app.get(job.id).state, app.get(job.id).result) == (JobState.RETRY, None)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_job_cancelled_while_it_runs_stays_cancelled(app: Dibs, kind: str) -> None:
    over = threading.Event()

    async def sleeps(job: int) -> None:
        app.cancel(job)
        await told_to_stop()  # by a beat

    def waits(job: int) -> None:
        app.cancel(job)
        over.wait(PATIENCE)

    task = app.task(name="cancels itself")(waits if kind == "sync" else sleeps)
    job = task.enqueue(job=1)
    report = work(app)
    over.set()
    assert (report.refused, report.successful, report.released) == (1, 0, 0)
    assert app.get(job.id).state is JobState.CANCELLED


@pytest.mark.slow
def test_who_is_silent_at_two_looks_is_recovered_and_their_jobs_run(
    app: Dibs, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "SECOND_LOOK", 0.05)
    job = simple(app).enqueue(n=7)
    dead = actors.worker(lease=LEASE)
    dead.claim()
    actors.age(dead, 2.5 * LEASE)
    report = work(app)
    assert (report.recovered, report.claimed, report.successful) == (1, 1, 1)
    done = app.get(job.id)
    assert (done.result, done.attempts, done.failures[0]["error"]) == (7, 2, "the worker died")
    assert app.engine.run(workers.list_workers()) == []


def test_who_beats_between_the_looks_is_alive(app: Dibs, actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "SECOND_LOOK", 0.2)
    slow = actors.worker(lease=LEASE)
    held = actors.add("elsewhere")
    slow.claim()
    actors.age(slow, 2.5 * LEASE)

    @app.task
    def wakes() -> None:
        slow.beat()

    wakes.enqueue()
    report = work(app)
    assert (report.recovered, report.successful, app.get(held).state) == (0, 1, JobState.RUNNING)


def test_who_was_silent_for_less_than_two_leases_is_left_alone(
    app: Dibs, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "SECOND_LOOK", 0.05)
    held, slow = actors.add("elsewhere"), actors.worker(lease=LEASE)
    slow.claim()
    actors.age(slow, 1.5 * LEASE)
    assert work(app).recovered == 0
    assert app.get(held).state is JobState.RUNNING


def test_suspects_run_one_at_a_time(app: Dibs, actors: Actors) -> None:
    running, peak = 0, 0

    @app.task(name="suspect")
    async def suspect() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1

    dead = actors.worker()
    app.enqueue_many([suspect.call()] * 3)
    dead.claim(3)
    actors.recover(dead)
    actors.make_due()
    assert work(app, concurrency=5).successful == 3
    assert peak == 1


def test_a_job_that_used_its_attempts_up_by_crashes_is_only_finished(app: Dibs, actors: Actors) -> None:
    @app.task(max_attempts=1)
    def deadly() -> None:
        raise AssertionError

    job, dead = deadly.enqueue(), actors.worker()
    dead.claim()
    actors.recover(dead)
    actors.make_due()
    assert work(app).failed == 1
    failed = app.get(job.id)
    assert (failed.state, failed.attempts, failed.error) == (JobState.FAILED, 1, "the worker died")


async def test_overlapping_drains_share_the_jobs(url: str) -> None:
    """Two processes, as cron starts them while the last one still runs."""
    apps = [Dibs(url, lease=LEASE, beat=BEAT) for _ in range(2)]
    ran: list[tuple[int, int]] = []
    both = asyncio.Event()

    def declare(number: int) -> Task[..., Any]:
        @apps[number].task(name="shared")
        async def shared(n: int) -> None:
            ran.append((number, n))
            if {who for who, _ in ran} == {0, 1}:
                both.set()
            await both.wait()

        return shared

    tasks = [declare(number) for number in range(2)]
    await apps[0].aenqueue_many(tasks[0].call(n=n) for n in range(20))
    reports = await asyncio.wait_for(asyncio.gather(*(app.adrain(concurrency=2) for app in apps)), PATIENCE)
    assert sorted(n for _, n in ran) == list(range(20))
    assert sum(report.successful for report in reports) == 20
    assert all(report.successful for report in reports)
    for app in apps:
        await app.aclose()


async def test_two_drains_of_one_app_share_the_jobs(url: str) -> None:
    app = Dibs(url, lease=LEASE, beat=BEAT)
    task = simple(app)
    await app.aenqueue_many(task.call(n=n) for n in range(20))
    reports = await asyncio.wait_for(asyncio.gather(app.adrain(), app.adrain()), PATIENCE)
    assert sum(report.successful for report in reports) == 20
    await app.aclose()


def test_drains_in_several_threads_share_an_app(app: Dibs) -> None:
    """The first one to end closes connections that the others use."""
    task = simple(app)
    app.enqueue_many(task.call(n=n) for n in range(40))
    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(lambda n: app.drain(limit=10 + n), range(4), timeout=PATIENCE))
    assert sum(report.successful for report in reports) == 40


# Answers that never come, and outages


def test_a_claim_whose_answer_was_lost_is_handed_back_by_the_next_beat(app: Dibs) -> None:
    ran = asyncio.Event()

    @app.task(name="second")
    async def second() -> None:
        ran.set()

    @app.task(name="first")
    async def first() -> int:
        job = await second.aenqueue()
        await ran.wait()
        return job.id

    sessions: list[FaultySession] = make_faulty(
        app.engine, cut_off=lambda number, turn: "second" in [job.type for job in turn.claimed] and not sessions[0].lost
    )
    job = first.enqueue()
    report = work(app)
    assert len(sessions[0].lost) == 1
    assert (report.claimed, report.successful, report.refused) == (2, 2, 0)
    assert app.get(app.get(job.id).result).attempts == 1


def test_a_claim_whose_answer_was_lost_is_run_all_the_same(app: Dibs) -> None:
    sessions = make_faulty(app.engine, cut_off=lambda number, turn: number == 1)
    task = simple(app)
    ids = app.enqueue_many(task.call(n=n) for n in range(3))
    report = work(app)
    assert [len(turn.claimed) for turn in sessions[0].lost] == [3]
    assert (report.claimed, report.successful, report.refused) == (3, 3, 0)
    assert [app.get(job_id).attempts for job_id in ids] == [1, 1, 1]


def test_a_settle_whose_answer_was_lost_is_counted_once(app: Dibs) -> None:
    def cut_off(number: int, turn: Any) -> bool:
        return number == 2

    sessions = make_faulty(app.engine, cut_off=cut_off)

    @app.task(retry=0, max_attempts=2)
    def mixed(n: int) -> int:
        if n == 1:
            raise ValueError
        return n

    ids = app.enqueue_many(mixed.call(n=n) for n in range(3))
    report = work(app)
    assert len(sessions[0].lost) == 1
    assert (report.successful, report.retried, report.failed, report.refused) == (2, 1, 1, 0)
    assert states(app, *ids) == [JobState.SUCCESSFUL, JobState.FAILED, JobState.SUCCESSFUL]
    assert [app.get(job_id).attempts for job_id in ids] == [1, 2, 1]


@pytest.mark.slow
def test_every_second_answer_is_lost(app: Dibs) -> None:
    make_faulty(app.engine, cut_off=lambda number, turn: number % 2 == 1)
    runs: list[int] = []

    @app.task
    def once(n: int) -> None:
        runs.append(n)

    ids = app.enqueue_many(once.call(n=n) for n in range(6))
    report = work(app, concurrency=2)
    assert (report.successful, report.refused) == (6, 0)
    assert sorted(runs) == list(range(6))
    assert {app.get(job_id).attempts for job_id in ids} == {1}


@pytest.mark.parametrize("error", [Conflict("for now"), Unreachable("nobody there")])
def test_a_short_outage_is_waited_out(app: Dibs, error: Any) -> None:
    app.engine.reached = True
    make_faulty(app.engine, refuse=lambda number: error if number in (1, 3) else None)
    simple(app).enqueue()
    assert work(app).successful == 1


@pytest.mark.slow
def test_nothing_starts_while_the_last_beat_failed(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    once, failing, failures = app.engine.run_once, threading.Event(), threading.Semaphore(0)

    def run_once(operation: Operation[Any], **options: Any) -> Any:
        if failing.is_set() and operation.name == "beat":
            failures.release()
            raise Unreachable("no route")
        return once(operation, **options)

    monkeypatch.setattr(app.engine, "run_once", run_once)
    task = simple(app)

    @app.task
    def outage() -> list[str]:
        failing.set()
        failures.acquire(timeout=PATIENCE)
        second = task.enqueue()
        for _ in range(5):  # longer than the pause between two looks
            failures.acquire(timeout=PATIENCE)
        seen = app.get(second.id).state
        failing.clear()
        return [seen]

    job = outage.enqueue()
    assert work(app).successful == 2
    assert app.get(job.id).result == ["PENDING"]


def test_what_an_answer_brings_after_a_beat_failed_does_not_start(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    once, failing, failures = app.engine.run_once, threading.Event(), threading.Semaphore(0)
    turn, late, begun = Lane.turn, list[Claimed](), list[bool]()

    def run_once(operation: Operation[Any], **options: Any) -> Any:
        if failing.is_set() and operation.name == "beat":
            failures.release()
            raise Unreachable("no route")
        return once(operation, **options)

    async def slow_turn(lane: Lane, ask: Ask | None, settles: Sequence[Settle] = ()) -> Turn:
        answer = await turn(lane, ask, settles)
        if answer.claimed and not late:
            late.extend(answer.claimed)
            failing.set()
            for _ in range(2):  # when the second begins, the first was told
                await asyncio.to_thread(failures.acquire, timeout=PATIENCE)
        elif settles:
            failing.clear()
        return answer

    monkeypatch.setattr(app.engine, "run_once", run_once)
    monkeypatch.setattr(Lane, "turn", slow_turn)

    @app.task
    async def note() -> None:
        begun.append(failing.is_set())

    job = note.enqueue()
    report = work(app)
    assert (begun, report.released, report.successful) == ([False], 1, 1)
    assert app.get(job.id).attempts == 1


@pytest.mark.slow
def test_who_cannot_beat_stops_before_others_may_take_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Dibs(url, lease=1.0, beat=0.1)
    once, failing = app.engine.run_once, threading.Event()

    def run_once(operation: Operation[Any], **options: Any) -> Any:
        if failing.is_set() and operation.name == "beat":
            raise Unreachable("no route")
        return once(operation, **options)

    monkeypatch.setattr(app.engine, "run_once", run_once)
    stopped_after: list[float] = []

    @app.task
    async def endless() -> None:
        failing.set()
        began = time.monotonic()
        try:
            await told_to_stop()
        finally:
            stopped_after.append(time.monotonic() - began)

    job = endless.enqueue()
    report = work(app)
    assert (report.released, report.refused) == (1, 0)
    assert stopped_after[0] < 1.0
    assert (app.get(job.id).state, app.get(job.id).attempts) == (JobState.PENDING, 0)
    app.close()


# Data that the database refuses


@on_postgres
def test_only_the_culprit_fails_when_the_database_refuses_its_data(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced: what we let through is JSON that both databases take."""

    def careless(value: Any, *args: Any, **options: Any) -> bytes:
        return b'"\\u0000"' if value == 1 else payloads.encode(value, *args, **options)

    monkeypatch.setattr(run, "encode", careless)
    task = simple(app)
    ids = app.enqueue_many(task.call(n=n) for n in range(3))
    report = work(app)
    assert (report.successful, report.failed, report.refused) == (2, 1, 0)
    assert states(app, *ids) == [JobState.SUCCESSFUL, JobState.FAILED, JobState.SUCCESSFUL]
    assert "could not be stored" in (app.get(ids[1]).error or "")
    assert app.get(ids[1]).failures[-1]["attempt"] == 1


def test_a_database_without_tables_is_told(postgres_url: FreshDatabase) -> None:
    app = Dibs(postgres_url(POSTGRES))
    with pytest.raises(NotMigrated, match="Run: dibs db migrate"):
        app.drain()


def test_counting_helper_sees_everything(app: Dibs) -> None:
    task = simple(app)
    task.enqueue()
    work(app)
    task.enqueue()
    assert count_jobs(app) == 2
