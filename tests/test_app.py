"""What a user holds: an app, its settings, its tasks, and what can be done with their jobs."""

import asyncio
import dataclasses
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest

from dibs import Dibs, Job, JobState, Task
from dibs.config import Settings, database_url
from dibs.errors import (
    ConfigError,
    DuplicateTask,
    InvalidOption,
    InvalidPayload,
    JobNotFound,
    NotRetryable,
    PayloadTooLarge,
    UniqueKeyHeld,
    UnknownScheme,
)
from dibs.job import NewJob
from dibs.operations import jobs
from dibs.operations.jobs import Filter
from dibs.payload import encode
from tests.actors import Actors
from tests.apps import SQLITE, count_jobs, on_sqlite

ANN = UUID("b0d6a5a1-5b1e-4f0a-9a39-0e3d2a3c8f11")


@pytest.fixture
def idle() -> Dibs:
    """An app whose database is never opened."""
    return Dibs("sqlite:///never-opened.db")


# Settings


def test_the_defaults_are_those_of_the_reference() -> None:
    assert dataclasses.asdict(Settings()) == {
        "mask": ("password", "passwd", "secret", "authorization", "api_key"),
        "lease": 15.0,
        "beat": 3.0,
        "grace": 25.0,
        "concurrency": 10,
        "prefetch": None,
        "look": 5.0,
        "events": True,
        "max_payload": 1024 * 1024,
        "deadline": 30.0,
        "public_url": None,
        "schema": "dibs",
        "listen_url": None,
        "sqlite": None,
    }


def test_a_setting_is_kept() -> None:
    assert Dibs("sqlite:///x.db", lease=60, beat=10).settings.lease == 60


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"lease": 11}, "lease"),  # under four beats
        ({"beat": 0}, "beat"),
        ({"beat": True}, "beat"),
        ({"beat": float("nan")}, "beat"),
        ({"lease": 100_000}, "lease"),
        ({"grace": -1}, "grace"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"concurrency": "10"}, "concurrency"),
        ({"prefetch": -1}, "prefetch"),
        ({"look": 0}, "look"),
        ({"max_payload": 0}, "max_payload"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": None}, "deadline"),
        ({"leese": 15}, "leese"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Dibs("sqlite:///x.db", **settings)


@pytest.mark.parametrize("schema", ["", "a b", 'x"; drop schema dibs', "1st", "x" * 64])
def test_a_schema_has_a_plain_name(schema: str) -> None:
    with pytest.raises(ConfigError, match="letters, digits and underscores"):
        Dibs("postgresql://localhost/x", schema=schema)


# URLs


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, "sqlite:///dibs.db"),
        ({"DATABASE_URL": "postgresql://a/b"}, "postgresql://a/b"),
        ({"DATABASE_URL": "postgresql://a/b", "DIBS_URL": "sqlite:///c.db"}, "sqlite:///c.db"),
        ({"DATABASE_URL": "", "DIBS_URL": ""}, "sqlite:///dibs.db"),
    ],
)
def test_the_url_comes_from_the_environment(environment: dict[str, str], expected: str) -> None:
    assert database_url(None, environment) == expected
    assert database_url("sqlite:///given.db", environment) == "sqlite:///given.db"


def test_an_app_without_a_url_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:///one.db")
    assert Dibs().url == "sqlite:///one.db"
    monkeypatch.setenv("DIBS_URL", "sqlite:///other.db")
    assert Dibs().url == "sqlite:///other.db"


@pytest.mark.parametrize("url", ["postgres://a/b", "postgresql://a/b", "postgresql+psycopg://a/b", "POSTGRESQL://a/b"])
def test_a_server_goes_by_several_schemes(url: str) -> None:
    assert Dibs(url).engine.name == "postgres"


@pytest.mark.parametrize("url", ["mysql://a/b", "redis://a", "postgresql+asyncpg://a/b", "://x"])
def test_an_unknown_scheme_is_named(url: str) -> None:
    with pytest.raises(UnknownScheme, match="Use sqlite:///") as caught:
        Dibs(url)
    assert caught.value.scheme == url.partition("://")[0]


@pytest.mark.parametrize(
    "url",
    [
        "shop.db",
        "sqlite:shop.db",
        "sqlite://shop.db",  # two slashes
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///x.db?synchronous=off",
        "sqlite:///x.db?network=maybe",
        "sqlite:///x.db?mode=ro",
        "postgresql://a/b?pooled=perhaps",
        "postgresql://[::1/b",
    ],
)
def test_a_wrong_url_is_told_at_once(url: str) -> None:
    with pytest.raises(ConfigError):
        Dibs(url)


