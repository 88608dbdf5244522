"""What a task can know and say about its own job: the same in coroutines and threads."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dibs import Dibs, Done, Job, JobState, Permanent, RetryAfter, current_job
from dibs.errors import InvalidOption
from tests.actors import Actors
from tests.apps import on_sqlite

KINDS = ["sync", "async"]


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    app = Dibs(url, lease=4.0, beat=0.1)
    yield app
    app.close()


@pytest.fixture
def actors(app: Dibs) -> Actors:
    return Actors(app.engine)


def task(app: Dibs, kind: str, body: Any, **options: Any) -> Any:
    """A task without arguments that does so, in either way."""

    def sync() -> Any:
        return body()

    async def asynchronous() -> Any:
        await asyncio.sleep(0)
        return body()

    return app.task(name="it", **options)(sync if kind == "sync" else asynchronous)


@pytest.mark.parametrize("kind", KINDS)
def test_it_knows_who_it_is(app: Dibs, kind: str) -> None:
    def who() -> Any:
        job = current_job()
        return [job.id, job.type, job.queue, job.attempt, job.max_attempts, job.payload, job.cancelled]

    job = task(app, kind, who, queue="q", max_attempts=5).enqueue()
    app.drain()
    assert job.refresh().result == [job.id, "it", "q", 1, 5, {}, False]


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_side_by_side_know_themselves(app: Dibs, kind: str) -> None:
    def who() -> int:
        return current_job().id

    it = task(app, kind, who)
    ids = app.enqueue_many(it.call() for _ in range(20))
    app.drain(concurrency=10)
    assert [app.get(job_id).result for job_id in ids] == ids


@pytest.mark.parametrize("kind", KINDS)
def test_its_last_word_on_progress_is_kept(app: Dibs, kind: str) -> None:
    def reports() -> None:
        for done in range(100):
            current_job().progress(done, 100, f"step {done}")

    job = task(app, kind, reports).enqueue()
    app.drain()
    assert job.refresh().progress == {"done": 99, "total": 100, "message": "step 99"}


@pytest.mark.parametrize("kind", KINDS)
def test_progress_is_seen_while_it_runs(app: Dibs, actors: Actors, kind: str) -> None:
    seen: list[Any] = []

    async def waits() -> None:
        current_job().progress(1, 2)
        while not seen or seen[-1] is None:
            seen.append((await app.aget(current_job().id)).progress)
            await asyncio.sleep(0.01)

    def waits_too() -> None:
        current_job().progress(1, 2)
        while not seen or seen[-1] is None:
            seen.append(actors.get(current_job().id).progress)
            time.sleep(0.01)

    app.task(name="waits")(waits if kind == "async" else waits_too).enqueue()
    app.drain()
    assert seen[-1] == {"done": 1, "total": 2, "message": None}


@pytest.mark.parametrize(
    "report", [{"done": "half"}, {"done": float("nan")}, {"done": 1, "total": True}, {"done": 1, "message": "x" * 2000}]
)
def test_progress_that_makes_no_sense_is_named(app: Dibs, report: dict[str, Any]) -> None:
    def reports() -> str:
        with pytest.raises(InvalidOption):
            current_job().progress(**report)
        return "named"

    job = task(app, "sync", reports).enqueue()
    app.drain()
    assert job.refresh().result == "named"


@pytest.mark.parametrize("kind", KINDS)
def test_a_snooze_uses_no_attempt(app: Dibs, kind: str) -> None:
    """Not even a task that catches all that goes wrong can swallow it."""
    ran: list[int] = []

    def snoozes() -> None:
        ran.append(current_job().attempt)
        if len(ran) < 3:
            try:
                current_job().snooze(0.01)
            except Exception:
                ran.append(-1)

    job = task(app, kind, snoozes, max_attempts=1).enqueue()
    app.drain()
    assert (ran, job.refresh().state, job.refresh().attempts) == ([1, 1, 1], JobState.SUCCESSFUL, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_may_say_when_to_try_again(app: Dibs, kind: str) -> None:
    def fails() -> None:
        raise RetryAfter(1234, "come back later")

    job = task(app, kind, fails).enqueue()
    app.drain()
    waiting = job.refresh()
    assert (waiting.state, waiting.error) == (JobState.RETRY, "RetryAfter: come back later")
    assert waiting.run_at is not None
    assert waiting.created_at is not None
    assert 1200 < (waiting.run_at - waiting.created_at).total_seconds() < 1300


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_may_say_that_it_is_hopeless(app: Dibs, kind: str) -> None:
    def fails() -> None:
        raise Permanent("the customer is gone")

    job = task(app, kind, fails, max_attempts=9).enqueue()
    app.drain()
    assert (job.refresh().state, job.refresh().attempts) == (JobState.FAILED, 1)


@pytest.mark.parametrize("error, state", [(ConnectionError, "RETRY"), (KeyError, "FAILED"), (RetryAfter, "RETRY")])
def test_only_named_errors_are_tried_again(app: Dibs, error: Any, state: str) -> None:
    def fails() -> None:
        raise error(99)

    job = task(app, "sync", fails, retry_on=[OSError], retry=99).enqueue()
    app.drain()
    assert job.refresh().state == state


def test_what_is_no_exception_class_is_named(app: Dibs) -> None:
    with pytest.raises(InvalidOption, match="retry_on: must be a list of exception classes"):
        app.task(name="x", retry_on=["ValueError"])(lambda: None)  # type: ignore[list-item]


def test_a_renamed_task_runs_the_jobs_of_its_old_name(app: Dibs, actors: Actors) -> None:
    @app.task(name="new", aliases=["old"])
    def new() -> str:
        return "ran"

    job_id = actors.add("old", {})
    assert app.drain().successful == 1
    assert app.get(job_id).result == "ran"


# The hook of a final failure


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", KINDS)
def test_a_failure_for_good_has_its_hook_in_the_same_transaction(
    app: Dibs, actors: Actors, kind: str, hook: str
) -> None:
    actors.sql("create table refunds (job integer, error text)")
    insert = f"insert into refunds values ({', '.join(['?'] * 2 if app.engine.name == 'sqlite' else ['%s'] * 2)})"

    def refund(job: Job, connection: Any) -> None:
        connection.execute(insert, [job.id, job.error])

    async def refund_too(job: Job, connection: Any) -> None:
        await connection.execute(insert, [job.id, job.error])

    def fails() -> None:
        raise ValueError("no money")

    hooked = task(app, kind, fails, max_attempts=2, retry=0, on_failure=refund if hook == "sync" else refund_too)
    job = hooked.enqueue()
    report = app.drain()
    assert actors.sql("select job, error from refunds") == [(job.id, "ValueError: no money")]
    failed = job.refresh()
    assert (failed.state, failed.attempts, len(failed.failures)) == (JobState.FAILED, 2, 2)
    assert report.failed == 1


def test_a_hook_that_fails_is_tried_again_and_leaves_nothing_meanwhile(app: Dibs, actors: Actors) -> None:
    actors.sql("create table refunds (job integer)")
    tries: list[int] = []

    def refund(job: Job, connection: Any) -> None:
        tries.append(job.attempts)
        connection.execute(f"insert into refunds values ({job.id})")
        if len(tries) < 3:
            raise OSError("the bank is closed")

    def fails() -> None:
        raise ValueError("no")

    job = task(app, "sync", fails, max_attempts=1, retry=0, on_failure=refund).enqueue()
    app.drain()
    assert (tries, actors.sql("select job from refunds")) == ([1, 1, 1], [(job.id,)])
    assert (job.refresh().state, job.refresh().attempts) == (JobState.FAILED, 1)


def test_after_ten_tries_it_is_failed_without_its_hook(app: Dibs, actors: Actors) -> None:
    tries: list[int] = []

    def refund(job: Job, connection: Any) -> None:
        tries.append(1)
        raise OSError("never")

    def fails() -> None:
        raise ValueError("no")

    job = task(app, "sync", fails, max_attempts=1, retry=0, on_failure=refund).enqueue()
    app.drain()
    failed = job.refresh()
    assert (len(tries), failed.state) == (10, JobState.FAILED)
    assert failed.error == "ValueError: no. Its on_failure hook was tried 10 times, and given up"
    assert [each["error"] for each in failed.failures] == ["ValueError: no", failed.error]
    assert actors.sql("select hook_error from dibs.dead") == [("given up",)]


@on_sqlite  # PostgreSQL refuses such a text
def test_after_ten_tries_it_is_failed_also_when_nobody_can_read_it(app: Dibs, actors: Actors) -> None:
    def refund(job: Job, connection: Any) -> None:
        raise OSError("never")

    task(app, "sync", lambda: None, max_attempts=1, retry=0, on_failure=refund).enqueue()
    actors.sql("update dibs.jobs set payload = '{'")
    assert app.drain(limit=30).claimed == 12
    assert actors.sql("select hook_error from dibs.dead") == [("given up",)]


@pytest.mark.parametrize("hook", KINDS)
def test_a_hook_may_ask_its_job(app: Dibs, hook: str) -> None:
    seen: list[JobState] = []

    def looks(job: Job, connection: Any) -> None:
        seen.append(job.refresh().state)

    async def looks_too(job: Job, connection: Any) -> None:
        seen.append((await job.arefresh()).state)

    def fails() -> None:
        raise ValueError("no")

    on_failure = looks if hook == "sync" else looks_too
    job = task(app, "sync", fails, max_attempts=1, on_failure=on_failure).enqueue()
    app.drain()
    assert (seen, job.refresh().state) == ([JobState.RUNNING], JobState.FAILED)


def test_a_coroutine_that_is_a_hook_has_the_time_of_its_task(app: Dibs) -> None:
    tries: list[int] = []

    async def waits(job: Job, connection: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()

    def fails() -> None:
        raise ValueError("no")

    job = task(app, "sync", fails, max_attempts=1, retry=0, timeout=0.1, on_failure=waits).enqueue()
    app.drain()
    assert (len(tries), job.refresh().state) == (2, JobState.FAILED)


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["drain", "work"])
def test_a_policy_that_raises_beside_a_hook_that_raises_leaves_no_job_held(app: Dibs, runs: str) -> None:
    tries, tried = list[int](), threading.Event()

    def refund(job: Job, connection: Any) -> None:
        tries.append(1)
        if len(tries) < 2:
            raise OSError("away")
        tried.set()

    @app.task(name="it", max_attempts=1, retry=lambda attempt: 1 / 0, on_failure=refund)
    def it() -> None:
        raise ValueError("no")

    job = it.enqueue()
    if runs == "drain":
        assert app.drain().failed == 1
    else:
        app.start()
        assert job.join(timeout=30).state == "FAILED"
        app.stop()
    assert tried.is_set()


# What was done already


def crashed(actors: Actors, job_id: int) -> None:
    """The job's owner died with it."""
    worker = actors.worker()
    assert [job.id for job in worker.claim()] == [job_id]
    actors.recover(worker)
    actors.sql("update dibs.jobs set run_at = created_at")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("was_done", [True, False])
