"""Console output of a run: a bar on a terminal, plain lines elsewhere, and published tables."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from kitchen.engine.observers import Observer, StageDone, StageStarted, WeightsSaved
from kitchen.progress import LoopStep, Progress
from kitchen.safe_text import escape_controls
from kitchen.secrets import printable
from kitchen.types import Checkpoint, Metrics, Table
from kitchen.workflow import ForEach, Step, walk

WIDTH = 100  # columns where there is no terminal
_SLOW = 1.0  # seconds after which a stage without metrics gets a line
_LINE_SECONDS = 10.0  # between two lines about a loop,
_LINE_SHARE = 0.1  # or this share of the loop, whichever comes first
_HIDDEN = {"learning_rate", "grad_norm", "tokens", "trained_tokens"}  # recorded, not shown


class SafeConsole(Console):
    """A console for text of any origin: no markup, no secrets, no control characters of the text.

    A reader that has gone, as in `kitchen runs list | head`, is a BrokenPipeError as for `print`.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        shown = (printable(item) if isinstance(item, str) else item for item in objects)
        super().print(*shown, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escape_controls(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error that rich is handling; it would end the process by itself."""
        raise


def console(*, to_stderr: bool = False) -> Console:
    """Return a console of standard output or error, 100 columns wide if that is no terminal."""
    terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
    return SafeConsole(
        stderr=to_stderr,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if terminal else WIDTH,
    )


def table(content: Table) -> RichTable:
    """Return aligned columns; lines separate the rows where a cell takes several lines."""
    columns = list(zip(content.columns, *content.rows, strict=False))  # with their names
    widths = [max(map(len, column)) for column in columns]
    multiline = any("\n" in cell for cell in chain.from_iterable(content.rows))
    rich_table = RichTable(
        title=Text(printable(content.title), style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_lines=multiline or sum(widths) > 2 * WIDTH,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for at, name in enumerate(content.columns):
        numeric = _all_numbers([row[at] for row in content.rows])
        rich_table.add_column(
            Text(printable(name)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in content.rows:
        rich_table.add_row(*(Text(printable(cell)) for cell in row))
    return rich_table


def _all_numbers(cells: list[str]) -> bool:
    return bool(cells) and all(re.fullmatch(r"[-+]?[\d,.]*%?", cell) for cell in cells)


def clock(seconds: float) -> str:
    """Return a duration such as 3.2 s, 4:05 or 1:04:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


@dataclass
class _Loop:
    """Speed of a loop over its last iterations, and when it was last reported."""

    # (seconds, share done, tokens) at the end of an iteration
    recent: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=50))
    reported_at: float = 0.0  # seconds
    reported_done: float = -1.0

    def add(self, now: float, done: float, metrics: Mapping[str, float]) -> None:
        tokens = self.recent[-1][2] if self.recent else 0.0
        self.recent.append((now, done, tokens + metrics.get("tokens", 0.0)))

    def due(self, now: float, done: float) -> bool:
        """Return whether the loop should be reported now, and note that it is."""
        due = (
            now - self.reported_at >= _LINE_SECONDS
            or done - self.reported_done >= _LINE_SHARE - 1e-9
            or done > 1 - 1e-9
        )
        if due:
            self.reported_at = now
            self.reported_done = done
        return due

    def detail(self, metrics: Mapping[str, float]) -> str:
        """Return these metrics, tokens per second and the time left."""
        parts = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items()]
        start, done_at_start, tokens_at_start = self.recent[0]
        end, done, tokens = self.recent[-1]
        if end > start:
            if tokens > tokens_at_start:
                parts.append(f"{(tokens - tokens_at_start) / (end - start):,.0f} tokens/s")
            if done_at_start < done < 1 - 1e-9:
                left = (1 - done) * (end - start) / (done - done_at_start)
                parts.append(f"{clock(left)} left")
        return "  ".join(parts)


@dataclass
class _Line:
    """A step under way, of which several stages may publish metrics."""

    at: LoopStep
    now: float  # seconds
    done: float  # share of the loop, this step included
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def head(self) -> str:
        total = "" if self.at.total is None else f"/{self.at.total}"
        return f"{self.at.loop} step {self.at.step + 1}{total}"


