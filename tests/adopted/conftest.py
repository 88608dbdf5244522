"""Every schema on every engine that can have it."""

from collections.abc import Iterator

import pytest

from tests.adopted.schemas import ALL, BARE, PARTITIONED, STICKERS
from tests.adopted.tables import Adopted
from tests.engines import POSTGRES, SQLITE, Engines

ENGINES = [*SQLITE, "postgres18", *[name for name in POSTGRES if name == "postgres-url"]]
# On PostgreSQL there are two statements for new rows. All schemas go through the shorter one; these through the other
# one too, and in CI all of them.
BOTH_WAYS = (STICKERS, BARE, PARTITIONED)
CASES = [
    pytest.param(
        (name, schema, hurried),
        id=f"{name}-{schema.name}{', hurried' if hurried else ''}",
        marks=() if hurried or name.startswith("sqlite") or schema in BOTH_WAYS else pytest.mark.long,
    )
    for name in ENGINES
    for schema in ALL
    if schema.sqlite or not name.startswith("sqlite")
    for hurried in ([False] if name.startswith("sqlite") else [False, True])
]


@pytest.fixture(params=CASES)
def adopted(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Adopted]:
    """An empty table, adopted."""
    name, schema, hurried = request.param
    with engines.open(name) as engine:
        yield Adopted(engine, schema, hurried=hurried)
