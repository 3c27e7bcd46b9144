"""Latency of `kitchen check recipes.sl_basic`, once Python has started and modules are imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from time import perf_counter

from kitchen.cli.commands.check import CheckOptions, check
from kitchen.config.adapters import PORTS
from kitchen.config.request import AdapterChoice, RunRequest, resolve_request
from tests.bench.figures import Figure
from tests.bench.outcome import Goal, Reported, to_reach
from tests.bench.results import DROPPED, Order, Result
from tests.bench.turns import Turns
from tests.bench.worker import Worker

TIMES = 30
MOST = Goal(5.0, at_most=True)  # ms
ABOUT = {
    "plan": "the workflow laid out, walked through, and all that is wrong with it found",
    "check": "settings, adapters looked up and built, the plan, and what stages can verify",
    "check, printed": "and the tree, the adapters and the verdict as text",
}


def check_plan(order: Order) -> Result:
    """Measure milliseconds per check, with default adapters and the packaged model."""
    with Worker(Checks(), order.folder) as worker:
        worker.ready()
        times = [worker.step().values for _ in range(DROPPED + (order.pairs or TIMES))][DROPPED:]
    found = {kind: Figure.of([1e3 * each[kind] for each in times]) for kind in ABOUT}
    reached, problems = (
        found["check"].median,
        {problem for each in times for problem in each["problems"]},
    )
    reported = Reported("check of sl_basic", reached, f"{reached:.2f} ms", MOST)
    notes = (reported.note, f"problems found: {'; '.join(sorted(problems)) or 'none'}")
    rows = tuple((kind, about, found[kind].shown()) for kind, about in ABOUT.items())
    records = tuple(
        {"work": "check", "side": kind, "ms": figure.record()} for kind, figure in found.items()
    )
    return Result(
        "check",
        "Checking recipes.sl_basic",
        ("what", "which is", "ms, median [quartiles]"),
        rows,
        notes,
        records,
        sound=not problems,
        figures=to_reach([reported]),
    )


@dataclass(frozen=True)
class Checks:
    """A side that runs the three kinds of checks one after the other."""

    names: tuple[tuple[str, str], ...] = ()  # port and adapter, beyond the defaults
    name: str = "check"

    def run(self, turns: Turns) -> None:
        while True:
            turns.wait()
            seconds, problems = self.measured()
            turns.stop()
            turns.tell(**seconds, problems=problems)

    def measured(self) -> tuple[Mapping[str, float], list[str]]:
        request = RunRequest(
            "recipes.sl_basic",
            (),
            None,
            AdapterChoice({**dict.fromkeys(PORTS), **dict(self.names)}),
        )
        made = resolve_request(request)
        problems = [str(problem) for problem in made.problems]
        if made.kitchen is None or made.recipe is None:
            raise RuntimeError("\n".join(problems))
        kitchen, recipe = made.kitchen, made.recipe
        works = (
            lambda: kitchen.check(recipe),
            lambda: resolve_request(request),
            lambda: _printed(request),
        )
        return dict(zip(ABOUT, map(_seconds, works), strict=True)), problems


def _printed(request: RunRequest) -> None:
    with redirect_stdout(StringIO()):
        check(request, CheckOptions())


def _seconds(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started
