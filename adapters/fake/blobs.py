"""A blob store in memory."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from kitchen.ports.blobs import blob_name


class FakeBlobs:
    """Blobs that last as long as the object does; `root` only shows in `locate`."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._blobs: dict[str, bytes] = {}
        self._lock = Lock()

    def read(self, name: str) -> bytes | None:
        with self._lock:
            return self._blobs.get(blob_name(name))

    def write(self, name: str, data: bytes) -> None:
        with self._lock:
            self._blobs[blob_name(name)] = bytes(data)

    def list(self, prefix: str = "") -> Sequence[str]:
        with self._lock:
            return sorted(name for name in self._blobs if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._lock:
            self._blobs.pop(blob_name(name), None)

    def locate(self, name: str) -> str:
        return "memory://" + "/".join(part for part in (self._root, blob_name(name)) if part)
