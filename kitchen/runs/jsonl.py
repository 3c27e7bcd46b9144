"""Append-only JSON lines in blobs, numbered so that a resumed run can drop later rows."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kitchen.ports.blobs import AppendableBlobs, BlobStore
from kitchen.safe_text import escape_json_controls, read_json
from kitchen.secrets import masked, secrets

_MIN_INTERVAL = 1.0  # seconds between writes, at least; longer where writing is slow
_INTERVAL_PER_WRITE = 20  # a write takes at most about 1/20 of the time
_SEGMENT = 256 * 1024  # bytes after which a store that cannot append gets another blob
_UNNUMBERED = -1


def read_lines(blobs: BlobStore, name: str) -> Sequence[bytes]:
    """Return the complete lines of a journal; a writer may be in the middle of the last one."""
    return read_content(blobs, name).splitlines()


def read_content(blobs: BlobStore, name: str) -> bytes:
    """Return the complete lines of a journal as one text."""
    content = b"".join(data for _, data in _segments(blobs, name))
    return content[: content.rfind(b"\n") + 1]


class Journal:
    """Rows of JSON lines, held in memory until they are appended: periodically, and on `flush`.

    A store that can append has one blob, `NAME.jsonl`. In another store, rows go to `NAME.1.jsonl`
    and so on whenever the last blob has 256 KiB, so that bytes written are proportional to rows.

    Rows are masked when they are first written, all at once: searching the environment for each
    row would be much of the cost of a stage call. A value that was a secret at one write stays one.
    """

    def __init__(
        self, blobs: BlobStore, name: str, before_drop: Callable[[], None] = lambda: None
    ) -> None:
        """Read the rows of earlier attempts; `before_drop` is called before rows are deleted."""
        self._blobs = blobs
        self._name = name
        self._before_drop = before_drop
        self._lock = threading.RLock()
        self._pending: list[Mapping[str, Any]] = []  # rows that are not written yet
        self._numbers = array("q")  # of each written row
        self._ends = array("q")  # bytes up to the end of each written row
        self._starts = array("q", [0])  # bytes before each blob
        self._last_blob = b""  # content of the last blob, where the store cannot append
        self._digest = hashlib.sha256()  # of the written rows
        self._must_cut = False  # the blobs hold more than the written rows
        self._secrets = set(secrets())
        self._next_write = 0.0  # by the monotonic clock
        self._read()

    def append(self, row: Mapping[str, Any]) -> None:
        with self._lock:
            self._pending.append(row)
        self._flush_if_due()

    def put(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows of this number, after dropping every row from that number on."""
        with self._lock:
            while self._pending and self._pending[-1]["n"] >= number:
                self._pending.pop()
            if not self._pending:
                self._drop_from(bisect_left(self._numbers, number))
            self._pending += rows
        self._flush_if_due()

    def flush(self) -> None:
        """Write the rows that are not written yet."""
        with self._lock:
            if not self._pending and not self._must_cut:
                return
            started = time.monotonic()
            if self._must_cut:
                self._cut()
            # taken out first, so that a row that is not JSON fails one write and not all later ones
            rows = self._pending
            self._pending = []
            if rows:
                self._write(rows)
            duration = time.monotonic() - started
            self._next_write = time.monotonic() + max(_MIN_INTERVAL, _INTERVAL_PER_WRITE * duration)

    def state(self) -> Mapping[str, Any]:
        """Return the number of written rows and their SHA-256, to be compared on resume."""
        with self._lock:
            if self._must_cut:  # the digest may be that of rows that are dropped
                self._digest = hashlib.sha256(self._content()[: self._size()])
            return {"rows": len(self._ends), "sha256": self._digest.hexdigest()}

    def begins_with(self, state: Mapping[str, Any]) -> bool:
        """Return whether the rows of an earlier state are all here, and unchanged."""
        rows = state["rows"]
        if rows > len(self._ends):
            return False
        end = self._ends[rows - 1] if rows else 0
        return bool(hashlib.sha256(self._content()[:end]).hexdigest() == state["sha256"])

    def _read(self) -> None:
        """Find the rows that are in the store; what follows a damaged row is dropped."""
        content = self._content()
        for line in content.splitlines(keepends=True):
            number = _number(line)
            if number is None:
                break
            self._numbers.append(number)
            self._ends.append(self._size() + len(line))
        kept = content[: self._size()]
        self._must_cut = len(kept) < len(content)
        self._digest.update(kept)
        if not isinstance(self._blobs, AppendableBlobs):
            self._last_blob = kept[self._starts[-1] :]

    def _content(self) -> bytes:
        segments = list(_segments(self._blobs, self._name))
        sizes = [len(data) for _, data in segments]
        self._starts = array("q", [sum(sizes[:index]) for index in range(max(1, len(sizes)))])
        return b"".join(data for _, data in segments)

    def _size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _drop_from(self, row: int) -> None:
        if row < len(self._ends):
            del self._numbers[row:], self._ends[row:]
            self._must_cut = True

    def _cut(self) -> None:
        """Delete from the blobs what comes after the written rows."""
        kept = self._content()[: self._size()]
        self._digest = hashlib.sha256(kept)
        self._before_drop()
        while len(self._starts) > 1 and self._starts[-1] >= len(kept):
            self._blobs.delete(_segment_name(self._name, len(self._starts) - 1))
            self._starts.pop()
        self._last_blob = kept[self._starts[-1] :]
        self._blobs.write(self._last_name(), self._last_blob)
        self._must_cut = False

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._secrets.update(secrets())
        # longest first: one secret may be part of another
        longest_first = sorted(self._secrets, key=len, reverse=True)
        lines = [f"{_encode(row, longest_first)}\n".encode() for row in rows]
        data = b"".join(lines)
        try:
            self._add(data)
        except BaseException:  # Ctrl-C too
            self._pending = [*rows, *self._pending]
            self._must_cut = True
            raise
        self._digest.update(data)
        for row, line in zip(rows, lines, strict=True):
            self._numbers.append(row.get("n", _UNNUMBERED))
            self._ends.append(self._size() + len(line))

    def _add(self, data: bytes) -> None:
        if isinstance(self._blobs, AppendableBlobs):
            self._blobs.append(self._last_name(), data)
            return
        if len(self._last_blob) >= _SEGMENT:
            self._starts.append(self._size())
            self._last_blob = b""
        self._last_blob += data
        self._blobs.write(self._last_name(), self._last_blob)

    def _last_name(self) -> str:
        return _segment_name(self._name, len(self._starts) - 1)

    def _flush_if_due(self) -> None:
        if time.monotonic() >= self._next_write:
            self.flush()