def test_a_new_app_opens_nothing(tmp_path: Path) -> None:
    Dibs(f"sqlite:///{tmp_path}/x.db")
    Dibs("postgresql://nobody.invalid/x")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_file_lies_where_the_app_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that changes its directory later does not get a second database."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    app = Dibs("sqlite:///jobs.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    app.migrate()
    app.close()
    assert (tmp_path / "jobs.db").exists()


# Declaring tasks


def test_a_task_stays_a_function(idle: Dibs) -> None:
    @idle.task
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert (add(1), add(1, 2), getattr(add, "__name__", ""), add.__doc__) == (2, 3, "add", "Add.")


async def test_an_async_task_stays_a_coroutine_function(idle: Dibs) -> None:
    @idle.task(queue="q")
    async def add(a: int, b: int) -> int:
        return a + b

    assert await add(1, b=2) == 3


def test_a_task_is_named_after_its_function(idle: Dibs) -> None:
    @idle.task
    def one() -> None: ...

    @idle.task(name="two")
    def other() -> None: ...

    assert one.name == f"{__name__}.test_a_task_is_named_after_its_function.<locals>.one"
    assert (other.name, set(idle.tasks)) == ("two", {one.name, "two"})


def test_two_tasks_of_one_name_are_refused(idle: Dibs) -> None:
    idle.task(name="same")(lambda: None)
    with pytest.raises(DuplicateTask, match=r"Give one of them another name: @app.task\(name=...\)") as caught:
        idle.task(name="same")(lambda: None)
    assert caught.value.name == "same"


SCRIPT = """
from dibs import Dibs
app = Dibs("sqlite:///jobs.db")

@app.task
def greet(name: str) -> str:
    return f"hello {name}"

if __name__ == "__main__":
    print(greet.enqueue(name="Ada").type)
"""


