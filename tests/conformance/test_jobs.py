"""Adding jobs, looking them up, cancelling and retrying them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs.errors import Conflict, InvalidOption, JobNotFound, NotRetryable
from dibs.job import JobState, NewJob
from dibs.lifecycle import Back, Way
from dibs.operations import jobs
from dibs.operations.jobs import Bulk, Filter
from dibs.operations.operation import Operation
from dibs.payload import decode, encode
from tests.actors import Actors
from tests.conformance.elsewhere import elsewhere, rolled_back, through, until_somebody_waits
from tests.conformance.kinds import on_servers

LATER = datetime(2099, 5, 17, 12, 30, 0, 250_000, tzinfo=UTC)

PAYLOAD = {
    "texts": [
        "",
        "naïve ☃ 𝄞",
        'quote " and \\ backslash',
        "two\nlines\r\t",
        "50 % of %s :name ::text {braces} $1",
        "null",
    ],
    "numbers": [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, -2.25, 0.1, 3.141592653589793],
    "others": [None, True, False, [], {}, [[1], {"a": {"b": []}}]],
    "Ключ with spaces": 1,
}


def numbered(count: int, **options: Any) -> Iterator[NewJob]:
    return (NewJob("task", encode({"n": n}), **options) for n in range(count))


def all_pages(actors: Actors, wanted: Filter, limit: int = 500) -> list[list[int]]:
    pages, cursor = [], None
    while True:
        page = actors.engine.run(jobs.page(wanted, limit=limit, before=cursor))
        pages.append([int(job.id) for job in page.jobs])
        cursor = page.cursor
        if cursor is None:
            return pages


def in_one(pages: list[list[int]]) -> list[int]:
    return [job_id for page in pages for job_id in page]


def matching(actors: Actors, **wanted: Any) -> list[int]:
    return in_one(all_pages(actors, Filter(**wanted)))


# Adding


def test_a_new_job_waits(actors: Actors) -> None:
    job = actors.get(actors.add("mail", {"to": "ann"}))
    assert (job.type, job.queue, job.state, job.payload) == ("mail", "default", JobState.PENDING, {"to": "ann"})
    assert (job.priority, job.attempts, job.max_attempts, job.tags, job.worker) == (5, 0, 3, (), None)
    assert job.created_at == job.run_at
    assert (job.started_at, job.finished_at, job.result, job.error, job.progress) == (None, None, None, None, None)


def test_times_are_the_databases_and_in_utc(actors: Actors) -> None:
    created_at = actors.get(actors.add()).created_at
    assert created_at is not None
    assert created_at.tzinfo is UTC
    assert abs(created_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_add_tells_what_it_wrote(actors: Actors) -> None:
    added = actors.engine.run(jobs.add(NewJob("task", delay=60)))
    job = actors.get(added.id)
    assert (added.created, added.created_at, added.run_at) == (True, job.created_at, job.run_at)


def test_ids_grow_also_when_the_table_was_emptied(actors: Actors) -> None:
    worker, ids = actors.worker(), []
    for _ in range(3):
        ids.append(actors.add())
        worker.succeed(*worker.claim())
    assert ids == sorted(set(ids))


def test_a_payload_comes_back_as_it_was(actors: Actors) -> None:
    job_id = actors.add(payload=PAYLOAD)
    (many_id,) = actors.engine.run(jobs.add_many([NewJob("task", encode(PAYLOAD))]))
    keyed_id = actors.add(payload=PAYLOAD, unique_key="k")
    assert actors.get(job_id).payload == actors.get(many_id).payload == actors.get(keyed_id).payload == PAYLOAD


def test_names_may_hold_any_text(actors: Actors) -> None:
    name = 'it\'s "my" {queue}, 100 % \\ ☃ :x $1'
    job_id = actors.add(name, queue=name, unique_key=name, tags=encode([name]))
    job = actors.get(job_id)
    assert (job.type, job.queue, job.unique_key, job.tags) == (name, name, name, (name,))
    assert matching(actors, queue=name, type=name, tag=name) == [job_id]
    assert [claimed.id for claimed in actors.worker().claim(1, name)] == [job_id]


def test_jobs_of_any_kinds_are_added_together(actors: Actors) -> None:
    name, past = 'it\'s "my" {queue}, 100 % \\ \t ☃ :x $1', datetime(2001, 1, 1, tzinfo=UTC)
    new = [
        NewJob("first", encode(PAYLOAD), priority=1),
        NewJob("none"),
        NewJob("other", encode({"n": 1}), name, 9, 7, tags=encode([name])),
        NewJob("delayed", delay=60),
        NewJob("later", run_at=LATER),
        NewJob("past", run_at=past),
    ]
    added = actors.engine.run(jobs.add_each(new))
    made = [actors.get(one.id) for one in added]
    assert [one.id for one in added] == sorted({one.id for one in added})
    assert [(job.created_at, job.run_at) for job in made] == [(one.created_at, one.run_at) for one in added]
    assert [(job.type, job.payload, job.queue, job.priority, job.max_attempts) for job in made] == [
        (job.type, None if job.payload is None else decode(job.payload), job.queue, job.priority, job.max_attempts)
        for job in new
    ]
    assert [job.tags for job in made] == [(), (), (name,), (), (), ()]
    now = made[0].created_at
    assert [job.run_at for job in made] == [now, now, now, now + timedelta(seconds=60), LATER, now]


# So many that one statement does not take them, and that PostgreSQL gets them by COPY


BULK = 6_000


def test_many_jobs_come_back_as_they_were(actors: Actors) -> None:
    name = 'it\'s "my" {queue}, 100 % \\ \t ☃ :x $1'
    payloads = [None if n % 3 == 0 else {"n": n, **PAYLOAD} for n in range(BULK // 10)]
    new = [NewJob(name, None if p is None else encode(p), name, 9, 1, tags=encode([name])) for p in payloads]
    ids = actors.engine.run(jobs.add_many(new))
    assert ids == sorted(set(ids))
    for n in (0, 1, 2, len(new) - 2, len(new) - 1):
        job = actors.get(ids[n])
        assert (job.type, job.queue, job.priority, job.max_attempts, job.tags) == (name, name, 9, 1, (name,))
        assert (job.payload, job.created_at) == (payloads[n], job.run_at)
    assert [claimed.id for claimed in actors.worker().claim(3, name)] == ids[:3]


def test_many_jobs_of_several_kinds_keep_their_order(actors: Actors) -> None:
    half = BULK // 2
    new = [*numbered(half), *numbered(3, queue="b"), NewJob("keyed", unique_key="k"), *numbered(half, queue="c")]
    ids = actors.engine.run(jobs.add_many(new))
    assert len(set(ids)) == len(new)
    assert [actors.get(ids[n]).queue for n in (0, half - 1, half, half + 4)] == ["default", "default", "b", "c"]
    assert [actors.get(ids[n]).payload for n in (half - 1, half + 4, -1)] == [
        {"n": half - 1},
        {"n": 0},
        {"n": half - 1},
    ]
    assert actors.get(ids[half + 3]).type == "keyed"


def test_many_jobs_for_later_and_for_times_past(actors: Actors) -> None:
    past = datetime(2001, 1, 1, tzinfo=UTC)
    ids = [actors.engine.run(jobs.add_many(numbered(BULK // 10, run_at=at)))[-1] for at in (LATER, past)]
    (delayed,) = actors.engine.run(jobs.add_many(numbered(BULK // 10, delay=60)))[-1:]
    at_once, later, soon = actors.get(ids[1]), actors.get(ids[0]), actors.get(delayed)
    assert at_once.run_at == at_once.created_at
    assert later.run_at == LATER
    assert soon.run_at == soon.created_at + timedelta(seconds=60)  # type: ignore[operator]  # it has one


def test_many_jobs_are_added_all_or_none(actors: Actors) -> None:
    def broken() -> Iterator[NewJob]:
        yield from numbered(BULK)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        actors.engine.run(jobs.add_many(broken()))
    assert matching(actors) == []
    assert len(actors.add_many(BULK)) == BULK  # the connection is as good as new


async def test_many_jobs_from_async_code(actors: Actors) -> None:
    def broken() -> Iterator[NewJob]:
        yield from numbered(BULK)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await actors.engine.arun(jobs.add_many(broken()))
    ids = await actors.engine.arun(jobs.add_many(numbered(BULK)))
    await actors.engine.aclose()
    assert actors.get(ids[-1]).payload == {"n": BULK - 1}
    assert len(actors.worker().claim(BULK)) == BULK


def test_a_delay_counts_from_now(actors: Actors) -> None:
    job = actors.get(actors.add(delay=60))
    assert job.run_at == job.created_at + timedelta(seconds=60)  # type: ignore[operator]  # it has one
    assert actors.worker().claim() == []


def test_a_time_is_kept_to_the_microsecond(actors: Actors) -> None:
    assert actors.get(actors.add(run_at=LATER)).run_at == LATER
    (many_id,) = actors.engine.run(jobs.add_many(numbered(1, run_at=LATER)))
    assert actors.get(many_id).run_at == LATER
    assert actors.get(actors.add(run_at=LATER, unique_key="k")).run_at == LATER


def test_a_time_in_the_past_is_now(actors: Actors) -> None:
    """Nothing is written behind a cursor on purpose."""
    past = datetime(2020, 1, 1, tzinfo=UTC)
    ids = [actors.add(run_at=past), actors.add(run_at=past, unique_key="k")]
    ids += actors.engine.run(jobs.add_many(numbered(1, run_at=past)))
    for job in map(actors.get, ids):
        assert job.run_at == job.created_at


def test_a_priority_comes_back(actors: Actors) -> None:
    for priority in (0, 5, 9):
        ids = [
            actors.add(priority=priority),
            actors.add(priority=priority, unique_key=f"k{priority}"),
            *actors.add_many(1, priority=priority),
        ]
        assert {actors.get(job_id).priority for job_id in ids} == {priority}


def test_tags_come_back(actors: Actors) -> None:
    ids = [actors.add(tags=encode(["a", "b"])), *actors.add_many(1, tags=encode(["a", "b"]))]
    assert [actors.get(job_id).tags for job_id in ids] == [("a", "b")] * 2


# Adding many


def test_many_ids_come_in_order(actors: Actors) -> None:
    ids = actors.add_many(30)
    assert [actors.get(job_id).payload["n"] for job_id in ids] == list(range(30))
    assert ids == sorted(ids)


@pytest.mark.parametrize("border", ["CHUNK_ROWS", "CHUNK_BYTES"])
def test_chunks_neither_lose_nor_repeat(actors: Actors, monkeypatch: pytest.MonkeyPatch, border: str) -> None:
    size = {"CHUNK_ROWS": 3, "CHUNK_BYTES": 3 * len('{"n":1} ')}[border]
    monkeypatch.setattr(jobs, border, size)
    for count in (5, 6, 7):
        ids = actors.add_many(count)
        assert [actors.get(job_id).payload["n"] for job_id in ids] == list(range(count))


def test_many_may_differ_in_everything(actors: Actors) -> None:
    wanted = [
        NewJob("a", encode(0)),
        NewJob("a", encode(1), queue="q"),
        NewJob("b", encode(2), queue="q", unique_key="k"),
        NewJob("b", encode(3), queue="q", unique_key="l", delay=60),
        NewJob("b", encode(4), priority=9),
        NewJob("b", encode(5), max_attempts=1),
        NewJob("b", encode(6), tags=encode(["t"])),
        NewJob("b", encode(7), run_at=LATER),
    ]
    found = [actors.get(job_id) for job_id in actors.engine.run(jobs.add_many(wanted))]
    assert [job.payload for job in found] == list(range(8))
    assert [(job.type, job.queue, job.unique_key, job.priority, job.max_attempts) for job in found] == [
        (job.type, job.queue, job.unique_key, job.priority, job.max_attempts) for job in wanted
    ]
    assert (found[6].tags, found[7].run_at) == (("t",), LATER)


@pytest.mark.parametrize("count", [1, 2])
def test_many_may_have_no_payload(actors: Actors, count: int) -> None:
    ids = actors.engine.run(jobs.add_many([NewJob("task")] * count))
    assert [actors.get(job_id).payload for job_id in ids] == [None] * count


def test_adding_none_is_fine(actors: Actors) -> None:
    assert actors.engine.run(jobs.add_many([])) == []


def test_many_are_read_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK_ROWS", 3)
    read: list[NewJob] = []
    conversation = iter(jobs.add_many(read.append(job) or job for job in numbered(9)))
    next(conversation)
    assert len(read) == 3
    conversation.send([(1,), (2,), (3,)])
    assert len(read) == 6


def test_many_are_added_all_or_not_at_all(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK_ROWS", 2)

    def broken() -> Iterator[NewJob]:
        yield from numbered(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        actors.engine.run(jobs.add_many(broken()))
    assert matching(actors) == []
    assert len(actors.add_many(1)) == 1  # and nothing is left locked


@pytest.fixture
def refused_once(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database rolls the first try back."""
    once = actors.engine.run_once
    tries = []

    def run_once(operation: Operation[Any]) -> Any:
        tries.append(operation)
        if len(tries) > 1:
            return once(operation)
        with rolled_back(actors.engine) as other:
            other.engine.run(operation)
        raise Conflict("refused for now")

    monkeypatch.setattr(actors.engine, "run_once", run_once)


