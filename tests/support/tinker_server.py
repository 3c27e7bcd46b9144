"""A server of the Tinker API on loopback, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from adapters.fake.hub import FakeHub
from adapters.fake.tokenizer import ByteTokenizer
from adapters.server.limits import Limits
from adapters.server.serve import TinkerServer
from adapters.tinker.client import TinkerTraining
from kitchen.ports import BlobStore, HubClient, Tokenizer, TrainingBackend
from tests.support.polling import wait_until

KEY = "tml-of-these-tests"
MODELS: dict[str, dict[str, bytes]] = {
    "tiny": {"README.md": b"a stand-in"},
    "other": {"README.md": b"another"},
}


class RunningServer:
    """An ASGI application served on a thread."""

    def __init__(self, app: Any, port: int = 0) -> None:
        config = uvicorn.Config(
            app, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started or not self._thread.is_alive())
        assert self._thread.is_alive(), "the server did not start"
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"


def application(
    training: TrainingBackend,
    blobs: BlobStore,
    hub: HubClient | None = None,
    models: Sequence[str] = ("tiny", "other"),
    key: str | None = KEY,
    limits: Limits | None = None,
) -> Any:
    return TinkerServer(training, hub or FakeHub(MODELS), blobs).app(models, {}, key, limits)


@contextmanager
def serving(
    training: TrainingBackend,
    blobs: BlobStore,
    hub: HubClient | None = None,
    models: Sequence[str] = ("tiny", "other"),
    wrap: Callable[[Any], Any] = lambda app: app,
) -> Iterator[RunningServer]:
    """Run a server for the block; `wrap` goes around its application."""
    server = RunningServer(wrap(application(training, blobs, hub, models)))
    try:
        yield server
    finally:
        server.stop()


class ByteTinker(TinkerTraining):
    """A client whose models are the fake's, which read bytes."""

    def __init__(self, blobs: BlobStore, url: str | list[str], **settings: Any) -> None:
        super().__init__(FakeHub(MODELS), blobs, base_url=url, server="kitchen", **settings)

    def tokenizer(self, model: str) -> Tokenizer:
        self.find(model)
        return ByteTokenizer()

    def hidden_size(self, model: str) -> int | None:
        self.find(model)
        return None
