"""Jobs that are handed to a provider: submitted once, asked after, called back for, cancelled."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from dibs import Dibs, Done, DrainReport, Job, Rejected, RetryAfter, Task, Waiting, current_job
from dibs.errors import InvalidOption, InvalidPayload, LeaseLost
from dibs.job import Claimed, JobState
from dibs.operations import submissions, workers
from dibs.tokens import called
from tests.actors import Actors, Worker

PATIENCE = 60.0
QUICK: dict[str, Any] = {"poll_every": 0.01, "retry": 0.01}


@dataclass
class Provider:
    """Somebody who charges: what it accepted, by key; and what it is to do wrong."""

    accepted: list[str] = field(default_factory=list)  # the key of each acceptance
    tasks: dict[str, str] = field(default_factory=dict)  # key -> the id that it gave
    answers: dict[str, Any] = field(default_factory=dict)  # id -> what it says when it is asked
    polls: list[Any] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    honours_keys: bool = False

    def submit(self, key: str) -> str:
        if not (self.honours_keys and key in self.tasks):
            self.accepted.append(key)
            self.tasks[key] = f"task-{len(self.accepted)}"
        return self.tasks[key]

    def poll(self, task_id: str) -> Any:
        self.polls.append(task_id)
        return self.answers.get(task_id, Done(f"done {task_id}", usage={"tokens": 10}))


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def app(url: str) -> Iterator[Dibs]:
    app = Dibs(url, lease=4.0, beat=0.1, public_url="https://shop.example/")
    yield app
    app.close()


def declare(app: Dibs, provider: Provider, **options: Any) -> Task[Any, Any]:
    @app.provider_task(name="summarise", **{**QUICK, **options})
    class Summarise:
        async def submit(self, text: str, key: str) -> str:
            return provider.submit(key)

        async def reconcile(self, text: str, key: str) -> str | None:
            return provider.tasks.get(key)

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

        async def cancel(self, task_id: str) -> None:
            provider.cancelled.append(task_id)

    return Summarise  # type: ignore[no-any-return]  # made by the decorator


def work(app: Dibs, **options: Any) -> DrainReport:
    async def bounded() -> DrainReport:
        try:
            return await asyncio.wait_for(app.adrain(**options), PATIENCE)
        finally:
            await app.aclose()

    return asyncio.run(bounded())


def submission(app: Dibs, job: Job) -> submissions.Submission:
    found = app.engine.run(submissions.last(job.id))
    assert found is not None
    return found


# The ordinary way


def test_a_job_is_submitted_asked_after_and_done(app: Dibs, provider: Provider) -> None:
    task = declare(app, provider)
    job = task.enqueue(text="long")
    provider.answers["task-1"] = Waiting(after=3600)
    report = work(app)
    assert (report.processing, report.successful) == (1, 0)
    seen = job.refresh()
    assert (seen.state, seen.provider_task_id, seen.attempts) == (JobState.PROCESSING, "task-1", 1)
    assert provider.accepted == [submission(app, job).key]


def test_what_the_provider_says_and_charges_is_kept(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).enqueue(text="long")
    report = work(app)
    assert (report.claimed, report.processing, report.successful) == (2, 1, 1)
    seen = job.refresh()
    assert (seen.state, seen.result, seen.usage) == (JobState.SUCCESSFUL, "done task-1", {"tokens": 10})
    assert seen.attempts == 1  # asking is no attempt


def test_it_shows_as_submitting_while_it_is_handed_over(app: Dibs) -> None:
    seen: list[Job] = []

    @app.provider_task(after_crash="resubmit", **QUICK)
    class Looks:
        async def submit(self, key: str) -> str:
            seen.append(await app.aget(current_job().id))
            return "t"

        async def poll(self, task_id: str) -> Any:
            seen.append(await app.aget(current_job().id))
            return Done()

    Looks.enqueue()
    work(app)
    assert [job.state for job in seen] == [JobState.SUBMITTING, JobState.PROCESSING]


def test_sync_methods_run_in_threads(app: Dibs, provider: Provider) -> None:
    @app.provider_task(after_crash="resubmit", **QUICK)
    class Sync:
        def submit(self, key: str) -> str:
            assert current_job().key == key
            return provider.submit(key)

        def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

    job = Sync.enqueue()
    work(app)
    assert job.refresh().result == "done task-1"


def test_many_are_asked_after_at_once(app: Dibs, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.worker.questions.GATHER", 0.5)
    asked: list[list[str]] = []

    @app.provider_task(after_crash="resubmit", poll_every=3600)
    class Many:
        async def submit(self, key: str) -> str:
            return provider.submit(key)

        async def poll_many(self, ids: list[str]) -> dict[str, Any]:
            asked.append(ids)
            return {task_id: provider.poll(task_id) for task_id in ids}

    app.enqueue_many(Many.call() for _ in range(20))
    work(app, concurrency=20)
    Actors(app.engine).make_due()
    assert work(app, concurrency=20).successful == 20
    assert max(map(len, asked)) > 1
    assert sorted(task_id for ids in asked for task_id in ids) == sorted(f"task-{n}" for n in range(1, 21))


def test_middleware_is_around_the_submit(app: Dibs, provider: Provider) -> None:
    seen = []

    @app.middleware
    async def around(job: Any, run: Any) -> Any:
        seen.append(job.key)
        return await run()

    job = declare(app, provider).enqueue(text="x")
    work(app)
    assert seen == provider.accepted
    assert job.refresh().state is JobState.SUCCESSFUL


def test_many_added_at_once_are_handed_over_too(app: Dibs, provider: Provider) -> None:
    task = declare(app, provider)
    ids = app.enqueue_many(task.call(text=str(n)) for n in range(600))  # on PostgreSQL, plain ones would go by COPY
    keyed = task.using(unique_key="one").enqueue(text="x")
    _, taken = take(app)
    assert app.get(taken.id).state is JobState.SUBMITTING
    app.cancel(taken.id)
    work(app, concurrency=50)
    assert app.get(ids[-1]).provider_task_id is not None
    assert keyed.refresh().provider_task_id is not None
    assert len(provider.accepted) == len(set(provider.accepted)) == 600


# At most one accepted submission


def take(app: Dibs) -> tuple[Worker, Claimed]:
    """A worker that claims a job as soon as one is due, and will never be heard of again."""
    worker = Actors(app.engine).worker()
    while not (claimed := worker.claim(1)):
        pass
    return worker, claimed[0]


def die(app: Dibs, worker: Worker) -> None:
    Actors(app.engine).recover(worker)


def begun_and_died(app: Dibs, provider: Provider, *, accepted: bool) -> None:
    """Somebody claimed it, was about to submit, and died; maybe after the provider had accepted."""
    worker, taken = take(app)
    begun = app.engine.run(submissions.begin(taken.lease, "summarise", "dibs-first"))
    if accepted:
        provider.submit(begun.key)
    die(app, worker)


@pytest.mark.parametrize("accepted", [True, False])
def test_after_a_crash_the_provider_is_asked_first(app: Dibs, provider: Provider, accepted: bool) -> None:
    job = declare(app, provider).enqueue(text="x")
    begun_and_died(app, provider, accepted=accepted)
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert provider.accepted == ["dibs-first"]  # once, under the same key


def test_after_an_exception_the_provider_is_asked_first(app: Dibs, provider: Provider) -> None:
    tries = []

    @app.provider_task(name="summarise", **QUICK)
    class TimesOut:
        async def submit(self, key: str) -> str:
            tries.append(key)
            provider.submit(key)
            raise TimeoutError("no answer, but it was accepted")

        async def reconcile(self, key: str) -> str | None:
            return provider.tasks.get(key)

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

    job = TimesOut.enqueue()
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert len(tries) == len(provider.accepted) == 1


def test_a_submit_over_its_time_is_asked_after(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", timeout=0.05, **QUICK)
    class Slow:
        async def submit(self, key: str) -> str:
            task_id = provider.submit(key)
            await asyncio.Event().wait()
            return task_id

        async def reconcile(self, key: str) -> str | None:
            return provider.tasks.get(key)

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

    job = Slow.enqueue()
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert len(provider.accepted) == 1


def in_a_thread(app: Dibs, provider: Provider, go_on: threading.Event, timeout: float = 0.05) -> Task[Any, Any]:
    @app.provider_task(name="summarise", timeout=timeout, poll_every=3600, retry=3600)
    class Slow:
        def submit(self, key: str) -> str:
            go_on.wait(PATIENCE)
            return provider.submit(key)

        def reconcile(self, key: str) -> str | None:
            return provider.tasks.get(key)

        def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

    return Slow  # type: ignore[no-any-return]  # made by the decorator


def test_a_submit_in_a_thread_is_waited_for(app: Dibs, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can stop it, so nobody else may submit meanwhile."""
    go_on = threading.Event()
    task = in_a_thread(app, provider, go_on)

    async def run() -> Job:
        job = await task.aenqueue()
        async with app.running():
            while "which nobody can stop" not in caplog.text:  # its time is over
                await job.arefresh()
            assert (await job.arefresh()).state is JobState.SUBMITTING
            go_on.set()
            while (seen := await job.arefresh()).state is not JobState.PROCESSING:
                pass
        await app.aclose()
        return seen

    seen = asyncio.run(run())
    assert (seen.provider_task_id, len(provider.accepted)) == ("task-1", 1)


