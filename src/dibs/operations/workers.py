"""Workers: enlisting, beating, judging, leaving. Only recovery deletes the row of another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dibs.errors import LeaseLost
from dibs.job import JobId, Lease, WorkerId
from dibs.operations.claims import CLAIM_BITS
from dibs.operations.operation import Conversation, Statement, Table, operation
from dibs.operations.rows import WorkerRow, worker_from_row

NUMBER_BITS = 42  # of the random number that stands for a worker: with the claim's number it fits 63 bits
CLAIMS = 1 << CLAIM_BITS
MISSED = 100  # claims in a row whose answers were lost
HELD = ("id", "token")
SILENT = ("id", "beat_at")


@dataclass(frozen=True, slots=True)
class Beat:
    """What a beat learned: which of our rows are alive (index among those that claim), and which leases are lost."""

    alive: dict[WorkerId, int]
    claimers: int
    lost: frozenset[Lease]
    silent: int = 0  # workers that have not beaten for a lease of theirs: something for a judge


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery did: jobs that wait again (with the worker that had them), and workers that are gone."""

    jobs: dict[JobId, WorkerId]
    workers: frozenset[WorkerId]


NOTHING = Recovered({}, frozenset())


@operation()
def enlist(number: int, name: str, *, lease: float, beat: float) -> Conversation[bool]:
    """Enter a worker under a random number; False when that number is taken: draw another."""
    rows = yield Statement("enlist", id=number, worker=name, lease=lease, beat=beat)
    return bool(rows)


@operation()
def beat(
    workers: Sequence[WorkerId], held: Sequence[Lease], *, steady: bool, asking: Sequence[WorkerId] | None = None
) -> Conversation[Beat]:
    """Say that we live, name what we hold, learn what we lost.

    `steady`: by our own clock no beat has been late. A gap, by either clock, starts the time of trust anew.
    `asking`: which of our rows claim, or could (None: all); among those the looks for late rows are shared.
    """
    rows = yield Statement(
        "beat",
        workers=list(workers),
        held=_table(held),
        steady=steady,
        asking=list(workers if asking is None else asking),
    )
    return Beat(
        alive={WorkerId(row[1]): row[2] for row in rows if row[0] == "beat"},
        claimers=next(row[2] for row in rows if row[0] == "claimers"),
        lost=frozenset(Lease(JobId(row[1]), row[2]) for row in rows if row[0] == "lost"),
        silent=next((row[2] for row in rows if row[0] == "silent"), 0),
    )


@operation(reads=True)
def ended(leases: Collection[Lease]) -> Conversation[frozenset[Lease]]:
    """Those of them that brought their jobs to an end: they are not held any more, and yet not lost."""
    rows = yield Statement("ended", held=_table(leases))
    return frozenset(Lease(JobId(row[0]), row[1]) for row in rows)


@operation(atomic=True)
def poll(worker: WorkerId, received: int | None) -> Conversation[int | None]:
    """A worker over HTTP asks for jobs: the number of this claim, or None when the worker is gone.

    `received`: the last claim whose answer it has. What later ones took never reached it, and is handed back.
    """
    rows = yield Statement("poll", worker=worker)
    if not rows:
        return None
    number = int(rows[0][0])
    if received is not None and (missed := (number - received) % CLAIMS - 1):
        lost = [(worker, (number - each) % CLAIMS) for each in range(1, min(missed, MISSED) + 1)]
        yield from hand_back([worker], lost, ())
    return number


@operation()
def beat_of(lease: Lease) -> Conversation[None]:
    """The owner of this lease lives; refused when the lease is lost."""
    rows = yield Statement("beat_of", id=lease.job_id, token=lease.token)
    if not rows:
        raise LeaseLost(lease.job_id)


@operation(atomic=True)
def hand_back(
    workers: Sequence[WorkerId], claims: Sequence[tuple[WorkerId, int]] | None, held: Sequence[Lease]
) -> Conversation[int]:
    """Hand back what these claims took (None: all that the workers hold) and we do not know of, attempt not used."""
    numbers = None if claims is None else [worker << CLAIM_BITS | number for worker, number in claims]
    rows = yield Statement(
        "hand_back",
        workers=sorted(workers),
        claims=numbers,
        held=[lease.token for lease in held],
        leases=_table(held),
    )
    return len(rows)


@operation(atomic=True)
def recover(
    judge: WorkerId | None = None, known: Sequence[WorkerId] = (), silent: Sequence[tuple[WorkerId, Any]] = ()
) -> Conversation[Recovered]:
    """Free the jobs of the dead: whom a careful judge finds, whom the caller vouches for, who is silent still."""
    rows = yield Statement("recover", judge=judge or 0, known=list(known), silent=Table(SILENT, list(silent)))
    return Recovered(
        jobs={JobId(row[0]): WorkerId(row[1]) for row in rows if not row[2]},
        workers=frozenset(WorkerId(row[1]) for row in rows if row[2]),
    )


@operation()
def recover_orphans() -> Conversation[int]:
    """Free jobs whose worker has no row at all."""
    rows = yield Statement("recover_orphans")
    return len(rows)


@operation(reads=True)
def silent(leases: float) -> Conversation[list[tuple[WorkerId, Any]]]:
    """Workers that have not beaten for so many of their leases, and when they last did."""
    rows = yield Statement("silent", leases=leases)
    return [(WorkerId(row[0]), row[1]) for row in rows]


@operation(atomic=True)
def leave(workers: Sequence[WorkerId]) -> Conversation[int]:
    """Stop: hand back what is still held, attempt not used, and take our rows away."""
    back = yield from hand_back(workers, None, ())
    yield Statement("leave", workers=list(workers))
    return back


@operation(reads=True)
def list_workers() -> Conversation[list[WorkerRow]]:
    """Everyone enlisted."""
    rows = yield Statement("workers")
    return [worker_from_row(row) for row in rows]


def _table(leases: Collection[Lease]) -> Table:
    return Table(HELD, [(lease.job_id, lease.token) for lease in leases])
