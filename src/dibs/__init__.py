"""dibs: background jobs on the database you already have. Every job has one owner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.app import Dibs
    from dibs.batch import BatchProgress
    from dibs.batches import Batch
    from dibs.calls import Call, Task
    from dibs.context import CurrentJob, current_job
    from dibs.errors import DibsError
    from dibs.job import Job, JobState
    from dibs.provider import Rejected, Waiting
    from dibs.retry import Permanent, RetryAfter, exponential
    from dibs.task import AlreadyDone as Done
    from dibs.worker.report import DrainReport

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BatchProgress",
    "Call",
    "CurrentJob",
    "Dibs",
    "DibsError",
    "Done",
    "DrainReport",
    "Job",
    "JobState",
    "Permanent",
    "Rejected",
    "RetryAfter",
    "Task",
    "Waiting",
    "current_job",
    "exponential",
]

# Loaded when first asked for: who only catches DibsError need not wait for a worker to be loaded.
_PLACES = {
    "Batch": "dibs.batches:Batch",
    "BatchProgress": "dibs.batch:BatchProgress",
    "Call": "dibs.calls:Call",
    "CurrentJob": "dibs.context:CurrentJob",
    "Dibs": "dibs.app:Dibs",
    "DibsError": "dibs.errors:DibsError",
    "Done": "dibs.task:AlreadyDone",
    "DrainReport": "dibs.worker.report:DrainReport",
    "Job": "dibs.job:Job",
    "JobState": "dibs.job:JobState",
    "Permanent": "dibs.retry:Permanent",
    "Rejected": "dibs.provider:Rejected",
    "RetryAfter": "dibs.retry:RetryAfter",
    "Task": "dibs.calls:Task",
    "Waiting": "dibs.provider:Waiting",
    "current_job": "dibs.context:current_job",
    "exponential": "dibs.retry:exponential",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    found: object = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