@pytest.mark.usefixtures("refused_once")
def test_many_that_have_to_be_tried_again_are_all_there(actors: Actors) -> None:
    assert len(actors.engine.run(jobs.add_many([*numbered(3)]))) == 3


@pytest.mark.usefixtures("refused_once")
def test_an_iterator_that_was_read_is_not_tried_again(actors: Actors) -> None:
    """It would begin in the middle, and what was read would be lost."""
    with pytest.raises(Conflict):
        actors.engine.run(jobs.add_many(numbered(3)))
    assert matching(actors) == []


def test_a_job_added_in_a_transaction_appears_with_its_commit(actors: Actors) -> None:
    with elsewhere(actors.engine) as other:
        job_id = other.add()
        with pytest.raises(JobNotFound):
            actors.get(job_id)
    assert actors.state(job_id) is JobState.PENDING


def test_a_job_added_in_a_transaction_goes_with_its_rollback(actors: Actors) -> None:
    with rolled_back(actors.engine) as other:
        job_id = other.add()
    with pytest.raises(JobNotFound):
        actors.get(job_id)


# Looking up


def test_an_unknown_id_is_not_found(actors: Actors) -> None:
    for job_id in (1, 0, -1, 2**63 - 1, 2**63, 2**80):
        with pytest.raises(JobNotFound) as caught:
            actors.get(job_id)
        assert caught.value.job_id == job_id


