"""Interleaved measurement (A B A B), so that other load on the machine affects all sides alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.results import DROPPED
from tests.bench.turns import Side, Step
from tests.bench.worker import Worker

ELIMINATION_ROUNDS = DROPPED + 2  # all rivals take part in these
MAX_LAG = 1.2  # relative to the fastest rival's best step; slower rivals are then eliminated


@dataclass(frozen=True)
class Measurements:
    """The steps of every side, including eliminated ones."""

    steps: dict[str, list[Step]]
    fastest: str  # remaining rival by median of the counted steps; "" if there are no rivals


def interleave(
    sides: Sequence[Side],
    logs: Path,
    steps: int,
    rivals: Sequence[str] = (),
    elimination_rounds: int = ELIMINATION_ROUNDS,
) -> Measurements:
    """Run the sides in turn; slow `rivals` are eliminated after some rounds."""
    with ExitStack() as stack:
        workers = {side.name: stack.enter_context(Worker(side, logs)) for side in sides}
        for worker in workers.values():
            worker.ready()
        measured: dict[str, list[Step]] = {name: [] for name in workers}
        for number in range(steps):
            for name, worker in workers.items():
                measured[name].append(worker.step())
            if number == elimination_rounds - 1:
                for slow in slow_rivals(measured, rivals):
                    workers.pop(slow).close()
    return Measurements(measured, _fastest(measured, set(rivals) & workers.keys()))


def one_after_another(
    sides: Sequence[Side], logs: Path, steps: int, rivals: Sequence[str] = ()
) -> Measurements:
    """Run all steps of a side, and end it, before the next side takes its first step.

    All sides load their weights first: these fit into memory together, but their steps do not.
    """
    measured: dict[str, list[Step]] = {}
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(side, logs)) for side in sides]
        for worker in workers:
            worker.ready()
        for worker in workers:
            measured[worker.name] = [worker.step() for _ in range(steps)]
            worker.close()
    return Measurements(measured, _fastest(measured, rivals))


def _fastest(steps: Mapping[str, Sequence[Step]], rivals: Iterable[str]) -> str:
    """Return the rival with the lowest median; empty if there are no rivals."""
    medians = {name: median(_seconds(steps[name])) for name in rivals}
    return min(medians, key=medians.__getitem__, default="")


def slow_rivals(steps: Mapping[str, Sequence[Step]], rivals: Iterable[str]) -> list[str]:
    """Return the rivals whose best step is too slow: noise only makes steps slower."""
    best = {name: min(_seconds(steps[name])) for name in rivals}
    return [name for name, seconds in best.items() if seconds > MAX_LAG * min(best.values())]


def _seconds(steps: Sequence[Step]) -> list[float]:
    """Return the seconds of the counted steps, or of all steps if none is counted."""
    return [step.seconds for step in steps[DROPPED:] or steps]
