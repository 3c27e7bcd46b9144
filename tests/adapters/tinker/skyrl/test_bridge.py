"""The bridge as a server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from adapters.tinker.skyrl.bridge import Bridge
from tests.support.tinker_server import RunningServer

SEEN_KEYS: list[str | None] = []


async def info(request: Request) -> Response:
    SEEN_KEYS.append(request.headers.get("X-API-Key"))
    return JSONResponse({"model_id": (await request.json())["model_id"]})


async def archive(request: Request) -> Response:
    return RedirectResponse("https://files.example/a?b=c", 302)


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    routes = [
        Route("/api/v1/get_info", info, methods=["POST"]),
        Route("/api/v1/archive", archive),
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


def test_redirects_are_passed_on(bridge: Bridge) -> None:
    answer = httpx.get(f"{bridge.url}/api/v1/archive", headers={"X-API-Key": bridge.key})
    assert (answer.status_code, answer.headers["Location"]) == (302, "https://files.example/a?b=c")


def test_servers_that_are_away_can_be_tried_again() -> None:
    bridge = Bridge("http://127.0.0.1:9", "tml-of-the-user")
    answer = httpx.get(f"{bridge.url}/api/v1/healthz", headers={"X-API-Key": bridge.key})
    bridge.close()
    assert answer.status_code == 503