def _segments(blobs: BlobStore, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the blobs of a journal in order, with their names."""
    number = 0
    while (data := blobs.read(_segment_name(name, number))) is not None:
        yield _segment_name(name, number), data
        number += 1


def _segment_name(name: str, number: int) -> str:
    return name.replace(".jsonl", f".{number}.jsonl") if number else name


def _number(line: bytes) -> int | None:
    """Return the number of a row, -1 if it has none; None for a line that is not a row."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = read_json(line)
    except ValueError:
        return None
    number = row.get("n", _UNNUMBERED) if isinstance(row, dict) else None
    return number if isinstance(number, int) else None


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not know, such as a number of NumPy."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


def without_nan(value: Any) -> Any:
    """Return a value with null in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: without_nan(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_nan(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics as they were published: null is a number that JSON does not have.

    An integer beyond every float, which cannot be shown as a number, becomes infinite.
    """
    return {name: _as_metric(value) for name, value in metrics.items()}


def _as_metric(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    return math.nan if value is None else value


_JSON = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False)


def _encode(row: Mapping[str, Any], hidden: Sequence[str]) -> str:
    """Return a row as JSON without secrets.

    Most rows contain no secret, so that they need not be searched value by value.
    """
    try:
        line = _JSON.encode(row)
    except ValueError:  # of NaN; looking for it in every row would take longer
        line = _JSON.encode(without_nan(row))
    if "://" in line or any(_JSON.encode(secret)[1:-1] in line for secret in hidden):
        # decoded from the line, where every object is text already
        line = _JSON.encode(masked(json.loads(line), hidden))
    return escape_json_controls(line)
