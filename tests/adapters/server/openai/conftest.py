"""A server of the OpenAI API in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from starlette.testclient import TestClient

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from tests.support.tinker_server import KEY, application

URL = "http://127.0.0.1:8000"


class OpenAIClient:
    """A client that speaks HTTP without the SDK."""

    def __init__(self, app: Any, key: str = KEY) -> None:
        headers = {"authorization": f"Bearer {key}"}
        self.http = TestClient(app, base_url=URL, headers=headers)

    def post(self, path: str, **fields: Any) -> Any:
        return self.http.post(f"/v1/{path}", json=fields)

    def complete(self, prompt: Any, **fields: Any) -> Any:
        return self._ok("completions", prompt=prompt, **fields)

    def chat(self, *messages: Any, **fields: Any) -> Any:
        read = [
            {"role": "user", "content": one} if isinstance(one, str) else one for one in messages
        ]
        return self._ok("chat/completions", messages=read, **fields)

    def events(self, path: str, **fields: Any) -> list[Any]:
        """Return the chunks of a streamed answer, which must end with [DONE]."""
        body = {"model": "tiny", "max_tokens": 8, "seed": 1, "stream": True, **fields}
        lines = self.http.post(f"/v1/{path}", json=body).text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def _ok(self, path: str, **fields: Any) -> Any:
        answer = self.post(path, **{"model": "tiny", "max_tokens": 8, "seed": 1, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def client() -> Iterator[OpenAIClient]:
    blobs = FakeBlobs()
    client = OpenAIClient(application(FakeTraining(blobs), blobs))
    with client.http:
        yield client
