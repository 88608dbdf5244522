"""Small words for tests: add a job, claim it, settle it, let its worker die. Each is one operation on the engine."""

import secrets
from dataclasses import dataclass, field
from typing import Any

from dibs.engines.dialect import Step
from dibs.engines.engine import Engine
from dibs.job import Claimed, Job, JobId, JobState, Lease, NewJob, WorkerId
from dibs.ladder import START
from dibs.lifecycle import Back, Change, Done, Way, failure
from dibs.operations import claims, jobs, queues, workers
from dibs.operations.operation import Conversation, Operation, Rows, Statement
from dibs.operations.workers import NUMBER_BITS, Beat, Recovered
from dibs.payload import encode

EVERY_RANK = range(20)  # plain and last attempts; suspects come by their own limit


@dataclass
class Worker:
    """One worker, with its number and the claims that it has made."""

    engine: Engine
    id: WorkerId
    name: str
    turns: int = 0
    held: list[Lease] = field(default_factory=list)

    def claim(
        self, limit: int = 1, *queues: str, suspects: int = 1, settles: list[claims.Settle] | None = None, **more: Any
    ) -> list[Claimed]:
        """Claim, and settle first if asked to."""
        return self.turn(settles or [], limit, *queues, suspects=suspects, **more).claimed

    def turn(
        self,
        settles: list[claims.Settle],
        limit: int = 1,
        *queues: str,
        suspects: int = 1,
        ranks: Any = EVERY_RANK,
        unknown: Any = (),
    ) -> claims.Turn:
        """Settle what is done, claim what is next, from the beginning of every range."""
        self.turns += 1
        ranges = [(queue, rank, *START) for queue in queues or ("default",) for rank in ranks]
        want = claims.Want(self.id, self.turns, limit, ranges, suspects, unknown)
        return self.engine.run(claims.turn(want, settles))

    def settle(self, job: Claimed, change: Change) -> claims.Turn:
        """Write one outcome back."""
        return self.engine.run(claims.settle([claims.Settle(job.lease, change)]))

    def succeed(self, job: Claimed, result: Any = None) -> claims.Turn:
        """It ran."""
        return self.settle(job, Done(JobState.SUCCESSFUL, result=None if result is None else encode(result)))

    def fail(self, job: Claimed, error: str = "boom") -> claims.Turn:
        """It is FAILED for good."""
        return self.settle(job, Done(JobState.FAILED, failure=encode(failure(job.attempts, error))))

    def retry(self, job: Claimed, delay: float = 0.0, error: str = "boom") -> claims.Turn:
        """It failed and waits for another attempt."""
        return self.settle(job, Back(Way.RETRY, delay, encode(failure(job.attempts, error))))

    def beat(self, *held: Lease, steady: bool = True, asking: bool = True) -> Beat:
        """Say that we live."""
        asks = [self.id] if asking else []
        return self.engine.run(workers.beat([self.id], held, steady=steady, asking=asks))


@dataclass
class Actors:
    """Whoever uses the engine in a test."""

    engine: Engine

    def add(self, type: str = "task", payload: Any = None, **options: Any) -> JobId:
        """Add one job; its id."""
        job = NewJob(type, None if payload is None else encode(payload), **options)
        operation = jobs.add_keyed([job]) if job.unique_key else jobs.add(job)
        added = self.engine.run(operation)  # type: ignore[arg-type]  # one of the two
        return added[0].id if isinstance(added, list) else added.id

    def add_many(self, count: int, **options: Any) -> list[JobId]:
        """Add jobs that differ only in their number."""
        return self.engine.run(jobs.add_many(NewJob("task", encode({"n": n}), **options) for n in range(count)))

    def worker(self, *, lease: float = 15.0, beat: float = 3.0) -> Worker:
        """A worker of its own, enlisted."""
        number, name = secrets.randbits(NUMBER_BITS), f"worker-{secrets.token_hex(3)}"
        assert self.engine.run(workers.enlist(number, name, lease=lease, beat=beat))
        return Worker(self.engine, WorkerId(number), name)

    def get(self, job_id: int) -> Job:
        """A fresh snapshot."""
        return self.engine.run(jobs.get(job_id))

    def state(self, job_id: int) -> JobState:
        """Its state now."""
        return self.get(job_id).state

    def recover(self, *known: Worker) -> Recovered:
        """These workers are dead: their jobs go back."""
        return self.engine.run(workers.recover(known=[worker.id for worker in known]))

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Look or meddle past the operations: `dibs.` is the schema or the prefix."""
        return self.engine.run(_raw(self.engine, text))

    def make_due(self) -> None:
        """Every waiting job becomes due, as if its time had come."""
        now = "statement_timestamp()" if self.engine.name == "postgres" else "(select now from dibs.clock)"
        self.sql(f"update dibs.jobs set run_at = {now} where run_at > {now}")

    def age(self, worker: Worker, seconds: float) -> None:
        """The worker's last beat was so long ago (negative: in the future)."""
        shift = f"interval '{seconds} s'" if self.engine.name == "postgres" else f"{int(seconds * 1e6)}"
        self.sql(f"update dibs.workers set beat_at = beat_at - {shift} where id = {worker.id}")

    def trust(self, worker: Worker, seconds: float = 3600.0) -> None:
        """The worker's beats have gone through without a gap for so long."""
        shift = f"interval '{seconds} s'" if self.engine.name == "postgres" else f"{int(seconds * 1e6)}"
        self.sql(f"update dibs.workers set steady_since = steady_since - {shift} where id = {worker.id}")

    def pause(self, queue: str = "default") -> None:
        """An operator pauses a queue."""
        self.engine.run(queues.pause(queue))

    def resume(self, queue: str = "default") -> None:
        """An operator resumes it."""
        self.engine.run(queues.resume(queue))


def _raw(engine: Engine, text: str) -> Operation[Rows]:
    step = Step(
        engine.dialect.script(text).replace("%", "%%") if engine.name == "postgres" else engine.dialect.script(text)
    )
    engine.dialect.steps["raw"] = [step]

    def conversation() -> Conversation[Rows]:
        return (yield Statement("raw"))

    return Operation(conversation, "raw", repeatable=True, atomic=False, reads=False)
