"""What arrives together is added together, and answered one by one."""

import asyncio

import pytest

from dibs import Dibs
from dibs.errors import NotMigrated, Refused
from dibs.job import Job, NewJob
from dibs.payload import encode
from dibs.server.adder import Adder
from tests.actors import Actors

PICKY = {  # a database that does not take every job
    "postgresql": "alter table dibs.jobs add constraint picky check (type <> 'bad')",
    "sqlite": "create trigger t before insert on dibs.jobs when new.type = 'bad' begin select raise(abort, ''); end",
}


def numbered(count: int) -> list[NewJob]:
    return [NewJob("task", encode({"n": n}), queue=f"q{n % 3}") for n in range(count)]


async def test_each_is_told_of_its_own(async_app: Dibs) -> None:
    adder = Adder(async_app)
    added = await asyncio.gather(*(adder.add(job) for job in numbered(50)))
    assert len({job.id for job in added}) == 50
    for n in (0, 1, 25, 49):
        stored = await async_app.aget(added[n].id)
        assert (stored.payload, stored.queue) == (added[n].payload, added[n].queue) == ({"n": n}, f"q{n % 3}")


async def test_those_who_come_meanwhile_go_together(async_app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    begun = asyncio.Event()
    adder, original = Adder(async_app), Adder._add

    async def counted(self: Adder, chosen: list[object]) -> None:
        sizes.append(len(chosen))
        begun.set()
        await original(self, chosen)  # type: ignore[arg-type]  # what it was given

    monkeypatch.setattr(Adder, "_add", counted)
    first = asyncio.create_task(adder.add(NewJob("task")))
    await begun.wait()
    await asyncio.gather(first, *(adder.add(job) for job in numbered(20)))
    assert sizes == [1, 20]


async def test_a_big_one_waits_for_nobody_else(async_app: Dibs) -> None:
    adder = Adder(async_app)
    big = NewJob("task", encode({"text": "x" * 900_000}))
    added = await asyncio.gather(*(adder.add(job) for job in [big, big, big, NewJob("small")]))
    assert [job.type for job in added] == ["task", "task", "task", "small"]


async def test_one_that_the_database_refuses_harms_no_other(async_app: Dibs, url: str) -> None:
    adder = Adder(async_app)
    await adder.add(NewJob("task"))
    Actors(async_app.engine).sql(PICKY[url.partition(":")[0]])
    wanted = [NewJob(kind) for kind in ("good", "bad", "good")]
    first, bad, last = await asyncio.gather(*(adder.add(job) for job in wanted), return_exceptions=True)
    assert isinstance(bad, Refused)
    assert [(await async_app.aget(job.id)).type for job in (first, last) if isinstance(job, Job)] == ["good", "good"]


async def test_when_the_database_is_away_each_is_told(async_app: Dibs) -> None:
    adder = Adder(async_app)
    Actors(async_app.engine).sql("alter table dibs.jobs rename to away")
    answers = await asyncio.gather(*(adder.add(job) for job in numbered(5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotMigrated] * 5


async def test_one_who_has_gone_is_not_waited_for(async_app: Dibs) -> None:
    adder = Adder(async_app)
    await adder.add(NewJob("task"))
    gone, stays = (asyncio.create_task(adder.add(job)) for job in numbered(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await stays).payload == {"n": 1}
