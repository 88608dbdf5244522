"""Overlapping invocations at a paid provider: every item is accepted once, whatever is killed; the money adds up."""

from collections import Counter
from pathlib import Path

import pytest

from dibs import JobState
from tests.actors import Actors
from tests.apps import POSTGRES, SQLITE
from tests.scenarios.buyer import connect, invoke, naive, shop
from tests.scenarios.crew import Crew, until
from tests.scenarios.till import PRICE, open_till

INVOCATIONS = 6
KILLS = 30
# For people: what the provider accepted more than once, and ids that more than one item has.
TWICE = "select job, type, task_id, others from dibs.submissions where others is not null"
DUPLICATES = (
    "select task_id, count(*) from dibs.submissions where task_id is not null group by task_id having count(*) > 1"
)


def accepted(folder: Path) -> Counter[str]:
    """How often the provider accepted each item, by its own ledger."""
    lines = (folder / "accepted").read_text().splitlines() if (folder / "accepted").exists() else []
    return Counter(line.split()[0] for line in lines)


def till(crew: Crew, folder: Path, *, honours_keys: bool, kills: int) -> int:
    crew.start(open_till, folder / "accepted", folder / "port", honours_keys, kills)
    until((folder / "port").exists, crew, "the provider opens")
    return int((folder / "port").read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count, kills", [(400, 6), pytest.param(5000, KILLS, marks=pytest.mark.long)], ids=["few", "many"]
)
@pytest.mark.parametrize("honours_keys", [True, False], ids=["idempotent", "not idempotent"])
@pytest.mark.parametrize("url", [SQLITE, POSTGRES], indirect=True)
def test_every_item_is_paid_for_once(
    url: str, crew: Crew, tmp_path: Path, count: int, kills: int, honours_keys: bool
) -> None:
    port = till(crew, tmp_path, honours_keys=honours_keys, kills=kills)
    app, task = shop(url, port, honours_keys=honours_keys)
    actors = Actors(app.engine)
    ids = app.enqueue_many(task.call(text=f"item-{n}") for n in range(count))
    invocations = [crew.start(invoke, url, port, honours_keys) for _ in range(INVOCATIONS)]

    def finished() -> bool:
        for member in [each for each in invocations if not each.is_alive()]:  # killed, or at its end: invoked again
            crew.members.remove(member)
            invocations.remove(member)
            invocations.append(crew.start(invoke, url, port, honours_keys))
        (left,) = actors.sql("select count(*) from dibs.jobs")
        return left[0] == 0

    until(finished, crew, "all items are done", patience=600)
    assert int((tmp_path / "killed").read_text()) == kills  # during submissions, all of them
    assert accepted(tmp_path) == Counter({f"item-{n}": 1 for n in range(count)})
    assert actors.sql(TWICE) == actors.sql(DUPLICATES) == []
    jobs = [app.get(job_id) for job_id in ids]
    assert {job.state for job in jobs} == {JobState.SUCCESSFUL}
    assert len({job.provider_task_id for job in jobs}) == count
    assert sum(job.usage for job in jobs) == PRICE * count
    app.close()


@pytest.mark.slow
@pytest.mark.parametrize("url", [SQLITE, POSTGRES], indirect=True)
def test_the_naive_loop_pays_twice(url: str, crew: Crew, tmp_path: Path) -> None:
    count, loops = 50, 3
    port = till(crew, tmp_path, honours_keys=False, kills=0)
    database = connect(url)
    database.execute("create table items (id integer primary key, text text, status text, task_id text)")
    for n in range(count):
        database.execute(f"insert into items values ({n}, 'item-{n}', 'queued', null)")
    ready = tmp_path / "ready"
    ready.mkdir()
    members = [crew.start(naive, url, port, ready, loops) for _ in range(loops)]
    for member in members:
        member.join(120)
    paid = accepted(tmp_path)
    assert sum(paid.values()) == loops * count  # and only the last id of each is known
    assert {row[0] for row in database.execute("select status from items").fetchall()} == {"done"}
    database.close()
