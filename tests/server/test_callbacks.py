"""Callbacks of providers over HTTP: signed, good once, and kept when they come early."""

from typing import Any

import pytest

from dibs import Dibs, JobState, Task, current_job
from tests.server.serving import Serving

LONG = b'{"result": %s}' % (b"9" * 5_000)
HALF = b'{"result": "\\ud800"}'
LATIN = '{"result": "é"}'.encode("latin-1")


@pytest.fixture
def addresses() -> list[str]:
    """Those that the provider was given."""
    return []


@pytest.fixture
def summarise(app: Dibs, server: Serving, addresses: list[str]) -> Task[Any, Any]:
    """Handed to a provider that calls back."""

    @app.provider_task(name="summarise", after_crash="resubmit")
    class Summarise:
        async def submit(self, text: str, key: str) -> str:
            addresses.append(current_job().callback_url or "")
            return key

    return Summarise  # type: ignore[no-any-return]  # made by the decorator


def test_a_job_is_handed_over_and_called_back_for(
    app: Dibs, server: Serving, summarise: Task[Any, Any], addresses: list[str]
) -> None:
    with server.client() as client:
        created = client.post("/api/jobs", json={"type": "summarise", "payload": {"text": "long"}}).json()
        app.drain()
        seen = client.get(f"/api/jobs/{created['jobId']}").json()
        assert (seen["status"], len(addresses)) == ("PROCESSING", 1)
        assert seen["providerTaskId"].startswith("dibs-")
        queue = next(each for each in client.get("/api/queues").json()["queues"] if each["name"] == "default")
        assert (queue["processing"], queue["running"], queue["waiting"]) == (1, 0, 0)
        said = {"result": "short", "usage": {"tokens": 12}}
        assert client.post(addresses[0], json=said).json() == {"accepted": True}
        assert client.post(addresses[0], json={"result": "other"}).json() == {"accepted": False}
        app.drain()
        seen = client.get(f"/api/jobs/{created['jobId']}").json()
        assert (seen["status"], seen["result"], seen["usage"]) == ("SUCCESSFUL", "short", {"tokens": 12})
        assert client.post(addresses[0], json={"result": "late"}).json() == {"accepted": False}
        assert client.get(f"/api/jobs/{created['jobId']}").json()["result"] == "short"


def test_an_address_that_nobody_was_given_is_refused(
    app: Dibs, server: Serving, summarise: Task[Any, Any], addresses: list[str]
) -> None:
    job = summarise.enqueue(text="x")
    app.drain()
    with server.client() as client:
        for forged in (
            addresses[0][:-1] + ("A" if addresses[0][-1] != "A" else "B"),
            addresses[0].replace(f"_{job.id}_", f"_{job.id + 1}_"),
            "/api/callbacks/x",
            "/api/callbacks/dibsc_99999999999999999999_1_" + "A" * 43,
        ):
            answer = client.post(forged, json={"result": 1})
            assert (answer.status_code, answer.json()["code"]) == (404, "no_such_callback")
    assert job.refresh().state is JobState.PROCESSING


def test_what_is_no_object_is_refused(
    app: Dibs, server: Serving, summarise: Task[Any, Any], addresses: list[str]
) -> None:
    summarise.enqueue(text="x")
    app.drain()
    headers = {"content-type": "application/json"}
    with server.client() as client:
        for body, code in (
            (b"{", 400),
            (b"[1]", 422),
            (b'{"result": "\\u0000"}', 422),
            (LONG, 422),
            (HALF, 400),
            (LATIN, 400),
        ):
            assert client.post(addresses[0], content=body, headers=headers).status_code == code
        assert client.post(addresses[0], content=b"a=b").status_code == 415
        assert client.post(addresses[0], json={"result": 1}).json() == {"accepted": True}  # none of those counted


def test_who_only_waits_for_work_is_not_given_what_only_the_app_can_hand_over(
    app: Dibs, server: Serving, summarise: Task[Any, Any]
) -> None:
    job = summarise.enqueue(text="x")
    with server.client() as client:
        claim = client.post("/api/claims", json={"name": "node", "queues": ["default"], "limit": 5, "wait": 0})
        assert claim.status_code == 200
        assert claim.json()["jobs"] == []
    assert job.refresh().state is JobState.PENDING
