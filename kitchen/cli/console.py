"""What people see of a run: a bar on a terminal, plain lines elsewhere, and the tables that stages
publish.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from rich import box
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table as RichTable
from rich.text import Text

from kitchen.engine.observers import Observer, StageDone
from kitchen.progress import Progress
from kitchen.secrets import mask
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Metrics, Table
from kitchen.workflow import ForEach, Step, walk

WIDTH = 100  # columns where there is no terminal
_SLOW = 1.0  # seconds from which on a stage is worth a line
_LINE_EVERY, _LINE_SHARE = 10.0, 0.1  # seconds, share of the loop: whichever comes first
_IN_LOOP = re.compile(r"^(.*) step (\d+)$")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ASIDE = {"learning_rate", "grad_norm", "tokens", "trained_tokens"}  # recorded, not shown


def console(*, to_stderr: bool = False) -> Console:
    """For text of any origin: nothing in it is markup."""
    terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
    return Console(
        stderr=to_stderr,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if terminal else WIDTH,
    )


def table(shown: Table) -> RichTable:
    """Aligned columns; rows are set apart where a cell takes several lines."""
    widths = [
        max([len(name), *(len(row[at]) for row in shown.rows)])
        for at, name in enumerate(shown.columns)
    ]
    tall = sum(widths) > 2 * WIDTH or any("\n" in cell for row in shown.rows for cell in row)
    made = RichTable(
        title=Text(shown.title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_lines=tall,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in shown.columns:
        numbers = [row[shown.columns.index(name)] for row in shown.rows]
        right = bool(numbers) and all(re.fullmatch(r"[-+]?[\d,.]*%?", cell) for cell in numbers)
        made.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in shown.rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def printable(text: str) -> str:
    """Without secrets, and without the control characters with which a text could steer the
    terminal.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", mask(text))


def clock(seconds: float) -> str:
    """3.2 s, 4:05 or 1:04:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
        if minutes >= 60
        else f"{minutes}:{rest:02d}"
    )


@dataclass
class _Loop:
    """How fast a loop goes, from its last iterations."""

    # seconds, done, tokens
    seen: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=50))
    told_at: float = 0.0  # seconds
    told_done: float = -1.0

    def take(self, now: float, done: float, metrics: Mapping[str, float]) -> None:
        tokens = self.seen[-1][2] if self.seen else 0.0
        self.seen.append((now, done, tokens + metrics.get("tokens", 0.0)))

    def due(self, now: float, done: float) -> bool:
        """Whether a line about this moment is worth it."""
        waited = (
            now - self.told_at >= _LINE_EVERY
            or done - self.told_done >= _LINE_SHARE - 1e-9
            or done > 1 - 1e-9
        )
        if waited:
            self.told_at, self.told_done = now, done
        return waited

    def detail(self, metrics: Mapping[str, float]) -> str:
        """These metrics; tokens per second; time left."""
        parts = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items()]
        (first, done_then, tokens_then), (last, done, tokens) = self.seen[0], self.seen[-1]
        if last > first:
            if tokens > tokens_then:
                parts.append(f"{(tokens - tokens_then) / (last - first):,.0f} tokens/s")
            if done_then < done < 1 - 1e-9:
                parts.append(f"{clock((1 - done) * (last - first) / (done - done_then))} left")
        return "  ".join(parts)


@dataclass
class _Line:
    """A step that is under way: several stages may publish metrics of it."""

    loop: str
    step: int  # from 0
    head: str
    now: float  # seconds
    done: float  # share of the loop, this step included
    metrics: dict[str, float] = field(default_factory=dict)


class ConsoleObserver(Observer):
    """Tells people how a run goes; `close` may be called at any time, and more than once."""

    def __init__(self, out: Console) -> None:
        self._out, self._loops = out, dict[str, _Loop]()
        self._lines: list[_Line] = []  # of steps that are not over, oldest first
        self._ahead: dict[str, int] = {}  # by loop: steps that may begin before one is over
        self._started = time.perf_counter()
        self.exported: Checkpoint | None = None  # the last
        self._bar = _bar(out) if out.is_terminal else None
        self._task: TaskID | None = None

    def began(self, run: str, step: Step) -> None:
        self._say(f"run {run}")
        for loop in walk(step):
            if isinstance(loop, ForEach):
                name = loop.source.title()
                self._ahead[name] = max(loop.ahead, self._ahead.get(name, 0))
        if self._bar is not None:
            self._task = self._bar.add_task("", total=None, detail="")
            self._bar.start()

    def entered(self, stage: Stage, progress: Progress) -> None:
        if self._bar is not None and self._task is not None and progress == Progress():
            self._bar.reset(self._task, total=None, description=stage.title(), detail="")

    def done(self, event: StageDone) -> None:
        if not (event.published or self._lines) and event.seconds < _SLOW:
            return  # most stages: there is nothing to say
        metrics = {
            k: v for each in event.published if isinstance(each, Metrics) for k, v in each.items()
        }
        around = {
            found[1]: int(found[2])
            for part in event.where.split(" > ")[:-1]
            if (found := _IN_LOOP.match(part))
        }
        self._say_lines(around)
        loop = list(around)[-1] if around else ""
        if loop and metrics and not event.replayed:
            self._iteration(loop, event.progress, metrics)
        elif not loop and event.seconds >= _SLOW:
            self._say(f"{event.stage.title()}  {clock(event.seconds)}")
        for shown in event.published:
            if isinstance(shown, Table) and shown.rows and not event.replayed:
                self._out.print()
                self._out.print(table(shown))

    def saved(self, checkpoint: Checkpoint, progress: Progress) -> None:
        self.exported = checkpoint

    def ended(self, error: BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        self._say_lines({})
        if self._bar is not None:
            self._bar.stop()

    def _iteration(self, name: str, progress: Progress, metrics: Mapping[str, float]) -> None:
        now, loop = time.perf_counter() - self._started, self._loops.setdefault(name, _Loop())
        done = 0.0 if progress.done is None else progress.done + progress.width
        loop.take(now, done, metrics)
        total = f"/{round(1 / progress.width)}" if progress.width > 0 else ""
        mine = [line for line in self._lines if (line.loop, line.step) == (name, progress.step)]
        line = (
            mine[0]
            if mine
            else _Line(name, progress.step, f"{name} step {progress.step + 1}{total}", now, done)
        )
        self._lines += [line] * (not mine)
        line.metrics |= {key: value for key, value in metrics.items() if key not in _ASIDE}
        if self._bar is not None and self._task is not None:
            known, first = (
                None if progress.done is None else 1.0,
                dict(islice(line.metrics.items(), 1)),
            )
            self._bar.update(
                self._task,
                total=known,
                completed=done,
                description=line.head,
                detail=loop.detail(first),
            )

    def _say_lines(self, around: Mapping[str, int]) -> None:
        """Of the steps that are over when a stage in these loops, at these steps, is done."""
        over = [
            line
            for line in self._lines
            if line.loop not in around
            or abs(around[line.loop] - line.step) > self._ahead.get(line.loop, 0)
        ]
        self._lines = [line for line in self._lines if line not in over]
        for line in over:
            loop = self._loops[line.loop]
            if loop.due(line.now, line.done) and (self._bar is None or line.done > 1 - 1e-9):
                self._say(f"{line.head}  {loop.detail(line.metrics)}")

    def _say(self, text: str) -> None:
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
