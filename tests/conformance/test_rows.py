"""Both engines say the same things: statements, columns, shapes of rows."""

import re
from importlib.resources import files

import pytest

from dibs.engines.dialect import COMMENT
from dibs.job import STATES, JobState
from dibs.operations import jobs
from dibs.operations.jobs import Filter
from dibs.payload import encode
from tests.actors import Actors

JOB = "id run_at created_at claimed_at worker token version rank"
WORK = "queue type unique_key"
MORE = "payload tags progress failures"
TABLES = {
    "jobs": f"{JOB} held state attempts max_attempts crashes finishing {WORK} unique_for {MORE} row_key submits part",
    "history": f"{JOB} state attempts max_attempts crashes finished_at expires {WORK} {MORE} result submits part",
    "dead": f"{JOB} state attempts max_attempts crashes finished_at {WORK} unique_for {MORE} hook_error row_key "
    "submits part",
    "queues": "name paused",
    "workers": "id name lease beat started_at beat_at steady_since asking claims",
    "worker_names": "id name seen_at",
    "unique_keys": "type key job until",
    "migrations": "number name applied_at",
    "tokens": "name hash scopes created_at",
    "secrets": "name value",
    "requests": "key fingerprint job at",
    "stats": "minute queue successful failed retried",
    "batches": "id name created_at closed_at finished_at hooks",
    "parts": "id batch last total successful failed cancelled",
    "submissions": "job round type key tried begun_at task_id digest accepted_at others answer answered_at outcome "
    "usage finished_at expires part",
    "all_jobs": "id type queue state priority attempts max_attempts payload result error progress tags unique_key "
    "worker created_at run_at started_at finished_at",
}


def sql_files(engine: str) -> dict[str, str]:
    folder = files(f"dibs.engines.{engine}").joinpath("sql")
    return {file.name: file.read_text() for file in folder.iterdir() if file.name.endswith(".sql")}


def statements(engine: str) -> list[str]:
    return [name for text in sql_files(engine).values() for name in re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)]


def test_both_engines_keep_them_in_the_same_files() -> None:
    postgres, sqlite = sql_files("postgres"), sql_files("sqlite")
    assert set(sqlite) - {"connection.sql"} == set(postgres) - {"copy.sql"}
    for name, text in postgres.items():
        if name == "copy.sql":
            continue
        found = [re.findall(r"^-- name: (\w+)$", each, re.MULTILINE) for each in (text, sqlite[name])]
        assert found[0] == found[1], name


@pytest.mark.parametrize("package", ["postgres", "sqlite"])
def test_no_name_is_used_twice(package: str) -> None:
    names = statements(package)
    assert len(names) == len(set(names))


def test_tables_have_the_same_columns(actors: Actors) -> None:
    asked = (
        "select column_name from information_schema.columns where table_schema = 'dibs' and table_name = '{}'"
        if actors.engine.can.cursor
        else "select name from pragma_table_info('dibs_{}')"
    )
    actors.add()
    for table, wanted in TABLES.items():
        assert sorted(name for (name,) in actors.sql(asked.format(table))) == sorted(wanted.split()), table


def test_states_are_numbered_alike() -> None:
    """The numbers are in everybody's tables: they never change."""
    assert [state.value for state in STATES] == [
        "PENDING",
        "RETRY",
        "PROCESSING",
        "SUCCESSFUL",
        "FAILED",
        "CANCELLED",
        "RUNNING",
        "SUBMITTING",
    ]


def test_a_page_shows_what_a_look_up_shows(actors: Actors) -> None:
    actors.add_many(4, tags=encode(["t"]))
    worker = actors.worker()
    good, bad, running = worker.claim(3)
    actors.engine.run(jobs.progress(running.lease, b"1"))
    worker.succeed(good, [1])
    worker.fail(bad)
    page = actors.engine.run(jobs.page(Filter()))
    assert page.jobs == [actors.get(int(job.id)) for job in page.jobs]
    assert [job.state for job in page.jobs] == ["PENDING", "RUNNING", "FAILED", "SUCCESSFUL"]


def test_the_view_for_people_shows_every_job_in_words(actors: Actors) -> None:
    (good, bad, running, again, cancelled, waiting), worker = actors.add_many(6, priority=7), actors.worker()
    jobs_held = worker.claim(5)
    worker.succeed(jobs_held[0])
    worker.fail(jobs_held[1], "no luck")
    worker.retry(jobs_held[3], error="later")
    actors.engine.run(jobs.cancel([cancelled]))
    rows = actors.sql("select id, state, priority, error from dibs.all_jobs order by id")
    assert [tuple(row) for row in rows] == [
        (good, "SUCCESSFUL", 7, None),
        (bad, "FAILED", 7, "no luck"),
        (running, "RUNNING", 7, None),
        (again, "RETRY", 7, "later"),
        (cancelled, "CANCELLED", 7, None),
        (waiting, "PENDING", 7, None),
    ]


def test_writes_find_live_rows_by_a_list_of_one() -> None:
    """Joined by `j.id = d.id`, a queue that keeps up would be read whole, dead entries included, by each turn."""
    texts = [*sql_files("postgres").values()]
    texts += [file.read_text() for file in files("dibs.engines.postgres").joinpath("migrations").iterdir()]
    for text in texts:
        assert not re.findall(r"\bj\.id = [a-z]\w*\.id", COMMENT.sub("", text))


def test_every_state_can_be_asked_for(actors: Actors) -> None:
    for state in JobState:
        assert actors.engine.run(jobs.page(Filter(state=state))).jobs == []
