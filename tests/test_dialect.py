"""From named statements to text, and values the way each engine reads them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from dibs.engines.dialect import Dialect
from dibs.engines.postgres.dialect import PostgresDialect, array, lines
from dibs.engines.sqlite.dialect import SqliteDialect, micros
from dibs.job import JobId, Lease, NewJob, WorkerId
from dibs.operations import claims, jobs, workers
from dibs.operations.operation import Operation, Rows, run

AT = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def said(dialect: Dialect, operation: Operation[Any], *answers: Rows) -> list[tuple[str, Any]]:
    """The texts of an operation, when the database answers like this."""
    heard: list[tuple[str, Any]] = []
    replies = iter(answers)

    def execute(sql: str, values: Any) -> Rows:
        heard.append((sql, values))
        return next(replies, [])

    run(execute, dialect.speak(operation))
    return heard


def test_the_schema_is_put_in_its_place() -> None:
    assert PostgresDialect("Shop").script("from dibs.jobs, 'dibs.%I'") == """from "Shop".jobs, '"Shop".%I'"""
    assert SqliteDialect().script("from dibs.jobs") == "from dibs_jobs"
    assert (
        SqliteDialect().script("from mydibs.jobs and dibs. and dibs_wake") == "from mydibs.jobs and dibs. and dibs_wake"
    )


@pytest.mark.parametrize("dialect", [PostgresDialect("dibs"), SqliteDialect()], ids=["postgres", "sqlite"])
def test_texts_hold_no_comments_and_one_statement_each(dialect: Dialect) -> None:
    for steps in dialect.steps.values():
        for step in steps:
            assert "--" not in step.sql
            assert not step.sql.endswith(";")
            assert "dibs.j" not in step.sql


def test_postgres_parameters_are_the_drivers() -> None:
    text = PostgresDialect("dibs").steps["progress"][0].sql
    assert "%(progress)s::jsonb" in text
    assert "::bigint" in text


def test_casts_are_no_parameters() -> None:
    for steps in PostgresDialect("dibs").steps.values():
        assert not any(":%(" in step.sql for step in steps)


def test_percent_signs_are_doubled() -> None:
    for steps in PostgresDialect("dibs").steps.values():
        for step in steps:
            assert "%" not in step.sql.replace("%%", "").replace("%(", "")


def test_steps_come_one_after_another() -> None:
    names = [sql.split()[0] for sql, _ in said(SqliteDialect(), jobs.cancel([1, 2]))]
    assert names[0] == "delete"
    assert names[-1] == "select"
    assert len(names) > 3
    assert len(said(PostgresDialect("dibs"), jobs.cancel([1, 2]))) == 1


def test_steps_with_nothing_to_do_are_left_out() -> None:
    head = [(None,) * 11]
    want = claims.Want(1, 1, 5, [("default", 4, AT, 0)], suspects=0)
    asked = said(SqliteDialect(), claims.turn(want), *[head] * 20)
    assert not any("dibs_history" in sql and sql.startswith("insert") for sql, _ in asked)
    assert len(asked) < len(SqliteDialect().steps["turn"])


# Values


@pytest.mark.parametrize(
    "items, literal",
    [
        ([], "{}"),
        ([1, -2], "{1,-2}"),
        ([1, None], "{1,NULL}"),
        ([None, 1], "{NULL,1}"),
        ([1.5, 2], "{1.5,2}"),
        (["a", "b c"], '{"a","b c"}'),
        (['say "hi"', "back\\slash", "", "NULL", "{,}"], '{"say \\"hi\\"","back\\\\slash","","NULL","{,}"}'),
        ([AT], '{"2024-01-02T03:04:05.000006+00:00"}'),
    ],
)
def test_lists_become_array_literals(items: list[Any], literal: str) -> None:
    assert array(items) == literal


def test_documents_become_lines() -> None:
    assert lines([b"1", None, b'{"a":2}']) == '1\n\n{"a":2}'
    assert lines([None, None]) is None
    assert lines([]) is None


def test_a_table_becomes_a_parameter_for_each_column_or_one_document() -> None:
    beat = workers.beat([WorkerId(1), WorkerId(2)], [Lease(JobId(3), 4), Lease(JobId(5), 6)], steady=True)
    told: Rows = [("claimers", None, 1)]
    (_, postgres), *_ = said(PostgresDialect("dibs"), beat, told)
    assert postgres == {
        "workers": "{1,2}",
        "held_id": "{3,5}",
        "held_token": "{4,6}",
        "steady": True,
        "asking": "{1,2}",
    }
    (_, sqlite), *_ = said(SqliteDialect(), beat, told)
    assert (sqlite["workers"], sqlite["held"]) == ("[1,2]", "[[3,4],[5,6]]")


def test_an_empty_table_is_empty_columns_or_an_empty_document() -> None:
    beat = workers.beat([WorkerId(1)], [], steady=True)
    told: Rows = [("claimers", None, 1)]
    assert said(PostgresDialect("dibs"), beat, told)[0][1]["held_id"] == "{}"
    assert said(SqliteDialect(), beat, told)[0][1]["held"] == "[]"


def test_documents_travel_as_lines_or_as_one_document() -> None:
    many = jobs.add_many([NewJob("task", b'{"n":1}'), NewJob("task"), NewJob("task", b"3")])
    assert said(PostgresDialect("dibs"), many)[0][1]["payloads"] == '{"n":1}\nnull\n3'
    assert said(SqliteDialect(), many)[0][1]["payloads"] == '[{"n":1},null,3]'


@pytest.mark.parametrize(
    "moment, stored",
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (AT, 1_704_164_645_000_006),
        (datetime(2099, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 4_102_444_799_999_999),
        (datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_214_399_999_999),
    ],
)
def test_times_become_microseconds_exactly(moment: datetime, stored: int) -> None:
    assert micros(moment) == stored