def test_a_running_job_shows_its_worker(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.claim()
    job = actors.get(job_id)
    assert (job.state, job.attempts, job.worker) == (JobState.RUNNING, 1, worker.name)
    assert job.started_at >= job.created_at  # type: ignore[operator]  # it has both


def test_a_successful_job_keeps_what_it_was(actors: Actors) -> None:
    job_id = actors.add("mail", {"to": "ann"}, queue="q", priority=7, tags=encode(["t"]))
    worker = actors.worker()
    worker.succeed(*worker.claim(1, "q"), {"sent": True})
    job = actors.get(job_id)
    assert (job.state, job.result, job.error) == (JobState.SUCCESSFUL, {"sent": True}, None)
    assert (job.type, job.queue, job.payload, job.priority, job.tags) == ("mail", "q", {"to": "ann"}, 7, ("t",))
    assert (job.attempts, job.worker) == (1, worker.name)
    assert job.created_at <= job.started_at <= job.finished_at  # type: ignore[operator]  # it has all three


def test_a_failed_job_keeps_what_it_was(actors: Actors) -> None:
    job_id = actors.add("mail", {"to": "ann"}, queue="q", priority=7, tags=encode(["t"]), unique_key="k")
    worker = actors.worker()
    worker.fail(*worker.claim(1, "q"), "no such host")
    job = actors.get(job_id)
    assert (job.state, job.result, job.error) == (JobState.FAILED, None, "no such host")
    assert (job.type, job.queue, job.payload, job.priority, job.tags) == ("mail", "q", {"to": "ann"}, 7, ("t",))
    assert (job.attempts, job.worker, job.unique_key) == (1, worker.name, "k")
    assert job.finished_at is not None


def test_a_failure_says_when(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.retry(*worker.claim(), error="first")
    worker.fail(*worker.claim(), error="second")
    first, second = actors.get(job_id).failures
    assert (first["attempt"], first["error"], second["attempt"], second["error"]) == (1, "first", 2, "second")
    times = [first["started_at"], first["finished_at"], second["started_at"], second["finished_at"]]
    assert times == sorted(times)
    assert abs(times[0] - datetime.now(UTC).timestamp()) < 60


def test_the_last_ten_failures_stay(actors: Actors) -> None:
    job_id, worker = actors.add(max_attempts=100), actors.worker()
    for n in range(12):
        worker.retry(*worker.claim(), error=str(n))
    assert [failure["error"] for failure in actors.get(job_id).failures] == [str(n) for n in range(2, 12)]
    worker.fail(*worker.claim(), error="last")
    assert [failure["error"] for failure in actors.get(job_id).failures] == [*map(str, range(3, 12)), "last"]


# Pages


def test_a_page_shows_the_newest_first_wherever_they_are(actors: Actors) -> None:
    ids, worker = actors.add_many(6), actors.worker()
    first, second, _ = worker.claim(3)
    worker.succeed(first)
    worker.fail(second)
    page = actors.engine.run(jobs.page(Filter()))
    assert [job.id for job in page.jobs] == ids[::-1]
    assert [job.state for job in page.jobs] == ["PENDING"] * 3 + ["RUNNING", "FAILED", "SUCCESSFUL"]
    assert [job.payload["n"] for job in page.jobs] == [5, 4, 3, 2, 1, 0]
    assert page.cursor is None


def test_pages_follow_each_other(actors: Actors) -> None:
    ids = actors.add_many(5)[::-1]
    assert all_pages(actors, Filter(), limit=2) == [ids[:2], ids[2:4], ids[4:]]


def test_pages_filter_by_state(actors: Actors) -> None:
    worker, waiting = actors.worker(), actors.add(delay=60)
    ids = {JobState.PENDING: waiting}
    for state in (JobState.SUCCESSFUL, JobState.FAILED, JobState.RETRY, JobState.CANCELLED, JobState.RUNNING):
        ids[state] = actors.add()
        (job,) = worker.claim()
        match state:
            case JobState.SUCCESSFUL:
                worker.succeed(job)
            case JobState.FAILED:
                worker.fail(job)
            case JobState.RETRY:
                worker.retry(job, delay=60)
            case JobState.CANCELLED:
                actors.engine.run(jobs.cancel([job.id]))
    assert {state: matching(actors, state=state) for state in ids} == {state: [job_id] for state, job_id in ids.items()}
    assert matching(actors, state=JobState.PROCESSING) == []


@pytest.mark.parametrize("end", ["waiting", "failed", "successful"])
def test_pages_filter_by_type_queue_and_tag(actors: Actors, end: str) -> None:
    plain = actors.add()
    typed, queued, tagged = actors.add("mail"), actors.add(queue="q"), actors.add(tags=encode(["x", "y"]))
    both = actors.add("mail", queue="q", tags=encode(["x"]))
    worker = actors.worker()
    if end != "waiting":
        for job in worker.claim(10, "default", "q"):
            worker.fail(job) if end == "failed" else worker.succeed(job)
    assert matching(actors, type="mail") == [both, typed]
    assert matching(actors, queue="q") == [both, queued]
    assert matching(actors, tag="x") == [both, tagged]
    assert matching(actors, tag="y") == [tagged]
    assert matching(actors, type="task", queue="default") == [tagged, plain]
    assert matching(actors, type="mail", queue="q", tag="x") == [both]
    assert matching(actors, tag="nothing") == []


def test_a_page_may_come_short_and_goes_on(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "REACH", 3)
    rare = actors.add("rare")
    actors.add_many(7)
    newest = actors.add("rare")
    pages = all_pages(actors, Filter(type="rare"))
    assert in_one(pages) == [newest, rare]
    assert [] in pages


def test_short_pages_miss_nothing_across_tables(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "REACH", 2)
    ids, worker = actors.add_many(9), actors.worker()
    for n, job in enumerate(worker.claim(6)):
        (worker.succeed, worker.fail, worker.retry)[n % 3](job)
    assert in_one(all_pages(actors, Filter(), limit=4)) == ids[::-1]


@pytest.mark.parametrize("limit", [0, -1, 501])
def test_a_page_has_a_size(limit: int) -> None:
    with pytest.raises(InvalidOption, match="limit"):
        next(iter(jobs.page(Filter(), limit=limit)))


# Cancelling


def test_what_is_not_final_can_be_cancelled(actors: Actors) -> None:
    worker, ids = actors.worker(), actors.add_many(3)
    running, again = worker.claim(2)
    worker.retry(again, delay=60)
    assert actors.engine.run(jobs.cancel(ids)) == 3
    assert [actors.state(job_id) for job_id in ids] == ["CANCELLED"] * 3
    assert actors.get(running.id).finished_at is not None
    assert worker.claim(10) == []


def test_what_is_final_cannot_be_cancelled(actors: Actors) -> None:
    worker, ids = actors.worker(), actors.add_many(3)
    good, bad, _ = worker.claim(3)
    worker.succeed(good)
    worker.fail(bad)
    actors.engine.run(jobs.cancel([ids[2]]))
    assert actors.engine.run(jobs.cancel([*ids, 12345])) == 0
    assert [actors.state(job_id) for job_id in ids] == ["SUCCESSFUL", "FAILED", "CANCELLED"]


def test_cancelling_the_same_job_twice_counts_once(actors: Actors) -> None:
    job_id = actors.add()
    assert actors.engine.run(jobs.cancel([job_id, job_id])) == 1
    assert actors.engine.run(jobs.cancel([job_id])) == 0


@on_servers
def test_a_cancel_has_no_row_while_it_waits_for_another(actors: Actors) -> None:
    """Even a claim waits at times, in spite of SKIP LOCKED: who has rows and waits for more could deadlock with it."""
    first, busy, last = actors.add_many(3)
    with ThreadPoolExecutor(1) as thread:
        with elsewhere(actors.engine) as other:
            other.sql(f"select from dibs.jobs where id = {busy} for update")
            cancelled = thread.submit(actors.engine.run, jobs.cancel([first, busy, last]))
            until_somebody_waits(actors)
            assert [actors.state(each) for each in (first, busy, last)] == ["CANCELLED", "PENDING", "CANCELLED"]
        assert cancelled.result() == 3
    assert actors.state(busy) == "CANCELLED"


@on_servers
def test_a_job_that_succeeds_while_a_cancel_waits_for_it_is_not_counted(actors: Actors) -> None:
    first, other_id, worker = actors.add(), actors.add(), actors.worker()
    (job,) = worker.claim(limit=1)
    with ThreadPoolExecutor(1) as thread:
        with elsewhere(actors.engine) as other:
            through(worker, other).succeed(job)
            cancelled = thread.submit(actors.engine.run, jobs.cancel_matching(Filter()))
            until_somebody_waits(actors)
        assert cancelled.result() == Bulk(done=1, refused=1, cursor=None)
    assert [actors.state(first), actors.state(other_id)] == ["SUCCESSFUL", "CANCELLED"]


def test_all_that_match_are_cancelled_step_by_step(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BULK", 2)
    ids, other = actors.add_many(3, queue="q"), actors.add()
    first = actors.engine.run(jobs.cancel_matching(Filter(queue="q")))
    assert first == Bulk(2, 0, ids[1])
    assert actors.engine.run(jobs.cancel_matching(Filter(queue="q"), after=ids[1])) == Bulk(1, 0, None)
    assert {actors.state(job_id) for job_id in ids} == {JobState.CANCELLED}
    assert actors.state(other) is JobState.PENDING


def test_all_running_jobs_can_be_cancelled(actors: Actors) -> None:
    running, waiting = actors.add_many(2)
    actors.worker().claim()
    assert actors.engine.run(jobs.cancel_matching(Filter(state=JobState.RUNNING))) == Bulk(1, 0, None)
    assert (actors.state(running), actors.state(waiting)) == ("CANCELLED", "PENDING")


# A person retries


@pytest.mark.parametrize("end", ["FAILED", "CANCELLED"])
def test_a_retried_job_starts_anew(actors: Actors, end: str) -> None:
    job_id, worker = actors.add(payload={"n": 1}, priority=8, tags=encode(["t"])), actors.worker()
    worker.retry(*worker.claim(), error="first")
    (job,) = worker.claim()
    actors.engine.run(jobs.progress(job.lease, encode(50)))
    worker.fail(job) if end == "FAILED" else actors.engine.run(jobs.cancel([job_id]))
    before = actors.get(job_id)
    actors.engine.run(jobs.retry(job_id))
    again = actors.get(job_id)
    assert (again.state, again.attempts, again.progress, again.finished_at) == (JobState.PENDING, 0, None, None)
    assert (again.payload, again.priority, again.tags, again.created_at) == ({"n": 1}, 8, ("t",), before.created_at)
    assert again.failures == before.failures
    assert again.run_at >= before.finished_at  # type: ignore[operator]  # it has both
    (claimed,) = worker.claim()
    assert (claimed.id, claimed.attempts, claimed.crashes, claimed.finishing) == (job_id, 1, 0, 0)


def test_a_retried_suspect_is_a_plain_job_again(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    worker.claim()
    actors.recover(worker)
    actors.make_due()
    heir = actors.worker()
    heir.fail(*heir.claim())
    actors.engine.run(jobs.retry(job_id))
    (job,) = heir.claim(suspects=0, ranks=range(10))
    assert (job.id, job.suspect, job.crashes) == (job_id, False, 0)


def test_a_retried_job_of_one_attempt_is_on_its_last(actors: Actors) -> None:
    job_id, worker = actors.add(max_attempts=1), actors.worker()
    worker.fail(*worker.claim())
    actors.engine.run(jobs.retry(job_id))
    assert worker.claim(ranks=range(10)) == []
    assert [job.id for job in worker.claim(ranks=range(10, 20))] == [job_id]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "RETRY", "SUCCESSFUL"])
def test_only_failed_and_cancelled_jobs_are_retried(actors: Actors, state: str) -> None:
    job_id, worker = actors.add(), actors.worker()
    match state:
        case "RUNNING":
            worker.claim()
        case "RETRY":
            worker.retry(*worker.claim())
        case "SUCCESSFUL":
            worker.succeed(*worker.claim())
    with pytest.raises(NotRetryable, match=state):
        actors.engine.run(jobs.retry(job_id))
    assert actors.state(job_id) == state


def test_an_unknown_job_cannot_be_retried(actors: Actors) -> None:
    with pytest.raises(JobNotFound):
        actors.engine.run(jobs.retry(12345))


def test_all_that_match_are_retried_step_by_step(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BULK", 2)
    ids, cancelled, worker = actors.add_many(3), actors.add(), actors.worker()
    for job in worker.claim(3):
        worker.fail(job)
    actors.engine.run(jobs.cancel([cancelled]))
    wanted = Filter(state=JobState.FAILED)
    assert actors.engine.run(jobs.retry_matching(wanted)) == Bulk(2, 0, ids[1])
    assert actors.engine.run(jobs.retry_matching(wanted, after=ids[1])) == Bulk(1, 0, None)
    assert [actors.state(job_id) for job_id in (*ids, cancelled)] == ["PENDING"] * 3 + ["CANCELLED"]


# Progress


def test_progress_is_seen_and_stays(actors: Actors) -> None:
    job_id, worker = actors.add(), actors.worker()
    (job,) = worker.claim()
    actors.engine.run(jobs.progress(job.lease, encode({"percent": 10})))
    assert actors.get(job_id).progress == {"percent": 10}
    actors.engine.run(jobs.progress(job.lease, encode({"percent": 90})))
    worker.settle(job, Back(Way.RETRY))
    assert actors.get(job_id).progress == {"percent": 90}
    worker.succeed(*worker.claim())
    assert actors.get(job_id).progress == {"percent": 90}
