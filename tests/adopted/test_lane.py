"""A lane for rows: it asks for new rows alone as long as there are many, and forgets nobody for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dibs import Dibs, ladder
from dibs.job import Claimed, WorkerId
from dibs.lifecycle import SUCCESS, Back, Change, Way
from dibs.operations import workers
from dibs.operations.adopted import taken_of
from dibs.operations.claims import Settle
from dibs.worker.lane import Ask
from dibs.worker.rows import RowLane
from tests.adopted.tables import Application
from tests.adopted.test_processing import TABLE, adopt
from tests.apps import on_postgres

pytestmark = on_postgres
RETRY = Back(Way.RETRY, 0.0)


def said(jobs: Sequence[Claimed], change: Change = SUCCESS) -> list[Settle]:
    return [Settle(job.lease, change, attempt=job.attempts, key=taken_of(job).key) for job in jobs]


async def opened(app: Dibs, rows: int) -> RowLane:
    """On a table of so many rows."""
    application = Application(app.engine)
    application.execute(TABLE)
    application.execute(f"insert into stickers (id, status) select i, 'queued' from generate_series(1, {rows}) i")
    await app.engine.arun(workers.enlist(7, "worker-7", lease=1500, beat=3))
    source = await adopt(app).asource(app.engine)
    return RowLane.open(app.engine, WorkerId(7), lambda *_: None, source, "worker-7", tells=False)


async def test_between_ticks_new_rows_alone_are_asked_for(async_app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "TICK", 100_000.0)
    lane = await opened(async_app, 20)
    ask, alone = Ask((), 1), list[bool]()
    for number in range(7):
        if number == 4:
            monkeypatch.setattr(ladder, "TICK", 90_000.0)  # the next tick
        alone.append(lane._new_alone(ask))
        assert len((await lane.turn(ask)).claimed) == 1
    await lane.aclose()
    assert alone == [False, True, True, True, False, True, True]


async def test_a_retry_does_not_wait_until_there_are_no_new_rows(async_app: Dibs) -> None:
    lane = await opened(async_app, 2000)
    first = (await lane.turn(Ask((), 1))).claimed
    turn = await lane.turn(Ask((), 1), said(first, RETRY))
    seen = 0
    while turn.claimed[0].id != first[0].id:
        turn = await lane.turn(Ask((), 1), said(turn.claimed))
        seen += 1
    await lane.aclose()
    assert seen < 1900


async def test_too_few_new_rows_are_not_the_end(async_app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of rows were not asked for: so the worker is told to ask again."""
    monkeypatch.setattr(ladder, "TICK", 3600.0)
    lane = await opened(async_app, 3)
    one, two = (await lane.turn(Ask((), 2))).claimed
    await lane.turn(None, said([one], RETRY))
    turn, claimed = await lane.turn(Ask((), 2), said([two])), list[Claimed]()
    while turn.picked == 2:
        claimed += turn.claimed
        turn = await lane.turn(Ask((), 2))
    await lane.aclose()
    claimed += turn.claimed
    assert [job.id for job in claimed if job.id == one.id] == [one.id]
    assert len(claimed) == 2
