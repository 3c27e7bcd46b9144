"""JSON lines in a blob, numbered so that a resumed run drops rows after its save point."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kitchen.ports.blobs import BlobStore
from kitchen.secrets import masked, secrets

_MIN_INTERVAL = 1.0  # seconds between writes, at least; longer where writing is slow
_INTERVAL_PER_WRITE = 20  # a write takes at most about 1/20 of the time


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not know."""
    return dict(value) if isinstance(value, Mapping) else str(value)


_JSON = json.JSONEncoder(default=_plain, ensure_ascii=False)


class Journal:
    """Rows held in memory and written as a whole: periodically, and on `flush`.

    Rows are masked when they are first written, all at once: searching the environment for each
    row would be much of the cost of a stage call. A value that was a secret at one write stays one.
    """

    def __init__(self, blobs: BlobStore, name: str) -> None:
        self._blobs = blobs
        self._name = name
        self._lock = threading.Lock()
        self._lines: list[str] = (blobs.read(name) or b"").decode().split("\n")[:-1]
        self._rows: list[Mapping[str, Any]] = []  # rows after `_lines`, not encoded yet
        self._secrets = set(secrets())
        self._changed = False
        self._next_write = 0.0  # by the monotonic clock

    def append(self, row: Mapping[str, Any]) -> None:
        with self._lock:
            self._rows.append(row)
            self._changed = True
        self._flush_if_due()

    def put(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows of this number, after dropping every row from that number on."""
        with self._lock:
            while self._rows and self._rows[-1]["n"] >= number:
                self._rows.pop()
            while not self._rows and self._lines and json.loads(self._lines[-1])["n"] >= number:
                self._lines.pop()
            self._rows += rows
            self._changed = True
        self._flush_if_due()

    def replace(self, key: str, row: Mapping[str, Any]) -> None:
        """Append a row in place of any row with the same value at `key`."""
        with self._lock:
            self._lines = [line for line in self._lines if json.loads(line)[key] != row[key]]
            self._rows = [other for other in self._rows if other[key] != row[key]] + [row]
            self._changed = True
        self._flush_if_due()

    def flush(self) -> None:
        """Write the rows to the blob, if any changed."""
        with self._lock:
            if not self._changed:
                return
            started = time.monotonic()
            self._secrets.update(secrets())
            # longest first: one secret may be part of another
            longest_first = sorted(self._secrets, key=len, reverse=True)
            # taken out first, so that a row that is not JSON fails one write and not all later ones
            rows = self._rows
            self._rows = []
            self._lines += [_encode(row, longest_first) for row in rows]
            self._blobs.write(self._name, "".join(f"{line}\n" for line in self._lines).encode())
            self._changed = False
            duration = time.monotonic() - started
            self._next_write = time.monotonic() + max(_MIN_INTERVAL, _INTERVAL_PER_WRITE * duration)

    def _flush_if_due(self) -> None:
        if time.monotonic() >= self._next_write:
            self.flush()


def _encode(row: Mapping[str, Any], hidden: Sequence[str]) -> str:
    """Return a row as JSON without secrets.

    Most rows contain no secret, so that they need not be searched value by value.
    """
    line = _JSON.encode(row)
    if "://" in line or any(_JSON.encode(secret)[1:-1] in line for secret in hidden):
        # decoded from the line, where every object is text already
        return _JSON.encode(masked(json.loads(line), hidden))
    return line