@pytest.mark.slow
def test_a_script_and_the_module_that_it_is_call_a_task_alike(tmp_path: Path) -> None:
    """What `python shop.py` enqueues, `dibs drain shop:app` runs."""
    (tmp_path / "shop.py").write_text(SCRIPT)

    def run(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert run("shop.py") == "shop.greet"
    assert run("-m", "shop") == "shop.greet"
    assert run("-c", "import shop; print(shop.greet.name); print(shop.app.drain().successful)") == "shop.greet\n2"


@pytest.mark.parametrize(
    "options, named",
    [
        ({"name": "x" * 201}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"queue": ""}, "queue"),
        ({"queue": "x" * 201}, "queue"),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"keep": -1}, "keep"),
        ({"keep": 0.5}, "keep"),
        ({"tags": "urgent"}, "tags"),
        ({"tags": ["x"] * 21}, "tags"),
        ({"retry": []}, "retry"),
    ],
)
def test_a_wrong_option_of_a_task_is_named(idle: Dibs, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        idle.task(**options)(lambda: None)
    assert caught.value.option == named
    assert not idle.tasks


def positional_only(a: int, /) -> None: ...


def many(*args: int) -> None: ...


def tunnel(**kwargs: int) -> None: ...


@pytest.mark.parametrize("function", [positional_only, many, tunnel])
def test_a_task_takes_arguments_by_name(idle: Dibs, function: Callable[..., None]) -> None:
    with pytest.raises(InvalidPayload, match="takes arguments by name"):
        idle.task(function)


def test_the_options_of_a_task_are_those_of_its_jobs(app: Dibs) -> None:
    @app.task(queue="media", priority=8, max_attempts=7, tags=["a", "b"])
    def render(n: int) -> None: ...

    job = render.enqueue(n=1)
    assert (job.queue, job.priority, job.max_attempts, job.tags) == ("media", 8, 7, ("a", "b"))
    assert app.get(job.id) == job


# Enqueueing


@pytest.fixture
def greet(app: Dibs) -> Task[..., str]:
    return declare_greet(app)


def declare_greet(app: Dibs) -> Task[..., str]:
    @app.task(name="greet")
    def greet(name: str, times: int = 1) -> str:
        return " ".join([f"hello {name}"] * times)

    return greet


def test_enqueue_returns_the_job(app: Dibs, greet: Task[..., str]) -> None:
    job = greet.enqueue(name="Ada")
    assert (job.type, job.queue, job.state, job.payload) == ("greet", "default", JobState.PENDING, {"name": "Ada"})
    assert (job.priority, job.attempts, job.max_attempts, job.created) == (5, 0, 3, True)
    assert isinstance(job, Job)
    assert app.get(job.id) == job


def test_arguments_may_be_given_by_place(greet: Task[..., str]) -> None:
    assert greet.enqueue("Ada", times=2).payload == {"name": "Ada", "times": 2}
    assert greet.enqueue("Ada", 3).payload == {"name": "Ada", "times": 3}


async def test_aenqueue_is_the_same(async_app: Dibs) -> None:
    greet = declare_greet(async_app)
    job = await greet.aenqueue(name="Ada")
    assert await async_app.aget(job.id) == job
    keyed = greet.using(unique_key="k")
    first, second = await keyed.aenqueue("a"), await keyed.aenqueue("b")
    assert (first.created, second.created, second.id, second.payload) == (True, False, first.id, {"name": "a"})


def test_using_changes_a_copy(greet: Task[..., str]) -> None:
    urgent = greet.using(priority=9, queue="fast")
    again = urgent.using(tags=["x"])
    assert (greet.enqueue(name="a").priority, urgent.enqueue(name="a").priority) == (5, 9)
    job = again.enqueue(name="a")
    assert (job.priority, job.queue, job.tags) == (9, "fast", ("x",))


@pytest.mark.parametrize("delay", [60, 60.5, timedelta(minutes=1)])
def test_a_delay_in_seconds_or_as_a_timedelta(greet: Task[..., str], delay: Any) -> None:
    job = greet.using(delay=delay).enqueue(name="a")
    assert job.run_at is not None
    assert job.created_at is not None
    assert job.run_at - job.created_at == (delay if isinstance(delay, timedelta) else timedelta(seconds=delay))


def test_a_time(greet: Task[..., str]) -> None:
    later = datetime(2099, 1, 1, 12, tzinfo=UTC)
    assert greet.using(run_at=later).enqueue(name="a").run_at == later


def test_the_last_word_on_time_counts(greet: Task[..., str]) -> None:
    later = datetime(2099, 1, 1, 12, tzinfo=UTC)
    assert greet.using(delay=60).using(run_at=later).enqueue(name="a").run_at == later
    job = greet.using(run_at=later).using(delay=60).enqueue(name="a")
    assert job.run_at is not None
    assert job.run_at < later


@pytest.mark.parametrize(
    "options, named",
    [
        ({"delay": 1, "run_at": datetime(2099, 1, 1, tzinfo=UTC)}, "delay"),
        ({"unique_for": 60}, "unique_for"),
        ({"unique_key": ""}, "unique_key"),
        ({"tags": [1]}, "tags"),
        ({"tags": None}, "tags"),
        ({"tags": 7}, "tags"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"delay": "60"}, "delay"),
    ],
)
def test_a_wrong_option_of_a_job_is_named(idle: Dibs, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        declare_greet(idle).using(**options)
    assert caught.value.option == named


def test_an_unknown_option_is_named(idle: Dibs) -> None:
    with pytest.raises(InvalidOption, match="prioritty: there is no such option; there are queue, priority"):
        declare_greet(idle).using(prioritty=9)
    with pytest.raises(InvalidOption, match="prioritty"):
        idle.task(**{"prioritty": 9})(lambda: None)  # type: ignore[call-overload]  # as wrong as it can be


def test_a_held_key_gives_the_holder(app: Dibs, greet: Task[..., str]) -> None:
    first = greet.using(unique_key="ada", priority=9).enqueue(name="Ada")
    second = greet.using(unique_key="ada").enqueue(name="Eve")
    assert second == dataclasses.replace(first, created=False)
    assert (first.unique_key, second.payload, count_jobs(app)) == ("ada", {"name": "Ada"}, 1)


def test_a_key_is_free_when_its_job_is_final(app: Dibs, greet: Task[..., str]) -> None:
    keyed = greet.using(unique_key="ada")
    first = keyed.enqueue(name="Ada")
    app.drain()
    second = keyed.enqueue(name="Ada")
    assert second.created
    assert second.id != first.id


def test_a_key_may_be_held_for_a_period_after(app: Dibs, greet: Task[..., str]) -> None:
    keyed = greet.using(unique_key="ada", unique_for=timedelta(hours=1))
    first = keyed.enqueue(name="Ada")
    app.drain()
    second = keyed.enqueue(name="Ada")
    assert (second.id, second.created, second.state) == (first.id, False, JobState.SUCCESSFUL)


def test_keys_of_different_tasks_are_different(app: Dibs, greet: Task[..., str]) -> None:
    other = app.task(name="other")(lambda: None)
    assert greet.using(unique_key="k").enqueue(name="a").created
    assert other.using(unique_key="k").enqueue().created


def test_enqueue_many_gives_the_ids_in_order(app: Dibs, greet: Task[..., str]) -> None:
    ids = app.enqueue_many(greet.call(name=str(n)) for n in range(10))
    assert [app.get(job_id).payload["name"] for job_id in ids] == [str(n) for n in range(10)]


async def test_aenqueue_many_is_the_same(async_app: Dibs) -> None:
    greet = declare_greet(async_app)
    ids = await async_app.aenqueue_many(greet.using(priority=n).call(name=str(n)) for n in range(3))
    assert [(await async_app.aget(job_id)).priority for job_id in ids] == [0, 1, 2]


def test_enqueue_many_is_all_or_nothing(app: Dibs, greet: Task[..., str]) -> None:
    with pytest.raises(InvalidPayload):
        app.enqueue_many(greet.call(name=name) for name in ["a", "b", 7])
    assert count_jobs(app) == 0


def test_enqueue_many_of_nothing(app: Dibs) -> None:
    assert app.enqueue_many([]) == []


def test_enqueue_many_takes_calls_only(app: Dibs, greet: Task[..., str]) -> None:
    with pytest.raises(InvalidOption, match=r"task.call\("):
        app.enqueue_many([greet.enqueue(name="a")])  # type: ignore[list-item]


# Arguments


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(TypedDict):
    city: str
    zip: NotRequired[str]


class Line(msgspec.Struct):
    start: Point
    tags: list[str] = []


class Colour(Enum):
    RED = "red"


def test_wrong_arguments_are_named(app: Dibs, greet: Task[..., str]) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": 7}, r"Expected `str`, got `int` - at `\$.name`"),
        ({}, "missing required field `name`"),
        ({"name": "a", "nmae": "b"}, "unknown field `nmae`"),
        ({"name": "a", "times": "2"}, r"Expected `int`, got `str` - at `\$.times`"),
        ({"name": None}, r"Expected `str`, got `null` - at `\$.name`"),
    ]
    for arguments, said in wrong:
        with pytest.raises(InvalidPayload, match=said) as caught:
            greet.enqueue(**arguments)
        assert "greet" in str(caught.value)
    assert count_jobs(app) == 0


