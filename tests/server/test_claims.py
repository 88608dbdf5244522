"""Workers in other languages: the same leases, the same fence, the same liveness, over HTTP."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs import Dibs
from tests.actors import Actors
from tests.server.serving import Serving, serving

JOB = {"type": "resize", "queue": "node", "payload": {"x": 1, "password": "p"}}
ASK = {"queues": ["node"]}


@pytest.fixture
def server(url: str) -> Iterator[Serving]:
    app = Dibs(url, lease=4.0, beat=0.5)
    with serving(app, unknown_tasks=True) as server:
        yield server
    app.close()


def test_a_job_is_claimed_reported_and_completed(server: Serving) -> None:
    with server.client() as client, server.socket() as ear:
        job_id = client.post("/api/jobs", json=JOB).json()["jobId"]
        ear.say(action="subscribe", jobId=job_id)
        assert ear.hear()["status"] == "PENDING"
        answer = client.post("/api/claims", json={**ASK, "name": "node-1"}).json()
        (job,) = answer["jobs"]
        assert job.items() >= {"jobId": job_id, "type": "resize", "attempts": 1, "payload": JOB["payload"]}.items()
        assert ear.hear()["status"] == "RUNNING"
        one = f"/api/claims/{job['lease']}"
        assert client.post(f"{one}/heartbeat", json={}).json() == {"jobId": job_id}
        assert client.post(f"{one}/progress", json={"progress": 0.5}).status_code == 200
        assert ear.hear().items() >= {"status": "RUNNING", "progress": 0.5}.items()
        for _ in range(2):
            done = client.post(f"{one}/complete", json={"result": {"ok": True}})
            assert done.json() == {"jobId": job_id, "status": "SUCCESSFUL"}
        assert ear.hear()["status"] == "SUCCESSFUL"
        shown = client.get(f"/api/jobs/{job_id}").json()
        assert (shown["result"], shown["worker"][:12]) == ({"ok": True}, "http-node-1-")
        for verb, code in (("heartbeat", "lease_lost"), ("release", "already_settled")):
            refused = client.post(f"{one}/{verb}", json={})
            assert (refused.status_code, refused.json()["code"]) == (409, code)


def test_a_failure_is_retried_and_then_final(server: Serving) -> None:
    with server.client() as client:
        job_id = client.post("/api/jobs", json={**JOB, "maxAttempts": 2}).json()["jobId"]
        states = []
        for _ in range(2):
            (job,) = client.post("/api/claims", json={**ASK, "wait": 5}).json()["jobs"]
            answer = client.post(f"/api/claims/{job['lease']}/fail", json={"error": "no", "delay": 0})
            states.append(answer.json()["status"])
        assert states == ["RETRY", "FAILED"]
        shown = client.get(f"/api/jobs/{job_id}").json()
        assert (shown["error"], shown["attempts"], len(shown["failures"])) == ("no", 2, 2)


def test_a_job_that_is_released_waits_again(server: Serving) -> None:
    with server.client() as client:
        job_id = client.post("/api/jobs", json=JOB).json()["jobId"]
        (job,) = client.post("/api/claims", json=ASK).json()["jobs"]
        assert client.post(f"/api/claims/{job['lease']}/release", json={}).json()["status"] == "PENDING"
        assert client.get(f"/api/jobs/{job_id}").json()["attempts"] == 0


def test_a_claim_waits_for_a_job(server: Serving) -> None:
    with server.client() as client, server.client() as other:
        assert client.post("/api/claims", json=ASK).json()["jobs"] == []
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(client.post, "/api/claims", json={**ASK, "wait": 10})
            other.post("/api/jobs", json=JOB)
            assert len(waiting.result().json()["jobs"]) == 1


def test_jobs_of_an_answer_that_was_lost_are_handed_back(server: Serving) -> None:
    with server.client() as client:
        first = client.post("/api/claims", json=ASK).json()
        job_id = client.post("/api/jobs", json=JOB).json()["jobId"]
        mine = {**ASK, "worker": first["worker"], "received": first["received"]}
        (lost,) = client.post("/api/claims", json=mine).json()["jobs"]  # and this is never seen
        (found,) = client.post("/api/claims", json=mine).json()["jobs"]
        assert (found["jobId"], found["attempts"]) == (job_id, 1)
        assert found["lease"] != lost["lease"]
        assert client.post(f"/api/claims/{lost['lease']}/complete", json={}).status_code == 409
        assert client.post(f"/api/claims/{found['lease']}/complete", json={}).status_code == 200


def test_the_job_of_a_worker_that_died_is_run_by_another(server: Serving) -> None:
    with server.client() as client:
        job_id = client.post("/api/jobs", json=JOB).json()["jobId"]
        (job,) = client.post("/api/claims", json=ASK).json()["jobs"]
        found: list[dict[str, object]] = []
        while not found:
            found = client.post("/api/claims", json={**ASK, "wait": 5}).json()["jobs"]
        assert (found[0]["jobId"], found[0]["attempts"]) == (job_id, 2)
        late = client.post(f"/api/claims/{job['lease']}/complete", json={})
        assert (late.status_code, late.json()["code"]) == (409, "lease_lost")
        gone = client.post("/api/claims", json={**ASK, "worker": "1"})
        assert (gone.status_code, gone.json()["code"]) == (409, "worker_gone")


def test_a_claim_that_nobody_waits_for_takes_nothing(server: Serving) -> None:
    """Its connection broke, the worker asks again, and a job comes: the first of the two must not take it."""
    actors = Actors(server.app.engine)
    with server.client() as client, server.client() as other, ThreadPoolExecutor(1) as thread:
        first = client.post("/api/claims", json=ASK).json()
        mine = {**ASK, "worker": first["worker"], "received": first["received"]}
        forgotten = thread.submit(client.post, "/api/claims", json={**mine, "wait": 10})
        while actors.sql(f"select claims from dibs.workers where id = {first['worker']}") != [(first["received"] + 1,)]:
            pass
        again = other.post("/api/claims", json=mine).json()
        assert (again["received"], again["jobs"]) == (first["received"] + 2, [])
        job_id = other.post("/api/jobs", json=JOB).json()["jobId"]
        refused = forgotten.result()
        assert (refused.status_code, refused.json()["code"]) == (409, "asked_again")
        (job,) = other.post("/api/claims", json={**mine, "received": again["received"]}).json()["jobs"]
        assert job["jobId"] == job_id


def test_a_queue_that_is_named_twice_gives_a_job_once(server: Serving) -> None:
    with server.client() as client:
        client.post("/api/jobs", json=JOB)
        assert len(client.post("/api/claims", json={"queues": ["node", "node"], "limit": 2}).json()["jobs"]) == 1


def test_types_that_a_worker_cannot_run_are_left_to_others(server: Serving) -> None:
    with server.client() as client:
        client.post("/api/jobs", json=JOB)
        assert client.post("/api/claims", json={**ASK, "unknown": ["resize"]}).json()["jobs"] == []
        assert len(client.post("/api/claims", json={**ASK, "unknown": ["other"]}).json()["jobs"]) == 1


def test_the_hook_of_a_job_is_left_to_those_who_have_it(app: Dibs) -> None:
    """However often a worker without it asks."""
    ran = []

    @app.task(name="pay", queue="node", max_attempts=1, on_failure=lambda job, connection: ran.append(job.id))
    def pay() -> None: ...

    actors = Actors(app.engine)
    with serving(app) as server, server.client() as client:
        job_id = client.post("/api/jobs", json={"type": "pay"}).json()["jobId"]
        (job,) = client.post("/api/claims", json=ASK).json()["jobs"]
        client.post(f"/api/claims/{job['lease']}/fail", json={"error": "no"})
        for _ in range(15):
            actors.make_due()
            assert client.post("/api/claims", json=ASK).json()["jobs"] == []
        actors.make_due()
        app.drain()
        assert (ran, client.get(f"/api/jobs/{job_id}").json()["status"]) == ([job_id], "FAILED")
        assert client.get(f"/api/jobs/{job_id}").json()["error"] == "no"


def test_a_progress_has_a_limit(server: Serving) -> None:
    with server.client() as client:
        client.post("/api/jobs", json=JOB)
        (job,) = client.post("/api/claims", json=ASK).json()["jobs"]
        answer = client.post(f"/api/claims/{job['lease']}/progress", json={"progress": "x" * 20_000})
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_a_server_that_was_thought_dead_judges_again(server: Serving) -> None:
    actors = Actors(server.app.engine)
    mine = "select count(*) from dibs.workers where name like 'server-%'"
    with server.client() as client:
        client.post("/api/claims", json=ASK)
    assert actors.sql(mine) == [(1,)]
    actors.sql("delete from dibs.workers where name like 'server-%'")
    while actors.sql(mine) != [(1,)]:
        pass
