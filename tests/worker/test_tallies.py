"""What jobs came to, on its way to the database."""

from typing import Any

import pytest

from dibs import Dibs
from dibs.errors import DatabaseError, DeadlineExceeded, OutcomeUnknown
from dibs.lifecycle import SUCCESS
from dibs.operations import stats
from dibs.operations.operation import Operation
from dibs.worker.tallies import Tallies


async def successful(app: Dibs) -> int:
    return sum(minute.successful for minute in await app.engine.arun(stats.minutes(5)))


@pytest.mark.parametrize("error, commits", [(DeadlineExceeded, False), (OutcomeUnknown, True)])
async def test_what_was_not_added_is_kept_and_what_may_have_been_is_not(
    async_app: Dibs, monkeypatch: pytest.MonkeyPatch, error: type[DatabaseError], commits: bool
) -> None:
    tallies, arun = Tallies(async_app.engine), async_app.engine.arun

    async def fails(operation: Operation[Any]) -> Any:
        if commits:
            await arun(operation)
        tallies.count("default", SUCCESS)  # others end meanwhile
        raise error("away")

    tallies.count("default", SUCCESS, 2)
    with monkeypatch.context() as patch:
        patch.setattr(async_app.engine, "arun", fails)
        await tallies.run_once()
    await tallies.run_once()
    await tallies.run_once()
    assert await successful(async_app) == 3