class ConsoleObserver(Observer):
    """Prints the progress of a run; `close` may be called at any time, and more than once."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._loops: dict[str, _Loop] = {}
        self._lines: list[_Line] = []  # steps under way, oldest first
        self._ahead: dict[str, int] = {}  # by loop: steps that may start before one has finished
        self._start_time = time.perf_counter()
        self.exported: Checkpoint | None = None  # the last one
        self._bar = _bar(out) if out.is_terminal else None
        self._task: TaskID | None = None

    def run_started(self, run: str, step: Step) -> None:
        self._print(f"run {run}")
        for loop in walk(step):
            if isinstance(loop, ForEach):
                name = loop.source.title()
                self._ahead[name] = max(loop.ahead, self._ahead.get(name, 0))
        if self._bar is not None:
            self._task = self._bar.add_task("", total=None, detail="")
            self._bar.start()

    def stage_started(self, event: StageStarted) -> None:
        outside_loops = event.progress == Progress()
        if self._bar is not None and self._task is not None and outside_loops:
            self._bar.reset(self._task, total=None, description=event.stage.title(), detail="")

    def stage_done(self, event: StageDone) -> None:
        if not (event.published or self._lines) and event.seconds < _SLOW:
            return  # the common case: nothing to print
        metrics: dict[str, float] = {}
        for value in event.published:
            if isinstance(value, Metrics):
                metrics |= value
        loops = event.location.loops
        self._print_finished(loops)
        if loops and metrics and not event.replayed:
            self._update(loops[-1], event.progress, metrics)
        elif not loops and event.seconds >= _SLOW:
            self._print(f"{event.stage.title()}  {clock(event.seconds)}")
        for value in event.published:
            if isinstance(value, Table) and value.rows and not event.replayed:
                self._out.print()
                self._out.print(table(value))

    def weights_saved(self, event: WeightsSaved) -> None:
        self.exported = event.checkpoint

    def run_ended(self, error: BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        self._print_finished(())
        if self._bar is not None:
            self._bar.stop()

    def _update(self, at: LoopStep, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Add metrics to the line of a step, and show it in the bar."""
        now = time.perf_counter() - self._start_time
        done = 0.0 if progress.done is None else progress.done + progress.width
        loop = self._loops.setdefault(at.loop, _Loop())
        loop.add(now, done, metrics)
        line = self._line(at, now, done)
        line.metrics |= {name: value for name, value in metrics.items() if name not in _HIDDEN}
        if self._bar is not None and self._task is not None:
            first_metric = dict(islice(line.metrics.items(), 1))
            self._bar.update(
                self._task,
                total=None if progress.done is None else 1.0,
                completed=done,
                description=line.head,
                detail=loop.detail(first_metric),
            )

    def _line(self, at: LoopStep, now: float, done: float) -> _Line:
        """Return the line of a step, a new one if none of its stages has published metrics."""
        for line in self._lines:
            if (line.at.loop, line.at.step) == (at.loop, at.step):
                return line
        self._lines.append(_Line(at, now, done))
        return self._lines[-1]

    def _print_finished(self, loops: Iterable[LoopStep]) -> None:
        """Print the steps that have finished when a stage inside these loop iterations is done."""
        current = {at.loop: at.step for at in loops}
        finished = [line for line in self._lines if self._has_finished(line.at, current)]
        self._lines = [line for line in self._lines if line not in finished]
        for line in finished:
            loop = self._loops[line.at.loop]
            if loop.due(line.now, line.done) and (self._bar is None or line.done > 1 - 1e-9):
                self._print(f"{line.head}  {loop.detail(line.metrics)}")

    def _has_finished(self, at: LoopStep, current: Mapping[str, int]) -> bool:
        if at.loop not in current:
            return True
        return abs(current[at.loop] - at.step) > self._ahead.get(at.loop, 0)

    def _print(self, text: str) -> None:
        self._out.print(Text(printable(text)), soft_wrap=True)


def _bar(out: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[detail]}", markup=False),
        console=out,
        transient=True,
        refresh_per_second=5,
    )
