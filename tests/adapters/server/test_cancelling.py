"""Requests to sample that their client cancels."""

from __future__ import annotations

import re
from typing import Any

from adapters.fake.blobs import FakeBlobs
from tests.support.silent_training import SilentTraining
from tests.support.tinker_http import Client, connected
from tests.support.tinker_server import KEY


def futures(client: Client) -> int:
    """Return the number of requests that the server holds."""
    metrics = client.http.get("/metrics", headers={"x-api-key": KEY}).text
    match = re.search(r"^kitchen_futures (\d+)", metrics, re.MULTILINE)
    assert match is not None
    return int(match[1])


def queued_samples(client: Client, count: int) -> list[Any]:
    opening = {"session_id": client.session(), "sampling_session_seq_id": 0, "base_model": "tiny"}
    session = client.post("create_sampling_session", opening).json()["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [72, 105]}]}
    body = {"sampling_session_id": session, "prompt": prompt, "sampling_params": {"max_tokens": 4}}
    return [client.post("asample", body | {"seq_id": number}).json() for number in range(count)]


def test_cancelled_samples_are_dropped() -> None:
    blobs = FakeBlobs()
    client = Client(blobs, SilentTraining(blobs))
    with client.http:
        first, second = queued_samples(client, 2)
        assert futures(client) == 2
        for _ in range(2):  # a repetition changes nothing
            answer = client.post("cancel_future", {"request_id": first["request_id"]})
            assert answer.status_code == 204
            assert futures(client) == 1
        gone = client.post("retrieve_future", {"request_id": first["request_id"]})
        assert gone.status_code == 410
        client.post("cancel_future", {"request_id": second["request_id"]})
        assert futures(client) == 0


def test_training_requests_are_not_cancelled() -> None:
    with connected() as client:
        answer = client.post("cancel_future", {"request_id": "a-session:train:0:1"})
        assert answer.status_code == 400
        assert "only those are cancelled" in answer.text
