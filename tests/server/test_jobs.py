"""Jobs over HTTP: adding them, looking at them, cancelling and retrying them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dibs import Dibs
from tests.actors import Actors
from tests.apps import on_one, on_sqlite
from tests.server.serving import Serving, serving

DOUBLE = {"type": "double", "payload": {"n": 21}}


def test_a_job_is_added_and_read(app: Dibs, server: Serving) -> None:
    with server.client() as client:
        answer = client.post("/api/jobs", json={**DOUBLE, "priority": 9, "maxAttempts": 5, "tags": ["a"]})
        assert answer.status_code == 201
        created = answer.json()
        assert (
            created.items()
            >= {
                "status": "PENDING",
                "type": "double",
                "queue": "numbers",
                "priority": 9,
                "maxAttempts": 5,
                "tags": ["a"],
                "payload": {"n": 21},
                "attempts": 0,
                "version": 0,
                "created": True,
            }.items()
        )
        app.drain()
        read = client.get(f"/api/jobs/{created['jobId']}").json()
        assert read.items() >= {"status": "SUCCESSFUL", "result": 42, "attempts": 1, "error": None}.items()
        assert read["createdAt"] == created["createdAt"]


def test_a_secret_is_not_shown(server: Serving) -> None:
    with server.client() as client:
        created = client.post("/api/jobs", json={"type": "double", "payload": {"n": 1, "password": "x"}}).json()
        assert created["payload"] == {"n": 1, "password": "***"}
        assert client.get("/api/jobs").json()["jobs"][0]["payload"] == {"n": 1, "password": "***"}


@on_sqlite
def test_a_payload_that_is_no_json_hides_no_job(app: Dibs, server: Serving) -> None:
    with server.client() as client, server.socket() as ear:
        job_id = client.post("/api/jobs", json=DOUBLE).json()["jobId"]
        Actors(app.engine).sql("update dibs.jobs set payload = 'not json', progress = '{'")
        assert client.get(f"/api/jobs/{job_id}").json()["payload"] == "(it is not JSON)"
        assert client.get("/api/jobs").json()["jobs"][0]["payload"] == "(it is not JSON)"
        ear.say(action="subscribe", jobId=job_id)
        assert ear.hear()["progress"] == "(it is not JSON)"


def test_a_unique_key_that_is_held_gives_the_holder(server: Serving) -> None:
    with server.client() as client:
        first = client.post("/api/jobs", json={**DOUBLE, "uniqueKey": "k"})
        second = client.post("/api/jobs", json={**DOUBLE, "uniqueKey": "k"})
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["jobId"] == second.json()["jobId"]
        assert second.json()["created"] is False


def test_an_idempotency_key_adds_once(app: Dibs, server: Serving) -> None:
    key = {"idempotency-key": "order 7"}
    with server.client() as client:
        first = client.post("/api/jobs", json=DOUBLE, headers=key)
        app.drain()
        again = client.post("/api/jobs", json=DOUBLE, headers=key)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json()["jobId"] == first.json()["jobId"]
        assert (first.json()["created"], again.json()["created"]) == (True, False)
        bulk = client.post("/api/jobs/bulk", json={"jobs": [DOUBLE]}, headers=key)
        assert (bulk.status_code, bulk.json()["code"]) == (422, "invalid_idempotency_key")
        other = client.post("/api/jobs", json={"type": "double", "payload": {"n": 22}}, headers=key)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        assert client.get("/api/jobs").json()["jobs"][1:] == []


def test_an_idempotency_key_adds_once_though_many_ask_at_once(server: Serving) -> None:
    def ask(_: int) -> Any:
        with server.client() as client:
            return client.post("/api/jobs", json=DOUBLE, headers={"idempotency-key": "k"})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert len({answer.json()["jobId"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]


def test_many_are_added_all_or_none(server: Serving) -> None:
    with server.client() as client:
        answer = client.post("/api/jobs/bulk", json={"jobs": [DOUBLE] * 3})
        assert answer.status_code == 201
        assert len(answer.json()["jobIds"]) == 3
        wrong = client.post("/api/jobs/bulk", json={"jobs": [DOUBLE, {"type": "double", "payload": {"n": "x"}}]})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_payload")
        assert client.get("/api/jobs/count").json() == {"count": 3, "more": False}


def test_pages_and_filters(app: Dibs, server: Serving) -> None:
    with server.client() as client:
        ids = client.post("/api/jobs/bulk", json={"jobs": [DOUBLE] * 5}).json()["jobIds"]
        page = client.get("/api/jobs", params={"limit": 2}).json()
        assert [job["jobId"] for job in page["jobs"]] == ids[:2:-1]
        rest = client.get("/api/jobs", params={"limit": 500, "cursor": page["cursor"]}).json()
        assert [job["jobId"] for job in rest["jobs"]] == ids[2::-1]
        assert rest["cursor"] is None
        app.drain(limit=1)
        assert len(client.get("/api/jobs", params={"status": "SUCCESSFUL"}).json()["jobs"]) == 1
        assert len(client.get("/api/jobs", params={"queue": "numbers", "status": "PENDING"}).json()["jobs"]) == 4
        assert client.get("/api/jobs", params={"queue": "other"}).json()["jobs"] == []
        assert len(client.get("/api/jobs", params={"tag": "math", "type": "double"}).json()["jobs"]) == 5


@on_one
def test_a_page_has_an_end_in_bytes_too(server: Serving) -> None:
    big = {"type": "fail", "payload": {"why": "x" * 200_000}}
    with server.client() as client:
        for _ in range(60):
            client.post("/api/jobs", json=big)
        page = client.get("/api/jobs", params={"limit": 500}).json()
        assert (len(page["jobs"]), page["cursor"]) == (50, page["jobs"][-1]["jobId"])
        rest = client.get("/api/jobs", params={"limit": 500, "cursor": page["cursor"]}).json()
        assert (len(rest["jobs"]), rest["cursor"]) == (10, None)


def test_cancel_and_retry(app: Dibs, server: Serving) -> None:
    with server.client() as client:
        job_id = client.post("/api/jobs", json=DOUBLE).json()["jobId"]
        for _ in range(2):
            answer = client.post(f"/api/jobs/{job_id}/cancel", json={})
            assert (answer.status_code, answer.json()["status"]) == (200, "CANCELLED")
        assert client.post(f"/api/jobs/{job_id}/retry", json={}).json()["status"] == "PENDING"
        assert client.post(f"/api/jobs/{job_id}/retry", json={}).json()["code"] == "not_retryable"
        app.drain()
        answer = client.post(f"/api/jobs/{job_id}/cancel", json={})
        assert (answer.status_code, answer.json()["code"]) == (409, "not_cancellable")


def test_all_that_match_are_counted_cancelled_and_retried(server: Serving) -> None:
    with server.client() as client:
        client.post("/api/jobs/bulk", json={"jobs": [DOUBLE] * 600})
        client.post("/api/jobs", json={"type": "fail", "payload": {"why": "x"}})
        assert client.get("/api/jobs/count", params={"queue": "numbers"}).json()["count"] == 600
        done = client.post("/api/jobs/cancel", json={"queue": "numbers"}).json()
        assert done == {"done": 600, "refused": 0, "cursor": None}
        assert client.get("/api/jobs/count", params={"status": "CANCELLED"}).json()["count"] == 600
        done = client.post("/api/jobs/retry", json={"status": "CANCELLED"}).json()
        assert done == {"done": 600, "refused": 0, "cursor": None}


def test_queues_and_workers(server: Serving) -> None:
    with server.client() as client:
        client.post("/api/jobs", json=DOUBLE)
        (queue,) = client.get("/api/queues").json()["queues"]
        assert queue.items() >= {"name": "numbers", "waiting": 1, "paused": False}.items()
        assert queue["oldestSeconds"] >= 0
        (paused,) = client.post("/api/queues/numbers/pause", json={}).json()["queues"]
        assert paused["paused"] is True
        (resumed,) = client.post("/api/queues/numbers/resume", json={}).json()["queues"]
        assert resumed["paused"] is False
        assert client.get("/api/workers").json() == {"workers": []}


def test_what_jobs_came_to(app: Dibs, server: Serving) -> None:
    with server.client() as client:
        assert client.get("/api/stats").json() == {"minutes": []}
        client.post("/api/jobs/bulk", json={"jobs": [DOUBLE] * 3})
        client.post("/api/jobs", json={"type": "fail", "payload": {"why": "x"}})
        for _ in range(2):
            app.drain(limit=2)
        found = client.get("/api/stats", params={"minutes": 5}).json()["minutes"]
        totals: dict[str, list[int]] = {}
        for minute in found:
            total = totals.setdefault(minute["queue"], [0, 0, 0])
            totals[minute["queue"]] = [
                total[0] + minute["successful"],
                total[1] + minute["failed"],
                total[2] + minute["retried"],
            ]
        assert totals == {"numbers": [3, 0, 0], "default": [0, 1, 0]}


REFUSED: list[tuple[str, str, Any, int, str, str | None]] = [
    ("POST", "/api/jobs", {"type": "unknown"}, 422, "unknown_task", "type"),
    (
        "POST",
        "/api/jobs",
        {"type": "dibs.command", "payload": {"arguments": ["ls"]}},
        403,
        "commands_not_allowed",
        "type",
    ),
    ("POST", "/api/jobs", {"payload": {}}, 422, "invalid_body", "type"),
    ("POST", "/api/jobs", {"type": ""}, 422, "invalid_body", "type"),
    ("POST", "/api/jobs", {"type": 3}, 422, "invalid_body", "type"),
    ("POST", "/api/jobs", {**DOUBLE, "priority": 10}, 422, "invalid_body", "priority"),
    ("POST", "/api/jobs", {**DOUBLE, "prio": 1}, 422, "invalid_body", "prio"),
    ("POST", "/api/jobs", {**DOUBLE, "payload": []}, 422, "invalid_body", "payload"),
    ("POST", "/api/jobs", {**DOUBLE, "payload": {"n": "x"}}, 422, "invalid_payload", "payload"),
    ("POST", "/api/jobs", {**DOUBLE, "payload": {"n": 1, "m": 1}}, 422, "invalid_payload", "payload"),
    ("POST", "/api/jobs", {**DOUBLE, "delay": 1, "runAt": "2030-01-01T00:00:00Z"}, 422, "invalid_option", "delay"),
    ("POST", "/api/jobs", {**DOUBLE, "runAt": "2030-01-01T00:00:00"}, 422, "invalid_body", "runAt"),
    ("POST", "/api/jobs", {**DOUBLE, "uniqueFor": 3}, 422, "invalid_option", "uniqueFor"),
    ("POST", "/api/jobs/bulk", {"jobs": []}, 422, "invalid_body", "jobs"),
    ("POST", "/api/jobs/bulk", {"jobs": [{"type": 1}]}, 422, "invalid_body", "jobs[0].type"),
    ("GET", "/api/jobs/x", None, 422, "invalid_option", "jobId"),
    ("GET", "/api/jobs/0", None, 422, "invalid_option", "jobId"),
    ("GET", "/api/jobs/9223372036854775808", None, 422, "invalid_option", "jobId"),
    ("GET", "/api/jobs/99999999999999999999999999", None, 422, "invalid_option", "jobId"),
    ("GET", "/api/jobs/7", None, 404, "job_not_found", None),
    ("GET", "/api/jobs?limit=0", None, 422, "invalid_option", "limit"),
    ("GET", "/api/jobs?limit=501", None, 422, "invalid_option", "limit"),
    ("GET", "/api/jobs?cursor=-1", None, 422, "invalid_option", "cursor"),
    ("GET", "/api/jobs?status=DONE", None, 422, "invalid_option", "status"),
    ("GET", "/api/jobs?colour=red", None, 422, "invalid_query", "colour"),
    ("GET", "/api/jobs?queue=", None, 422, "invalid_option", "queue"),
    ("GET", "/api/jobs/count?status=SUCCESSFUL", None, 422, "invalid_option", "status"),
    ("POST", "/api/jobs/7/cancel", {}, 404, "job_not_found", None),
    ("POST", "/api/jobs/7/cancel", {"x": 1}, 422, "invalid_body", None),
    ("POST", "/api/jobs/7/retry", {}, 404, "job_not_found", None),
    ("POST", "/api/jobs/cancel", {"status": "X"}, 422, "invalid_body", "status"),
    ("GET", "/api/nothing", None, 404, "no_such_path", None),
    ("POST", "/api/queues", {}, 405, "method_not_allowed", None),
]


@on_one
def test_mistakes_are_named(server: Serving) -> None:
    with server.client() as client:
        for method, path, body, status, code, field in REFUSED:
            answer = client.request(method, path, **({} if body is None else {"json": body}))
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem.get("field")) == (status, code, field), (path, problem)
            assert answer.headers["content-type"] == "application/problem+json"
            assert problem["detail"].strip()


@on_one
def test_bodies_that_are_none(server: Serving) -> None:
    with server.client() as client:
        for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"nul", b'{"type":"\\ud800"}', b'{"type":"\xe9"}'):
            answer = client.post("/api/jobs", content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (400, 422), body[:20]
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = client.post("/api/jobs", content=b"{}", headers={"content-type": kind})
            assert (answer.status_code, answer.json()["code"]) == (415, "not_json")
        large = client.post(
            "/api/jobs", content=b'{"type":"' + b"x" * 2**20 + b'"}', headers={"content-type": "application/json"}
        )
        assert (large.status_code, large.json()["code"]) == (413, "body_too_large")

        def drops() -> Any:
            for _ in range(40):
                yield b" " * 2**16

        streamed = client.post("/api/jobs", content=drops(), headers={"content-type": "application/json"})
        assert (streamed.status_code, streamed.json()["code"]) == (413, "body_too_large")


@on_one
def test_unknown_tasks_and_commands_if_allowed(app: Dibs) -> None:
    with serving(app, unknown_tasks=True, commands=True) as server, server.client() as client:
        assert client.post("/api/jobs", json={"type": "resize", "payload": {"x": 1}}).status_code == 201
        body = {"type": "dibs.command", "payload": {"arguments": ["true"]}}
        assert client.post("/api/jobs", json=body).status_code == 201


@on_one
def test_what_the_api_says_of_itself(server: Serving) -> None:
    with server.client() as client:
        document = client.get("/openapi.json").json()
        assert document["openapi"] == "3.1.0"
        assert "post" in document["paths"]["/api/jobs"]
        page = client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "http" not in page.text.replace("http-equiv", "").replace("<p>", "") or "://" not in page.text


@on_one
def test_every_answer_has_the_headers(server: Serving) -> None:
    with server.client() as client:
        for path in ("/api/jobs", "/api/jobs/7", "/docs", "/nothing"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "access-control-allow-origin" not in headers
