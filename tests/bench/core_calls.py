"""Overhead of the runner per stage call: trivial stages, run by the framework and by hand."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from rich.console import Console

from adapters.local.blobs import LocalBlobs
from kitchen import Kitchen, Metrics, Observer, Recipe, Stage, StageDone, Step, for_each, sequence
from kitchen.cli.console import ConsoleObserver
from kitchen.config.order import Order as Cooked
from kitchen.runs.execute import execute
from kitchen.runs.logs import configure
from tests.bench.figures import Figure
from tests.bench.outcome import Goal, Reported, to_reach
from tests.bench.results import DROPPED, Order, Result
from tests.bench.turns import Turns
from tests.bench.worker import Worker

ITERATIONS, PASSES = 2_000, 7  # of the loop; stages in the middle of its body
CALLS = PASSES + 2  # in an iteration
PAIRS = 9  # of runs
MOST = Goal(40.0, at_most=True)  # microseconds
KINDS = {
    "runner alone": "no observer",
    "kitchen run": "record, journals in a folder and console",
    "kitchen run, with metrics": "and a row of metrics in each iteration",
}


def stage_call(order: Order) -> Result:
    """Measure the microseconds that a run adds to a stage call."""
    with Worker(Calls(order.folder), order.folder) as worker:
        worker.ready()
        pairs = [worker.step().values for _ in range(DROPPED + (order.pairs or PAIRS))][DROPPED:]
    added = {
        kind: Figure.of([1e6 * (pair[kind] - pair["by hand"]) / CALLS for pair in pairs])
        for kind in KINDS
    }
    reached = added["kitchen run"].median
    reported = Reported("a stage call in a kitchen run", reached, f"{reached:.1f} µs", MOST)
    notes = (
        reported.note,
        f"a loop of {ITERATIONS:,} iterations of {CALLS} stages that do nothing; by hand the same "
        "stages take "
        f"{1e6 * Figure.of([pair['by hand'] for pair in pairs]).median / CALLS:.2f} µs each, which "
        "is taken off",
        f"{len(os.environ)} variables in the environment, through which texts are masked",
    )
    rows = tuple((kind, about, added[kind].shown(1)) for kind, about in KINDS.items())
    records = tuple(
        {"work": "stage_call", "side": kind, "added_us": each.record()}
        for kind, each in added.items()
    )
    columns = ("run", "with", "µs a call, median [quartiles]")
    return Result(
        "stage_call",
        "What a stage call costs",
        columns,
        rows,
        notes,
        records,
        figures=to_reach([reported]),
    )


@dataclass(frozen=True)
class Tick:
    """The input value."""

    number: int


@dataclass(frozen=True)
class Tock:
    """The output value."""

    number: int


class Ticks(Stage):
    """A loop source with a number of iterations."""

    count: int

    def run(self) -> Iterable[Tick]:
        return [Tick(number) for number in range(self.count)]


class Begin(Stage):
    """A stage that maps one value to another."""

    def run(self, tick: Tick) -> Tock:
        return Tock(tick.number)


class Pass(Stage):
    """A stage that replaces a value."""

    def run(self, tock: Tock) -> Tock:
        return Tock(tock.number)


class Finish(Stage):
    """A stage that reads a value and publishes metrics, which may be empty."""

    metrics: bool

    def run(self, tick: Tick, tock: Tock) -> Metrics:
        return Metrics(tick=float(tick.number)) if self.metrics else Metrics()


class Ticking(Recipe):
    """A recipe that is a loop of stages that do nothing."""

    count: int
    metrics: bool = False

    def workflow(self) -> Step:
        return sequence(
            for_each(Ticks(self.count))(
                Begin(), *[Pass() for _ in range(PASSES)], Finish(self.metrics)
            )
        )


@dataclass
class Ends(Observer):
    """An observer that records when iterations end."""

    ends: list[float] = field(default_factory=list)  # seconds

    def stage_done(self, event: StageDone) -> None:
        if isinstance(event.stage, Finish):
            self.ends.append(perf_counter())

    def mean(self) -> float:
        """Return the mean seconds per iteration, without the dropped ones."""
        ends = self.ends[DROPPED - 1 :]
        return (ends[-1] - ends[0]) / (len(ends) - 1)


@dataclass(frozen=True)
class Calls:
    """A side that runs all kinds in one process, one after the other."""

    folder: Path
    count: int = ITERATIONS
    name: str = "stage calls"

    def run(self, turns: Turns) -> None:
        configure()
        with Path(os.devnull).open("w") as nowhere:
            for number in itertools.count():
                turns.wait()
                seconds = self.measured(str(number), Console(file=nowhere, width=100))
                turns.stop()
                turns.tell(**seconds)

    def measured(self, name: str, console: Console) -> dict[str, float]:
        """Return the seconds per iteration, by kind."""
        kinds = dict(
            zip(
                KINDS,
                (
                    self.alone(),
                    self.cooked(f"plain-{name}", console, False),
                    self.cooked(f"metrics-{name}", console, True),
                ),
                strict=True,
            )
        )
        return {"by hand": self.by_hand(), **kinds}

    def alone(self) -> float:
        ends = Ends()
        Kitchen().cook(Ticking(count=self.count), ends)
        return ends.mean()

    def cooked(self, name: str, console: Console, metrics: bool) -> float:
        ends, recipe = Ends(), Ticking(count=self.count, metrics=metrics)
        order = Cooked("tests.bench.core_calls:Ticking", recipe.model_dump(mode="json"))
        execute(
            order,
            recipe,
            Kitchen(blobs=LocalBlobs(str(self.folder / "calls"))),
            name,
            (ConsoleObserver(console), ends),
        )
        return ends.mean()

    def by_hand(self) -> float:
        begin, passes, finish = Begin(), [Pass() for _ in range(PASSES)], Finish(False)
        ticks = Ticks(self.count).run()
        started = perf_counter()
        for tick in ticks:
            tock = begin.run(tick)
            for each in passes:
                tock = each.run(tock)
            finish.run(tick, tock)
        return (perf_counter() - started) / self.count
