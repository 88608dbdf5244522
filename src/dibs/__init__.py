"""dibs: background jobs on the database you already have. Every job has one owner."""

from dibs.app import Call, Dibs, Task
from dibs.errors import DibsError
from dibs.job import Job, JobState
from dibs.retry import exponential
from dibs.worker.drain import DrainReport

__version__ = "0.1.0"

__all__ = ["Call", "Dibs", "DibsError", "DrainReport", "Job", "JobState", "Task", "exponential"]