def test_what_others_put_there_fails_at_once_with_the_same_sentence(app: Dibs, greet: Task[..., str]) -> None:
    wrong: list[dict[str, Any]] = [{"name": 7}, {}, {"name": "a", "nmae": "b"}, {"name": "a", "times": "2"}]
    for arguments in wrong:
        with pytest.raises(InvalidPayload) as caught:
            greet.enqueue(**arguments)
        added = app.engine.run(jobs.add(NewJob("greet", encode(arguments))))
        assert app.drain().failed == 1
        failed = app.get(added.id)
        assert (failed.state, failed.attempts, failed.error) == ("FAILED", 1, f"InvalidPayload: {caught.value}")


def keep_nothing(data: Any = None) -> None: ...


def test_what_others_nested_too_deep_fails_with_the_same_sentence(app: Dibs) -> None:
    @app.task(name="keep", max_attempts=5)
    def keep(data: Any) -> None: ...

    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidPayload) as caught:
        keep.enqueue(data=deep)
    assert str(caught.value) == "payload is nested deeper than 100 levels. Flatten it or store it elsewhere."
    document = b'{"data":%s%s}' % (b"[" * 3_000, b"]" * 3_000)
    added = app.engine.run(jobs.add(NewJob("keep", document)))
    report = app.drain()
    job = app.get(added.id)
    assert (report.failed, job.error, job.attempts) == (1, f"InvalidPayload: {caught.value}", 1)
    assert job.payload == "(it is nested deeper than can be read)"


