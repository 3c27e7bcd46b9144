"""Latency of `kitchen check recipes.sl_basic`, without starting Python and imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from time import perf_counter

from kitchen.cli.commands.check import CheckOptions, check
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.adapters import PORTS
from kitchen.config.request import RunRequest, resolve_request
from tests.bench.outcome import ReportedMetric, Target, with_targets
from tests.bench.quartiles import Quartiles
from tests.bench.results import DROPPED, Options, Result
from tests.bench.turns import Turns
from tests.bench.worker import Worker

REPEATS = 30
LIMIT = Target(5.0, at_most=True)  # ms
OPERATIONS = {
    "plan": "build the workflow and find all problems in it",
    "check": "resolve settings, create adapters, plan, and run the checks of stages",
    "check, printed": "the same, and print the workflow, the adapters and the verdict",
}


def check_plan(options: Options) -> Result:
    """Measure milliseconds per check, with default adapters and the packaged model."""
    with Worker(Checks(), options.folder) as worker:
        worker.ready()
        times = [worker.step().values for _ in range(DROPPED + (options.pairs or REPEATS))][
            DROPPED:
        ]
    latencies = {kind: Quartiles.of([1e3 * time[kind] for time in times]) for kind in OPERATIONS}
    latency = latencies["check"].median
    problems = {problem for time in times for problem in time["problems"]}
    reported = ReportedMetric("check of sl_basic", latency, f"{latency:.2f} ms", LIMIT)
    notes = (reported.note, f"problems found: {'; '.join(sorted(problems)) or 'none'}")
    rows = tuple(
        (kind, description, latencies[kind].format()) for kind, description in OPERATIONS.items()
    )
    records = tuple(
        {"work": "check", "side": kind, "ms": quartiles.record()}
        for kind, quartiles in latencies.items()
    )
    return Result(
        "check",
        "Checking recipes.sl_basic",
        ("operation", "description", "ms, median [quartiles]"),
        rows,
        notes,
        records,
        sound=not problems,
        figures=with_targets([reported]),
    )


@dataclass(frozen=True)
class Checks:
    """A side that runs the three operations one after the other."""

    adapters: tuple[tuple[str, str], ...] = ()  # port and adapter, if not the default
    name: str = "check"

    def run(self, turns: Turns) -> None:
        while True:
            turns.wait()
            seconds, problems = self.measure()
            turns.stop()
            turns.report(**seconds, problems=problems)

    def measure(self) -> tuple[Mapping[str, float], list[str]]:
        request = RunRequest(
            "recipes.sl_basic",
            (),
            (),
            AdapterChoice({**dict.fromkeys(PORTS), **dict(self.adapters)}),
        )
        resolved = resolve_request(request)
        problems = [str(problem) for problem in resolved.problems]
        if resolved.kitchen is None or resolved.recipe is None:
            raise RuntimeError("\n".join(problems))
        kitchen, recipe = resolved.kitchen, resolved.recipe
        operations = (
            lambda: kitchen.check(recipe),
            lambda: resolve_request(request),
            lambda: _print_check(request),
        )
        return dict(zip(OPERATIONS, map(_seconds, operations), strict=True)), problems


def _print_check(request: RunRequest) -> None:
    with redirect_stdout(StringIO()):
        check(request, CheckOptions())


def _seconds(operation: Callable[[], object]) -> float:
    started = perf_counter()
    operation()
    return perf_counter() - started
