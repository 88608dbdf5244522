"""The whole error tree. Fields carry the facts, the message is for people: what happened, why, and what to do next.

DibsError
├── ConfigError                 a setting or URL is wrong
│   ├── UnknownScheme           a URL that is neither sqlite nor postgresql
│   ├── MissingDriver           an extra is not installed
│   └── NotAdoptable            a table is not what was said of it
├── InvalidJob (ValueError)     a job or an option that cannot be stored; nothing was written
│   ├── InvalidPayload          not JSON, or not what the task's signature says
│   │   └── PayloadTooLarge
│   └── InvalidOption           priority, name, time, limit ... out of range
├── TaskError
│   ├── UnknownTask             no task of that name is declared
│   ├── DuplicateTask           two tasks of one name
│   ├── NoCurrentJob            current_job() outside of a job
│   └── ProcessDied             the process of a job ended before the job did
├── JobNotFound (LookupError)
├── BatchNotFound (LookupError)
├── BatchClosed                 jobs for a batch that takes no more
├── NotRetryable                only FAILED and CANCELLED jobs can be retried by a person
├── UniqueKeyHeld               another job holds the unique key
├── JoinTimeout (TimeoutError)  the job was not final in time, or the batch not finished
├── LeaseLost                   the job was taken over; nothing was written
└── DatabaseError
    ├── Unreachable             no server, no route, no such host
    ├── AccessDenied            password, role or privilege
    ├── DatabaseMissing         the database, file or directory does not exist
    ├── ReadOnlyDatabase
    ├── NotADatabase            the file is something else
    ├── UnsafeFileSystem        SQLite on a network file system
    ├── ForeignConnection       a caller's connection that cannot carry a job
    ├── DiskFull
    ├── DatabaseLocked          somebody else holds the write lock
    ├── TransactionTooLong      a task held SQLite's only write lock too long; rolled back
    ├── Conflict                the database refused for now; nothing was written; may be repeated
    │   └── Locked              somebody else holds a lock on a row or a table
    ├── ConnectionLost          the answer did not come
    ├── DeadlineExceeded        still not possible after the time allowed
    ├── OutcomeUnknown          the commit was sent and not answered
    ├── Refused                 the database does not accept the data
    ├── NotMigrated             the schema is missing or old
    └── NewerDatabase           the schema is newer than this code
"""

from collections.abc import Iterable


class DibsError(Exception):
    """Everything that dibs raises on purpose.

    >>> issubclass(JobNotFound, DibsError)
    True
    """


class ConfigError(DibsError):
    """A setting or URL is wrong."""


class UnknownScheme(ConfigError):
    """The URL is neither sqlite nor postgresql."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        super().__init__(
            f"I do not know databases of the kind {scheme!r}. Use sqlite:///file.db or postgresql://user@host/database."
        )


class MissingDriver(ConfigError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, trouble: str | None = None) -> None:
        self.package, self.extra = package, extra
        found = f"does not work here ({trouble})" if trouble else "is not installed"
        super().__init__(f"{package} {found}, and this URL needs it: pip install 'dibs[{extra}]'")


class NotAdoptable(ConfigError):
    """A table is not what was said of it when it was adopted."""

    def __init__(self, table: str, problem: str) -> None:
        self.table = table
        super().__init__(f"{table[:200]} cannot be adopted: {problem}.".replace("..", "."))


class InvalidJob(DibsError, ValueError):
    """A job that cannot be stored. Nothing was written."""


class InvalidPayload(InvalidJob):
    """The payload is not JSON, or not what the task's signature says."""


class PayloadTooLarge(InvalidPayload):
    """The encoded payload or result is over the limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            f"The {what} has {size:,} bytes of JSON, and {limit:,} are allowed. "
            "Store large data elsewhere and pass its key, or raise max_payload."
        )


class InvalidOption(InvalidJob):
    """An option is out of range; `option` names it."""

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        super().__init__(f"{option}: {problem}")


class TaskError(DibsError):
    """Something is wrong with the declared tasks."""


class UnknownTask(TaskError):
    """No task of that name is declared in this app."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        from difflib import get_close_matches  # only when somebody is mistaken

        self.name = name
        close = get_close_matches(name, known, 1)
        hint = f"Did you mean {close[0]!r}?" if close else "Is the module that declares it imported?"
        super().__init__(f"No task is named {name[:200]!r} in this app. {hint}")