@on_sqlite
def test_what_others_put_there_that_is_no_json_fails_and_is_shown(app: Dibs) -> None:
    job = app.task(keep_nothing).enqueue()
    actors = Actors(app.engine)
    actors.sql("update dibs.jobs set payload = 'not json', progress = '{', tags = '[', failures = 'oops'")
    job = app.get(job.id)
    assert (job.payload, job.progress, job.tags, job.error) == (
        "(it is not JSON)", "(it is not JSON)", ("(it is not JSON)",), "(it is not JSON)",
    )  # fmt: skip
    assert app.engine.run(jobs.page(Filter(tag="urgent"), limit=1)).jobs == []
    assert app.engine.run(jobs.count(Filter(tag="urgent"), 1)) == 0
    assert app.engine.run(jobs.cancel_matching(Filter(tag="urgent"))).done == 0
    assert app.engine.run(jobs.retry_matching(Filter(tag="urgent"))).done == 0
    actors.sql("update dibs.jobs set failures = null")
    assert app.drain().failed == 1
    assert app.engine.run(jobs.retry_matching(Filter(tag="urgent"))).done == 0
    (job,) = app.engine.run(jobs.page(Filter(), limit=1)).jobs
    assert job.payload == "(it is not JSON)"
    assert (job.error or "").startswith("InvalidPayload: keep_nothing: JSON is malformed")


@on_sqlite
def test_what_others_put_there_in_another_encoding_fails_and_keeps_no_other(app: Dibs) -> None:
    """SQLite takes any bytes for a text."""
    task = app.task(keep_nothing)
    job, other = task.enqueue(data="é"), task.enqueue()
    latin = '{"data": "é"}'.encode("latin-1").hex()
    Actors(app.engine).sql(f"update dibs.jobs set payload = cast(x'{latin}' as text) where id = {job.id}")
    assert app.get(job.id).payload == "(it is not JSON)"
    report = app.drain()
    assert (report.failed, report.successful, app.get(other.id).state) == (1, 1, JobState.SUCCESSFUL)
    failed, _ = sorted(app.engine.run(jobs.page(Filter(), limit=2)).jobs, key=lambda each: each.id)
    assert (failed.payload, (failed.error or "")[:28]) == ("(it is not JSON)", "InvalidPayload: keep_nothing")


def test_a_number_longer_than_python_reads_fails_and_is_shown(app: Dibs) -> None:
    added = app.task(keep_nothing).enqueue()
    Actors(app.engine).sql(f"""update dibs.jobs set payload = '{{"data": {"9" * 5_000}}}'""")
    assert app.drain().failed == 1
    (job,) = app.engine.run(jobs.page(Filter(), limit=1)).jobs
    assert (job.id, job.payload) == (added.id, "(it has a number that is too long to be read)")
    assert job.error == "InvalidPayload: keep_nothing: Integer value out of range - at `$.data`"


@pytest.mark.parametrize("args", [("a", 1, 2), ("a", "b", "c", "d")])
def test_too_many_arguments_are_refused(idle: Dibs, args: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidPayload, match="too many positional arguments"):
        declare_greet(idle).enqueue(*args)


def test_an_argument_given_twice_is_refused(idle: Dibs) -> None:
    with pytest.raises(InvalidPayload, match="multiple values for argument 'name'"):
        declare_greet(idle).enqueue("a", name="b")


@pytest.mark.parametrize(
    "kind, value",
    [
        (int, 7),
        (float, 1.5),
        (str, "naïve ☃"),
        (bool, True),
        (None, None),
        (int | None, None),
        (list[int], [1, 2]),
        (dict[str, list[int]], {"a": [1]}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (timedelta, timedelta(seconds=90)),
        (UUID, ANN),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Point, Point(1, 2)),
        (list[Point], [Point(1), Point(2, 3)]),
        (Address, {"city": "Rome"}),
        (Line, Line(Point(1), ["a"])),
        (dict[str, Any], {"any": [1, None, {"a": 0.5}]}),
        (Any, [1, "a", None]),
    ],
)
def test_arguments_arrive_in_the_types_of_the_signature(app: Dibs, kind: Any, value: Any) -> None:
    arrived: list[Any] = []

    def take(it: Any) -> None:
        arrived.append(it)

    take.__annotations__["it"] = kind
    task = app.task(take)
    task.enqueue(it=value)
    assert app.drain().successful == 1
    assert arrived == [value]
    assert type(arrived[0]) is type(value)


