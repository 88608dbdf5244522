"""Contestants take turns, slice by slice, in one process or in several at once: so all of them meet the same machine.

A difference between two runs may be the weather; a ratio of neighbouring slices is not, and its median even less.
"""

import multiprocessing
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from statistics import median
from threading import BrokenBarrierError
from typing import Any, Protocol

import psycopg

CONTEXT = multiprocessing.get_context("spawn")  # nothing inherited: neither connections nor memory
PATIENCE = 600.0


class Loop(Protocol):
    """One claimer at work, in a process of its own."""

    turns: int
    done: list[int]

    def work(self, jobs: int) -> None:
        """Claim and settle so many jobs, and hold none afterwards."""

    def close(self) -> None:
        """Close the connections."""


class Contestant(Protocol):
    """Where and how to claim: a plain value that travels to other processes."""

    @property
    def name(self) -> str: ...

    def open(self) -> Loop:
        """Connect."""


@dataclass(slots=True)
class Laps:
    """What one contestant did, slice by slice; times and bytes are those of all its claimers together."""

    jobs: int
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wal: list[int] = field(default_factory=list)
    turns: int = 0

    @property
    def total(self) -> int:
        """Jobs of all slices."""
        return self.jobs * len(self.seconds)

    @property
    def rate(self) -> float:
        """Jobs per second over all slices."""
        return self.total / sum(self.seconds)

    def ratio(self, floor: "Laps") -> float:
        """How many times as fast as the floor: the median over slices that ran next to each other."""
        return median(theirs / ours for theirs, ours in zip(floor.seconds, self.seconds, strict=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and in how many processes; the first slice warms up and is not counted."""

    claimers: int
    slices: int
    jobs: int  # in a slice, over all claimers
    wal: str | None = None  # the server whose log is measured

    @property
    def share(self) -> int:
        """Jobs of one claimer in a slice."""
        return self.jobs // self.claimers

    @property
    def needed(self) -> int:
        """Jobs that each contestant has to have waiting, with some to spare."""
        return self.jobs * (self.slices + 2)


def race(contestants: Sequence[Contestant], plan: Plan) -> dict[str, Laps]:
    """Let them run, and check that no job was done twice."""
    barrier, answers = CONTEXT.Barrier(plan.claimers), CONTEXT.Queue()
    processes = [
        CONTEXT.Process(target=_claim, args=(index, contestants, plan, barrier, answers), daemon=True)
        for index in range(plan.claimers)
    ]
    with running(processes):
        parts = [_answer(answers, processes) for _ in processes]
    return {contestant.name: _together(contestant.name, parts, plan) for contestant in contestants}


@contextmanager
def running(processes: Sequence[SpawnProcess]) -> Iterator[None]:
    """Start them; afterwards wait until they have ended, and after an error make them."""
    for process in processes:
        process.start()
    try:
        yield
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join(PATIENCE)


def _answer(answers: Any, processes: Sequence[SpawnProcess]) -> dict[str, "_Part"]:
    while True:
        try:
            answer = answers.get(timeout=1)
        except Exception as silence:
            if any(process.exitcode not in (None, 0) for process in processes):
                raise RuntimeError("a claimer ended without an answer") from silence
            continue
        if isinstance(answer, str):
            raise RuntimeError(f"a claimer failed:\n{answer}")
        return dict(answer)


@dataclass(slots=True)
class _Part:
    """What one process saw of a contestant."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wal: list[int] = field(default_factory=list)
    turns: int = 0
    done: list[int] = field(default_factory=list)


def _together(name: str, parts: Sequence[dict[str, _Part]], plan: Plan) -> Laps:
    mine = [part[name] for part in parts]
    ids = [job_id for part in mine for job_id in part.done]
    if len(set(ids)) != len(ids):
        raise AssertionError(f"{name}: {len(ids) - len(set(ids))} jobs were done twice")
    whole = next(part for part in mine if part.seconds)
    cpu = [sum(slice_) for slice_ in zip(*(part.cpu for part in mine), strict=True)]
    return Laps(plan.share * plan.claimers, whole.seconds, cpu, whole.wal, sum(part.turns for part in mine))


def _claim(index: int, contestants: Sequence[Contestant], plan: Plan, barrier: Any, answers: Any) -> None:
    try:
        answers.put(_run(index == 0, contestants, plan, barrier))
    except BrokenBarrierError:
        return  # another has failed, and told
    except Exception:
        answers.put(traceback.format_exc())
        barrier.abort()


def _run(leads: bool, contestants: Sequence[Contestant], plan: Plan, barrier: Any) -> dict[str, _Part]:
    loops = [(contestant.open(), _Part()) for contestant in contestants]
    log = psycopg.connect(plan.wal, autocommit=True) if plan.wal and leads else None
    for number in range(-1, plan.slices):
        shift = number % len(loops)
        for loop, part in loops[shift:] + loops[:shift]:
            barrier.wait(PATIENCE)
            _slice(loop, part, plan, barrier, log, counts=number >= 0, leads=leads)
    for loop, part in loops:
        part.turns, part.done = loop.turns, loop.done
        loop.close()
    if log is not None:
        log.close()
    return {contestant.name: part for contestant, (_, part) in zip(contestants, loops, strict=True)}


def _slice(loop: Loop, part: _Part, plan: Plan, barrier: Any, log: Any, *, counts: bool, leads: bool) -> None:
    written, cpu, began = _written(log), time.process_time(), time.perf_counter()
    loop.work(plan.share)
    cpu = time.process_time() - cpu
    barrier.wait(PATIENCE)
    seconds = time.perf_counter() - began
    if counts:
        part.cpu.append(cpu)
        if leads:
            part.seconds.append(seconds)
            part.wal.append(_written(log) - written)


def _written(log: Any) -> int:
    """Bytes of log that the server has written so far."""
    return 0 if log is None else int(log.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()[0])
