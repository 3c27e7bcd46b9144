"""A client of the Tinker API that speaks HTTP without the SDK, with a server in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.server.limits import Limits
from kitchen.ports import HubClient, TrainingBackend
from tests.support.tinker_messages import forward_backward
from tests.support.tinker_server import KEY, application

PROTOBUF = {"content-type": "application/x-protobuf"}


class Client:
    """A client that speaks HTTP without the SDK, with a server of its own."""

    def __init__(
        self,
        blobs: Any,
        training: TrainingBackend | None = None,
        hub: HubClient | None = None,
        **limits: Any,
    ) -> None:
        self.blobs = blobs
        self.http = TestClient(
            application(training or FakeTraining(blobs), blobs, hub, limits=Limits(**limits)),
            raise_server_exceptions=True,
            base_url="http://127.0.0.1:8000",
        )

    def post(self, path: str, body: Any, key: str = KEY, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(
            f"/api/v1/{path}", content=content, headers={"x-api-key": key, **headers}
        )

    def get(self, path: str) -> Any:
        return self.http.get(f"/api/v1/{path}", headers={"x-api-key": KEY})

    def result(self, queued: Any) -> Any:
        return self.result_of(queued).json()

    def result_bytes(self, queued: Any) -> bytes:
        content: bytes = self.result_of(queued).content
        return content

    def result_of(self, queued: Any) -> Any:
        assert queued.status_code == 200, queued.text
        return self.post("retrieve_future", {"request_id": queued.json()["request_id"]})

    def scores(self, model: str, number: int) -> bytes:
        """Return the result of a forward pass, which changes nothing."""
        body = forward_backward(model, number, forward_only=True)
        return self.result_bytes(self.post("forward_backward", body, **PROTOBUF))

    def session(self) -> str:
        body = {"tags": [], "user_metadata": {"who": "me"}, "sdk_version": "0.38"}
        return str(self.post("create_session", body).json()["session_id"])

    def model(self, session: str, number: int = 0, **more: Any) -> str:
        body = {
            "session_id": session,
            "model_seq_id": number,
            "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1},
            **more,
        }
        return str(self.result(self.post("create_model", body)).get("model_id"))

    def snapshot(self, model: str, number: int) -> str:
        body = {"model_id": model, "seq_id": number, "sampling_session_seq_id": number}
        return str(self.result(self.post("save_weights_for_sampler", body))["sampling_session_id"])

    def export(self, model: str, number: int, **more: Any) -> Any:
        body = {"model_id": model, "path": "out", "seq_id": number, **more}
        return self.result(self.post("save_weights_external", body))

    def file_urls(self, path: str) -> Any:
        """Return the answer to a request for the URLs of exported files."""
        run, kind, name = path.removeprefix("tinker://").split("/")
        return self.get(f"training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls")

    def save(self, model: str, number: int, name: str | None, **more: Any) -> Any:
        body = {"model_id": model, "path": name, "seq_id": number, **more}
        return self.result(self.post("save_weights", body))


@contextmanager
def connected(blobs: FakeBlobs | None = None, **limits: Any) -> Iterator[Client]:
    client = Client(blobs or FakeBlobs(), **limits)
    with client.http:
        yield client
