"""Which jobs a claim may take, and in which order."""

from __future__ import annotations

from itertools import pairwise, product

from dibs.operations.claims import Want
from tests.properties.values import ModelJob, Moment, wrong


class Ranges:
    """The order of a claim: range by range as asked for, each by when the job is due; a suspect ahead of all others."""

    def __init__(self, want: Want) -> None:
        self.want = want
        self.places = {(queue, rank): n for n, (queue, rank, *_) in enumerate(want.ranges)}

    def check(self, taken: list[ModelJob], waiting: list[ModelJob], moment: Moment, *, ordered: bool) -> None:
        """Only what was there, as much as was allowed and, if nothing ran beside it, all that comes first."""
        for job in taken:
            wrong(job not in waiting or not self._asked(job), f"{job.name} was not there to be claimed")
            wrong(job.run_at.low > moment.after, f"{job.name} was claimed before it was due")
        suspects, plain = [job for job in taken if job.suspect], [job for job in taken if not job.suspect]
        most = min(self.want.suspects, self.want.limit)
        wrong(len(suspects) > most, f"{len(suspects)} suspects were claimed, {most} were allowed")
        wrong(len(taken) > self.want.limit, f"{len(taken)} jobs were claimed, {self.want.limit} were allowed")
        left = [job for job in waiting if self._asked(job) and job.run_at.high <= moment.before and job not in taken]
        if moment.racing:  # whom the other step had in its hands was rightly passed over
            left, ordered = [job for job in left if job.id in moment.still], False
        self._check_left(suspects, [job for job in left if job.suspect], most, first=not moment.racing)
        room = self.want.limit - len(suspects)
        self._check_left(plain, [job for job in left if not job.suspect], room, first=not moment.racing)
        if ordered:
            self._check_order(taken)

    def _check_left(self, taken: list[ModelJob], left: list[ModelJob], room: int, *, first: bool) -> None:
        for job in left:
            wrong(len(taken) < room, f"{job.name} was due and there was room, but it was not claimed")
        for job, other in product(left, taken) if first else ():
            wrong(self._before(job, other), f"{other.name} was claimed, and {job.name} comes before it")

    def _check_order(self, taken: list[ModelJob]) -> None:
        for job, other in pairwise(taken):
            late = (other.suspect and not job.suspect) or (other.suspect == job.suspect and self._before(other, job))
            wrong(late, f"{other.name} came after {job.name} in the answer, and belongs before it")

    def _asked(self, job: ModelJob) -> bool:
        return self._place(job) is not None and job.spec.type not in self.want.unknown

    def _place(self, job: ModelJob) -> int | None:
        """Which of the ranges asked it stands in; a suspect stands in the plain one of its level."""
        return self.places.get((job.spec.queue, job.level if job.suspect else job.rank))

    def _before(self, job: ModelJob, other: ModelJob) -> bool:
        """Does it come before the other for sure? Both were asked for."""
        mine, its = self._place(job), self._place(other)
        if mine != its:
            return mine is not None and its is not None and mine < its
        return (job.run_at.high, job.id) < (other.run_at.low, other.id)
