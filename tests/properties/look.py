"""What is really in the tables, and where it differs from the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dibs.engines.dialect import Step
from dibs.engines.engine import Engine
from dibs.operations.claims import CLAIM_BITS
from dibs.operations.operation import Conversation, Operation, Rows, Statement
from tests.properties.model import Model
from tests.properties.values import Disagreement, ModelJob, Place, Span

JOB = (
    "queue",
    "type",
    "rank",
    "state",
    "attempts",
    "max_attempts",
    "crashes",
    "unique_key",
    "token",
    "progress",
    "failures",
    "version",
)
VISIBLE = ("state", "attempts", "progress", "failures", "held")
COLUMNS = {
    "jobs": (*JOB, "held", "finishing", "worker", "run_at"),
    "dead": (*JOB, "hook_error", "finished_at"),
    "history": (*JOB, "result", "finished_at"),
    "workers": ("beat_at", "steady_since"),
}
TIMES = {"run_at", "finished_at", "beat_at", "steady_since", "until"}
DOCUMENTS = {"progress", "failures", "result"}


@dataclass
class Look:
    """Every table at one moment: rows by id, as columns by name; times are microseconds."""

    now: int = 0
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    dead: dict[int, dict[str, Any]] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    workers: dict[int, dict[str, Any]] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[int, int | None]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    twice: list[int] = field(default_factory=list)

    @property
    def ids(self) -> set[int]:
        """Every job there is."""
        return {*self.jobs, *self.dead, *self.history}

    def row(self, job: int) -> dict[str, Any]:
        """A job that there is."""
        return self.jobs.get(job) or self.dead.get(job) or self.history[job]


def prepare(engine: Engine) -> Operation[Look]:
    """The statement that reads it all at once, in the engine's dialect."""
    engine.dialect.steps["look"] = [Step(engine.dialect.script(_text(engine.name)))]

    def conversation() -> Conversation[Look]:
        return _look(iter((yield Statement("look"))))

    return Operation(conversation, "look", repeatable=True, atomic=False, reads=True)


def _text(engine: str) -> str:
    postgres = engine == "postgres"
    array, text = ("json_build_array", "::text") if postgres else ("json_array", "")

    def column(name: str) -> str:
        if name in TIMES:
            return f"(extract(epoch from {name}) * 1000000)::bigint" if postgres else name
        return f"json({name})" if name in DOCUMENTS and not postgres else name

    now = "(extract(epoch from clock_timestamp()) * 1000000)::bigint" if postgres else "(select now from dibs.clock)"
    parts = [f"select 'now', {now}, null{text}"]
    for table, columns in COLUMNS.items():
        parts.append(f"select '{table}', id, {array}({', '.join(map(column, columns))}){text} from dibs.{table}")
    parts.append(f"select 'keys', job, {array}(type, key, {column('until')}){text} from dibs.unique_keys")
    parts.append(f"select 'paused', 0, {array}(name){text} from dibs.queues where paused")
    return "\nunion all\n".join(parts)


def _look(rows: Iterator[Any] | Rows) -> Look:
    look = Look()
    for table, number, document in rows:
        values = json.loads(document or "[]")
        match table:
            case "now":
                look.now = number
            case "keys":
                look.keys[values[0], values[1]] = (number, values[2])
            case "paused":
                look.paused.add(values[0])
            case _:
                if table != "workers" and number in look.ids:
                    look.twice.append(number)
                getattr(look, table)[number] = dict(zip(COLUMNS[table], values, strict=True))
    return look


def compare_versions(before: Look, after: Look) -> None:
    """Whatever people can see of a job has not changed unless its version has grown; and no version ever falls."""
    for job_id in before.ids & after.ids:
        old, new = before.row(job_id), after.row(job_id)
        seen = any(old.get(name) != new.get(name) for name in VISIBLE)
        if new["version"] < old["version"] + seen:
            raise Disagreement(f"job {job_id} went from version {old['version']} to {new['version']}: {old} -> {new}")