def test_what_a_thread_is_answered_much_too_late_is_noted(
    app: Dibs, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.worker.provider.THREAD_PATIENCE", 1)
    go_on = threading.Event()
    task = in_a_thread(app, provider, go_on)

    async def run() -> Job:
        job = await task.aenqueue()
        async with app.running():
            while (await job.arefresh()).state is not JobState.RETRY:
                pass
            go_on.set()
            while (seen := await job.arefresh()).state is not JobState.PROCESSING:
                pass
        await app.aclose()
        return seen

    seen = asyncio.run(run())
    assert (seen.provider_task_id, len(provider.accepted)) == ("task-1", 1)
    assert "does not end within 0.05 s, and goes on" in seen.failures[0]["error"]


def test_a_drain_at_its_end_keeps_what_cannot_be_stopped(app: Dibs, provider: Provider) -> None:
    """Else another would take the job while the thread still submits it. The lease tells that the drain is gone."""
    go_on = threading.Event()
    job = in_a_thread(app, provider, go_on, timeout=PATIENCE).enqueue()
    work(app, deadline=0.5)
    assert job.refresh().state is JobState.SUBMITTING
    assert len(app.engine.run(workers.list_workers())) > 0
    go_on.set()


@pytest.mark.parametrize("after_crash", [None, "hold", "resubmit"])
def test_an_exception_on_the_last_attempt_is_asked_after(
    app: Dibs, provider: Provider, after_crash: str | None
) -> None:
    class Raises:
        async def submit(self, key: str) -> str:
            provider.submit(key)
            raise ConnectionError("reset")

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

    class Careful(Raises):
        async def reconcile(self, key: str) -> str | None:
            return provider.tasks.get(key)

    declared = app.provider_task(name="summarise", after_crash=after_crash, **{**QUICK, "max_attempts": 1})
    job = declared(Raises if after_crash else Careful).enqueue()
    work(app)
    seen = job.refresh()
    assert seen.state is (JobState.FAILED if after_crash else JobState.SUCCESSFUL)
    assert ("may have accepted" in (seen.error or "")) is (after_crash == "hold")
    assert len(provider.accepted) == 1


def test_a_reconcile_that_always_raises_ends_in_failed(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", **{**QUICK, "retry": 0, "max_attempts": 1})
    class Broken:
        async def submit(self, key: str) -> str:
            raise ConnectionError("reset")

        async def reconcile(self, key: str) -> str | None:
            raise ConnectionError("down")

    job = Broken.enqueue()
    work(app)
    assert job.refresh().state is JobState.FAILED


def test_the_last_attempt_is_asked_after_before_it_counts_as_failed(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider, max_attempts=1).enqueue(text="x")
    begun_and_died(app, provider, accepted=True)
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert len(provider.accepted) == 1


def without_reconcile(app: Dibs, provider: Provider, after_crash: str, **options: Any) -> Task[Any, Any]:
    @app.provider_task(name="summarise", after_crash=after_crash, **{**QUICK, **options})
    class Careless:
        async def submit(self, text: str, key: str) -> str:
            return provider.submit(key)

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

    return Careless  # type: ignore[no-any-return]  # made by the decorator


def test_resubmitted_under_the_same_key(app: Dibs, provider: Provider) -> None:
    provider.honours_keys = True
    job = without_reconcile(app, provider, "resubmit").enqueue(text="x")
    begun_and_died(app, provider, accepted=True)
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert provider.accepted == ["dibs-first"]


def test_held_for_a_person_to_decide(app: Dibs, provider: Provider) -> None:
    job = without_reconcile(app, provider, "hold").enqueue(text="x")
    begun_and_died(app, provider, accepted=True)
    work(app)
    held = job.refresh()
    assert held.state is JobState.FAILED
    assert "may have accepted" in (held.error or "")
    assert "dibs-first" in (held.error or "")
    assert len(provider.accepted) == 1
    job.retry()  # the person has looked: submit it
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert provider.accepted == ["dibs-first", "dibs-first"]


def test_without_reconcile_one_has_to_choose(app: Dibs) -> None:
    with pytest.raises(InvalidOption, match=r"has no method reconcile.*'resubmit'.*'hold'"):

        @app.provider_task
        class Undecided:
            async def submit(self, key: str) -> str: ...


def test_an_acceptance_is_noted_although_the_lease_was_lost(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).enqueue(text="x")
    worker, taken = take(app)
    lease = taken.lease
    begun = app.engine.run(submissions.begin(lease, "summarise", "dibs-first"))
    die(app, worker)
    provider.submit(begun.key)
    accepted = app.engine.run(submissions.accept(lease, "summarise", begun.round, "task-1", 0.0))
    assert accepted.noted
    assert accepted.processing  # nobody holds it, and nobody has to submit it again
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert len(provider.accepted) == 1


def test_an_acceptance_that_comes_while_another_holds_the_job_is_noted(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).enqueue(text="x")
    first, taken = take(app)
    late = taken.lease
    begun = app.engine.run(submissions.begin(late, "summarise", "k"))
    die(app, first)
    second, _ = take(app)
    accepted = app.engine.run(submissions.accept(late, "summarise", begun.round, "task-9", 0.0))
    assert (accepted.noted, accepted.processing) == (True, False)
    assert submission(app, job).task_id == "task-9"
    assert job.refresh().state is JobState.SUBMITTING
    die(app, second)
    provider.answers["task-9"] = Done("nine")
    work(app)
    assert job.refresh().result == "nine"
    assert provider.accepted == []


def test_of_two_ids_the_first_counts_and_the_other_is_kept(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).enqueue(text="x")
    _, taken = take(app)
    lease = taken.lease
    begun = app.engine.run(submissions.begin(lease, "summarise", "k"))
    assert app.engine.run(submissions.accept(lease, "summarise", begun.round, "one", 3600.0)).processing
    other = app.engine.run(submissions.accept(lease, "summarise", begun.round, "two", 3600.0))
    assert (other.noted, other.second) == (False, True)
    assert job.refresh().provider_task_id == "one"


def test_an_acceptance_sent_twice_counts_once(app: Dibs, provider: Provider) -> None:
    declare(app, provider).enqueue(text="x")
    _, taken = take(app)
    lease = taken.lease
    begun = app.engine.run(submissions.begin(lease, "summarise", "k"))
    for _ in range(2):
        accepted = app.engine.run(submissions.accept(lease, "summarise", begun.round, "one", 3600.0))
        assert (accepted.noted, accepted.processing, accepted.second) == (True, True, False)


def test_who_lost_the_lease_may_not_begin(app: Dibs, provider: Provider) -> None:
    declare(app, provider).enqueue(text="x")
    worker, taken = take(app)
    assert app.engine.run(submissions.begin(taken.lease, "summarise", "k")).key == "k"
    die(app, worker)
    with pytest.raises(LeaseLost):
        app.engine.run(submissions.begin(taken.lease, "summarise", "k"))


# What providers do wrong


def test_an_id_that_was_used_before_is_refused_by_the_database(app: Dibs) -> None:
    @app.provider_task(after_crash="resubmit", **QUICK)
    class Same:
        async def submit(self, key: str) -> str:
            return "the same"

        async def poll(self, task_id: str) -> Any:
            return Waiting(after=3600)

    first = Same.enqueue()
    work(app)
    second = Same.enqueue()
    work(app)
    assert first.refresh().state is JobState.PROCESSING
    failed = second.refresh()
    assert failed.state is JobState.FAILED
    assert f"'the same', which is that of job {first.id}" in (failed.error or "")


@pytest.mark.parametrize("garbage", [None, "", 7, "\x00", ["a"], "\ud800"])
def test_an_answer_that_is_no_id_is_a_failure_and_asked_after(app: Dibs, provider: Provider, garbage: Any) -> None:
    @app.provider_task(name="summarise", **QUICK)
    class Garbage:
        async def submit(self, key: str) -> Any:
            provider.submit(key)
            return garbage

        async def reconcile(self, key: str) -> str | None:
            return provider.tasks.get(key)

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

    job = Garbage.enqueue()
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert len(provider.accepted) == 1
    assert "task id" in job.refresh().failures[0]["error"] or "surrogate" in job.refresh().failures[0]["error"]


def test_ids_of_ten_kilobytes_are_kept_and_longer_ones_refused(app: Dibs) -> None:
    long = "x" * 10_000

    @app.provider_task(after_crash="resubmit", max_attempts=1, **QUICK)
    class Long:
        async def submit(self, size: int, key: str) -> str:
            return "x" * size

        async def poll(self, task_id: str) -> Any:
            return Done(len(task_id))

    job, too_long = Long.enqueue(size=10_000), Long.enqueue(size=20_000)
    work(app)
    assert (job.refresh().result, job.refresh().provider_task_id) == (10_000, long)
    assert "20,000 characters" in (too_long.refresh().error or "")


def test_a_provider_that_is_down_is_asked_until_it_is_back(app: Dibs, provider: Provider) -> None:
    answers = iter([ConnectionError("down"), ConnectionError("down"), "garbage", Done("back")])

    @app.provider_task(name="summarise", after_crash="resubmit", max_attempts=1, **QUICK)
    class Down:
        async def submit(self, key: str) -> str:
            return provider.submit(key)

        async def poll(self, task_id: str) -> Any:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

    job = Down.enqueue()
    work(app)
    seen = job.refresh()
    assert (seen.state, seen.result, seen.attempts) == (JobState.SUCCESSFUL, "back", 1)
    assert [failure["error"] for failure in seen.failures] == [
        "ConnectionError: down",
        "ConnectionError: down",
        "TypeError: say Done, Waiting or Rejected, not 'garbage'",
    ]


def test_given_up_on_and_asked_again_when_a_person_retries(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider, give_up_after=0.2).enqueue(text="x")
    provider.answers["task-1"] = Waiting()
    work(app)
    assert job.refresh().state is JobState.FAILED
    assert "has not answered within 0.2 s" in (job.refresh().error or "")
    provider.answers["task-1"] = Done("late")
    job.retry()
    work(app)
    assert job.refresh().result == "late"
    assert len(provider.accepted) == 1  # not paid for twice


def test_a_rejection_is_final_and_what_it_cost_is_kept(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).enqueue(text="x")
    provider.answers["task-1"] = Rejected("against the rules", usage={"tokens": 3})
    report = work(app)
    seen = job.refresh()
    assert (report.failed, seen.state, seen.usage) == (1, JobState.FAILED, {"tokens": 3})
    assert "against the rules" in (seen.error or "")
    assert len(provider.accepted) == 1


def test_a_rejection_that_says_so_is_submitted_anew_under_a_new_key(app: Dibs, provider: Provider) -> None:
    provider.honours_keys = True
    job = declare(app, provider).enqueue(text="x")
    provider.answers["task-1"] = Rejected("overloaded", retry=True, usage={"tokens": 1})
    work(app)
    seen = job.refresh()
    assert (seen.state, seen.provider_task_id, seen.attempts) == (JobState.SUCCESSFUL, "task-2", 2)
    assert seen.usage == [{"tokens": 1}, {"tokens": 10}]
    assert len(set(provider.accepted)) == 2


def test_a_submit_may_be_rejected_at_once(app: Dibs) -> None:
    @app.provider_task(after_crash="hold", **QUICK)
    class Strict:
        async def submit(self, key: str) -> Any:
            return Rejected("no such model")

    job = Strict.enqueue()
    work(app)
    assert "no such model" in (job.refresh().error or "")


def test_who_is_told_to_wait_did_not_submit(app: Dibs, provider: Provider) -> None:
    """RetryAfter from submit: the provider has answered, and did not accept; so nothing is held or asked after."""
    tries: list[str] = []

    @app.provider_task(name="summarise", after_crash="hold", **QUICK)
    class Busy:
        async def submit(self, key: str) -> str:
            tries.append(key)
            if len(tries) == 1:
                raise RetryAfter(0.01, "429")
            return provider.submit(key)

        async def poll(self, task_id: str) -> Any:
            if len(provider.polls) == 0:
                provider.polls.append(task_id)
                raise RetryAfter(0.01)
            return provider.poll(task_id)

    job = Busy.enqueue()
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL
    assert len(tries) == 2
    assert tries[0] == tries[1]


def test_results_that_cannot_be_stored_are_failures(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).enqueue(text="x")
    provider.answers["task-1"] = Done({"not": object()})
    work(app)
    assert job.refresh().state is JobState.FAILED


def test_a_result_that_is_too_large_keeps_what_it_cost_and_is_not_paid_for_again(url: str, provider: Provider) -> None:
    app = Dibs(url, max_payload=100)
    job = declare(app, provider).enqueue(text="x")
    provider.answers["task-1"] = Done("x" * 200, usage={"tokens": 9})
    work(app)
    assert (job.refresh().state, job.refresh().usage) == (JobState.FAILED, {"tokens": 9})
    provider.answers["task-1"] = Done("short", usage={"tokens": 9})
    job.retry()
    work(app)
    assert (job.refresh().result, len(provider.accepted)) == ("short", 1)
    app.close()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), KeyError("x")])
