"""Console output of a run: a bar on a terminal, plain lines elsewhere, and published tables."""

from __future__ import annotations

import math
import re
import sys
import textwrap
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from kitchen.backend.work import Work
from kitchen.engine.observers import StageDone, StageStarted, WeightsSaved
from kitchen.progress import LoopStep, Progress
from kitchen.recipe import Recipe
from kitchen.runs.status import WorkObserver
from kitchen.runs.wording import activity, clock, words
from kitchen.safe_text import escape_controls
from kitchen.secrets import printable
from kitchen.types import Checkpoint, Metrics, Published, Samples, Table
from kitchen.workflow import ForEach, Step, walk

WIDTH = 100  # columns where there is no terminal
_SLOW = 1.0  # seconds after which a stage without metrics gets a line
_LINE_SECONDS = 10.0  # between two lines about a loop,
_LINE_SHARE = 0.1  # or this share of the loop, whichever comes first
_WORK_SECONDS = 30.0  # between two lines about work within a stage
# recorded, not shown
_HIDDEN = {
    "learning_rate",
    "grad_norm",
    "tokens",
    "trained_tokens",
}
_HIDDEN_PREFIX = "best_held_out_"
_SHOWN = 6  # metrics on a line about a loop, the headline metrics first
_SAMPLE_WIDTH = 160  # characters of a rollout that is shown


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


def has_cursor(out: Console) -> bool:
    """Return whether lines can be rewritten: on a terminal, unless TERM is dumb."""
    return out.is_terminal and not out.is_dumb_terminal


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


def print_wrapped(out: Console, text: str, style: str | None = None) -> None:
    """Print text, with lines broken at spaces on a terminal, and unbroken elsewhere."""
    out.print(Text(wrapped(out, printable(text))), style=style, soft_wrap=True)