def test_a_wrong_part_of_an_argument_is_named(idle: Dibs) -> None:
    @idle.task
    def draw(lines: list[Line]) -> None: ...

    with pytest.raises(InvalidPayload, match=r"\$.lines\[0\].start.x"):
        draw.enqueue(lines=[{"start": {"x": "one"}}])  # type: ignore[list-item]  # that is the point


def test_a_mutable_default_is_new_for_each_job(app: Dibs) -> None:
    seen: list[list[int]] = []

    @app.task
    def collect(n: int, found: list[int] = [], more: dict[str, int] = {}, held: set[int] = {7}) -> None:  # noqa: B006
        found.append(n)
        more[str(n)] = n
        held.add(n)
        seen.append([len(found), len(more), len(held)])

    for n in range(3):
        collect.enqueue(n=n)
    app.drain()
    assert seen == [[1, 1, 2]] * 3


def test_a_default_that_changes_is_taken_when_the_job_runs(app: Dibs) -> None:
    """The payload holds what the caller said, no more."""

    @app.task(name="greet")
    def old(name: str, greeting: str = "hello") -> str:
        return f"{greeting} {name}"

    job = old.enqueue(name="Ada")
    del app.tasks["greet"]

    @app.task(name="greet")
    def new(name: str, greeting: str = "good day") -> str:
        return f"{greeting} {name}"

    app.drain()
    assert app.get(job.id).result == "good day Ada"


def test_the_limit_of_a_payload_is_a_setting(url: str) -> None:
    app = Dibs(url, max_payload=100)
    greet = declare_greet(app)
    greet.enqueue(name="x" * (100 - len('{"name":""}')))
    with pytest.raises(PayloadTooLarge, match="101 bytes of JSON, and 100 are allowed") as caught:
        greet.enqueue(name="x" * (101 - len('{"name":""}')))
    assert (caught.value.size, caught.value.limit, count_jobs(app)) == (101, 100, 1)
    app.close()


# Results


@pytest.mark.parametrize(
    "result, stored",
    [
        (None, None),
        (0, 0),
        (False, False),
        ("", ""),
        ([], []),
        ({"a": [1, 2.5, None]}, {"a": [1, 2.5, None]}),
        (Point(1, 2), {"x": 1, "y": 2}),
        ((1, 2), [1, 2]),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (ANN, str(ANN)),
    ],
)
def test_a_result_is_kept(app: Dibs, result: Any, stored: Any) -> None:
    task = app.task(name="give")(lambda: result)
    job = task.enqueue()
    app.drain()
    found = app.get(job.id)
    assert (found.state, found.result, found.attempts) == (JobState.SUCCESSFUL, stored, 1)


# Looking up, cancelling, retrying


@pytest.mark.parametrize("job_id", [7, 0, -1, 2**63, 2**80])
def test_a_job_that_is_not_there(app: Dibs, job_id: int) -> None:
    with pytest.raises(JobNotFound) as caught:
        app.get(job_id)
    assert caught.value.job_id == job_id
    with pytest.raises(JobNotFound):
        app.retry(job_id)
    assert app.cancel(job_id) is False


async def test_the_async_twins(async_app: Dibs) -> None:
    app = async_app
    job = await declare_greet(app).aenqueue(name="a")
    assert await app.acancel(job.id) is True
    assert await app.acancel(job.id) is False
    assert (await app.aget(job.id)).state is JobState.CANCELLED
    assert (await app.aretry(job.id)).state is JobState.PENDING
    assert (await app.adrain()).successful == 1
    with pytest.raises(NotRetryable):
        await app.aretry(job.id)
    with pytest.raises(JobNotFound):
        await app.aget(10**6)


def test_cancelling_a_job(app: Dibs, greet: Task[..., str]) -> None:
    job = greet.enqueue(name="a")
    assert (app.cancel(job.id), app.cancel(job.id)) == (True, False)
    found = app.get(job.id)
    assert found.state is JobState.CANCELLED
    assert found.finished_at is not None
    assert app.drain().claimed == 0


def test_a_job_that_is_done_cannot_be_cancelled(app: Dibs, greet: Task[..., str]) -> None:
    job = greet.enqueue(name="a")
    app.drain()
    assert app.cancel(job.id) is False
    assert app.get(job.id).state is JobState.SUCCESSFUL