@pytest.mark.parametrize("many", [False, True])
def test_a_question_may_raise_anything(app: Dibs, provider: Provider, error: BaseException, many: bool) -> None:
    class One:
        async def submit(self, key: str) -> str:
            return provider.submit(key)

        async def poll(self, task_id: str) -> Any:
            if len(provider.polls) == 0:
                provider.polls.append(task_id)
                raise error
            return provider.poll(task_id)

    class Many(One):
        async def poll_many(self, ids: list[str]) -> list[Any]:
            return [await self.poll(task_id) for task_id in ids]

    declared = app.provider_task(name="summarise", after_crash="resubmit", max_attempts=1, **QUICK)
    job = declared(Many if many else One).enqueue()
    work(app)
    assert job.refresh().state is JobState.SUCCESSFUL


def test_a_submit_that_would_end_the_process_has_failed(app: Dibs) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", max_attempts=1, **QUICK)
    class Leaves:
        async def submit(self, key: str) -> str:
            raise SystemExit(7)

    job = Leaves.enqueue()
    work(app)
    assert job.refresh().state is JobState.FAILED
    assert "SystemExit: 7" in str(job.refresh().error)


def test_options_of_tasks_that_a_provider_has_not(app: Dibs) -> None:
    for option in ("reconcile", "process"):
        with pytest.raises(InvalidOption, match=option):

            @app.provider_task(after_crash="hold", **{option: None})
            class Wrong:
                async def submit(self, key: str) -> str: ...