def wrapped(out: Console, text: str) -> str:
    """Return text with lines broken at spaces if it is for a terminal."""
    if not out.is_terminal:
        return text
    return "\n".join(_broken(line, out.width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    """Return a line broken at spaces; what follows is indented more than the line."""
    if len(line) <= width:
        return line
    indent = len(line) - len(line.lstrip()) + 2
    return textwrap.fill(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def _all_numbers(cells: list[str]) -> bool:
    return bool(cells) and all(re.fullmatch(r"[-+]?[\d,.]*%?", cell) for cell in cells)


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

    def detail(
        self, metrics: Mapping[str, float], room: float = math.inf, elapsed: float | None = None
    ) -> str:
        """Return these metrics, tokens per second, the seconds elapsed and the time left.

        What needs more than `room` characters is left out: the elapsed time first, then the speed
        and the time left.
        """
        shown = _shown_metrics(metrics)
        speed, left = self._speed(), self._time_left()
        since = [] if elapsed is None else [f"{clock(elapsed)} elapsed"]
        for parts in ([*shown, *speed, *since, *left], [*shown, *speed, *left], [*shown, *left]):
            if len(text := "  ".join(parts)) <= room:
                return text
        return "  ".join(shown)

    def _speed(self) -> list[str]:
        start, _, tokens_at_start = self.recent[0]
        end, _, tokens = self.recent[-1]
        if end <= start or tokens <= tokens_at_start:
            return []
        return [f"{(tokens - tokens_at_start) / (end - start):,.0f} tokens/s"]

    def _time_left(self) -> list[str]:
        start, done_at_start, _ = self.recent[0]
        end, done, _ = self.recent[-1]
        if end <= start or not done_at_start < done < 1 - 1e-9:
            return []
        return [f"{clock((1 - done) * (end - start) / (done - done_at_start))} left"]


@dataclass
class _Line:
    """A step under way, of which several stages may publish metrics."""

    loops: tuple[LoopStep, ...]  # around the step, outermost first
    now: float  # seconds
    done: float  # share of the loop, this step included
    metrics: dict[str, float] = field(default_factory=dict)
    sample: Mapping[str, Any] | None = None  # a rollout of the step

    @property
    def at(self) -> LoopStep:
        return self.loops[-1]


class WorkLines:
    """Shows the progress of work in a bar on a terminal, and elsewhere in a line now and then."""

    def __init__(self, out: Console, bar: Bar | None, task: TaskID | None) -> None:
        self._out = out
        self._bar = bar
        self._task = task
        self._started = self._printed = time.perf_counter()
        self._printed_share = 0.0
        self._announced: set[str] = set()

    def start(self) -> None:
        """Note that other work starts."""
        self._started = self._printed = time.perf_counter()
        self._printed_share = 0.0

    def show(self, work: Work, activity: str) -> None:
        """Show work outside of loops; `activity` names work that does not name itself."""
        now = time.perf_counter()
        if work.done == 0:
            self.start()
        text = ", ".join(filter(None, [work.activity or activity, work.count()]))
        left = self._left(work, now)
        if self._bar is None or self._task is None:
            if self._is_due(work, now):
                self._out.print(Text(printable(f"{text}{left}")), soft_wrap=True)
        elif not work.is_over:
            self._bar.update(
                self._task, total=work.total, completed=work.done, description=text, detail=left
            )

    def _is_due(self, work: Work, now: float) -> bool:
        """Return whether a plain line is due, and note that it is printed."""
        if not work.unit:
            is_new = work.activity not in self._announced and not work.is_over
            self._announced.add(work.activity)
            return is_new
        share = work.done / work.total if work.total else 0.0
        due = now - self._printed >= _WORK_SECONDS and not work.is_over
        if due and (share - self._printed_share >= _LINE_SHARE or now - self._printed >= 300):
            self._printed, self._printed_share = now, share
            return True
        return False

    def _left(self, work: Work, now: float) -> str:
        """Return the time left at the average speed so far."""
        if not work.total or not 0 < work.done < work.total:
            return ""
        seconds = (work.total - work.done) * (now - self._started) / work.done
        return f"  {clock(seconds)} left"


class ConsoleObserver(WorkObserver):
    """Prints the progress of a run; `close` may be called at any time, and more than once.

    `headline` are the names of the metrics that are shown first and always: a metric that is
    measured at some steps only keeps its last value on the line.
    """

    def __init__(self, out: Console, headline: Sequence[str] = Recipe.headline) -> None:
        self._out = out
        self._headline = tuple(headline)
        self._latest: dict[str, float] = {}  # last values of headline metrics
        self._depths: dict[str, int] = {}  # number of loops around the steps that measured them
        self._loops: dict[str, _Loop] = {}
        self._lines: list[_Line] = []  # steps under way, oldest first
        self._ahead: dict[str, int] = {}  # by loop: steps that may start before one has finished
        self._ends_early: set[str] = set()  # loops whose number of steps is a maximum
        self._passes: set[str] = set()  # loops around a loop, such as epochs, without metrics
        self._start_time = time.perf_counter()
        self.exported: Checkpoint | None = None  # the last one
        self._bar = _bar(out) if has_cursor(out) else None
        self._task: TaskID | None = None
        self._work = WorkLines(out, None, None)
        self._activity = ""  # of the stage outside loops that started last; empty inside a loop
        self._detail = ""  # beside the bar of a loop
        self._room = out.width  # characters for it
        self._in_loop = False  # whether a step of a loop has started

    def run_started(self, run: str, step: Step) -> None:
        self._print(f"run {run}")
        for loop in walk(step):
            if isinstance(loop, ForEach):
                name = loop.source.title()
                self._ahead[name] = max(loop.ahead, self._ahead.get(name, 0))
                if loop.source.ends_early:
                    self._ends_early.add(name)
                if len(loop.body.steps) == 1 and isinstance(loop.body.steps[0], ForEach):
                    self._passes.add(name)
        if self._bar is not None:
            self._task = self._bar.add_task("", total=None, detail="")
            self._work = WorkLines(self._out, self._bar, self._task)
            self._bar.start()

    def stage_started(self, event: StageStarted) -> None:
        loops = event.location.loops
        self._activity = "" if loops else activity(event.stage.title())
        if loops and not self._in_loop and loops[-1].loop not in self._passes:
            self._in_loop = True
            if loops[-1].step > 0:
                self._print(f"resumed at {self._head(loops)}")
        if self._bar is None or self._task is None:
            return
        if not loops:
            self._bar.reset(self._task, total=None, description=self._activity, detail="")
        elif loops[-1].loop not in self._passes | self._loops.keys():  # no metrics of a step yet
            head = self._head(loops)
            self._room = self._out.width - len(head) - _bar_room(self._out)
            self._bar.update(self._task, description=head, detail="")

    def work_reported(self, work: Work) -> None:
        if work.activity or self._activity:
            self._work.show(work, self._activity)
        elif self._bar is not None and self._task is not None:
            count = "" if work.is_over else work.count()
            detail = "  ".join(filter(None, [count, self._detail]))
            self._bar.update(self._task, detail=_cut(detail, self._room))

    def stage_done(self, event: StageDone) -> None:
        if not (event.published or self._lines) and event.seconds < _SLOW:
            return  # the common case: nothing to print
        metrics: dict[str, float] = {}
        for value in event.published:
            if isinstance(value, Metrics):
                metrics |= value
                self._add_headline(value.selects_by)
        loops = event.location.loops
        self._print_finished(loops)
        if loops and metrics and not event.replayed:
            line = self._update(loops, event.progress, metrics)
            line.sample = line.sample or _first_sample(event.published)
        elif not loops:
            self._print_stage(event, metrics)
        for value in event.published:
            if isinstance(value, Table) and value.rows and not event.replayed:
                self._out.print()
                self._out.print(table(value))

    def _add_headline(self, metric: str) -> None:
        """Show the metric that selects the best weights with the headline metrics."""
        if metric and metric not in self._headline:
            self._headline = (*self._headline, metric)

    def weights_saved(self, event: WeightsSaved) -> None:
        self.exported = event.checkpoint

    def run_ended(self, error: BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        self._print_finished(())
        if self._bar is not None:
            self._bar.stop()

    def _print_stage(self, event: StageDone, metrics: Mapping[str, float]) -> None:
        """Print the seconds of a slow stage outside loops, and metrics that no table has."""
        parts = [clock(event.seconds)] if event.seconds >= _SLOW else []
        if not event.replayed and not any(isinstance(value, Table) for value in event.published):
            few = len(metrics) <= _SHOWN
            parts += _shown_metrics({name: x for name, x in metrics.items() if x or few})
        if parts:
            self._print("  ".join([words(event.stage.title()), *parts]))

    def _update(
        self, loops: tuple[LoopStep, ...], progress: Progress, metrics: Mapping[str, float]
    ) -> _Line:
        """Add metrics to the line of a step, show it in the bar, and return it."""
        now = time.perf_counter() - self._start_time
        done = 0.0 if progress.done is None else progress.done + progress.width
        loop = self._loops.setdefault(loops[-1].loop, _Loop())
        loop.add(now, done, metrics)
        line = self._line(loops, now, done)
        line.metrics |= {name: value for name, value in metrics.items() if _is_shown(name)}
        if self._bar is not None and self._task is not None:
            shown = self._ordered(line.metrics, most=len(self._headline) or 1)
            head = self._head(line.loops)
            self._room = self._out.width - len(head) - _bar_room(self._out)
            self._detail = _cut(loop.detail(shown, self._room, now), self._room)
            self._bar.update(
                self._task,
                total=None if progress.done is None else 1.0,
                completed=done,
                description=head,
                detail=self._detail,
            )
        return line

    def _ordered(self, metrics: Mapping[str, float], most: int) -> dict[str, float]:
        """Return the headline metrics, with their last values, and up to `most` in all.

        Then come the means of several rewards.
        """
        known = {**self._latest, **metrics}
        ordered = {name: known[name] for name in self._headline if name in known}
        for name in sorted(metrics, key=lambda name: not name.startswith("rewards/")):
            if len(ordered) >= most:
                break
            ordered.setdefault(name, metrics[name])
        return ordered

    def _head(self, loops: tuple[LoopStep, ...]) -> str:
        """Return the place of a step, such as `epoch 1/2, step 5/20`.

        A loop that may end early has ` at most` after its length.
        """
        parts = []
        for at in loops:
            if at.loop in self._passes:
                parts += [f"{_singular(at.loop)} {_count(at)}"] if (at.total or 0) > 1 else []
        others = [name for name in self._ahead if name not in self._passes]
        name = "step" if len(others) <= 1 else _singular(loops[-1].loop)
        at_most = " at most" if loops[-1].loop in self._ends_early else ""
        return ", ".join([*parts, f"{name} {_count(loops[-1])}{at_most}"])

    def _line(self, loops: tuple[LoopStep, ...], now: float, done: float) -> _Line:
        """Return the line of a step, a new one if none of its stages has published metrics."""
        for line in self._lines:
            if (line.at.loop, line.at.step) == (loops[-1].loop, loops[-1].step):
                return line
        self._lines.append(_Line(loops, now, done))
        return self._lines[-1]

    def _print_finished(self, loops: Iterable[LoopStep]) -> None:
        """Print the steps that have finished when a stage inside these loop iterations is done."""
        current = {at.loop: at.step for at in loops}
        finished = [line for line in self._lines if self._has_finished(line.at, current)]
        self._lines = [line for line in self._lines if line not in finished]
        for line in sorted(finished, key=lambda line: -len(line.loops)):  # inner loops first
            loop = self._loops[line.at.loop]
            measured = {name for name in self._headline if name in line.metrics}
            is_new = bool(measured - self._latest.keys()) or _is_evaluation(measured)
            self._latest |= {name: line.metrics[name] for name in measured}
            self._depths |= dict.fromkeys(measured, len(line.loops))
            due = loop.due(line.now, line.done)
            if (due or is_new) and (self._bar is None or line.done > 1 - 1e-9 or is_new):
                head = f"{self._head(line.loops)}  "
                room = self._out.width - len(head) if self._out.is_terminal else math.inf
                self._print(head + loop.detail(self._ordered(line.metrics, _SHOWN), room))
            if due and line.sample:
                self._print(_sample_line(line.sample))
            self._forget_inner(len(line.loops))

    def _forget_inner(self, depth: int) -> None:
        """Forget metrics of loops inside a step that is over: its next step may take none."""
        for name in [name for name in self._latest if self._depths[name] > depth]:
            if not _is_evaluation([name]):
                del self._latest[name]

    def _has_finished(self, at: LoopStep, current: Mapping[str, int]) -> bool:
        if at.loop not in current:
            return True
        return abs(current[at.loop] - at.step) > self._ahead.get(at.loop, 0)

    def _print(self, text: str) -> None:
        print_wrapped(self._out, text)


def _singular(loop: str) -> str:
    """Return the name of an iteration: `epoch` of Epochs, `task batch` of TaskBatches."""
    return re.sub(r"(?<=[sxh])es$|s$", "", words(loop).lower())


def _count(at: LoopStep) -> str:
    """Return `5/20`, or `5` for a loop of unknown length."""
    return f"{at.step + 1}" if at.total is None else f"{at.step + 1}/{at.total}"


def _is_shown(name: str) -> bool:
    return name not in _HIDDEN and not name.startswith(_HIDDEN_PREFIX)


def _is_evaluation(names: Iterable[str]) -> bool:
    """Return whether a metric was measured on held-out data, which happens at some steps only."""
    return any(name.startswith("held_out_") for name in names)


def _shown_metrics(metrics: Mapping[str, float]) -> list[str]:
    return [f"{name.replace('_', ' ')} {_number(value)}" for name, value in metrics.items()]


def _number(value: float) -> str:
    """Return a count with all its digits, and other numbers with four."""
    is_count = math.isfinite(value) and value == int(value) and abs(value) < 1e15
    return f"{int(value):,}" if is_count else f"{value:.4g}"


def _first_sample(published: Iterable[Published]) -> Mapping[str, Any] | None:
    """Return the first text that the model wrote among published values, if there is any."""
    samples = (value.rows for value in published if isinstance(value, Samples))
    return next(chain.from_iterable(samples), None)


def _sample_line(sample: Mapping[str, Any]) -> str:
    """Return one line with a text that the model wrote, and its reward."""
    text = " ".join(str(sample.get("text", "")).split())
    shown = text if len(text) <= _SAMPLE_WIDTH else f"{text[:_SAMPLE_WIDTH]}..."
    reward = sample.get("reward")
    value = f"reward {reward:.4g}" if isinstance(reward, int | float) else "no reward"
    return f"  rollout, {value}: {shown}"


class _Percentage(ProgressColumn):
    """The completed share; empty where the total is unknown."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.percentage:>3.0f} %")


def _bar(out: Console) -> Bar:
    wide = out.width > WIDTH
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24 if wide else 8),
        *([_Percentage()] if wide else []),
        TextColumn("{task.fields[detail]}", markup=False),
        console=out,
        transient=True,
        refresh_per_second=5,
    )


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 0)]}…"


def _bar_room(out: Console) -> int:
    """Return the characters that a bar takes beside its texts, with the spaces between them."""
    return 24 + 5 + 3 if out.width > WIDTH else 8 + 2
