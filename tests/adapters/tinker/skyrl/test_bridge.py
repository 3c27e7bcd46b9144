"""The bridge as a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.tinker.client import TinkerTraining
from adapters.tinker.skyrl.bridge import Bridge
from kitchen.errors import KitchenError
from kitchen.ports import Future
from kitchen.types import Datum, Lora
from tests.support.tinker_server import KEY, MODELS, RunningServer, serving

SEEN_KEYS: list[str | None] = []
UNREADABLE: dict[str, tuple[bytes, str]] = {  # results by request, and the error about each
    "sample": (
        b'{"sequences": [{"tokens": [1], "stop_reason": "stop"}]}',
        "the reply to retrieve_future has no field 'logprobs'",
    ),
    "pass": (
        b'{"loss_fn_outputs": [{"elementwise_loss": {"data": [0.0]}}]}',
        "the reply to retrieve_future has no field 'logprobs'",
    ),
    "shape": (b'{"sequences": [3]}', "the reply to retrieve_future is malformed (TypeError"),
    "cut": (b'{"sequences": [', "the reply to retrieve_future is not JSON"),
    "binary": (b"\xff\xfe", "the reply to retrieve_future is not JSON"),
    "list": (b"[1]", "the reply to retrieve_future is not a JSON object: '[1]'"),
}


async def info(request: Request) -> Response:
    SEEN_KEYS.append(request.headers.get("X-API-Key"))
    return JSONResponse({"model_id": (await request.json())["model_id"]})


async def archive(request: Request) -> Response:
    return RedirectResponse("https://files.example/a?b=c", 302)


async def result(request: Request) -> Response:
    return Response(UNREADABLE[(await request.json())["request_id"]][0])


async def session(request: Request) -> Response:
    return Response("<html>", media_type="text/html")


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    routes = [
        Route("/api/v1/get_info", info, methods=["POST"]),
        Route("/api/v1/archive", archive),
        Route("/api/v1/retrieve_future", result, methods=["POST"]),
        Route("/api/v1/create_sampling_session", session, methods=["POST"]),
    ]
    server = RunningServer(Starlette(routes=routes))
    bridge = Bridge(server.url, "tml-of-the-user")
    yield bridge
    bridge.close()
    server.stop()


def test_requests_reach_the_server_with_its_key(bridge: Bridge) -> None:
    headers = {"X-API-Key": bridge.key}
    answer = httpx.post(f"{bridge.url}/api/v1/get_info", json={"model_id": "m"}, headers=headers)
    assert answer.json() == {"model_id": "m"}
    assert SEEN_KEYS[-1] == "tml-of-the-user"


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "tml-of-the-user"}])
def test_only_this_process_may_use_the_bridge(bridge: Bridge, headers: dict[str, str]) -> None:
    answer = httpx.post(f"{bridge.url}/api/v1/get_info", json={}, headers=headers)
    assert answer.status_code == 401


def test_closed_bridge_says_so() -> None:
    """A connection from before outlives it."""
    bridge = Bridge("http://127.0.0.1:1", "tml-of-the-user")
    with httpx.Client(base_url=bridge.url, headers={"X-API-Key": bridge.key}) as client:
        assert "does not answer" in client.get("/api/v1/healthz").json()["detail"]
        bridge.close()
        assert client.get("/api/v1/healthz").json()["detail"] == "the bridge to SkyRL is closed"


def test_redirects_are_passed_on(bridge: Bridge) -> None:
    answer = httpx.get(f"{bridge.url}/api/v1/archive", headers={"X-API-Key": bridge.key})
    assert (answer.status_code, answer.headers["Location"]) == (302, "https://files.example/a?b=c")


def test_servers_that_are_away_can_be_tried_again() -> None:
    bridge = Bridge("http://127.0.0.1:9", "tml-of-the-user")
    answer = httpx.get(f"{bridge.url}/api/v1/healthz", headers={"X-API-Key": bridge.key})
    bridge.close()
    assert answer.status_code == 503


def posted(bridge: Bridge, endpoint: str, content: dict[str, Any]) -> httpx.Response:
    url = f"{bridge.url}/api/v1/{endpoint}"
    return httpx.post(url, json=content, headers={"X-API-Key": bridge.key})


@pytest.mark.parametrize("request_id", UNREADABLE)
def test_unreadable_results_are_final_errors(bridge: Bridge, request_id: str) -> None:
    """The SDK repeats a request whose connection was dropped, for minutes."""
    answer = posted(bridge, "retrieve_future", {"request_id": request_id})
    assert answer.status_code == 200
    assert answer.json()["error"].startswith(f"BackendError: {UNREADABLE[request_id][1]}")


def test_other_unreadable_replies_are_final_errors(bridge: Bridge) -> None:
    content = {"session_id": "s", "model_path": "tinker://m/sampler_weights/a"}
    answer = posted(bridge, "create_sampling_session", content)
    assert answer.status_code == 400
    assert "create_sampling_session is not JSON: '<html>'" in answer.json()["detail"]


def sample(client: TinkerTraining) -> Future[Any]:
    return client.sampler("tiny").sample(np.arange(1, 6), max_tokens=2, seed=1)


def train(client: TinkerTraining) -> Future[Any]:
    tokens = np.arange(3)
    datum = Datum(tokens, {"target_tokens": tokens, "weights": np.ones(3)})
    return client.open("tiny", Lora(rank=4)).forward_backward([datum])


@pytest.mark.parametrize("request_of", [sample, train])
def test_servers_other_than_skyrl_are_recognised(
    request_of: Callable[[TinkerTraining], Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        client = TinkerTraining(FakeHub(MODELS), blobs, base_url=server.url, server="skyrl")
        with pytest.raises(KitchenError) as error:
            request_of(client).result(30)
    assert server.url in str(error.value)
    assert "does not speak SkyRL's dialect" in str(error.value)
    assert "leave training.server out" in str(error.value)
