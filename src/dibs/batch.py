"""What a batch is: its counts, whether it is open, closed or finished, and the jobs that it adds then. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from dibs.calls import Call, Task
from dibs.errors import InvalidOption, InvalidPayload
from dibs.job import NewJob
from dibs.payload import encode

BatchId = NewType("BatchId", int)

HOOKS = ("on_complete", "on_success", "on_failure")


class BatchState(StrEnum):
    """The words people see: it takes jobs from anywhere, from its own jobs alone, or it has had its end.

    >>> BatchState.OPEN == "OPEN"
    True
    """

    OPEN = "OPEN"
    CLOSED = "CLOSED"
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch was when somebody looked. The numbers are exact.

    `waiting`, `retry`, `running` and `processing` tell what the unfinished ones do; they are None where more than
    10,000 are unfinished, or where nobody asked.

    >>> progress = BatchProgress(id=7, total=3, successful=1, failed=1)
    >>> progress.unfinished, progress.state.value
    (1, 'OPEN')
    """

    id: BatchId | int
    name: str | None = None
    total: int = 0
    successful: int = 0
    failed: int = 0
    cancelled: int = 0
    waiting: int | None = None
    retry: int | None = None
    running: int | None = None
    processing: int | None = None
    created_at: datetime | None = None
    closed_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def unfinished(self) -> int:
        """Jobs that are not final yet."""
        return self.total - self.successful - self.failed - self.cancelled

    @property
    def state(self) -> BatchState:
        """OPEN, CLOSED or FINISHED. One that is FINISHED stays so, whoever retries its jobs."""
        if self.finished_at is not None:
            return BatchState.FINISHED
        return BatchState.OPEN if self.closed_at is None else BatchState.CLOSED


def hooks(**wanted: Any) -> bytes | None:
    """What is added when a batch finishes, checked and encoded; None when nothing is."""
    listed = [_hook(name, hook) for name, hook in wanted.items() if hook is not None]
    return encode(listed, what="hooks") if listed else None


def _hook(name: str, hook: Any) -> dict[str, Any]:
    job = _job(name, hook)
    if job.unique_key is not None:
        raise InvalidOption(name, "cannot have a unique_key: it is added once for each batch anyway")
    return {
        "hook": name,
        "queue": job.queue,
        "rank": job.rank,
        "type": job.type,
        "run_at": None if job.run_at is None else job.run_at.timestamp(),
        "delay": job.delay,
        "max_attempts": job.max_attempts,
        "payload": None if job.payload is None else job.payload.decode(),
        "tags": None if job.tags is None else job.tags.decode(),
        "submits": job.submits,
    }


def _job(name: str, hook: Any) -> NewJob:
    """A call as it is; a task is called with the id of the batch, which is known when there is one."""
    match hook:
        case Call(job=job):
            return job
        case Task():
            try:
                return hook.call(batch_id=1).job._replace(payload=None)
            except InvalidPayload as error:
                raise InvalidOption(
                    name, f"{hook.name} is called with batch_id, and does not take it ({error}). Or say task.call(...)"
                ) from None
    raise InvalidOption(name, f"must be a task or a task.call(...), not {type(hook).__name__}")
