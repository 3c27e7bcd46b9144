"""An adapter and a scripted server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("tinker")
pytest.importorskip("uvicorn")

from adapters.fake.hub import FakeHub
from adapters.openai.client import OpenAISampling
from tests.support.openai_server import KEY, MountedServers, OpenAIServer
from tests.support.tinker_server import RunningServer

Connect = Callable[..., OpenAISampling]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("KITCHEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def mounted() -> Iterator[tuple[MountedServers, str]]:
    """Servers behind one port, and its URL."""
    servers = MountedServers()
    running = RunningServer(servers)
    yield servers, running.url
    running.stop()


@pytest.fixture
def connect(mounted: tuple[MountedServers, str]) -> Iterator[Connect]:
    """Connect an adapter to a scripted server, with short pauses between retries."""
    servers, url = mounted
    connected: list[OpenAIServer] = []

    def connect(server: OpenAIServer, **settings: Any) -> OpenAISampling:
        connected.append(server)
        address = f"{url}{servers.mount(server)}"
        return OpenAISampling(
            FakeHub(), **{"base_url": address, "backoff": 0.01, "retries": 2, **settings}
        )

    yield connect
    for server in connected:
        server.gate.set()
