"""Overhead per stage call: trivial stages, run by the framework and called directly."""

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
from kitchen.backend.logs import configure
from kitchen.cli.console import ConsoleObserver
from kitchen.config.order import Order as RunOrder
from kitchen.runs.execute import execute
from tests.bench.outcome import ReportedMetric, Target, with_targets
from tests.bench.quartiles import Quartiles
from tests.bench.results import DROPPED, Options, Result
from tests.bench.turns import Turns
from tests.bench.worker import Worker

ITERATIONS, PASSES = 2_000, 7  # of the loop; Pass stages in each iteration
CALLS = PASSES + 2  # stage calls per iteration
PAIRS = 9  # runs of each kind
LIMIT = Target(40.0, at_most=True)  # microseconds
KINDS = {
    "runner alone": "no observer",
    "kitchen run": "run record, journals in a folder, and console",
    "kitchen run, with metrics": "the same, and a row of metrics per iteration",
}


def stage_call(options: Options) -> Result:
    """Measure the overhead of a run per stage call, in microseconds."""
    with Worker(StageCalls(options.folder), options.folder) as worker:
        worker.ready()
        pairs = [worker.step().values for _ in range(DROPPED + (options.pairs or PAIRS))][DROPPED:]
    added = {
        kind: Quartiles.of([1e6 * (pair[kind] - pair["by hand"]) / CALLS for pair in pairs])
        for kind in KINDS
    }
    direct = 1e6 * Quartiles.of([pair["by hand"] for pair in pairs]).median / CALLS
    overhead = added["kitchen run"].median
    reported = ReportedMetric(
        "overhead per stage call in a kitchen run", overhead, f"{overhead:.1f} µs", LIMIT
    )
    notes = (
        reported.note,
        f"a loop of {ITERATIONS:,} iterations of {CALLS} stages that do nothing; direct calls "
        f"of the same stages take {direct:.2f} µs each, which is subtracted",
        f"{len(os.environ)} environment variables, whose values are masked in recorded texts",
    )
    rows = tuple((kind, description, added[kind].format(1)) for kind, description in KINDS.items())
    records = tuple(
        {"work": "stage_call", "side": kind, "added_us": quartiles.record()}
        for kind, quartiles in added.items()
    )
    columns = ("run", "with", "µs/call, median [quartiles]")
    return Result(
        "stage_call",
        "Overhead per stage call",
        columns,
        rows,
        notes,
        records,
        figures=with_targets([reported]),
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
    """A recipe with a loop of stages that do nothing."""

    count: int
    metrics: bool = False

    def workflow(self) -> Step:
        return sequence(
            for_each(Ticks(self.count))(
                Begin(), *[Pass() for _ in range(PASSES)], Finish(self.metrics)
            )
        )


@dataclass
class IterationTimes(Observer):
    """An observer that records when iterations end."""

    ends: list[float] = field(default_factory=list)  # seconds

    def stage_done(self, event: StageDone) -> None:
        if isinstance(event.stage, Finish):
            self.ends.append(perf_counter())

    def mean(self) -> float:
        """Return the mean seconds per iteration, without the first ones."""
        ends = self.ends[DROPPED - 1 :]
        return (ends[-1] - ends[0]) / (len(ends) - 1)


@dataclass(frozen=True)
class StageCalls:
    """A side that runs all kinds one after the other in one process."""

    folder: Path
    count: int = ITERATIONS
    name: str = "stage calls"

    def run(self, turns: Turns) -> None:
        configure()
        with Path(os.devnull).open("w") as devnull:
            for number in itertools.count():
                turns.wait()
                seconds = self.measure(str(number), Console(file=devnull, width=100))
                turns.stop()
                turns.report(**seconds)

    def measure(self, name: str, console: Console) -> dict[str, float]:
        """Return the seconds per iteration, by kind."""
        kinds = dict(
            zip(
                KINDS,
                (
                    self.without_observer(),
                    self.recorded(f"plain-{name}", console, False),
                    self.recorded(f"metrics-{name}", console, True),
                ),
                strict=True,
            )
        )
        return {"by hand": self.direct_calls(), **kinds}

    def without_observer(self) -> float:
        ends = IterationTimes()
        Kitchen().cook(Ticking(count=self.count), ends)
        return ends.mean()

    def recorded(self, name: str, console: Console, metrics: bool) -> float:
        ends, recipe = IterationTimes(), Ticking(count=self.count, metrics=metrics)
        run_order = RunOrder("tests.bench.core_calls:Ticking", recipe.model_dump(mode="json"))
        execute(
            run_order,
            recipe,
            Kitchen(blobs=LocalBlobs(str(self.folder / "calls"))),
            name,
            (ConsoleObserver(console), ends),
        )
        return ends.mean()

    def direct_calls(self) -> float:
        begin, passes, finish = Begin(), [Pass() for _ in range(PASSES)], Finish(False)
        ticks = Ticks(self.count).run()
        started = perf_counter()
        for tick in ticks:
            tock = begin.run(tick)
            for stage in passes:
                tock = stage.run(tock)
            finish.run(tick, tock)
        return (perf_counter() - started) / self.count
