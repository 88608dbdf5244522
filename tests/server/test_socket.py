"""What a client of the WebSocket says and hears."""

import json

import pytest
from websockets.exceptions import ConnectionClosed

from dibs import Dibs
from tests.apps import on_one
from tests.server.serving import Serving


def test_the_conversation_of_a_job(app: Dibs, server: Serving) -> None:
    job = app.tasks["double"]
    with server.client() as client, server.socket(path="/") as ear:
        created = client.post("/api/jobs", json={"type": "double", "payload": {"n": 21}}).json()
        ear.say(action="subscribe", jobId=created["jobId"])
        first = ear.hear()
        assert first == {
            "jobId": created["jobId"],
            "status": "PENDING",
            "attempts": 0,
            "error": None,
            "version": 0,
        }
        other = Dibs(app.url)
        other.tasks.update({"double": job})
        assert other.drain().successful == 1
        other.close()
        heard = ear.until("SUCCESSFUL")
        assert heard[-1] == {
            "jobId": created["jobId"],
            "status": "SUCCESSFUL",
            "attempts": 1,
            "error": None,
            "version": 2,
        }
        ear.say(action="unsubscribe", jobId=created["jobId"])
        ear.say(action="ping")
        assert ear.hear() == {"type": "pong"}


def test_since(app: Dibs, server: Serving) -> None:
    with server.client() as client:
        job_id = client.post("/api/jobs", json={"type": "double", "payload": {"n": 21}}).json()["jobId"]
    app.drain()
    with server.socket() as ear:
        ear.say(action="subscribe", jobId=job_id, since=1)
        assert ear.hear()["status"] == "SUCCESSFUL"
    with server.client() as client, server.socket() as ear:
        others = client.post("/api/jobs/bulk", json={"jobs": [{"type": "double", "payload": {"n": 1}}] * 2}).json()[
            "jobIds"
        ]
        ear.say(action="subscribe", jobId=job_id, since=2)  # it is read no later than the next two
        for other in others:
            ear.say(action="subscribe", jobId=other)
            assert ear.hear()["jobId"] == other
        ear.say(action="subscribe", jobId=job_id)
        assert ear.hear()["version"] == 2


def test_a_job_that_there_is_not(server: Serving) -> None:
    with server.socket() as ear:
        ear.say(action="subscribe", jobId=77)
        assert ear.hear() == {
            "type": "error",
            "code": "job_not_found",
            "message": "There is no job 77.",
            "jobId": 77,
        }


def test_a_queue_and_all(app: Dibs, server: Serving) -> None:
    with server.client() as client, server.socket() as queue, server.socket() as everything:
        old = client.post("/api/jobs", json={"type": "double", "payload": {"n": 1}}).json()["jobId"]
        queue.say(action="subscribe", queue="numbers")
        everything.say(action="subscribe", all=True)
        assert queue.hear()["jobId"] == everything.hear()["jobId"] == old
        other = client.post("/api/jobs", json={"type": "fail", "payload": {"why": "no"}}).json()["jobId"]
        new = client.post("/api/jobs", json={"type": "double", "payload": {"n": 2}}).json()["jobId"]
        assert [everything.hear()["jobId"], everything.hear()["jobId"]] == [other, new]
        assert queue.hear()["jobId"] == new
        app.drain()
        ends = {}
        while len(ends) < 3:
            heard = everything.hear()
            if heard["status"] in ("SUCCESSFUL", "FAILED"):
                ends[heard["jobId"]] = heard["status"]
        assert ends == {old: "SUCCESSFUL", other: "FAILED", new: "SUCCESSFUL"}
        last = {}
        while list(last.values()).count("SUCCESSFUL") < 2:
            heard = queue.hear()
            last[heard["jobId"]] = heard["status"]
        assert other not in last


@on_one
def test_who_reads_at_once_may_be_told_much(app: Dibs, server: Serving) -> None:
    with server.client() as client, server.socket() as ear:
        ear.say(action="subscribe", all=True)
        ear.say(action="ping")
        assert ear.hear() == {"type": "pong"}
        jobs = [{"type": "fail", "payload": {"why": "x" * 700}}] * 950
        ids = client.post("/api/jobs/bulk", json={"jobs": jobs}).json()["jobIds"]
        assert {ear.hear()["jobId"] for _ in ids} == set(ids)
        app.drain(limit=150)
    with server.socket() as ear:
        ear.say(action="subscribe", queue="default")
        assert len({ear.hear()["jobId"] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"subscribe"',
        '{"action":"subscribe"}',
        '{"action":"dance","jobId":1}',
        '{"action":"subscribe","jobId":0}',
        '{"action":"subscribe","jobId":-1}',
        '{"action":"subscribe","jobId":"1"}',
        '{"action":"subscribe","jobId":1.5}',
        '{"action":"subscribe","jobId":9223372036854775808}',
        '{"action":"subscribe","jobId":1,"queue":"x"}',
        '{"action":"subscribe","all":false}',
        '{"action":"subscribe","queue":""}',
        '{"action":"subscribe","jobId":1,"since":-1}',
        '{"action":"subscribe","jobId":1,"more":1}',
        '{"action":"ping","jobId":1}',
        "[" * 5000,
    ],
)
def test_what_cannot_be_understood_is_answered(server: Serving, text: str) -> None:
    with server.socket() as ear:
        ear.raw.send(text)
        answer = ear.hear()
        assert (answer["type"], answer["code"]) == ("error", "invalid_message")
        ear.say(action="ping")
        assert ear.hear() == {"type": "pong"}


def test_binary_frames_and_large_messages_end_it(server: Serving) -> None:
    for message, code in [(b"{}", 1003), (json.dumps({"action": "ping", "x": "x" * 17_000}), 1009)]:
        with server.socket() as ear:
            ear.raw.send(message)
            with pytest.raises(ConnectionClosed) as ended:
                ear.raw.recv(timeout=10)
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == code


def test_there_is_an_end_to_subscriptions(app: Dibs, server: Serving) -> None:
    with server.socket() as ear:
        for number in range(1, 1_002):
            ear.say(action="subscribe", queue=f"q{number}")
        assert ear.hear()["code"] == "too_many_subscriptions"