def test_a_job_whose_last_attempt_left_no_outcome_may_have_been_done(
    app: Dibs, actors: Actors, kind: str, was_done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    def already(n: int) -> Done | None:
        return Done(f"found {n}") if was_done else None

    async def already_too(n: int) -> Done | None:
        return already(n)

    @app.task(name="it", reconcile=already if kind == "sync" else already_too)
    def it(n: int) -> str:
        ran.append(n)
        return f"made {n}"

    job = it.enqueue(n=7)
    crashed(actors, int(job.id))
    app.drain()
    assert (ran, job.refresh().result) == (([], "found 7") if was_done else ([7], "made 7"))
    assert ("a duplicate was prevented" in caplog.text) is was_done


def test_it_is_asked_even_when_the_last_attempt_was_the_last(app: Dibs, actors: Actors) -> None:
    @app.task(name="it", max_attempts=1, reconcile=lambda: Done("found"))
    def it() -> None:
        raise AssertionError("it must not run")

    job = it.enqueue()
    crashed(actors, int(job.id))
    app.drain()
    assert (job.refresh().state, job.refresh().result) == (JobState.SUCCESSFUL, "found")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attempts", [1, 3])
def test_it_is_asked_again_until_it_answers(app: Dibs, actors: Actors, kind: str, attempts: int) -> None:
    """A question that failed is no answer: neither is the work run again, nor has the job failed."""
    asked, undone = list[int](), list[int]()

    def already() -> Done:
        asked.append(1)
        if len(asked) < 5:
            raise OSError("the database of the shop is away")
        return Done("found")

    async def already_too() -> Done:
        return already()

    @app.task(
        name="it",
        max_attempts=attempts,
        retry=0,
        reconcile=already if kind == "sync" else already_too,
        on_failure=lambda job, connection: undone.append(1),
    )
    def it() -> None:
        raise AssertionError("it must not run")

    job = it.enqueue()
    crashed(actors, int(job.id))
    app.drain()
    done = job.refresh()
    assert (done.state, done.result, done.attempts, undone) == (JobState.SUCCESSFUL, "found", min(attempts, 2), [])
    assert [each["error"] for each in done.failures] == [
        "the worker died",
        *["Its reconcile raised OSError: the database of the shop is away"] * 4,
    ]


@pytest.mark.parametrize("attempts", [1, 3])
def test_after_ten_questions_it_is_failed_and_neither_run_nor_undone(app: Dibs, actors: Actors, attempts: int) -> None:
    """Nobody knows whether the work was done, so a person has to look."""
    asked, undone = list[int](), list[int]()

    def already() -> None:
        asked.append(1)
        raise OSError("away")

    @app.task(
        name="it",
        max_attempts=attempts,
        retry=0,
        reconcile=already,
        on_failure=lambda job, connection: undone.append(1),
    )
    def it() -> None:
        raise AssertionError("it must not run")

    job = it.enqueue()
    crashed(actors, int(job.id))
    app.drain()
    failed = job.refresh()
    assert (failed.state, len(asked), undone) == (JobState.FAILED, 10, [])
    assert failed.error == (
        "Its last attempt left no outcome, and its reconcile raised 10 times: nobody knows whether the work was done, "
        "so it was not run again. The last time: OSError: away"
    )
    assert actors.sql("select hook_error from dibs.dead") == [("its reconcile has no answer",)]


def test_a_job_whose_reconcile_does_not_answer_says_so_in_the_log(
    app: Dibs, actors: Actors, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dibs")

    @app.task(name="it", retry=0, reconcile=lambda: 1 / 0)
    def it() -> None: ...

    job = it.enqueue()
    crashed(actors, int(job.id))
    app.drain()
    said = f"Job {job.id} may have been done already, asked again in 0.0s: Its reconcile raised ZeroDivisionError: "
    assert caplog.text.count(said) == 9


def test_an_attempt_that_failed_has_an_outcome(app: Dibs) -> None:
    """Nothing is asked then."""
    asked: list[int] = []

    @app.task(name="it", retry=0, max_attempts=2, reconcile=lambda: asked.append(1))
    def it() -> None:
        raise ValueError("no")

    it.enqueue()
    app.drain()
    assert asked == []


# Middleware


@pytest.mark.parametrize("kind", KINDS)
def test_middleware_is_around_the_run_from_outside_in(app: Dibs, kind: str) -> None:
    said: list[str] = []

    def around(name: str) -> None:
        @app.middleware
        async def middleware(job: Any, run: Any) -> Any:
            said.append(f"{name} before {job.id}")
            try:
                return await run()
            finally:
                said.append(f"{name} after")

    around("outer")
    around("inner")
    job = task(app, kind, lambda: said.append("ran")).enqueue()
    app.drain()
    assert said == [f"outer before {job.id}", f"inner before {job.id}", "ran", "inner after", "outer after"]


# Waiting for a job


def test_join_waits_for_the_end(app: Dibs) -> None:
    job = task(app, "sync", lambda: 42).enqueue()
    app.start()
    try:
        assert job.join(timeout=30).result == 42
    finally:
        app.stop()


def test_a_job_has_the_verbs_of_the_app(app: Dibs) -> None:
    job = task(app, "sync", lambda: 42).enqueue()
    assert (job.cancel(), job.refresh().state) == (True, JobState.CANCELLED)
    assert job.join().state == "CANCELLED"
    assert job.retry().state == "PENDING"
    assert job.cancel()


async def test_and_their_async_twins(async_app: Dibs) -> None:
    @async_app.task
    def it() -> None: ...

    job = await it.aenqueue()
    assert await job.acancel()
    assert (await job.ajoin(timeout=10)).state == "CANCELLED"
    assert (await job.aretry()).state == "PENDING"
    assert (await job.arefresh()).state == "PENDING"
