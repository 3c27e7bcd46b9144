"""Lines of JSON in a blob: numbered, so that a resumed run drops what comes after its save point."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kitchen.ports.blobs import BlobStore
from kitchen.secrets import masked, secrets

_PATIENCE = 1.0  # seconds between writes, at least; longer where writing takes long


def _plain(value: Any) -> Any:
    """What JSON knows nothing of."""
    return dict(value) if isinstance(value, Mapping) else str(value)


_JSON = json.JSONEncoder(default=_plain, ensure_ascii=False)


class Journal:
    """Rows kept in memory and written whole: now and then, and when it matters (`flush`).

    Rows are masked when they are first written, all at once: to look through the environment for
    each would be much of what a stage call costs. What was a secret at one writing stays one.
    """

    def __init__(self, blobs: BlobStore, name: str) -> None:
        self._blobs, self._name, self._lock = blobs, name, threading.Lock()
        self._lines: list[str] = (blobs.read(name) or b"").decode().split("\n")[:-1]
        self._rows: list[Mapping[str, Any]] = []  # those that came after, not written yet
        self._secrets = set(secrets())
        self._changed, self._next = False, 0.0

    def append(self, row: Mapping[str, Any]) -> None:
        with self._lock:
            self._rows.append(row)
            self._changed = True
        self._write_now_and_then()

    def put(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows of that number, in place of what is there from it on."""
        with self._lock:
            while self._rows and self._rows[-1]["n"] >= number:
                self._rows.pop()
            while not self._rows and self._lines and json.loads(self._lines[-1])["n"] >= number:
                self._lines.pop()
            self._rows += rows
            self._changed = True
        self._write_now_and_then()

    def replace(self, key: str, row: Mapping[str, Any]) -> None:
        """A row in place of the one with the same value at `key`."""
        with self._lock:
            self._lines = [line for line in self._lines if json.loads(line)[key] != row[key]]
            self._rows = [*(each for each in self._rows if each[key] != row[key]), row]
            self._changed = True
        self._write_now_and_then()

    def flush(self) -> None:
        with self._lock:
            if not self._changed:
                return
            started = time.monotonic()
            self._secrets.update(secrets())
            # one may be part of another
            longest_first = sorted(self._secrets, key=len, reverse=True)
            # one that is no JSON fails one writing, not all that follow
            rows, self._rows = self._rows, []
            self._lines += [_line(row, longest_first) for row in rows]
            self._blobs.write(self._name, "".join(f"{line}\n" for line in self._lines).encode())
            self._changed = False
            self._next = time.monotonic() + max(_PATIENCE, 20 * (time.monotonic() - started))

    def _write_now_and_then(self) -> None:
        if time.monotonic() >= self._next:
            self.flush()


def _line(row: Mapping[str, Any], hidden: Sequence[str]) -> str:
    """Most rows hold nothing to mask, and need not be looked through value by value."""
    line = _JSON.encode(row)
    if "://" in line or any(_JSON.encode(secret)[1:-1] in line for secret in hidden):
        # with no objects left, of which the text says it
        return _JSON.encode(masked(json.loads(line), hidden))
    return line
