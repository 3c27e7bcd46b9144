"""The server of the pages on this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from kitchen.backend.serving import (
    MIN_KEY_LENGTH,
    address_of,
    exit_on_sigterm,
    is_loopback,
    listen,
    run_server,
)
from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore

KEY = "KITCHEN_UI_KEY"  # the environment variable with the key that browsers must send
_SHUTDOWN_GRACE = 5  # seconds that requests in progress have when the server stops


class ViewServer:
    """Serves pages over the runs in a store, and changes nothing there."""

    packages = ("starlette", "uvicorn")

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def app(self, key: str | None = None) -> Any:
        """Return an ASGI application; with a key, every request must send it."""
        from adapters.view.app import create_app

        return create_app(self._blobs, key)

    def serve(self, host: str, port: int) -> Iterator[str]:
        """Yield the address, then serve until a signal stops the server.

        Raises ConfigError for an address that other machines can reach if no key is set.
        """
        key = os.environ.get(KEY) or None
        _check_key(key, host)
        with exit_on_sigterm(), listen(host, port) as listening:
            yield address_of(listening, host)
            signals = run_server(self.app(key), listening, _SHUTDOWN_GRACE)
        for number in signals:
            signal.raise_signal(number)


def _check_key(key: str | None, host: str) -> None:
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"host={host} can be reached from other machines, and there is no key: set {KEY}, "
            "which browsers then ask for as a password, or listen on 127.0.0.1"
        )
    if key is not None and len(key) < MIN_KEY_LENGTH:
        raise ConfigError(f"{KEY} must have {MIN_KEY_LENGTH} characters or more")
