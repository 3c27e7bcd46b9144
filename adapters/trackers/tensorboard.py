"""TensorBoard: event files in a folder, without TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.trackers.names import configuration, markdown_table
from kitchen.runs.tracker import Position, TrackedRun, Tracker

_SETTINGS = "settings"  # tags of texts that are not values of the run
_STATUS = "status"
_OWN = "tensorboard"  # the folder in that of a run


class TensorboardTracker(Tracker):
    """TensorBoard's event files; `tensorboard --logdir runs` shows them.

    Each value is one event, so that the events in the files tell how many values arrived.
    """

    packages = ("tensorboard",)

    def __init__(self, *, logdir: str = "") -> None:
        """`logdir` gets a folder for each run. By default, events are in the run's own folder."""
        self._logdir = logdir
        self._folder = ""
        self._writer: Any = None
        self._events = 0  # values in the files
        self._skip = 0  # values to come that the files have already

    def prepare(self, state: Mapping[str, Any]) -> None:
        import tensorboard.summary.writer.event_file_writer  # noqa: F401

        if self._logdir and not state:
            Path(self._logdir).mkdir(parents=True, exist_ok=True)

    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = str(_folder(self._logdir, run, state.get("folder", "")).absolute())
        self._events = sum(1 for _ in stored_values(self._folder))
        self._skip = max(0, self._events - state.get("events", 0))
        self._writer = EventFileWriter(self._folder)
        if not self._events:
            text = json.dumps(configuration(run), indent=2, default=str)
            self._add_text(_SETTINGS, f"```json\n{text}\n```", 0)

    def state(self) -> Mapping[str, Any]:
        events = self._events - self._skip  # those up to the last value that was received
        return {"folder": self._folder, "events": events} if self._writer else {}

    def metrics(self, at: Position, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        self._add_value(at, Summary(value=scalars))

    def table(
        self, at: Position, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add_value(at, text_pb(title, markdown_table(columns, rows)))

    def _add_value(self, at: Position, summary: Any) -> None:
        if self._skip:
            self._skip -= 1
            return
        self._add(summary, at.step)
        self._events += 1

    def _add_text(self, tag: str, text: str, step: int) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(text_pb(tag, text), step)

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> bool:
        self._writer.flush()
        return True

    def close(self, status: str) -> None:
        self._add_text(_STATUS, status, 0)
        self._writer.close()


def _folder(logdir: str, run: TrackedRun, earlier: str) -> Path:
    """Return the folder of a run; `earlier` is that of its earlier attempts."""
    inside = not logdir and "://" not in run.folder  # in the run's folder, which may be moved
    if earlier:
        return Path(run.folder, Path(earlier).name) if inside else Path(earlier)
    # of a store that is no local folder, the working folder takes the place
    folder = Path(run.folder, _OWN) if inside else Path(logdir or _OWN, run.name)
    is_taken = next(stored_values(str(folder)), None) is not None  # by a deleted run of this name
    return folder.with_name(f"{folder.name}-{run.key[:8]}") if is_taken else folder


def stored_values(folder: str) -> Iterator[Any]:
    """Yield the events of values in a folder's files, in order; a torn one ends its file."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in sorted(Path(folder).glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            tags = {value.tag for value in event.summary.value}
            if tags and tags.isdisjoint((_SETTINGS, _STATUS)):
                yield event
