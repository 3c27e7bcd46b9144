"""An adapter and a scripted server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from adapters.fake.hub import FakeHub
from adapters.openai.client import OpenAISampling
from tests.support.openai_server import KEY, OpenAIServer, serving_openai

Connect = Callable[..., OpenAISampling]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("KITCHEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect an adapter to a scripted server, with short pauses between retries."""
    with ExitStack() as stack:

        def connected(server: OpenAIServer, **settings: Any) -> OpenAISampling:
            url = stack.enter_context(serving_openai(server))
            return OpenAISampling(
                FakeHub(), **{"base_url": url, "backoff": 0.01, "retries": 2, **settings}
            )

        yield connected
