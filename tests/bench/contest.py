"""A benchmark of the local adapter against rivals, and the results that must agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tests.bench.interleave import interleave
from tests.bench.outcome import Goal as Goal  # works name their figures
from tests.bench.outcome import Outcome, Reported, to_reach
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
    """Let the sides of a contest take their steps in turn, and report what they show."""
    rivals = [side.name for side in contest.rivals]
    others = [side.name for side in contest.others]
    more = [side for side in (contest.gauge, contest.exact) if side]
    sides = [contest.ours, *contest.rivals, *contest.others, *more]
    held = interleave(sides, order.folder, steps, rivals)
    outcome = Outcome(held.taken, contest.ours.name, contest.gauge.name if contest.gauge else "")
    differences = {
        same: _differences(contest, held.taken, same, [*rivals, *others]) for same in contest.same
    }
    sound = all(max(found.values()) <= same.most for same, found in differences.items())
    reported = _figures(contest, outcome, held.fastest)
    record = {
        "work": contest.work,
        "figures": {figure.what: figure.value for figure in reported},
        "sound": sound,
        "differences": {same.value: found for same, found in differences.items()},
    }
    agreement = "; ".join(
        same.shown(max(found.values()), contest.exact is not None)
        for same, found in differences.items()
    )
    return Result(
        contest.work,
        contest.title,
        COLUMNS,
        tuple(outcome.row(name) for name in (outcome.ours, *rivals, *others)),
        (
            *(figure.note for figure in reported),
            f"compared, step by step: {agreement}",
            *contest.about,
        ),
        (*outcome.records(contest.work), record),
        sound,
        to_reach(reported),
    )


def _differences(
    contest: Contest, taken: Mapping[str, Sequence[Step]], same: Same, names: Sequence[str]
) -> dict[str, float]:
    """Return how far a value of each named side is from ours."""
    ours = taken[contest.ours.name]
    exact = taken[contest.exact.name] if contest.exact else ()
    return {name: same.difference(ours, taken[name], exact) for name in names}


def _figures(contest: Contest, outcome: Outcome, fastest: str) -> list[Reported]:
    """Return the figures of a contest; its targets refer to the fastest of the rivals."""
    plain = contest.rivals[0].name
    others = [side.name for side in contest.others]
    figures = [outcome.speed(fastest, contest.speed), *(outcome.speed(name) for name in others)]
    for name in dict.fromkeys((plain, fastest, *others)):
        figures.append(outcome.memory(name, contest.memory if name == fastest else None))
    if contest.share:
        figures.append(outcome.share(contest.share))
    if contest.part:
        figures += [outcome.part(contest.part, name) for name in (plain, *others)]
    return figures


def _apart(a: Any, b: Any, relative: bool) -> float:
    """Return the difference of two numbers, or the share of tokens by which two texts differ."""
    if isinstance(a, list):
        pairs = list[tuple[Any, Any]]()
        for left, right in zip(a, b, strict=True):
            pairs += zip_longest(left, right)
        share: float = sum(left != right for left, right in pairs) / len(pairs)
        return share
    apart: float = abs(float(a) - float(b))
    return apart / abs(float(a)) if relative else apart
