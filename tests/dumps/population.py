"""Jobs in every state, each in a queue of its own name: what a dump holds, and how to compare."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from dibs.engines.engine import Engine
from dibs.job import Claimed, Job, JobId, JobState, NewJob
from dibs.lifecycle import Back, Done, Way
from dibs.operations import batches, jobs, submissions
from dibs.operations.claims import Settle
from dibs.operations.submissions import Ending
from dibs.payload import decode, encode
from tests.actors import Actors, Worker

FAR = datetime(2099, 1, 1, tzinfo=UTC)
CENTURY = 100 * 365 * 86400.0
MOMENTS = ("created_at", "run_at", "started_at", "finished_at")


class Population:
    """A place that fills."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.actors = engine, Actors(engine)
        self.worker = self.actors.worker()
        self.ids: dict[str, JobId] = {}

    def fill(self) -> dict[str, JobId]:
        """Every state there is, reached as it is reached in use; the ids by queue."""
        self.waiting()
        self.finished()
        self.given_back()
        self.crashed()
        self.batched()
        self.handed_over()
        self.add("running")
        self.claim("running")
        return self.ids

    def waiting(self) -> None:
        """PENDING, in all kinds."""
        self.add("waiting", tags=encode(["a", "b"]))
        self.add("urgent", priority=9)
        self.add("later", run_at=FAR)
        self.add("once", max_attempts=1)
        self.add("keyed", unique_key="held")
        self.add("paused")
        self.actors.pause("paused")

    def finished(self) -> None:
        """SUCCESSFUL, FAILED and CANCELLED."""
        self.add("successful")
        job = self.claim("successful")
        self.engine.run(jobs.progress(job.lease, encode({"percent": 90})))
        self.worker.succeed(job, {"sent": True})
        self.add("successful for long", unique_key="held on", unique_for=CENTURY)
        self.worker.succeed(self.claim("successful for long"))
        self.add("failed", unique_key="free")
        self.worker.retry(self.claim("failed"), error="first")
        self.worker.fail(self.claim("failed"), error="second")
        self.add("cancelled", priority=0)
        self.engine.run(jobs.cancel([self.ids["cancelled"]]))

    def given_back(self) -> None:
        """RETRY, and PENDING again."""
        self.add("retried", max_attempts=5)
        self.worker.retry(self.claim("retried"), delay=60)
        self.add("on its last attempt", max_attempts=2)
        self.worker.retry(self.claim("on its last attempt"))
        self.add("snoozed")
        self.worker.settle(self.claim("snoozed"), Back(Way.SNOOZE))
        self.add("released")
        self.worker.settle(self.claim("released"), Back(Way.RELEASE))

    def crashed(self) -> None:
        """Left behind by a worker that died."""
        dead: Worker = self.actors.worker()
        self.add("suspect")
        self.add("finishing", max_attempts=1)
        assert len(dead.claim(2, "suspect", "finishing")) == 2
        self.actors.recover(dead)

    def batched(self) -> None:
        """The last of a batch, whose hook is not there yet."""
        done = {"hook": "on_complete", "queue": "hooks", "rank": 4, "type": "done", "delay": 0, "max_attempts": 3}
        hook = {**done, "run_at": None, "payload": None, "tags": None, "submits": False}
        batch = self.engine.run(batches.begin("batched", encode([hook])))
        new = [NewJob("task", encode({"name": "batched"}), name) for name in ("batched", "first of its batch")]
        second, first = (self.engine.run(batches.add(batch, [job]))[0] for job in new)
        self.ids |= {"batched": second, "first of its batch": first}
        self.worker.succeed(self.claim("first of its batch"))
        self.engine.run(batches.close(batch))

    def handed_over(self) -> None:
        """SUBMITTING, PROCESSING, and what a provider has done."""
        for name in ("submitting", "processing", "provided"):
            self.add(name, submits=True)
            lease = self.claim(name).lease
            begun = self.engine.run(submissions.begin(lease, "task", f"key-{name}"))
            if name != "submitting":
                delay = 0.0 if name == "provided" else CENTURY / 100
                self.engine.run(submissions.accept(lease, "task", begun.round, f"task-{name}", delay))
        settle = Settle(self.claim("provided").lease, Done(JobState.SUCCESSFUL, encode("short")))
        self.engine.run(submissions.conclude(settle, 1, Ending("done", encode({"tokens": 12}))))

    def claim(self, name: str) -> Claimed:
        """The job in the queue of that name, claimed."""
        (job,) = self.worker.claim(1, name)
        return job

    def add(self, name: str, **options: Any) -> None:
        """A job in the queue of its name."""
        self.ids[name] = self.actors.add("task", {"name": name, "text": "naïve ☃ \\ ' \"\n"}, queue=name, **options)


def as_json(job: Job) -> dict[str, Any]:
    """All that a job shows, as it comes back from a file; times to the microsecond."""
    shown = {each.name: getattr(job, each.name) for each in fields(job) if each.name != "app"}
    for name in MOMENTS:
        shown[name] = shown[name] and shown[name].isoformat()
    plain: dict[str, Any] = decode(encode(shown))
    return plain
