"""People look: pages, single jobs and counts say what is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dibs.job import JobState
from dibs.operations import claims, jobs, queues
from dibs.operations.jobs import Filter
from dibs.operations.rows import QueueCounts
from tests.properties.lab import Fate
from tests.properties.model import Model
from tests.properties.steps.step import QUEUES, Stage, Step
from tests.properties.values import ModelJob, Moment, Place, wrong


@dataclass(frozen=True)
class PeopleLook(Step):
    """At a page, at one job, and at the queues."""

    job: int
    wanted: Filter

    def make(self, stage: Stage, fate: Fate) -> None:
        """Each must agree with the model."""
        self._page(stage)
        self._job(stage)
        self._counts(stage)
        stage.tell("people look")

    def _page(self, stage: Stage) -> None:
        told = [job.id for job in stage.lab.engine.run(jobs.page(self.wanted, limit=500)).jobs]
        so = [job.id for job in stage.scene.model.matching(self.wanted)]
        wrong(told != so, f"the page of {self.wanted} has {told}, and should have {so}")

    def _job(self, stage: Stage) -> None:
        if job := stage.scene.job(self.job):
            told = stage.lab.engine.run(jobs.get(job.id))
            said = (told.state, told.attempts, told.priority, told.unique_key, told.error)
            error = job.failures[-1][1] if job.failures else None
            so = (job.shown, job.attempts, job.spec.priority, job.spec.unique_key, error)
            wrong(said != so, f"{job.name} is shown as {said}, and is {so}")

    def _counts(self, stage: Stage) -> None:
        run, model = stage.lab.engine.run, stage.scene.model
        schema: Any = getattr(stage.lab.engine, "schema", "")
        told = {counts.name: counts for counts in run(queues.counts(schema))}
        free, due = run(claims.available(QUEUES, 1000)), run(claims.next_due(QUEUES))
        now = stage.look()
        for queue in QUEUES:
            _check_queue(model, queue, told.get(queue), now)
        waiting = [job for job in model.jobs.values() if job.waiting and job.spec.queue not in model.paused]
        ready = _ready(waiting, now)
        wrong(free not in ready, f"{free} are said to be available, and should be {ready}")
        wrong((due is None) != (not waiting), f"the next is said to be due in {due} s, and {len(waiting)} wait")
        wrong(due == 0 and max(ready) == 0, "something is said to be due, and nothing is")


def _check_queue(model: Model, queue: str, counts: QueueCounts | None, now: Moment) -> None:
    there = [job for job in model.jobs.values() if job.spec.queue == queue]
    if counts is None:
        wrong(any(job.place is not Place.HISTORY for job in there), f"{queue} is not counted")
        return
    waiting = [job for job in there if job.waiting]
    fresh = [job for job in waiting if job.state is JobState.PENDING]
    told = (counts.retry, counts.running, counts.failed, counts.cancelled, counts.paused)
    so = (
        sum(job.state is JobState.RETRY for job in waiting),
        sum(job.shown is JobState.RUNNING for job in there),
        sum(job.state is JobState.FAILED for job in there),
        sum(job.state is JobState.CANCELLED for job in there),
        queue in model.paused,
    )
    wrong(told != so, f"{queue} is counted as {counts}, and should be {so}")
    ready = _ready(fresh, now)
    wrong(counts.waiting not in ready, f"{queue} has {counts.waiting} waiting, and should have {ready}")
    wrong(counts.waiting + counts.later != len(fresh), f"{queue} has {counts.later} for later, and {len(fresh)} in all")


def _ready(waiting: Iterable[ModelJob], now: Moment) -> range:
    """How many of these may be due."""
    waiting = list(waiting)
    least = sum(job.run_at.high <= now.before for job in waiting)
    return range(least, sum(job.run_at.low <= now.after for job in waiting) + 1)
