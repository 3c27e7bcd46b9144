"""A server of the Tinker API on loopback, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from adapters.fake.hub import FakeHub
from adapters.fake.tokenizer import Bytes
from adapters.server.serve import TinkerServer
from adapters.tinker.client import TinkerTraining
from kitchen.ports import BlobStore, HubClient, Tokenizer, TrainingBackend

KEY = "tml-of-these-tests"
MODELS: dict[str, dict[str, bytes]] = {
    "tiny": {"README.md": b"a stand-in"},
    "other": {"README.md": b"another"},
}


class Served:
    """A server that is running; `wrap` goes around its application."""

    def __init__(self, app: Any, port: int = 0) -> None:
        config = uvicorn.Config(
            app, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            time.sleep(0.01)
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
) -> Any:
    return TinkerServer(training, hub or FakeHub(MODELS), blobs).app(models, {}, key)


@contextmanager
def serving(
    training: TrainingBackend,
    blobs: BlobStore,
    hub: HubClient | None = None,
    models: Sequence[str] = ("tiny", "other"),
    wrap: Callable[[Any], Any] = lambda app: app,
) -> Iterator[Served]:
    served = Served(wrap(application(training, blobs, hub, models)))
    try:
        yield served
    finally:
        served.stop()


class ByteTinker(TinkerTraining):
    """For models that are the fake's, which read bytes."""

    def __init__(self, blobs: BlobStore, url: str, **settings: Any) -> None:
        super().__init__(FakeHub(MODELS), blobs, base_url=url, server="kitchen", **settings)

    def tokenizer(self, model: str) -> Tokenizer:
        self.find(model)
        return Bytes()

    def hidden_size(self, model: str) -> int | None:
        self.find(model)
        return None


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
