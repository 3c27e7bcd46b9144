"""Web pages of other origins, which may use the OpenAI API only if they were named."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.server.serve import TinkerServer
from kitchen.errors import ConfigError
from tests.adapters.server.openai.conftest import OpenAIClient
from tests.support.tinker_server import KEY, MODELS

PAGE = "http://localhost:3000"


def client(*cors: str, key: str | None = None) -> OpenAIClient:
    blobs = FakeBlobs()
    server = TinkerServer(FakeTraining(blobs), FakeHub(MODELS), blobs)
    return OpenAIClient(server.app(["tiny"], {}, key, cors=cors))


def preflight(client: OpenAIClient, origin: str, path: str = "/v1/chat/completions") -> Any:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return client.http.options(path, headers=headers)


@pytest.mark.parametrize("key", [None, KEY])
def test_named_pages_may_use_the_api(key: str | None) -> None:
    server = client(PAGE, key=key)
    asked = preflight(server, PAGE)
    assert asked.status_code == 200
    assert "authorization" in asked.headers["access-control-allow-headers"]
    answer = server.http.get("/v1/models", headers={"origin": PAGE})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("key", [None, KEY])
def test_named_pages_may_not_use_the_tinker_api(key: str | None) -> None:
    server = client(PAGE, key=key)
    asked = preflight(server, PAGE, "/api/v1/create_session")
    assert asked.status_code in (403, 405)
    for path in ("/api/v1/sessions", "/metrics", "/healthz"):
        answer = server.http.get(path, headers={"origin": PAGE, "x-api-key": KEY})
        assert answer.status_code == (403 if key is None else 200)
        for response in (asked, answer):
            assert "access-control-allow-origin" not in response.headers


def test_other_pages_and_paths_are_refused() -> None:
    server = client(PAGE)
    assert preflight(server, "http://evil.example").status_code == 400
    other = server.http.get("/v1/models", headers={"origin": "http://evil.example"})
    assert other.status_code == 403
    assert "access-control-allow-origin" not in other.headers
    assert server.http.get("/api/v1/sessions", headers={"origin": PAGE}).status_code == 403
    rebound = server.http.get("/v1/models", headers={"origin": PAGE, "host": "evil.example"})
    assert rebound.status_code == 403


def test_pages_are_refused_unless_named() -> None:
    server = client(key=KEY)
    assert preflight(server, PAGE).status_code in (401, 405)
    answer = server.http.get("/v1/models", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers
    assert client().http.get("/v1/models", headers={"origin": PAGE}).status_code == 403


@pytest.mark.parametrize("origin", ["*", "localhost:3000", "http://localhost:3000/", "null", ""])
def test_origins_are_checked_before_serving(origin: str) -> None:
    blobs = FakeBlobs()
    server = TinkerServer(FakeTraining(blobs), FakeHub(MODELS), blobs)
    with pytest.raises(ConfigError, match="--cors"):
        next(server.serve(["tiny"], {}, "127.0.0.1", 0, cors=[origin]))