class DuplicateTask(TaskError):
    """Two functions want the same task name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Two tasks are named {name!r}. Give one of them another name: @app.task(name=...).")


class NoCurrentJob(TaskError):
    """current_job() was called where no job runs."""

    def __init__(self) -> None:
        super().__init__("No job runs here. current_job() is for the code of a task while a worker runs it.")


class ProcessDied(TaskError):
    """The process that a job ran in ended before the job did; its worker and the other jobs go on."""

    def __init__(self, how: str) -> None:
        super().__init__(f"The process of the job {how} before the job had ended.")


class JobNotFound(DibsError, LookupError):
    """No job has this id (any more)."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"There is no job {job_id}. It may be past its retention.")


class BatchNotFound(DibsError, LookupError):
    """No batch has this id (any more)."""

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id
        super().__init__(f"There is no batch {batch_id}. It may be past its retention.")


class BatchClosed(DibsError):
    """The batch takes no more jobs from here. Nothing was written."""

    def __init__(self, batch_id: int, *, finished: bool) -> None:
        self.batch_id, self.finished = batch_id, finished
        what = "has finished" if finished else "is closed: only its own jobs may add to it, while they run"
        super().__init__(f"Batch {batch_id} {what}. Begin another one for these jobs: with app.batch(...).")


class NotRetryable(DibsError):
    """Only FAILED and CANCELLED jobs can be retried by a person."""

    def __init__(self, job_id: int, state: str) -> None:
        self.job_id, self.state = job_id, state
        super().__init__(f"Job {job_id} is {state}. Only FAILED and CANCELLED jobs can be retried.")


class UniqueKeyHeld(DibsError):
    """The unique key that this job needs is held by another."""

    def __init__(self, job_id: int, holder: int | None) -> None:
        self.job_id, self.holder = job_id, holder
        super().__init__(
            f"Job {job_id} cannot be retried: job {holder} holds its unique key. Wait for that one or cancel it."
        )


class JoinTimeout(DibsError, TimeoutError):
    """The job was not final, or the batch not finished, within the time that join was given."""

    def __init__(self, job_id: int, state: str, timeout: float, *, what: str = "Job") -> None:
        self.job_id, self.state = job_id, state
        hint = "Nobody has closed it." if state == "OPEN" else "Is a worker running that knows its task?"
        super().__init__(f"{what} {job_id} is still {state} after {timeout:g} s. {hint}")


class LeaseLost(DibsError):
    """The job was taken over, cancelled or finished by somebody else. Nothing was written."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(f"Job {job_id} is no longer ours: it was taken over or cancelled. Nothing was written.")


class DatabaseError(DibsError):
    """The database did not do what was asked."""


class Unreachable(DatabaseError):
    """No server answers."""


class AccessDenied(DatabaseError):
    """The password, the role or its privileges do not suffice."""


class DatabaseMissing(DatabaseError):
    """The database, the file or its directory does not exist."""


class ReadOnlyDatabase(DatabaseError):
    """The database can be read but not written."""


class NotADatabase(DatabaseError):
    """The file is something else."""


class UnsafeFileSystem(DatabaseError):
    """SQLite's locks do not hold on this file system."""


class ForeignConnection(DatabaseError):
    """The caller's connection cannot carry a job."""


class DiskFull(DatabaseError):
    """There is no room left. Nothing was written."""


class DatabaseLocked(DatabaseError):
    """Somebody else holds the write lock for too long."""


class TransactionTooLong(DatabaseError):
    """A task's own transaction held SQLite's only write lock for too long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"The transaction was open for over {seconds:g} s and was rolled back: on SQLite it keeps everybody else "
            "from writing. Do the slow part before it, or use PostgreSQL."
        )


class Conflict(DatabaseError):
    """The database refused for now, nothing was written, and it may be repeated."""


class Locked(Conflict):
    """Somebody else holds a lock on a row or a table for longer than is waited for."""


class ConnectionLost(DatabaseError):
    """The connection broke before the answer came."""


class DeadlineExceeded(DatabaseError):
    """Still not possible after the time allowed."""


class OutcomeUnknown(DatabaseError):
    """The commit was sent and not answered: the job may or may not be there. A unique key makes it safe to repeat."""


class Refused(DatabaseError):
    """The database does not accept the data."""


class NotMigrated(DatabaseError):
    """The schema is missing or older than this code."""


class NewerDatabase(DatabaseError):
    """The schema is newer than this code."""
