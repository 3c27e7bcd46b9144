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

HEATS = DROPPED + 2  # rounds that all rivals take part in
BEHIND = 1.2  # times the fastest rival's best step; slower rivals leave after the heats


@dataclass(frozen=True)
class Taken:
    """The steps of every side, including those that left early."""

    taken: dict[str, list[Step]]
    fastest: str  # of the rivals that stayed, by the median of counted steps; "" if there are none


def interleave(
    sides: Sequence[Side], logs: Path, steps: int, rivals: Sequence[str] = (), heats: int = HEATS
) -> Taken:
    """Run the sides in turn.

    Of the `rivals`, only the fast ones stay after some `heats`.
    """
    with ExitStack() as stack:
        workers = {side.name: stack.enter_context(Worker(side, logs)) for side in sides}
        for worker in workers.values():
            worker.ready()
        taken: dict[str, list[Step]] = {name: [] for name in workers}
        for number in range(steps):
            for name, worker in workers.items():
                taken[name].append(worker.step())
            if number == heats - 1:
                for slow in behind(taken, rivals):
                    workers.pop(slow).close()
    stayed = set(rivals) & workers.keys()
    middles = {name: median(_seconds(steps)) for name, steps in taken.items() if name in stayed}
    return Taken(taken, min(middles, key=middles.__getitem__, default=""))


def behind(taken: Mapping[str, Sequence[Step]], rivals: Iterable[str]) -> list[str]:
    """Return the sides that are behind by their best step: noise only ever slows a step down."""
    best = {name: min(_seconds(taken[name])) for name in rivals}
    return [name for name, seconds in best.items() if seconds > BEHIND * min(best.values())]


def _seconds(steps: Sequence[Step]) -> list[float]:
    """Return the seconds of the steps that count, or of all steps where there are no others."""
    return [step.seconds for step in steps[DROPPED:] or steps]
