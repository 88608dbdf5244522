"""Who may do what: hosts, origins, tokens and their scopes, and tokens for one job."""

import json
import re
import time
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from dibs import Dibs
from dibs.operations import tokens
from dibs.server import access, socket
from dibs.server.asgi import ALL
from dibs.server.openapi import _wire
from dibs.server.rest import events
from dibs.tokens import SCOPES, Known, hashed, new_token, signed
from tests.apps import on_one
from tests.server.serving import Serving, serving


def token(app: Dibs, *scopes: str, name: str | None = None) -> str:
    made = new_token()
    app.engine.run(tokens.add(Known(name or "-".join(scopes), hashed(made), frozenset(scopes))))
    return made


@on_one
def test_a_local_server_is_asked_by_local_names_only(server: Serving) -> None:
    with server.client() as client:
        assert client.get("/api/queues", headers={"host": f"localhost:{server.port}"}).status_code == 200
        answer = client.get("/api/queues", headers={"host": "evil.example"})
        assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")


@on_one
def test_pages_of_other_origins_are_refused(app: Dibs, server: Serving) -> None:
    with server.client() as client:
        for origin in (
            "https://evil.example",
            "null",
            "http://[",
            "http://127.0.0.1:1",
            "http://localhost.evil.example",
        ):
            answer = client.get("/api/queues", headers={"origin": origin})
            assert (answer.status_code, answer.json()["code"]) == (403, "wrong_origin")
        assert client.get("/api/queues", headers={"origin": server.address}).status_code == 200
    with pytest.raises(InvalidStatus), server.socket(origin="https://evil.example"):
        pass
    with server.socket(origin=server.address) as ear:
        ear.say(action="ping")
        assert ear.hear() == {"type": "pong"}


@on_one
def test_an_origin_that_is_allowed(app: Dibs) -> None:
    with serving(app, origins=["https://shop.example"]) as server, server.client() as client:
        own = {"origin": "https://shop.example"}
        answer = client.get("/api/queues", headers=own)
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        asked = client.options("/api/jobs", headers={**own, "access-control-request-method": "POST"})
        assert asked.status_code == 204
        assert "content-type" in asked.headers["access-control-allow-headers"]
        with server.socket(origin="https://shop.example") as ear:
            ear.say(action="ping")
            assert ear.hear() == {"type": "pong"}


def path_of(path: str) -> str:
    return path.format(job_id=1, batch_id=1, queue="q", lease="1.1", token="dibsc_1_1_x")


@on_one
def test_every_route_with_every_scope(app: Dibs) -> None:
    made = {scope: token(app, scope) for scope in SCOPES}
    with serving(app) as server, server.client() as client:
        for route in ALL:
            for scope, bearer in [(None, None), ("wrong", new_token()), *made.items()]:
                headers = {"content-type": "application/json"}
                if bearer is not None:
                    headers["authorization"] = f"Bearer {bearer}"
                answer = client.request(
                    route.method, path_of(route.path), headers=headers, content="" if route.method == "POST" else None
                )
                allowed = route.scope is None or route.scope == scope
                refused = answer.status_code in (401, 403)
                assert refused is not allowed, (route.method, route.path, scope, answer.text)
                if refused:
                    assert answer.status_code == (401 if scope in (None, "wrong") else 403)


@on_one
def test_a_token_for_one_job_is_good_for_nothing_else(app: Dibs) -> None:
    token(app, "read")
    first, second = app.enqueue_many([app.task(name="noop")(noop).call(), app.task(name="noop2")(noop).call()])
    mine = app.subscribe_token(first, expires=60)
    with serving(app) as server, server.client(mine) as client:
        for route in ALL:
            answer = client.request(
                route.method,
                route.path.format(job_id=second, batch_id=second, queue="q", lease=f"{second}.1", token="dibsc_1_1_x"),
                headers={"content-type": "application/json"},
            )
            assert (answer.status_code in (401, 403)) is (route.scope is not None), route.path
        assert client.get(f"/api/jobs/{first}").status_code == 200
        with server.socket() as ear:
            ear.say(action="subscribe", jobId=first)
            assert ear.hear()["code"] == "not_allowed"
            for message in ({"jobId": second}, {"queue": "default"}, {"all": True}):
                ear.say(action="subscribe", token=mine, **message)
                assert ear.hear()["code"] == "not_allowed"
            ear.say(action="subscribe", jobId=first, token=mine)
            assert ear.hear()["status"] == "PENDING"
        key = bytes.fromhex(app.engine.run(tokens.secret("subscriptions", "")))
        for wrong in (
            signed(first, int(time.time()) - 1, key),
            signed(first, int(time.time()) + 60, b"other"),
            mine[:-1],
            mine + "x",
            mine.replace(f"_{first}_", f"_{second}_"),
        ):
            with server.socket() as ear:
                ear.say(action="subscribe", jobId=first, token=wrong)
                assert ear.hear()["code"] == "not_allowed"


