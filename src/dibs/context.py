"""current_job(): what a task can know and say about the job that it runs. The worker hands in how it is carried out."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

from dibs.errors import InvalidOption, NoCurrentJob
from dibs.job import Claimed, JobId, Lease, checked_number
from dibs.payload import decode, encode
from dibs.retry import MAX_DELAY

LONGEST_MESSAGE = 1_000

_current: ContextVar[CurrentJob] = ContextVar("dibs_current_job")


class Snooze(BaseException):  # not an Exception: a task's own `except Exception` must not swallow it
    """Run me later; the attempt is not used."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"snoozed for {seconds:g} s")


class CurrentJob:
    """The job that runs here: the same in coroutines, threads and processes.

    `cancelled` becomes true when the job was cancelled or taken over: a long task that cannot be interrupted looks at
    it and ends. `result`, set inside `transaction()`, is what the job keeps.
    """

    __slots__ = (
        "_batch",
        "_begin",
        "_payload",
        "_tell",
        "attempt",
        "began",
        "callback_url",
        "cancelled",
        "key",
        "lease",
        "max_attempts",
        "queue",
        "result",
        "settled",
        "type",
        "worker",
    )

    def __init__(
        self,
        job: Claimed,
        worker: str,
        tell: Callable[[Lease, bytes], None],
        begin: Callable[[CurrentJob, Any], Any],
        batch: tuple[Callable[[int], Any], Callable[[int], Any]] | None = None,
    ) -> None:
        self.lease, self._payload, self.worker = job.lease, job.payload, worker
        self.type, self.queue, self.attempt, self.max_attempts = job.type, job.queue, job.attempts, job.max_attempts
        self._tell, self._begin, self._batch = tell, begin, batch
        self.result: Any = None
        self.cancelled = False
        self.began = self.settled = False  # its own transaction
        self.key: str | None = None  # of a job that is handed to a provider: the same however often it is tried
        self.callback_url: str | None = None  # where its provider may say what became of it

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.lease.job_id

    @property
    def payload(self) -> Any:
        """The arguments, as plain JSON data."""
        return decode(self._payload)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far it is. Never waits: what is said last is stored a little later."""
        checked_number("done", done, -1e15, 1e15, whole=False)
        if total is not None:
            checked_number("total", total, -1e15, 1e15, whole=False)
        if message is not None and (not isinstance(message, str) or len(message) > LONGEST_MESSAGE):
            raise InvalidOption("message", f"must be a text of at most {LONGEST_MESSAGE:,} characters")
        self._tell(self.lease, encode({"done": done, "total": total, "message": message}, what="progress"))

    def snooze(self, seconds: float) -> NoReturn:
        """Stop here and run again after so many seconds; the attempt is not used."""
        raise Snooze(checked_number("seconds", seconds, 0, MAX_DELAY, whole=False))

    def transaction(self, session: Any = None) -> Any:
        """A transaction of the database that holds the jobs: its effects and SUCCESSFUL commit together, or neither.

        `with` in sync tasks, `async with` in async ones; yields the driver's own connection. Or join your own: a
        SQLAlchemy session or Django's connection. Once in an attempt. When the job is no longer ours: rolled back, and
        LeaseLost is raised.
        """
        return self._begin(self, session)

    def batch(self) -> Any:
        """The batch that it belongs to, or None: a job may add more to its own batch."""
        return None if self._batch is None else self._batch[0](self.id)

    async def abatch(self) -> Any:
        """The same for async code."""
        return None if self._batch is None else await self._batch[1](self.id)


def lease_here() -> Lease | None:
    """Of the job that runs here, if one does."""
    found = _current.get(None)
    return None if found is None else found.lease


def current_job() -> CurrentJob:
    """The job that runs here.

    >>> from dibs import Dibs
    >>> app = Dibs("sqlite:///shop.db")
    >>> @app.task
    ... def which() -> int:
    ...     return current_job().attempt
    >>> job = which.enqueue()
    >>> print(app.drain().successful, app.get(job.id).result)
    1 1
    """
    try:
        return _current.get()
    except LookupError:
        raise NoCurrentJob from None


def enter(job: CurrentJob) -> None:
    """From here on, in this context, it is the current one."""
    _current.set(job)
