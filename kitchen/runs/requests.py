"""Rows of a run's port calls, in `requests.jsonl` of its folder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kitchen.backend.port_call import PortCall
from kitchen.engine.observers import Observer, SavePointDue, StageDone
from kitchen.ports.blobs import BlobStore
from kitchen.runs.jsonl import Journal, read_lines
from kitchen.safe_text import read_json

NAME = "requests"
_Place = tuple[Any, ...]  # of a call in the run
_OPTIONAL = ("model", "input_tokens", "output_tokens", "hedge", "http_status", "error_type")


class RequestLog(Observer):
    """Writes one row for each port call of a run, on top of those of earlier attempts.

    The rows say which calls were made, so that a call that a resumed run repeats has two rows; the
    second says `"replayed": true`. If a stage made some of its calls before the process was killed,
    as many of its calls of each verb are marked, and the others are not. A write that fails fails
    the run, at the end of the stage.
    """

    def __init__(self, blobs: BlobStore, run: str, attempt: int) -> None:
        self._attempt = attempt
        self._earlier = _places(blobs, run) if attempt > 1 else Counter()
        self._lock = threading.Lock()
        self._journal = Journal(blobs, f"{run}/{NAME}.jsonl")
        self._failure: Exception | None = None

    def add(self, call: PortCall) -> None:
        """Add a row; called on any thread, so that a failed write is kept for the run's own."""
        row = _row(call, self._attempt)
        if self._earlier and self._is_replayed(_place(row)):
            row["replayed"] = True
        try:
            self._journal.append(row)
        except Exception as error:  # noqa: BLE001 raised by the next event on the run's thread
            self._failure = error

    def _is_replayed(self, place: _Place) -> bool:
        """Return whether earlier attempts made a call here that this attempt has not made again."""
        with self._lock:
            self._earlier[place] -= 1
            return self._earlier[place] >= 0

    def stage_done(self, event: StageDone) -> None:
        if self._failure is not None:
            raise self._failure

    def save_point_due(self, event: SavePointDue) -> None:
        self._journal.flush()

    def run_ended(self, error: BaseException | None) -> None:
        self._journal.flush()


def _row(call: PortCall, attempt: int) -> dict[str, Any]:
    """Return the row of a call; keys without a value are left out."""
    started = datetime.fromtimestamp(call.started, UTC).isoformat(timespec="milliseconds")
    row = {
        "started": started,
        "attempt": attempt,
        "stage": call.caller.get("kitchen.stage", ""),
        "step": call.caller.get("kitchen.step", 0),
        "port": call.port,
        "verb": call.verb,
        "duration_ms": round(call.duration_ms, 3),
        "retries": call.retries,
    }
    values = {name: getattr(call, name) for name in _OPTIONAL}
    return row | {name: value for name, value in values.items() if value not in (None, "")}


def _place(row: Mapping[str, Any]) -> _Place:
    return tuple(row.get(key) for key in ("stage", "step", "port", "verb"))


def _places(blobs: BlobStore, run: str) -> Counter[_Place]:
    """Return where in the run its earlier attempts made calls, each call counted once.

    What follows a damaged row is dropped, as `Journal` does: these rows change no result, so a run
    is resumed without them.
    """
    places = Counter[_Place]()
    for line in read_lines(blobs, f"{run}/{NAME}.jsonl"):
        try:
            row = read_json(line)
            places[_place(row)] += not row.get("replayed", False)
        except (ValueError, AttributeError, TypeError):
            break
    return places