def noop() -> None: ...


@on_one
def test_without_local_there_is_no_way_without_a_token(app: Dibs) -> None:
    with serving(app, local=False) as server, server.client() as client:
        assert client.get("/api/queues").status_code == 401
        with server.socket() as ear:
            ear.say(action="subscribe", all=True)
            assert ear.hear()["code"] == "not_allowed"


@on_one
def test_a_token_that_was_revoked_ends(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.server.access.FRESH", 0.0)
    token(app, "operate", name="other")
    mine = token(app, "read", name="mine")
    with serving(app) as server, server.client(mine) as client:
        assert client.get("/api/queues").status_code == 200
        assert app.engine.run(tokens.revoke("mine"))
        assert client.get("/api/queues").status_code == 401


@on_one
def test_headers_that_are_no_tokens(app: Dibs, server: Serving) -> None:
    with server.client() as client:
        for text in ("Basic eDp5", "Bearer", "Bearer " + "x" * 1000, "x"):
            assert client.get("/api/queues", headers={"authorization": text}).status_code == 401


def test_the_table_of_routes_and_scopes_is_true() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
    documented = re.findall(r"^\| `(GET|POST) (\S+)` \| (\w*) ?\|", page, re.MULTILINE)
    assert documented == [(route.method, _wire(route.path), route.scope or "") for route in ALL]


@on_one
def test_a_name_that_is_allowed_is_not_a_local_one(app: Dibs) -> None:
    """Behind a proxy on the same machine it is the whole world that asks by that name."""
    with serving(app, local=True, hosts=["jobs.example"]) as server, server.client() as client:
        assert client.get("/api/queues").status_code == 200
        assert client.get("/api/queues", headers={"host": "jobs.example"}).status_code == 401


@on_one
def test_who_may_only_add_is_not_shown_what_others_added(app: Dibs) -> None:
    mine = token(app, "enqueue")
    body = {"type": "double", "payload": {"n": 21}, "uniqueKey": "k"}
    with serving(app) as server, server.client(mine) as client:
        first, again = client.post("/api/jobs", json=body).json(), client.post("/api/jobs", json=body).json()
        assert (first["payload"], again["payload"]) == ({"n": 21}, None)
        assert (again["jobId"], again["created"]) == (first["jobId"], False)


@on_one
def test_those_who_watch_are_cut_off_when_their_token_is_revoked(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FRESH", 0.0)
    monkeypatch.setattr(socket, "RECHECKED", 0.05)
    mine = token(app, "read")
    job = app.task(name="noop")(noop).enqueue()
    with serving(app) as server, server.socket(mine) as ear, server.client(mine) as client:
        ear.say(action="subscribe", jobId=job.id)
        assert ear.hear()["status"] == "PENDING"
        ear.say(action="subscribe", queue="default")
        with client.stream("GET", f"/api/jobs/{job.id}/events") as stream:
            lines = stream.iter_lines()
            while not next(lines).startswith("data:"):
                pass
            token(app, "work")  # so that there is one left
            app.engine.run(tokens.revoke("read"))
            ends = {json.dumps(ear.hear()) for _ in range(2)}
            assert all('"not_allowed"' in end for end in ends)
            app.cancel(job.id)
            assert not any(line.startswith("data:") for line in lines)
        ear.say(action="subscribe", jobId=job.id)
        assert ear.hear()["code"] == "not_allowed"


@on_one
def test_who_watches_a_job_to_which_nothing_happens_is_cut_off_too(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FRESH", 0.0)
    monkeypatch.setattr(events, "QUIET", 0.05)
    mine = token(app, "read")
    job = app.task(name="noop")(noop).enqueue()
    path = f"/api/jobs/{job.id}/events"
    with serving(app) as server, server.client(mine) as client, client.stream("GET", path) as stream:
        lines = stream.iter_lines()
        while next(lines) != ": still there":
            pass
        token(app, "work")  # so that there is one left
        app.engine.run(tokens.revoke("read"))
        assert not any(line.startswith("data:") for line in lines)


@on_one
def test_a_token_to_watch_may_stand_in_an_address(app: Dibs) -> None:
    """An EventSource of a browser cannot send a header."""
    read = token(app, "read")
    job = app.task(name="noop")(noop).enqueue()
    app.drain()
    mine = app.subscribe_token(job.id)
    with serving(app) as server, server.client() as client:
        path = f"/api/jobs/{job.id}/events"
        assert client.get(path, params={"token": mine}).text.count("data:") == 1
        assert client.get(path, params={"token": read}).status_code == 401
        assert client.get(f"/api/jobs/{job.id + 1}/events", params={"token": mine}).status_code in (401, 403)
        assert client.get(f"/api/jobs/{job.id}", params={"token": mine}).status_code in (401, 422)
