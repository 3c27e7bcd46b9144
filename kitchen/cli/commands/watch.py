"""`kitchen watch`: a live view of a run or a sweep that another process executes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from kitchen.cli.commands.errors import INTERRUPTED
from kitchen.cli.console import console, has_cursor, print_wrapped, table
from kitchen.cli.curves import BestBy, series_lines
from kitchen.config.adapter_choice import AdapterChoice, check_run_name, open_blobs
from kitchen.errors import ConfigError, did_you_mean
from kitchen.experiments.ledger import Ledger, PointStatus, Sweep, sweep_names
from kitchen.experiments.points import points_table
from kitchen.ports import BlobStore
from kitchen.runs.follow import SPEED, RunFollower, RunView, log_line, sample_score
from kitchen.runs.lock import in_use
from kitchen.runs.store import run_exists, run_names
from kitchen.runs.wording import clock
from kitchen.secrets import printable

_RECENT = 20  # steps whose speed is averaged
_LOG_LINES = 4
_SAMPLES = 3
_SAMPLE_LINES = 3
_LINE_SECONDS = 10.0  # between two lines where there is no terminal, at least
_STYLES = {"completed": "green", "failed": "red", "killed": "red", "interrupted": "yellow"}


class _Watched(Protocol):
    """Something that can be watched until it is over."""

    @property
    def is_over(self) -> bool: ...

    @property
    def exit_code(self) -> int: ...

    def read(self) -> None: ...

    def live(self, out: Console) -> RenderableType: ...

    def line(self) -> str: ...

    def last_line(self) -> str: ...


def watch(name: str, adapters: AdapterChoice, interval: float, out: Console | None = None) -> int:
    """Show a run or sweep until it is over, and return its exit code."""
    blobs = open_blobs(adapters)
    watched = _find(blobs, check_run_name(name), adapters.store_options())
    out = out or console()
    try:
        if has_cursor(out):
            _show_live(watched, out, interval)
        else:
            _print_lines(watched, out, interval)
    except KeyboardInterrupt:
        print_wrapped(out, f"stopped watching; {name} is not affected")
        return INTERRUPTED
    return watched.exit_code


def _find(blobs: BlobStore, name: str, typed: str) -> _Watched:
    """Return the run or sweep of this name; raises ConfigError if there is none."""
    if run_exists(blobs, name):
        return _Run(blobs, name, typed)
    sweeps = sweep_names(blobs)
    if name in sweeps:
        return _Sweep(blobs, name, typed)
    near = did_you_mean(name, [*run_names(blobs), *sweeps])
    raise ConfigError(f"there is no run or sweep {name!r}; {near}")


def _show_live(watched: _Watched, out: Console, interval: float) -> None:
    watched.read()
    with Live(watched.live(out), console=out, auto_refresh=False) as live:
        while not watched.is_over:
            time.sleep(interval)
            watched.read()
            live.update(watched.live(out), refresh=True)
        live.update(watched.live(out), refresh=True)


def _print_lines(watched: _Watched, out: Console, interval: float) -> None:
    """Print a line when there is something new, and at most every ten seconds."""
    printed = ""
    due = 0.0
    while True:
        watched.read()
        now = time.monotonic()
        line = watched.line()
        if line != printed and (now >= due or watched.is_over):
            print_wrapped(out, line)
            printed, due = line, now + _LINE_SECONDS
            out.file.flush()
        if watched.is_over:
            break
        time.sleep(interval)
    print_wrapped(out, watched.last_line())


class _Run:
    """A run, with curves, log entries and samples."""

    def __init__(self, blobs: BlobStore, name: str, typed: str) -> None:
        self._name = name
        self._typed = typed  # the options by which the user finds the store
        self._follower = RunFollower(blobs, name)
        self._view: RunView = self._follower.read()

    @property
    def is_over(self) -> bool:
        return self._view.is_over

    @property
    def exit_code(self) -> int:
        return self._view.exit_code

    def read(self) -> None:
        self._view = self._follower.read()

    def live(self, out: Console) -> RenderableType:
        view = self._view
        status = view.summary.status
        head = Text.assemble(
            (printable(self._name), "bold"), "  ", (status, _STYLES.get(status, "cyan"))
        )
        head.append(f"  {printable(view.summary.recipe.partition(':')[0])}")
        parts: list[RenderableType] = [head, *self._progress(out)]
        parts += _titled("", _curves(view, out))
        parts += _titled("log", _log(view.log, out.width))
        parts += _titled("samples", _samples(view.samples, out.width))
        if view.is_over:
            parts += [Text(""), Text(printable(self.last_line()), style="bold")]
        return Group(*parts)

    def line(self) -> str:
        view = self._view
        place = view.activity or view.place
        left = [f"{clock(view.left)} left"] if view.left is not None else []
        return "  ".join([place, *_latest(view), *left])

    def last_line(self) -> str:
        view = self._view
        status = view.summary.status
        text = f"{self._name} {status} after {clock(view.seconds)}"
        if view.summary.reason:
            text += f": {view.summary.reason}"
        if status in ("killed", "interrupted"):
            text += f"; to resume: kitchen resume {self._name}{self._typed}"
        return text

    def _progress(self, out: Console) -> Sequence[RenderableType]:
        view = self._view
        times = [f"{clock(view.seconds)} elapsed"]
        if view.left is not None:
            times.append(f"{clock(view.left)} left")
        if len(view.record["attempts"]) > 1:
            times.append(f"attempt {len(view.record['attempts'])}")
        lines = [Text(f"{view.place}  {'  '.join(times)}")]
        if view.steps:
            lines.append(_bar(view.step / view.steps, min(out.width, 60), out.encoding))
        if view.activity:
            lines.append(Text(printable(f"{view.activity} ...")))
        return lines


class _Sweep:
    """A sweep: the table of its points."""

    def __init__(self, blobs: BlobStore, name: str, typed: str) -> None:
        self._ledger = Ledger(blobs, name)
        self._typed = typed
        self._sweep: Sweep = self._ledger.sweep()
        self._statuses: Sequence[PointStatus] = ()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def exit_code(self) -> int:
        return 0 if self._states()["completed"] == self._sweep.count() else 1

    def read(self) -> None:
        # the driver first: it may end while the points are read, but no point starts without one
        has_driver = in_use(self._ledger.blobs, self._sweep.name)
        self._statuses = self._ledger.statuses()
        self._is_over = not has_driver and not self._states()["running"]

    def live(self, out: Console) -> RenderableType:
        shown = table(points_table(self._sweep, self._statuses))
        return Group(shown, Text(""), Text(printable(self.last_line()), style="bold"))

    def line(self) -> str:
        counts = [f"{count} {state}" for state, count in self._states().items()]
        return f"{self._sweep.count()} points: {', '.join(counts)}"

    def last_line(self) -> str:
        states = self._states()
        text = f"{states['completed']} of {self._sweep.count()} points completed"
        if states["failed"]:
            text += f", {states['failed']} failed"
        left = self._sweep.count() - states["completed"] - states["failed"]
        if self.is_over and left:
            text += f"; to run the others: kitchen sweep resume {self._sweep.name}{self._typed}"
        return text

    def _states(self) -> Counter[str]:
        return Counter(status.state for status in self._statuses)


def _latest(view: RunView) -> Iterator[str]:
    """Yield the last value of each curve that a line shows; the speed is over recent steps."""
    for name, points in view.series.items():
        if name == SPEED:
            recent = [value for _, value in points[-_RECENT:]]
            yield f"{math.fsum(recent) / len(recent):,.0f} {SPEED}"
        elif name not in ("learning_rate", "grad_norm"):
            yield f"{name.replace('_', ' ')} {points[-1][1]:.4g}"


def _curves(view: RunView, out: Console) -> Sequence[str]:
    series = {name: points for name, points in view.series.items() if len(points) > 2}
    # beside the name, two values and where the best one was
    width = max(10, min(60, out.width - max(map(len, series), default=0) - 45))
    best_by = BestBy.of_record(view.record)
    lines = series_lines(series, best_by, encoding=out.encoding, width=width)
    return [_cut(line, out.width) for line in lines]


def _log(rows: Sequence[Mapping[str, Any]], width: int) -> Sequence[str]:
    """Return the last entries of the log that people read."""
    shown = [row for row in rows if row.get("level") != "debug"][-_LOG_LINES:]
    return [_cut(log_line(row), width) for row in shown]


def _samples(rows: Sequence[Mapping[str, Any]], width: int) -> Sequence[str]:
    """Return the last texts that the model wrote, each in a few lines."""
    lines: list[str] = []
    for row in rows[-_SAMPLES:]:
        text = " ".join(str(row.get("text", "")).split())
        score = sample_score(row)
        lines += _cut_text(f"{score}: {text}" if score else text, width)
    return lines


def _cut_text(text: str, width: int) -> Sequence[str]:
    room = max(1, width - 2)  # of a line, after the dash
    cut = _cut(text, _SAMPLE_LINES * room)
    lines = [cut[at : at + room] for at in range(0, len(cut), room)]
    return [f"- {line}" if at == 0 else f"  {line}" for at, line in enumerate(lines)]


def _titled(title: str, lines: Sequence[str]) -> Sequence[RenderableType]:
    if not lines:
        return []
    head = [Text(""), Text(title, style="bold")] if title else [Text("")]
    return [*head, *(Text(printable(line), no_wrap=True) for line in lines)]


def _bar(share: float, width: int, encoding: str) -> Text:
    full, empty = ("━", "─") if encoding.lower().startswith("utf") else ("#", ".")
    room = width - 6
    count = round(room * min(share, 1.0))
    return Text.assemble((full * count, "green"), (empty * (room - count), "dim"), f" {share:4.0%}")


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: max(length - 1, 0)]}…"