def test_a_payload_that_does_not_fit_is_refused(app: Dibs, provider: Provider) -> None:
    task = declare(app, provider)
    with pytest.raises(InvalidPayload, match="key"):
        task.enqueue(text="x", key="mine")
    with pytest.raises(InvalidPayload, match="text"):
        task.enqueue()


def test_its_hook_runs_once_when_it_fails(app: Dibs, provider: Provider) -> None:
    refunds: list[int] = []
    task = declare(app, provider, on_failure=lambda job, connection: refunds.append(job.id))
    job = task.enqueue(text="x")
    provider.answers["task-1"] = Rejected("no")
    work(app)
    assert job.refresh().state is JobState.FAILED
    assert refunds == [job.id]


def test_a_worker_that_dies_while_it_asks_costs_no_attempt(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider, max_attempts=1).enqueue(text="x")
    provider.answers["task-1"] = Waiting(after=0)
    work(app, limit=1)
    for _ in range(3):
        worker, _ = take(app)
        assert job.refresh().state is JobState.PROCESSING
        die(app, worker)
        assert job.refresh().state is JobState.PROCESSING
    provider.answers["task-1"] = Done("at last")
    work(app)
    assert (job.refresh().result, job.refresh().attempts) == ("at last", 1)


# Cancelling


