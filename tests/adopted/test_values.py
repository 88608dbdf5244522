"""Rows with values that are hard to write down: each is run as it is, or says what is wrong, and keeps no other."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import Dibs, Job
from dibs.adopted.check import check
from dibs.adopted.source import Adopted
from dibs.errors import NotAdoptable
from dibs.lifecycle import SUCCESS
from dibs.operations import adopted as rows
from tests.adopted.schemas import WORDS
from tests.adopted.tables import Application
from tests.adopted.test_owners import hand
from tests.adopted.test_processing import until
from tests.apps import on_postgres, on_sqlite

NESTED = "[" * 1_500 + "]" * 1_500
ILLEGIBLE = pytest.mark.parametrize(
    "document, words",
    [('"\\ud800"', "it is JSON that is not valid"), (NESTED, "it is nested too deeply")],
    ids=["half a pair", "nested"],
)


def documents(app: Dibs, document: str, **more: Any) -> tuple[Application, Adopted]:
    """Row 2 of three has this document; and what looks like a key."""
    application = Application(app.engine)
    application.execute("create table notes (id int primary key, status text, error text, body json, key text)")
    for n, body in enumerate(('{"a": 1}', document, "[]"), 1):
        application.execute("insert into notes values (%s, 'queued', null, %s, '\"key\": [1]')", [n, body])
    said = dict(key="id", status="status", states=WORDS, error="error", retry=0.0, poll=0.05)
    return application, app.adopt("notes", **said | more)  # type: ignore[arg-type]  # what it asks for


@on_postgres
@ILLEGIBLE
def test_a_document_that_nobody_can_read_fails_alone(app: Dibs, document: str, words: str) -> None:
    application, notes = documents(app, document)
    ran = list[int]()
    notes.process(lambda row: ran.append(row["id"]))
    report = app.drain()
    assert (sorted(ran), report.claimed, report.failed) == ([1, 3], 3, 1)
    rows = application.execute("select id, status, error from notes order by id")
    assert [row[:2] for row in rows] == [(1, "completed"), (2, "failed"), (3, "completed")]
    assert rows[1][2].startswith(f"InvalidPayload: The row cannot be read: a column of {words}")


@on_postgres
@ILLEGIBLE
async def test_a_worker_outlives_a_document_that_nobody_can_read(async_app: Dibs, document: str, words: str) -> None:
    application, notes = documents(async_app, document)

    @notes.process
    async def go(row: Any) -> None: ...

    counts = "select status, count(*) from notes group by status"
    async with async_app.running():
        await until(lambda: dict(application.execute(counts)) == {"completed": 2, "failed": 1})
        application.execute("insert into notes values (4, 'queued', null, '{}')")
        await until(lambda: dict(application.execute(counts)) == {"completed": 3, "failed": 1})


@on_postgres
@ILLEGIBLE
def test_it_is_refunded_like_any_other(app: Dibs, document: str, words: str) -> None:
    refunded = list[Any]()

    def refund(job: Job, connection: Any) -> None:
        refunded.append(job.payload["key"])

    application, notes = documents(app, document, on_failure=refund)
    notes.process(lambda row: None)
    app.drain()
    assert refunded == [["2"]]
    assert application.execute("select status from notes where id = 2") == [("failed",)]


@on_postgres
def test_it_is_completed_when_its_output_is_there(app: Dibs) -> None:
    application, notes = documents(app, NESTED, output=("outs", "note"))
    application.execute("create table outs (note int); insert into outs values (2)")
    notes.process(lambda row: None)
    app.drain()
    assert application.execute("select distinct status from notes") == [("completed",)]


@on_sqlite
@pytest.mark.parametrize("status", ["queued", "started"])
def test_a_key_that_cannot_name_its_row_is_left_alone_and_said(app: Dibs, status: str) -> None:
    """As JSON a text ends at its NUL: the row would be taken for another."""
    application = Application(app.engine)
    application.execute("create table notes (id text primary key, status text, key text)")
    for key in ("a", "a\0b", None, b"a"):
        application.execute("insert into notes values (%s, %s, 'x')", [key, "completed" if key == "a" else status])
    application.execute("insert into notes values ('b', 'queued', 'x')")
    notes, ran = app.adopt("notes", key="id", status="status", states=WORDS, stuck_after=1), list[str]()
    notes.process(lambda row: ran.append(row["id"]))
    for _ in range(2):
        app.drain(deadline=10)
        application.wait(1.1)
    assert ran == ["b"]
    assert application.execute("select count(*) from notes where status = %s", [status]) == [(3,)]
    assert app.engine.run(rows.counted(notes.source(app.engine), 10))[0] == 0
    said = [each.problem for each in check(notes, app.engine).findings]
    assert any(each.startswith("3 rows have a key that cannot name them") for each in said)


@on_sqlite
def test_a_number_and_a_text_that_read_alike_are_two_rows(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create table notes (id primary key not null, status text)")
    application.execute("insert into notes values (1, 'queued'), ('1', 'queued')")
    notes = app.adopt("notes", key="id", status="status", states=WORDS)
    worker = hand(app, notes)
    one, other = worker.take()
    assert one.id != other.id
    worker.settle((other, SUCCESS))
    assert dict(application.execute("select typeof(id), status from notes")) == {
        "integer": "started",
        "text": "completed",
    }


@on_sqlite
@pytest.mark.parametrize("kind", ["REAL", "Double Precision", "double", "FLOAT(8)", "float"])
def test_a_floating_key_is_refused_in_a_file_too(app: Dibs, kind: str) -> None:
    Application(app.engine).execute(f"create table t (id {kind} primary key not null, status text)")
    adopted = app.adopt("t", key="id", status="status", states=WORDS)
    with pytest.raises(NotAdoptable, match=r"its key id is .*: it cannot name a row"):
        adopted.source(app.engine)


@on_postgres
def test_numbers_that_json_does_not_have_are_numbers(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create domain share as real")
    application.execute("create table t (id int primary key, status text, ratio float8, share share, price numeric)")
    application.execute(
        "insert into t values (1, 'queued', 'Infinity', '-Infinity', 'NaN'), (2, 'queued', 1, 0.5, 1),"
        " (3, 'queued', 'NaN', null, null)"
    )
    adopted, seen = app.adopt("t", key="id", status="status", states=WORDS), dict[int, Any]()

    @adopted.process
    def go(row: Any) -> None:
        seen[row["id"]] = (row["ratio"], row["share"], row["price"])

    app.drain()
    assert {n: repr(values) for n, values in seen.items()} == {
        1: "(inf, -inf, Decimal('NaN'))",
        2: "(1.0, 0.5, Decimal('1'))",
        3: "(nan, None, None)",
    }


@on_sqlite
@pytest.mark.parametrize("kind", ["blob", "BLOB(16)", "LongBlob"])
def test_a_key_of_bytes_is_refused_in_a_file(app: Dibs, kind: str) -> None:
    Application(app.engine).execute(f"create table t (id {kind} primary key not null, status text)")
    adopted = app.adopt("t", key="id", status="status", states=WORDS)
    with pytest.raises(NotAdoptable, match="its key id is a blob"):
        adopted.source(app.engine)


@on_sqlite
@pytest.mark.parametrize("kind", ["MEDIUMTEXT", "tinytext", "SmallDateTime", "STRING", "timestamp"])
def test_a_text_is_a_text_by_whatever_name(app: Dibs, kind: str) -> None:
    application = Application(app.engine)
    application.execute(f"create table t (id integer primary key, status {kind}, began {kind})")
    application.execute("insert into t values (1, 'queued', null)")
    adopted = app.adopt("t", key="id", status="status", states=WORDS, started_at="began")
    adopted.process(lambda row: None)
    app.drain()
    assert application.execute("select status, typeof(began) from t") == [("completed", "text")]


@on_sqlite
@pytest.mark.parametrize(
    "kind", ["UNSIGNED BIG INT", "MediumInt", "Double Precision", "decimal(10, 2)", "Native Float"]
)
def test_a_number_is_a_number_by_whatever_name(app: Dibs, kind: str) -> None:
    application = Application(app.engine)
    application.execute(f"create table t (id integer primary key, status {kind}, began {kind})")
    application.execute("insert into t values (1, 0, null)")
    words = dict(PENDING=0, RUNNING=1, SUCCESSFUL=2, FAILED=3)
    adopted = app.adopt("t", key="id", status="status", states=words, started_at="began")
    adopted.process(lambda row: None)
    app.drain()
    assert application.execute("select status from t where began > 1700000000") == [(2,)]


@on_sqlite
def test_numbers_without_end_are_numbers(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create table t (id integer primary key, status text, ratio real, loose)")
    application.execute(
        "insert into t values (1, 'queued', 9e999, 1), (2, 'queued', 0.5, -9e999), (3, 'queued', 1, 'Inf')"
    )
    adopted, seen = app.adopt("t", key="id", status="status", states=WORDS), dict[int, Any]()

    @adopted.process
    def go(row: Any) -> None:
        seen[row["id"]] = (row["ratio"], row["loose"])

    app.drain()
    assert seen == {1: (float("inf"), 1), 2: (0.5, float("-inf")), 3: (1.0, "Inf")}
