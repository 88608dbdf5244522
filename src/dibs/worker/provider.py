"""Handing jobs to a provider, once each: submit, ask what became of it, tell it of a cancel.

A submission is noted before the provider is asked. One that did not return (a crash, a lost lease, an exception) may
have been accepted all the same: the provider is asked before a new one is made. See docs/design/providers.md.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Protocol, TypeVar

from dibs.context import CurrentJob, Snooze
from dibs.engines.engine import Engine
from dibs.errors import InvalidPayload, LeaseLost, Refused
from dibs.job import Claimed, JobState
from dibs.lifecycle import (
    CANCELLING,
    Back,
    Change,
    Committed,
    Done,
    Errored,
    Outcome,
    Polled,
    Way,
    after,
    hook_is_spent,
)
from dibs.operations import jobs, submissions, tokens
from dibs.operations.claims import Settle
from dibs.operations.operation import Operation
from dibs.operations.submissions import Begun, Ending, Submission
from dibs.payload import MAX_BYTES, decode, encode
from dibs.provider import TIMEOUT, Answer, ProviderTask, Rejected, Waiting, answered, checked_task_id
from dibs.retry import RetryAfter, bounded
from dibs.task import AlreadyDone
from dibs.tokens import CALLBACKS, callback_token
from dibs.worker.questions import Questions, due_in

T = TypeVar("T")

log = logging.getLogger("dibs")

CANCEL_TRIES = 3
LAST_WORDS = 1.0  # seconds that a submit has to end in, when it is told to stop
THREAD_PATIENCE = 10  # times its timeout: so long is a submit waited for that runs in a thread


class Calls(Protocol):
    """Runs a method of the task's class in its own way, within its time; `current`: inside that job's middleware."""

    def __call__(
        self, task: ProviderTask, method: Callable[[], Any], current: CurrentJob | None = None
    ) -> Awaitable[Any]:
        """What it returned."""


class Held(Exception):
    """Nobody knows whether the provider has accepted it; a person is to decide."""


class Declined(Exception):
    """The provider will not do it, or could not."""


class GivenUp(Exception):
    """The provider did not answer in time."""


@dataclass(slots=True)
class Providers:
    """What jobs are handed over with. `failed` says what an exception comes to."""

    engine: Engine
    call: Calls
    failed: Callable[[ProviderTask, Claimed, BaseException], Errored]
    public_url: str = ""
    signing: bytes | None = None
    questions: dict[str, Questions] = field(default_factory=dict)
    late: set[asyncio.Task[Any]] = field(default_factory=set)  # threads that nobody waits for any more

    async def run(self, task: ProviderTask, job: Claimed, current: CurrentJob) -> Outcome | Committed | None:
        """What one claim of a job comes to; None: it is to be finished like any other."""
        if job.finishing >= CANCELLING:
            return await self._cancel(task, job)
        if job.finishing < 0:
            return await self._poll(task, job, current)
        if job.finishing > 0:
            return None if hook_is_spent(job) else await self._last_question(task, job, current)
        return await self._submit(task, job, current)

    # Submitting

    async def _submit(self, task: ProviderTask, job: Claimed, current: CurrentJob) -> Outcome | Committed:
        try:
            arguments = task.signature.load(job.payload)
        except InvalidPayload as error:
            return self._final(task, job, error)
        begun = await self.engine.arun(submissions.begin(job.lease, task.name, "dibs-" + secrets.token_hex(16)))
        await self._introduce(job, current, begun)
        ended = await self._called_back(task, job, begun)
        if ended is not None:
            return ended
        known = await self._known(task, begun, arguments)
        if known is not None:
            log.warning("Job %s was submitted before: a duplicate was prevented", job.id)
            return await self._accepted(task, job, begun.round, known)
        if begun.tried and _holds(task):
            return await self._hold(task, job, begun)
        return await self._to_its_end(task, job, self._ask(task, job, current, begun, arguments))

    async def _introduce(self, job: Claimed, current: CurrentJob, begun: Begun) -> None:
        """What `current_job()` knows of the submission."""
        if self.signing is None:
            self.signing = bytes.fromhex(await self.engine.arun(tokens.secret(CALLBACKS, secrets.token_hex(32))))
        current.key = begun.key
        token = callback_token(job.id, begun.round, self.signing)
        current.callback_url = f"{self.public_url.rstrip('/')}/api/callbacks/{token}"

    async def _known(self, task: ProviderTask, begun: Begun, arguments: dict[str, Any]) -> str | None:
        """A submit did not return: has the provider accepted it all the same?"""
        if begun.task_id is not None:
            return begun.task_id
        if not begun.tried or task.reconciles is None:
            return None
        found = await self.call(task, partial(task.reconciles, **_with_key(task, arguments, begun.key)))
        return None if found is None else checked_task_id(found)

    async def _ask(
        self, task: ProviderTask, job: Claimed, current: CurrentJob, begun: Begun, arguments: dict[str, Any]
    ) -> Outcome | Committed:
        said = _with_key(task, arguments, begun.key)
        try:
            answer = await self.call(task, partial(task.function, **said), current)
        except (RetryAfter, Snooze):  # the provider has answered, and did not accept
            await self.engine.arun(submissions.refuse(job.lease, begun.round))
            raise
        except Exception as error:
            if not _holds(task):
                raise
            return await self._hold(task, job, begun, error)
        if isinstance(answer, Rejected):
            return await self._rejected(task, job, begun.round, answer)
        return await self._accepted(task, job, begun.round, checked_task_id(answer))

    async def _to_its_end(
        self, task: ProviderTask, job: Claimed, work: Coroutine[Any, Any, Outcome | Committed]
    ) -> Outcome | Committed:
        """What the provider answers is noted, also by who is told to stop. A coroutine has a moment for it; a thread
        cannot be stopped, so the job stays in its hands, or somebody else would ask the provider at the same time."""
        submit = asyncio.create_task(work, name="submit")
        try:
            async with asyncio.timeout(None if task.is_async else task.timeout):
                return await asyncio.shield(submit)
        except (asyncio.CancelledError, TimeoutError):
            if submit.done():
                return submit.result()
        self.late.add(submit)
        submit.add_done_callback(self._ended_late)
        if task.is_async:
            await _ended(submit, LAST_WORDS)
            submit.cancel()
            patience = LAST_WORDS
        else:
            log.warning("Job %s: its submit is a thread, which nobody can stop. It is waited for", job.id)
            patience = (task.timeout or TIMEOUT) * THREAD_PATIENCE
        if not await _ended(submit, patience):
            raise TimeoutError(f"its submit does not end within {patience:g} s, and goes on")
        return submit.result()

    def _ended_late(self, submit: asyncio.Task[Any]) -> None:
        self.late.discard(submit)
        if not submit.cancelled() and submit.exception() is not None:
            log.info("A submit that took too long has ended: %s", submit.exception())

    async def _called_back(self, task: ProviderTask, job: Claimed, begun: Begun) -> Committed | None:
        """Its submit did not return; if the provider has called back since, it had accepted."""
        if begun.answer is None or begun.task_id is not None:
            return None
        answer = await self._said(task, job, begun.round, begun.answer)
        if isinstance(answer, AlreadyDone):
            return await self._done(task, job, begun.round, answer)
        return await self._rejected(task, job, begun.round, answer) if isinstance(answer, Rejected) else None

    async def _accepted(self, task: ProviderTask, job: Claimed, round: int, task_id: str) -> Committed:
        delay = due_in(task, task.poll_every if task.asks else task.give_up_after)
        accept = submissions.accept(job.lease, task.name, round, task_id, delay)
        try:
            accepted = await self._surely(accept)
        except Refused:  # somebody has noted the same id at the same moment, and can be seen now
            accepted = await self._surely(accept)
        if accepted.processing:
            return Committed(Back(Way.SUBMITTED, delay))
        if accepted.taken_by is not None:
            error = Declined(f"the provider gave it the id {task_id[:200]!r}, which is that of job {accepted.taken_by}")
            return await self._conclude(task, job, round, self._final(task, job, error), Ending("held", open=True))
        if accepted.second:
            log.error("Job %s was accepted twice by the provider: %s, too, is kept", job.id, task_id[:200])
        elif accepted.noted:
            log.warning("Job %s was accepted as %s after it was taken over or cancelled", job.id, task_id[:200])
            await self._tell_if_cancelled(task, job, round, task_id)
        raise LeaseLost(job.id)

    async def _tell_if_cancelled(self, task: ProviderTask, job: Claimed, round: int, task_id: str) -> None:
        found = await self.engine.arun(jobs.get(job.id))
        if found.state is JobState.CANCELLED and task.cancels is not None:
            await self.call(task, partial(task.cancels, task_id))
            await self.engine.arun(submissions.end_cancelled(job.id, round))

    async def _hold(
        self, task: ProviderTask, job: Claimed, begun: Begun, error: BaseException | None = None
    ) -> Committed:
        why = "an earlier submit did not return" if error is None else f"{type(error).__name__}: {error}"
        held = Held(
            f"{why}, so the provider may have accepted it. Look there for the key {begun.key}; retry it to submit it"
        )
        held.__cause__ = error
        return await self._conclude(task, job, begun.round, self._final(task, job, held), Ending("held", open=True))

    async def _last_question(self, task: ProviderTask, job: Claimed, current: CurrentJob) -> Committed | None:
        """Its attempts are used up; but the last of them may have been accepted."""
        found = await self.engine.arun(submissions.last(job.id))
        if found is None or not (found.open and found.tried):
            return None
        begun = Begun(found.round, found.key, found.tried, found.task_id)
        await self._introduce(job, current, begun)
        known = await self._known(task, begun, task.signature.load(job.payload))
        return None if known is None else await self._accepted(task, job, begun.round, known)

    # Asking

    async def _poll(self, task: ProviderTask, job: Claimed, current: CurrentJob) -> Outcome | Committed:
        found = await self.engine.arun(submissions.last(job.id))
        if found is None or found.task_id is None:
            return self._final(task, job, LookupError("its submission is not there any more"))
        left = task.give_up_after - (found.age or 0.0)
        failure: bytes | None = None
        try:
            answer = await self._answer(task, job, found, found.task_id)
        except (RetryAfter, Snooze) as later:
            answer = Waiting(after=bounded(later.seconds))
        except (
            BaseException
        ) as error:  # that is no attempt: what was accepted is asked after until there is no time left
            if current.cancelled:
                raise
            log.warning("What became of job %s could not be asked: %s: %s", job.id, type(error).__name__, error)
            answer, failure = Waiting(), self.failed(task, job, error).failure
        if isinstance(answer, AlreadyDone):
            return await self._done(task, job, found.round, answer)
        if isinstance(answer, Rejected):
            return await self._rejected(task, job, found.round, answer)
        if left <= 0:
            return await self._give_up(task, job, found)
        wanted = task.poll_every if answer.after is None else answer.after
        return Polled(due_in(task, min(wanted if task.asks or failure else left, left)), failure)

    async def _answer(self, task: ProviderTask, job: Claimed, found: Submission, task_id: str) -> Answer:
        """What a callback has said, else what the provider says now."""
        if found.answer is not None:
            try:
                said = await self._said(task, job, found.round, found.answer)
            except Exception as error:
                if not task.asks:
                    raise
                log.warning("What the provider of job %s called back cannot be read: %s", job.id, error)
                said = Waiting()
            if not (isinstance(said, Waiting) and task.asks):
                return said
        if task.polls_many is not None:
            return _checked(await self._questions(task).ask(task_id))
        if task.polls is not None:
            return _checked(await self.call(task, partial(task.polls, task_id)))
        return Waiting()

    async def _said(self, task: ProviderTask, job: Claimed, round: int, document: bytes | str | None) -> Answer:
        """What a callback said. If that was nothing yet, another may come."""
        body = decode(document)
        answer = _checked(answered(body) if task.reads is None else await self.call(task, partial(task.reads, body)))
        if isinstance(answer, Waiting):
            await self.engine.arun(submissions.forget_answer(job.lease, round))
        return answer

    def _questions(self, task: ProviderTask) -> Questions:
        if task.name not in self.questions:
            many = task.polls_many
            assert many is not None
            self.questions[task.name] = Questions(lambda ids: self.call(task, partial(many, ids)))
        return self.questions[task.name]

    async def _done(self, task: ProviderTask, job: Claimed, round: int, answer: AlreadyDone) -> Committed:
        usage = None
        try:
            usage = _encoded(answer.usage, "usage")
            change = Done(JobState.SUCCESSFUL, _encoded(answer.result, "result", task.max_payload))
        except InvalidPayload as error:  # it was done, and cannot be stored; a retry asks for it again
            return await self._conclude(
                task, job, round, self._final(task, job, error), Ending("done", usage, open=True)
            )
        return await self._conclude(task, job, round, change, Ending("done", usage))

    async def _rejected(self, task: ProviderTask, job: Claimed, round: int, answer: Rejected) -> Committed:
        failed = self.failed(task, job, Declined(answer.reason))
        failed = Errored(failed.failure, not answer.retry, failed.delay)
        try:
            usage = _encoded(answer.usage, "usage")
        except InvalidPayload as error:
            log.warning("What job %s was charged for cannot be stored: %s", job.id, error)
            usage = None
        return await self._conclude(task, job, round, failed, Ending("rejected", usage))

    async def _give_up(self, task: ProviderTask, job: Claimed, found: Submission) -> Committed:
        error = GivenUp(f"the provider has not answered within {task.give_up_after:g} s. Retry this job to ask again")
        return await self._conclude(
            task, job, found.round, self._final(task, job, error), Ending("given up", open=True)
        )

    # The end

    async def _cancel(self, task: ProviderTask, job: Claimed) -> Outcome | Committed:
        found = await self.engine.arun(submissions.last(job.id))
        if found is not None and found.task_id is not None and task.cancels is not None:
            try:
                await self.call(task, partial(task.cancels, found.task_id))
            except Exception as error:
                log.warning("The provider could not be told that job %s is cancelled: %s", job.id, error)
                if job.finishing - CANCELLING < CANCEL_TRIES:
                    return Errored(self.failed(task, job, error).failure)
        round = 0 if found is None else found.round
        return await self._conclude(task, job, round, Done(JobState.CANCELLED), Ending("cancelled"))

    async def _conclude(
        self, task: ProviderTask, job: Claimed, round: int, came_to: Change | Errored, ending: Ending
    ) -> Committed:
        """The submission ends, and its job comes to this, in one moment."""
        if isinstance(came_to, Errored):
            came_to = after(job, came_to, task.retry, has_hook=task.on_failure is not None)
        settle = Settle(job.lease, came_to, task.keep, job.attempts)
        turn = await self._surely(submissions.conclude(settle, round, ending))
        became = turn.became(job.id, came_to)
        if became is None:
            raise LeaseLost(job.id)
        return Committed(became)

    async def _surely(self, operation: Operation[T]) -> T:
        """What the provider has said is written down, also by who is told to stop meanwhile."""
        writing = asyncio.create_task(self.engine.arun(operation), name=operation.name)
        await _ended(writing)
        return writing.result()

    def _final(self, task: ProviderTask, job: Claimed, error: BaseException) -> Errored:
        return Errored(self.failed(task, job, error).failure, permanent=True)


def _with_key(task: ProviderTask, arguments: dict[str, Any], key: str) -> dict[str, Any]:
    return {**arguments, "key": key} if task.takes_key else arguments


def _holds(task: ProviderTask) -> bool:
    return task.reconciles is None and task.after_crash == "hold"


async def _ended(task: asyncio.Task[Any], seconds: float = inf) -> bool:
    """Whether it ends within this time; also for who is told to stop meanwhile, however often."""
    until = time.monotonic() + seconds
    while not task.done() and time.monotonic() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=None if seconds == inf else until - time.monotonic())
    return task.done()


def _checked(answer: Any) -> Answer:
    if not isinstance(answer, AlreadyDone | Waiting | Rejected):
        raise TypeError(f"say Done, Waiting or Rejected, not {repr(answer)[:100]}")
    return answer


def _encoded(value: Any, what: str, limit: int = MAX_BYTES) -> bytes | None:
    return None if value is None else encode(value, limit, what=what)