def test_retrying_a_failed_job_starts_its_attempts_anew(app: Dibs) -> None:
    broken = [True]

    @app.task(max_attempts=1)
    def sometimes() -> str:
        if broken:
            raise ValueError("not yet")
        return "done"

    job = sometimes.enqueue()
    app.drain()
    failed = app.get(job.id)
    assert (failed.state, failed.attempts, failed.error) == (JobState.FAILED, 1, "ValueError: not yet")
    broken.clear()
    again = app.retry(job.id)
    assert (again.state, again.attempts) == (JobState.PENDING, 0)
    app.drain()
    assert (app.get(job.id).state, app.get(job.id).result) == (JobState.SUCCESSFUL, "done")


def test_only_failed_and_cancelled_jobs_can_be_retried(app: Dibs, greet: Task[..., str]) -> None:
    job = greet.enqueue(name="a")
    with pytest.raises(NotRetryable, match="is PENDING") as caught:
        app.retry(job.id)
    assert (caught.value.job_id, caught.value.state) == (job.id, "PENDING")
    app.drain()
    with pytest.raises(NotRetryable, match="is SUCCESSFUL"):
        app.retry(job.id)


def test_a_retry_needs_its_unique_key(app: Dibs, greet: Task[..., str]) -> None:
    keyed = greet.using(unique_key="k")
    first = keyed.enqueue(name="a")
    app.cancel(first.id)
    second = keyed.enqueue(name="b")
    with pytest.raises(UniqueKeyHeld, match="Wait for that one or cancel it") as caught:
        app.retry(first.id)
    assert (caught.value.job_id, caught.value.holder) == (first.id, second.id)
    app.cancel(second.id)
    assert app.retry(first.id).state is JobState.PENDING


def test_a_snapshot_does_not_change(app: Dibs, greet: Task[..., str]) -> None:
    job = greet.enqueue(name="a")
    app.drain()
    assert job.state is JobState.PENDING
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.state = JobState.FAILED  # type: ignore[misc]


# Closing


def test_an_app_opens_again_after_close(app: Dibs, greet: Task[..., str]) -> None:
    job = greet.enqueue(name="a")
    app.close()
    app.close()
    assert app.get(job.id).state is JobState.PENDING


async def test_an_app_opens_again_after_aclose(async_app: Dibs) -> None:
    greet = declare_greet(async_app)
    await greet.aenqueue(name="a")
    await async_app.aclose()
    await async_app.aclose()
    assert (await greet.aenqueue(name="b")).state is JobState.PENDING


def test_an_app_serves_one_event_loop_after_another(app: Dibs, greet: Task[..., str]) -> None:
    async def enqueue() -> int:
        try:
            return (await greet.aenqueue(name="a")).id
        finally:
            await app.aclose()

    ids = [asyncio.run(enqueue()) for _ in range(3)]
    assert ids == sorted(set(ids))


def test_sync_and_async_code_share_an_app(app: Dibs, greet: Task[..., str]) -> None:
    async def enqueue() -> None:
        await greet.aenqueue(name="async")
        greet.enqueue(name="sync inside a loop")
        await app.aclose()

    greet.enqueue(name="sync")
    asyncio.run(enqueue())
    assert count_jobs(app) == 3


@pytest.mark.slow
def test_closing_does_not_wait_for_itself(fresh_url: Callable[[str], str]) -> None:
    """An operation that is about to begin on a thread of the engine needs what close holds."""
    app = Dibs(fresh_url(SQLITE))
    greet = declare_greet(app)

    async def race() -> None:
        for _ in range(10):
            adding = [asyncio.ensure_future(greet.aenqueue(name="a")) for _ in range(5)]
            await asyncio.sleep(0)
            await app.aclose()
            await asyncio.gather(*adding)

    asyncio.run(asyncio.wait_for(race(), timeout=30))
    assert count_jobs(app) == 50
    app.close()


def test_who_waits_for_a_connection_that_is_closed_gets_another(fresh_url: Callable[[str], str]) -> None:
    """`app.drain()` in one thread closes what another is about to use."""
    app = Dibs(fresh_url(SQLITE))
    greet = declare_greet(app)
    greet.enqueue(name="a")
    connection = app.engine.connection("work")  # type: ignore[attr-defined]  # SQLite's
    waiting, lock = threading.Event(), connection.lock

    class Told:
        def __enter__(self) -> None:
            waiting.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    with ThreadPoolExecutor(1) as thread, lock:
        connection.lock = Told()
        adding = thread.submit(lambda: greet.enqueue(name="b"))
        assert waiting.wait(10)
        app.close()
        lock.release()
        assert adding.result(10).created
        lock.acquire()
    app.close()
