"""dibs: background jobs on the database you already have. Every job has one owner."""

from dibs.app import Dibs
from dibs.calls import Call, Task
from dibs.context import CurrentJob, current_job
from dibs.errors import DibsError
from dibs.job import Job, JobState
from dibs.retry import Permanent, RetryAfter, exponential
from dibs.task import AlreadyDone as Done
from dibs.worker.drain import DrainReport

__version__ = "0.1.0"

__all__ = [
    "Call",
    "CurrentJob",
    "Dibs",
    "DibsError",
    "Done",
    "DrainReport",
    "Job",
    "JobState",
    "Permanent",
    "RetryAfter",
    "Task",
    "current_job",
    "exponential",
]
