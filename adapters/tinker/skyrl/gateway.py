"""The way from a client to its bridge; the bridge itself is imported on first use."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.tinker.skyrl.bridge import Bridge


class SkyRLGateway:
    """The bridge of a client, started when the client connects, and stopped with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bridge: Bridge | None = None

    def __call__(self, address: str, key: str) -> tuple[str, str]:
        """Return the address of the bridge and the key for it."""
        with self._lock:
            if self._bridge is None:
                from adapters.tinker.skyrl.bridge import Bridge

                self._bridge = Bridge(address, key)
                weakref.finalize(self, self._bridge.close)
            return self._bridge.url, self._bridge.key