def test_cancel_tells_the_provider(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).enqueue(text="x")
    provider.answers["task-1"] = Waiting(after=3600)
    work(app)
    assert job.cancel()
    work(app)
    assert job.refresh().state is JobState.CANCELLED
    assert provider.cancelled == ["task-1"]
    job.retry()
    provider.answers["task-2"] = Done("again")
    work(app)
    assert job.refresh().result == "again"


def test_a_second_cancel_does_not_hide_the_first_from_the_provider(app: Dibs, provider: Provider) -> None:
    job = declare(app, provider).using(unique_key="one").enqueue(text="x")
    provider.answers["task-1"] = Waiting(after=3600)
    work(app)
    assert job.cancel()
    job.cancel()
    assert job.refresh().state is JobState.PROCESSING
    work(app)
    assert (job.refresh().state, provider.cancelled) == (JobState.CANCELLED, ["task-1"])


def test_a_provider_that_cannot_be_told_does_not_keep_a_job(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", **QUICK)
    class Deaf:
        async def submit(self, key: str) -> str:
            return provider.submit(key)

        async def poll(self, task_id: str) -> Any:
            return Waiting(after=3600)

        async def cancel(self, task_id: str) -> None:
            provider.cancelled.append(task_id)
            raise ConnectionError("down")

    job = Deaf.enqueue()
    work(app)
    job.cancel()
    work(app)
    assert job.refresh().state is JobState.CANCELLED
    assert provider.cancelled == ["task-1"] * 3


def test_a_job_cancelled_during_its_submit_is_cancelled_there_too(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", **QUICK)
    class Cancelled:
        def submit(self, key: str) -> str:
            app.cancel(current_job().id)
            return provider.submit(key)

        def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

        def cancel(self, task_id: str) -> None:
            provider.cancelled.append(task_id)

    job = Cancelled.enqueue()
    work(app)
    assert job.refresh().state is JobState.CANCELLED
    assert provider.cancelled == ["task-1"]
    assert not submission(app, job).open


def test_a_submit_that_is_under_way_when_its_job_is_cancelled_is_cancelled_there_too(
    app: Dibs, provider: Provider
) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", **QUICK)
    class Waits:
        async def submit(self, key: str) -> str:
            await app.acancel(current_job().id)
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()  # until the beat tells; the request is under way all the same
            return provider.submit(key)

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

        async def cancel(self, task_id: str) -> None:
            provider.cancelled.append(task_id)

    job = Waits.enqueue()
    work(app)
    assert (job.refresh().state, provider.cancelled) == (JobState.CANCELLED, ["task-1"])


# Callbacks


def by_callback(app: Dibs, provider: Provider, addresses: list[str]) -> Task[Any, Any]:
    @app.provider_task(name="summarise", after_crash="resubmit", give_up_after=3600, retry=0.01)
    class CallsBack:
        async def submit(self, key: str) -> str:
            addresses.append(current_job().callback_url or "")
            return provider.submit(key)

    return CallsBack  # type: ignore[no-any-return]  # made by the decorator


def test_a_callback_completes_a_job(app: Dibs, provider: Provider) -> None:
    addresses: list[str] = []
    job = by_callback(app, provider, addresses).enqueue()
    work(app)
    assert job.refresh().state is JobState.PROCESSING
    assert addresses[0].startswith("https://shop.example/api/callbacks/dibsc_")
    assert app.engine.run(submissions.answer(job.id, 1, b'{"result": 7, "usage": {"tokens": 5}}'))
    assert not app.engine.run(submissions.answer(job.id, 1, b'{"result": 8}'))  # the first counts
    work(app)
    assert (job.refresh().result, job.refresh().usage) == (7, {"tokens": 5})
    assert not app.engine.run(submissions.answer(job.id, 1, b'{"result": 9}'))  # it is final
    assert job.refresh().result == 7


def test_a_callback_before_submit_has_returned_is_kept(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", give_up_after=3600)
    class Early:
        async def submit(self, key: str) -> str:
            assert await app.engine.arun(submissions.answer(current_job().id, 1, b'{"result": "early"}'))
            return provider.submit(key)

    job = Early.enqueue()
    work(app)
    assert job.refresh().result == "early"


def test_a_callback_tells_that_a_submit_was_accepted(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", after_crash="hold", give_up_after=3600, retry=0.01)
    class Breaks:
        async def submit(self, key: str) -> str:
            provider.submit(key)
            await app.engine.arun(submissions.answer(current_job().id, 1, b'{"result": "done"}'))
            raise ConnectionError("reset")

    job = Breaks.enqueue()
    work(app)
    assert job.refresh().state is JobState.FAILED  # nobody had looked yet
    job.retry()
    work(app)
    assert (job.refresh().result, len(provider.accepted)) == ("done", 1)


def test_a_callback_that_says_nothing_yet_may_be_followed_by_another(app: Dibs, provider: Provider) -> None:
    job = by_callback(app, provider, []).enqueue()
    work(app)
    assert app.engine.run(submissions.answer(job.id, 1, b'{"status": "in progress"}'))
    work(app)
    assert job.refresh().state is JobState.PROCESSING
    assert app.engine.run(submissions.answer(job.id, 1, b'{"result": 3}'))
    work(app)
    assert job.refresh().result == 3


def test_a_callback_that_cannot_be_read_does_not_keep_one_from_asking(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", **{**QUICK, "poll_every": 3600})
    class Unreadable:
        async def submit(self, key: str) -> str:
            return provider.submit(key)

        async def poll(self, task_id: str) -> Any:
            return provider.poll(task_id)

        def callback(self, body: Any) -> Any:
            raise KeyError("output")

    job = Unreadable.enqueue()
    work(app)
    app.engine.run(submissions.answer(job.id, 1, b"{}"))
    work(app)
    assert job.refresh().result == "done task-1"


def test_a_class_may_read_its_callbacks(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", give_up_after=3600)
    class Reads:
        async def submit(self, key: str) -> str:
            return provider.submit(key)

        def callback(self, body: Any) -> Any:
            return Done(body["output"]) if body["state"] == "ok" else Rejected(body["state"])

    job, bad = Reads.enqueue(), Reads.enqueue()
    work(app)
    app.engine.run(submissions.answer(job.id, 1, b'{"state": "ok", "output": 3}'))
    app.engine.run(submissions.answer(bad.id, 1, b'{"state": "broken"}'))
    work(app)
    assert job.refresh().result == 3
    assert "broken" in (bad.refresh().error or "")


def test_a_callback_for_a_cancelled_job_changes_nothing(app: Dibs, provider: Provider) -> None:
    job = by_callback(app, provider, []).enqueue()
    work(app)
    job.cancel()
    work(app)
    assert not app.engine.run(submissions.answer(job.id, 1, b'{"result": 1}'))
    assert job.refresh().state is JobState.CANCELLED


def test_who_never_calls_back_is_given_up_on(app: Dibs, provider: Provider) -> None:
    @app.provider_task(name="summarise", after_crash="resubmit", give_up_after=0.2)
    class Silent:
        async def submit(self, key: str) -> str:
            return provider.submit(key)

    job = Silent.enqueue()
    work(app)
    assert "has not answered within 0.2 s" in (job.refresh().error or "")
    assert app.engine.run(submissions.answer(job.id, 1, b'{"result": "late"}'))  # kept for whoever retries it
    job.retry()
    work(app)
    assert (job.refresh().result, len(provider.accepted)) == ("late", 1)


def test_an_address_is_good_for_its_submission_alone(app: Dibs, provider: Provider) -> None:
    addresses: list[str] = []
    job = by_callback(app, provider, addresses).enqueue()
    work(app)
    token = addresses[0].rpartition("/")[2]
    assert called(token, b"another key") is None
    assert called(token.replace(f"_{job.id}_", f"_{job.id + 1}_"), b"") is None


# Workers, and drains


def test_a_worker_hands_over_and_asks(app: Dibs, provider: Provider) -> None:
    task = declare(app, provider)

    async def run() -> list[Job]:
        async with app.running(concurrency=5):
            jobs = [await task.aenqueue(text=str(n)) for n in range(20)]
            ended = [await job.ajoin(timeout=PATIENCE) for job in jobs]
        await app.aclose()
        return ended

    ended = asyncio.run(run())
    assert {job.state for job in ended} == {JobState.SUCCESSFUL}
    assert len(provider.accepted) == len(set(provider.accepted)) == 20


def test_a_drain_says_how_many_were_handed_over(app: Dibs, provider: Provider) -> None:
    task = declare(app, provider, poll_every=3600)
    app.enqueue_many(task.call(text=str(n)) for n in range(30))
    began = time.monotonic()
    report = work(app, limit=20, concurrency=25)
    assert str(report).startswith("claimed 20 of 30 jobs")
    assert str(report).endswith("20 processing")
    assert time.monotonic() - began < PATIENCE


def test_what_a_batch_cost(app: Dibs, provider: Provider) -> None:
    task = declare(app, provider)
    provider.answers["task-1"] = Rejected("again", retry=True, usage={"tokens": 1, "model": "small"})
    with app.batch() as batch:
        batch.add(task.call(text=str(n)) for n in range(3))
    task.enqueue(text="of no batch")
    with app.batch() as other:
        other.add([task.call(text="x")])
    work(app, concurrency=1)
    assert batch.progress().successful == 3
    assert (batch.usage(), other.usage()) == (
        {"tokens": 31.0},
        {"tokens": 10.0},
    )  # what was rejected cost something, too


# Of a batch


def test_jobs_of_a_batch_are_counted_when_their_provider_is_done(app: Dibs, provider: Provider) -> None:
    said: list[int] = []

    @app.task(name="completed")
    def completed(batch_id: int) -> None:
        said.append(batch_id)

    summarise = declare(app, provider, poll_every=60)
    with app.batch(on_complete=completed) as batch:
        ids = batch.add(summarise.call(text=str(n)) for n in range(600))
    work(app)
    seen = batch.progress()
    assert (seen.processing, seen.unfinished, seen.state) == (600, 600, "CLOSED")
    assert app.cancel(ids[0])  # its provider has to be told first
    assert batch.progress().unfinished == 600
    work(app)
    assert (batch.progress().cancelled, batch.progress().processing) == (1, 599)
    Actors(app.engine).make_due()
    work(app)
    assert (batch.progress().successful, batch.progress().cancelled, said) == (599, 1, [batch.id])
