"""Batches over HTTP and WebSockets."""

from typing import Any

from dibs import Batch, Dibs
from dibs.calls import Call
from tests.apps import on_one
from tests.server.serving import Serving, serving
from tests.server.test_access import token


def batch_of(app: Dibs, *tasks: tuple[str, Any], name: str | None = None) -> Batch:
    batch = app.batch(name=name).begin()
    batch.add(Call(app.tasks[type].new_job(app.tasks[type].options, (), payload)) for type, payload in tasks)
    return batch


def numbers(count: int) -> list[tuple[str, Any]]:
    return [("double", {"n": n}) for n in range(count)]


def test_batches_are_shown(app: Dibs, server: Serving) -> None:
    batch = batch_of(app, *numbers(2), ("fail", {"why": "x"}), name="numbers")
    app.drain(queues=["numbers"])
    with server.client() as client:
        shown = client.get(f"/api/batches/{batch.id}").json()
        counts = {"total": 3, "successful": 2, "failed": 0, "cancelled": 0, "unfinished": 1}
        doing = {"waiting": 1, "retry": 0, "running": 0, "processing": 0}
        created = shown.pop("createdAt")
        assert shown == {
            "batchId": batch.id,
            "name": "numbers",
            "status": "OPEN",
            "closedAt": None,
            "finishedAt": None,
            **counts,
            **doing,
        }
        other = batch_of(app)
        closed = client.post(f"/api/batches/{other.id}/close", json={}).json()
        assert (closed["status"], closed["closedAt"] is None) == ("FINISHED", False)
        page = client.get("/api/batches", params={"limit": 1}).json()
        assert ([each["batchId"] for each in page["batches"]], page["cursor"]) == ([other.id], other.id)
        rest = client.get("/api/batches", params={"cursor": page["cursor"]}).json()
        assert [(each["batchId"], each["createdAt"]) for each in rest["batches"]] == [(batch.id, created)]
        left = client.get("/api/batches", params={"unfinished": "true"}).json()["batches"]
        assert [each["batchId"] for each in left] == [batch.id]


def test_batches_are_cancelled_and_retried(app: Dibs, server: Serving) -> None:
    batch = batch_of(app, *numbers(600), ("fail", {"why": "x"}))
    app.drain(queues=["default"])
    with server.client() as client:
        assert client.post(f"/api/batches/{batch.id}/retry", json={}).json() == {
            "done": 1,
            "refused": 0,
            "cursor": None,
        }
        done = client.post(f"/api/batches/{batch.id}/cancel", json={"cursor": 0}).json()
        assert done == {"done": 601, "refused": 0, "cursor": None}
        assert client.get(f"/api/batches/{batch.id}").json()["status"] == "FINISHED"


@on_one
def test_workers_over_http_are_counted(app: Dibs, server: Serving) -> None:
    batch = batch_of(app, *numbers(2))
    batch.close()
    with server.client() as client:
        good, bad = client.post("/api/claims", json={"queues": ["numbers"], "limit": 2}).json()["jobs"]
        client.post(f"/api/claims/{good['lease']}/complete", json={"result": 0})
        client.post(f"/api/claims/{bad['lease']}/fail", json={"error": "no", "permanent": True})
        shown = client.get(f"/api/batches/{batch.id}").json()
        assert (shown["successful"], shown["failed"], shown["status"]) == (1, 1, "FINISHED")


@on_one
def test_mistakes(server: Serving) -> None:
    with server.client() as client:
        for answer in (
            client.get("/api/batches/7"),
            *(client.post(f"/api/batches/7/{act}", json={}) for act in ("cancel", "retry", "close")),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "batch_not_found")
        for path in ("/api/batches/0", "/api/batches/x", "/api/batches?unfinished=x", "/api/batches?limit=0"):
            assert client.get(path).status_code == 422


@on_one
def test_scopes(app: Dibs) -> None:
    batch = batch_of(app, *numbers(1))
    read, operate = token(app, "read"), token(app, "operate")
    with serving(app) as server, server.client(read) as reader, server.client(operate) as operator:
        assert reader.get(f"/api/batches/{batch.id}").status_code == 200
        assert operator.get(f"/api/batches/{batch.id}").status_code == 403
        assert reader.post(f"/api/batches/{batch.id}/cancel", json={}).status_code == 403
        assert operator.post(f"/api/batches/{batch.id}/cancel", json={}).status_code == 200
        with server.socket(operate) as ear:
            ear.say(action="subscribe", batchId=batch.id)
            assert (heard := ear.hear())["code"] == "not_allowed"
            assert heard["batchId"] == batch.id


# Watching


def counts(heard: Any) -> tuple[Any, ...]:
    return tuple(heard[name] for name in ("status", "total", "successful", "failed", "cancelled", "unfinished"))


def test_a_batch_is_watched_to_its_end(app: Dibs, server: Serving) -> None:
    batch = batch_of(app, *numbers(3), ("fail", {"why": "x"}))
    with server.socket() as ear:
        ear.say(action="subscribe", batchId=batch.id)
        first = ear.hear()
        assert (first["batchId"], counts(first)) == (batch.id, ("OPEN", 4, 0, 0, 0, 4))
        batch.close()
        app.drain()
        heard = [first]
        while heard[-1]["status"] != "FINISHED":
            heard.append(ear.hear())
        assert counts(heard[-1]) == ("FINISHED", 4, 3, 1, 0, 0)
        assert len(heard) == len({counts(each) for each in heard})
        ear.say(action="unsubscribe", batchId=batch.id)
        batch.retry()
        ear.say(action="ping")
        assert ear.hear() == {"type": "pong"}


@on_one
def test_a_batch_that_is_not_there(server: Serving) -> None:
    with server.socket() as ear:
        ear.say(action="subscribe", batchId=7)
        heard = ear.hear()
        assert (heard["type"], heard["code"], heard["batchId"]) == ("error", "batch_not_found", 7)
        ear.say(action="subscribe", batchId=7, jobId=7)
        assert ear.hear()["code"] == "invalid_message"
        ear.say(action="subscribe", batchId=0)
        assert ear.hear()["code"] == "invalid_message"


@on_one
def test_a_job_and_a_batch_of_the_same_number(app: Dibs, server: Serving) -> None:
    batch = batch_of(app, *numbers(1))
    with server.socket() as ear:
        ear.say(action="subscribe", batchId=1)
        ear.say(action="subscribe", jobId=1)
        heard = [ear.hear(), ear.hear()]
        assert batch.id == 1
        assert sorted(key for each in heard for key in each if key.endswith("Id")) == ["batchId", "jobId"]