def compare(model: Model, look: Look) -> None:
    """Raise a Disagreement that names every difference; else take the exact moments over into the model."""
    if problems := [*_differences(model, look)]:
        raise Disagreement("\n".join(problems))


def _differences(model: Model, look: Look) -> Iterator[str]:
    yield from (f"{model.jobs[job].name} is in two tables" for job in look.twice)  # type: ignore[index]  # an int is one
    yield from (f"there is a job {extra} that nobody added" for extra in look.ids - model.jobs.keys())
    for job in model.jobs.values():
        row = getattr(look, job.place).get(job.id)
        if row is None:
            found = next((place for place in Place if job.id in getattr(look, place)), "no table")
            yield f"{job.name} is in {found}, and should be in {job.place}"
            continue
        yield from _job_differences(job, row)
    if look.workers.keys() != model.workers.keys():
        yield f"enlisted are {sorted(look.workers)}, and should be {sorted(model.workers)}"
    for worker in model.workers.values():
        row = look.workers.get(worker.id, {"beat_at": 0, "steady_since": 0})
        worker.beat_at = yield from _pin(worker.name, "beat_at", row["beat_at"], worker.beat_at)
        worker.steady_since = yield from _pin(worker.name, "steady_since", row["steady_since"], worker.steady_since)
    yield from _key_differences(model, look)
    if look.paused != model.paused:
        yield f"paused are {sorted(look.paused)}, and should be {sorted(model.paused)}"


def _job_differences(job: ModelJob, row: dict[str, Any]) -> Iterator[str]:
    expected = {
        "queue": job.spec.queue,
        "type": job.spec.type,
        "rank": job.rank,
        "state": job.state.code,
        "attempts": job.attempts,
        "max_attempts": job.spec.max_attempts,
        "crashes": job.crashes,
        "unique_key": job.spec.unique_key,
        "progress": job.progress,
        "hook_error": job.hook_error,
        "result": job.result,
        "finishing": job.finishing,
        "held": int(job.owner is not None),
        "worker": None if job.owner is None else job.owner << CLAIM_BITS | job.claim,
    }
    for name, value in expected.items():
        if name in row and row[name] != value:
            yield f"{job.name}: {name} is {row[name]!r}, and should be {value!r}"
    failures = [(entry["attempt"], entry["error"]) for entry in row["failures"] or []]
    if failures != job.failures:
        yield f"{job.name}: failures are {failures}, and should be {job.failures}"
    if job.token is not None and row["token"] != job.token:
        yield f"{job.name}: its token was changed, and should not have been"
    if job.token is None and row["token"] in job.tokens:
        yield f"{job.name}: a token that was handed out is good again"
    if job.live:
        job.run_at = yield from _pin(job.name, "run_at", row["run_at"], job.run_at)
    elif job.finished_at is not None:
        job.finished_at = yield from _pin(job.name, "finished_at", row["finished_at"], job.finished_at)


def _key_differences(model: Model, look: Look) -> Iterator[str]:
    for key in look.keys.keys() | model.keys.keys():
        holder, until = look.keys.get(key, (None, None))
        held = model.keys.get(key)
        if holder != (held and held.job):
            yield f"the key {key[1]!r} of {key[0]!r} is held by {holder}, and should be by {held and held.job}"
        elif held and (until is None) != (held.until is None):
            yield f"the key {key[1]!r} of {key[0]!r} is held until {until}, and should be until {held.until}"
        elif held and until is not None and held.until is not None:
            held.until = yield from _pin(f"the key {key[1]!r}", "until", until, held.until)


def _pin(whose: str, what: str, seen: int, expected: Span) -> Any:
    if not expected.low <= seen <= expected.high:
        late = (seen - expected.high) / 1e6 if seen > expected.high else (seen - expected.low) / 1e6
        yield f"{whose}: {what} is {abs(late):.3f} s {'later' if late > 0 else 'earlier'} than it should be"
    return Span(seen, seen)
