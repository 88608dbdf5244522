"""Rows of adopted tables over the WebSocket: watched by their table and key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from dibs import Dibs
from dibs.server.rows import Rows
from tests.adopted.schemas import WORDS
from tests.adopted.tables import Application
from tests.adopted.test_owners import hand
from tests.apps import on_postgres
from tests.server.serving import Serving, serving

TABLE = """create table stickers (id integer primary key, status varchar(20) not null, error text, attempts integer)"""


@pytest.fixture
def application(app: Dibs) -> Application:
    application = Application(app.engine)
    application.execute(TABLE)
    application.execute("insert into stickers values (7, 'queued', null, 0), (8, 'completed', null, 2)")
    return application


@pytest.fixture
def adopted(app: Dibs, application: Application) -> Any:
    said = dict(key="id", status="status", states=WORDS, error="error", attempts="attempts", retry=0.0)
    return app.adopt("stickers", **said)  # type: ignore[arg-type]  # what it asks for


@pytest.fixture
def server(app: Dibs, adopted: Any) -> Iterator[Serving]:
    with serving(app) as server:
        yield server


def worked(app: Dibs, process: Any) -> None:
    """By a worker elsewhere."""
    other = Dibs(app.url)
    said = dict(key="id", status="status", states=WORDS, error="error", attempts="attempts", retry=0.0)
    other.adopt("stickers", max_attempts=1, **said).process(process)  # type: ignore[arg-type]  # what it asks for
    other.drain()
    other.close()


def test_the_conversation_of_a_row(app: Dibs, server: Serving) -> None:
    with server.socket() as ear:
        ear.say(action="subscribe", table="stickers", key=7)
        row = {"table": "stickers", "key": 7}
        assert ear.hear() == {"jobId": None, "status": "PENDING", "attempts": 0, "error": None, **row}
        worked(app, lambda row: time.sleep(0.5))
        heard = ear.until("SUCCESSFUL")
        last = heard[-1]
        assert heard[0]["status"] == "RUNNING"
        assert isinstance(last["jobId"], int)
        assert last == {
            "jobId": last["jobId"],
            "status": "SUCCESSFUL",
            "attempts": 1,
            "error": None,
            "version": 2,
            **row,
        }
        assert app.get(last["jobId"]).payload == {"table": "stickers", "key": ["7" if app.url[0] == "p" else 7]}


def test_a_row_that_runs_in_a_moment_has_its_job(app: Dibs, server: Serving) -> None:
    with server.socket() as ear:
        ear.say(action="subscribe", table="stickers", key="7")
        ear.hear()
        worked(app, lambda row: None)
        last = ear.until("SUCCESSFUL")[-1]
        assert (last["key"], last["attempts"]) == ("7", 1)
        assert app.get(last["jobId"]).state == "SUCCESSFUL"


def test_rows_are_listed_like_jobs(app: Dibs, application: Application, adopted: Any, server: Serving) -> None:
    application.execute("insert into stickers values (9, 'queued', null, 0)")
    (job,) = hand(app, adopted).take(1)
    with server.client() as client:
        (listed,) = client.get("/api/jobs", params={"queue": "stickers"}).json()["jobs"]
        assert (listed["jobId"], listed["type"], listed["status"]) == (job.id, "stickers", "RUNNING")
        assert listed["payload"]["table"] == "stickers"
        assert client.get(f"/api/jobs/{job.id}").json()["queue"] == "stickers"
        (queue,) = client.get("/api/queues").json()["queues"]
        assert (queue["name"], queue["waiting"], queue["running"]) == ("stickers", 1, 1)


def test_a_row_that_fails(app: Dibs, server: Serving) -> None:
    def broken(row: Any) -> None:
        raise ValueError("broken")

    with server.socket() as ear:
        ear.say(action="subscribe", table="stickers", key=[7])
        assert ear.hear()["key"] == [7]
        worked(app, broken)
        last = ear.until("FAILED")[-1]
        assert (last["error"], app.get(last["jobId"]).state) == ("ValueError: broken", "FAILED")


def test_what_the_application_says_is_told(app: Dibs, application: Application, server: Serving) -> None:
    """A row without a job, and one that is queued again after its job has ended."""
    with server.socket() as ear:
        ear.say(action="subscribe", table="stickers", key=8)
        assert (first := ear.hear())["status"] == "SUCCESSFUL"
        assert (first["jobId"], first["attempts"]) == (None, 2)
        application.execute("update stickers set status = 'queued' where id = 8")
        assert ear.hear()["status"] == "PENDING"
        worked(app, lambda row: None)
        assert ear.until("SUCCESSFUL")[-1]["jobId"] is not None
        application.execute("update stickers set status = 'failed', error = 'by hand' where id = 8")
        last = ear.until("FAILED")[-1]
        assert (last["jobId"], last["error"]) == (None, "by hand")


def test_a_row_that_only_watches_is_as_it_says(app: Dibs, application: Application, server: Serving) -> None:
    from dibs.operations import adopted

    application.execute("update stickers set status = 'started' where id = 7")
    app.engine.run(adopted.notice(app.adopted["stickers"].source(app.engine)))
    with server.socket() as ear:
        ear.say(action="subscribe", table="stickers", key=7)
        assert (heard := ear.hear())["status"] == "RUNNING"
        assert heard["jobId"] is None


def test_nobody_is_told_twice(app: Dibs, adopted: Any, server: Serving) -> None:
    with server.socket() as one, server.socket() as other:
        one.say(action="subscribe", table="stickers", key=7)
        assert one.hear()["status"] == "PENDING"
        other.say(action="subscribe", table="stickers", key=7)
        assert other.hear()["status"] == "PENDING"
        (job,) = hand(app, adopted).take(1)
        assert one.hear()["jobId"] == other.hear()["jobId"] == job.id
        other.say(action="unsubscribe", table="stickers", key=7)
        app.cancel(int(job.id))
        assert one.hear()["jobId"] == job.id
        for ear in (one, other):
            ear.say(action="ping")
        assert other.hear() == {"type": "pong"}


@pytest.mark.parametrize(
    "said, code",
    [
        (dict(table="nothing", key=7), "table_not_found"),
        (dict(table="stickers", key=99), "row_not_found"),
        (dict(table="stickers", key=[7, 8]), "invalid_key"),
        (dict(table="stickers", key=[]), "invalid_key"),
    ],
)
def test_what_cannot_be_watched_is_said(server: Serving, said: dict[str, Any], code: str) -> None:
    with server.socket() as ear:
        ear.say(action="subscribe", **said)
        heard = ear.hear()
        assert (heard["type"], heard["code"], heard["table"]) == ("error", code, said["table"])
        assert heard.get("key", []) == said["key"]


@on_postgres
@pytest.mark.parametrize("key", ["abc", 10**30, 7.5, "7\x00"])
def test_what_cannot_be_a_key_is_said(server: Serving, key: Any) -> None:
    with server.socket() as ear:
        ear.say(action="subscribe", table="stickers", key=key)
        assert ear.hear()["code"] == "invalid_key"
        ear.say(action="subscribe", table="stickers", key=7)
        assert ear.hear()["status"] == "PENDING"


@pytest.mark.parametrize(
    "said",
    [dict(table="stickers"), dict(key=7), dict(table="stickers", key=7, jobId=1), dict(table="stickers", key={"id": 7}),
     dict(table="stickers", key=None), dict(table="stickers", key=[[7]]), dict(table="stickers", key=7, since=1)],
)  # fmt: skip
def test_what_is_no_row_is_refused(server: Serving, said: dict[str, Any]) -> None:
    with server.socket() as ear:
        ear.say(action="subscribe", **said)
        assert ear.hear()["code"] == "invalid_message"


def test_a_row_that_is_deleted_or_strange(application: Application, server: Serving) -> None:
    with server.socket() as ear:
        for key in (7, 8):
            ear.say(action="subscribe", table="stickers", key=key)
            ear.hear()
        application.execute("delete from stickers where id = 7")
        assert (heard := ear.hear())["code"] == "row_not_found"
        assert heard["key"] == 7
        application.execute("update stickers set status = 'strange' where id = 8")
        assert "says 'strange'" in (heard := ear.hear())["message"]
        assert heard["code"] == "unknown_status"


def test_a_table_that_is_gone(app: Dibs, application: Application) -> None:
    app.adopt("nothing", key="id", status="status", states=WORDS)
    with serving(app) as server, server.socket() as ear:
        ear.say(action="subscribe", table="nothing", key=7)
        assert ear.hear()["code"] == "table_unavailable"


def test_keys_of_several_parts(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute(
        "create table lines (no int not null, line varchar(9) not null, s text, primary key (no, line))"
    )
    application.execute("insert into lines values (1, 'a', 'queued'), (1, 'b', 'failed')")
    app.adopt("lines", key=("no", "line"), status="s", states=WORDS)
    with serving(app) as server, server.socket() as ear:
        for key, status in ((["1", "a"], "PENDING"), ([1, "b"], "FAILED")):
            ear.say(action="subscribe", table="lines", key=key)
            heard = ear.hear()
            assert (heard["status"], heard["key"]) == (status, key)
        application.execute("update lines set s = 'completed' where line = 'a'")
        assert ear.hear()["key"] == ["1", "a"]
        ear.say(action="unsubscribe", table="lines", key=[1, "b"])
        application.execute("update lines set s = 'started'")
        assert ear.hear()["key"] == ["1", "a"]
        ear.say(action="ping")
        assert ear.hear() == {"type": "pong"}


@on_postgres
def test_keys_of_other_kinds(app: Dibs) -> None:
    application = Application(app.engine)
    application.execute("create table runs (id uuid, at timestamptz, s text, primary key (id, at))")
    application.execute(
        "insert into runs values ('00000000-0000-0000-0000-00000000000a', '2026-01-01 00:00+00', 'queued')"
    )
    app.adopt("runs", key=("id", "at"), status="s", states=WORDS)
    with serving(app) as server, server.socket() as ear:
        key = ["00000000-0000-0000-0000-00000000000A", "2026-01-01T01:00:00+01:00"]
        ear.say(action="subscribe", table="runs", key=key)
        assert (heard := ear.hear())["status"] == "PENDING"
        assert heard["key"] == key


def test_who_may_not_read_may_not_watch(app: Dibs, adopted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(app, local=False) as server, server.socket() as ear:
        ear.say(action="subscribe", table="stickers", key=7)
        heard = ear.hear()
        assert (heard["code"], heard["table"], heard["key"]) == ("not_allowed", "stickers", 7)


def test_nothing_is_kept_of_those_who_have_left(app: Dibs, adopted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Rows] = []
    start = Rows.__init__

    def noted(self: Rows, *args: Any) -> None:
        made.append(self)
        start(self, *args)

    monkeypatch.setattr(Rows, "__init__", noted)
    with serving(app) as server:
        with server.socket() as ear:
            ear.say(action="subscribe", table="stickers", key=7)
            ear.hear()
            (rows,) = made
            assert rows.watched
        until = time.monotonic() + 10
        while rows.watched or not (rows.running and rows.running.done()):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert (rows.jobs, rows.last, rows.asked) == ({}, {}, {})
