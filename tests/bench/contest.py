"""A benchmark of the local adapter against rivals, and the results that must agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tests.bench.interleave import interleave
from tests.bench.outcome import Goal as Goal  # works name their figures
from tests.bench.outcome import Outcome, to_reach
from tests.bench.results import Order, Result
from tests.bench.turns import Side, Step

COLUMNS = (
    "side",
    "s a step, median [quartiles]",
    "tokens/s",
    "MB above weights",
    "GFLOP/s needed",
    "share of GEMM rate",
)


@dataclass(frozen=True)
class Same:
    """A value that all sides report for each step, and how far it may differ from ours.

    With `beside`: how much further from exact steps ours may be than theirs.
    """

    value: str
    most: float
    relative: bool = False

    def difference(
        self, ours: Sequence[Step], theirs: Sequence[Step], exact: Sequence[Step] = ()
    ) -> float:
        """Return the largest difference over the steps; infinity where a number is not finite."""
        # a side that left early has fewer steps
        steps = zip(ours, theirs, exact or theirs, strict=False)
        differences = [
            self._off(true, here) - (self._off(true, there) if exact else 0)
            for here, there, true in steps
        ]
        if any(math.isnan(difference) for difference in differences):
            return math.inf
        return max([0.0, *differences])

    def shown(self, found: float, exact: bool = False) -> str:
        verdict = "within" if found <= self.most else "NOT WITHIN"
        how = "is further from that of float32 than theirs by" if exact else "differs by"
        difference = f"{found:.1e}{' of it' if self.relative else ''}"
        return f"{self.value} {how} at most {difference} ({verdict} {self.most:g})"

    def _off(self, true: Step, step: Step) -> float:
        return _apart(true.values[self.value], step.values[self.value], self.relative)


@dataclass(frozen=True)
class Contest:
    """One benchmark and its sides.

    Our side reports "tokens" and, if it trains, "flops" and "flops_shared".
    """

    work: str
    title: str
    ours: Side
    # those of the targets, which compare with the fastest; the first is the plain configuration
    rivals: tuple[Side, ...]
    same: tuple[Same, ...]
    speed: Goal | None = None
    memory: Goal | None = None  # against the fastest of these
    share: Goal | None = None  # of the GEMM rate, shared prefixes counted once
    others: tuple[Side, ...] = ()  # further rivals, to which no target refers
    gauge: Side | None = None  # of the machine's matrix products
    part: str = ""  # a part of the step whose seconds all sides report, compared too
    exact: Side | None = None  # our side in float32, where two ways of rounding drift apart
    about: tuple[str, ...] = ()  # more notes


def hold(contest: Contest, order: Order, steps: int) -> Result:
    more = [side for side in (contest.gauge, contest.exact) if side]
    sides = [contest.ours, *contest.rivals, *contest.others, *more]
    rivals, others = ([side.name for side in some] for some in (contest.rivals, contest.others))
    held = interleave(sides, order.folder, steps, rivals)
    outcome = Outcome(held.taken, contest.ours.name, contest.gauge.name if contest.gauge else "")
    exact = held.taken[contest.exact.name] if contest.exact else ()
    found = {
        same: {
            name: same.difference(held.taken[outcome.ours], held.taken[name], exact)
            for name in (*rivals, *others)
        }
        for same in contest.same
    }
    sound = all(
        apart <= same.most for same, differences in found.items() for apart in differences.values()
    )
    reported = [
        outcome.speed(held.fastest, contest.speed),
        *(outcome.speed(name) for name in others),
        *(
            outcome.memory(name, contest.memory if name == held.fastest else None)
            for name in dict.fromkeys((rivals[0], held.fastest, *others))
        ),
        *([outcome.share(contest.share)] if contest.share else []),
        *(outcome.part(contest.part, name) for name in (rivals[0], *others) if contest.part),
    ]
    notes = (
        *(one.note for one in reported),
        "compared, step by step: "
        + "; ".join(
            same.shown(max(differences.values()), bool(exact))
            for same, differences in found.items()
        ),
        *contest.about,
    )
    records = (
        *outcome.records(contest.work),
        {
            "work": contest.work,
            "figures": {one.what: one.value for one in reported},
            "sound": sound,
            "differences": {same.value: differences for same, differences in found.items()},
        },
    )
    rows = tuple(outcome.row(name) for name in (outcome.ours, *rivals, *others))
    return Result(
        contest.work, contest.title, COLUMNS, rows, notes, records, sound, to_reach(reported)
    )


def _apart(a: Any, b: Any, relative: bool) -> float:
    """Return the difference of two numbers, or the share of tokens by which two texts differ."""
    if isinstance(a, list):
        pairs = [two for left, right in zip(a, b, strict=True) for two in zip_longest(left, right)]
        return sum(1 for left, right in pairs if left != right) / len(pairs)
    apart: float = abs(float(a) - float(b))
    return apart / abs(float(a)) if relative else apart
