"""The recovery for the database's own cron: what it frees, what it completes, and what it leaves alone."""

from __future__ import annotations

import threading

import pytest

from dibs import Dibs
from dibs.adopted.postgres_extras import recovers
from dibs.adopted.source import Adopted
from dibs.lifecycle import SUCCESS
from dibs.operations import workers
from tests.adopted.schemas import WORDS
from tests.adopted.tables import Application
from tests.adopted.test_owners import hand, table_of
from tests.apps import on_postgres

pytestmark = on_postgres
CRON = """create table prints (
  id int primary key, status text not null, began timestamptz, ended timestamptz, error text);
create table print_files (print_id int)"""


@pytest.fixture
def prints(app: Dibs) -> Adopted:
    """A table whose retries have a word of their own, with the function for the database's own cron."""
    application = Application(app.engine)
    application.execute(CRON)
    said = dict(key="id", status="status", states=WORDS | {"RETRY": "again"}, max_attempts=1)
    kept = dict(started_at="began", finished_at="ended", error="error", output=("print_files", "print_id"))
    prints = app.adopt("prints", **said, **kept)  # type: ignore[arg-type]  # what it asks for
    application.execute(recovers(table_of(app, prints), 300))
    return prints


def recovered(app: Dibs) -> int:
    return int(Application(app.engine).execute('select dibs."recover prints"()')[0][0])


def words_of(app: Dibs) -> dict[int, str]:
    return dict(Application(app.engine).execute("select id, status from prints"))


def test_cron_completes_what_has_its_output_and_frees_the_rest(app: Dibs, prints: Adopted) -> None:
    application = Application(app.engine)
    application.execute(
        "insert into prints select n, case when n < 3 then 'started' else 'again' end, now() - interval '1 h'"
        ", null, 'x' from generate_series(1, 4) n;"
        "insert into prints values (5, 'started', now()), (6, 'again', now());"
        "insert into print_files values (1), (3)"
    )
    assert recovered(app) == 4
    assert words_of(app) == {1: "completed", 2: "queued", 3: "completed", 4: "queued", 5: "started", 6: "again"}
    done = "select id from prints where ended > now() - interval '1 minute' and error is null order by id"
    assert application.execute(done) == [(1,), (3,)]
    assert recovered(app) == 0


@pytest.mark.slow
def test_cron_frees_the_rows_of_a_dead_worker(app: Dibs, prints: Adopted) -> None:
    """It looks twice, five seconds apart: one that comes back meanwhile keeps its rows."""
    application = Application(app.engine)
    application.execute("insert into prints select n, 'queued' from generate_series(1, 2) n")
    dead, alive = hand(app, prints, 7, max_attempts=3), hand(app, prints, 8)
    (of_the_dead,), (of_the_living,) = dead.take(1), alive.take(1)
    application.execute("update dibs.workers set beat_at = beat_at - interval '2 hours'")
    found = list[int]()
    cron = threading.Thread(target=lambda: found.append(recovered(app)))
    cron.start()
    while not application.execute(
        "select 1 from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
    ):
        pass
    app.engine.run(workers.beat([alive.worker], [of_the_living.lease], steady=True))
    cron.join()
    assert found == [1]
    assert sorted(words_of(app).values()) == ["again", "started"]
    assert dead.settle((of_the_dead, SUCCESS)).lost == {of_the_dead.id}
    assert not alive.settle((of_the_living, SUCCESS)).lost


def test_cron_frees_what_was_ours_without_a_time(app: Dibs) -> None:
    """What others left behind it leaves to a worker, who can see how long it takes."""
    application = Application(app.engine)
    application.execute("create table prints (id int primary key, status text not null)")
    application.execute("insert into prints values (1, 'queued'), (2, 'started')")
    prints = app.adopt("prints", key="id", status="status", states=WORDS)
    application.execute(recovers(table_of(app, prints), 300))
    hand(app, prints, 7, max_attempts=3).take(1)
    assert recovered(app) == 0
    app.engine.run(workers.recover(known=[7]))  # type: ignore[list-item]  # a number
    assert recovered(app) == 1
    assert words_of(app) == {1: "queued", 2: "started"}


def test_cron_leaves_alone_what_a_person_is_to_retry(app: Dibs, prints: Adopted) -> None:
    """Its table refused to write what became of it."""
    application = Application(app.engine)
    application.execute(
        "create function refuses() returns trigger language plpgsql as $$ begin raise exception 'sacred'; end $$;"
        "create trigger sacred before update on prints for each row when (old.status = 'started')"
        " execute function refuses()"
    )
    application.execute("insert into prints values (1, 'queued')")
    prints.process(lambda row: None)
    app.drain()
    application.execute("drop trigger sacred on prints; update prints set began = now() - interval '1 hour'")
    assert recovered(app) == 0
    assert words_of(app) == {1: "started"}
