"""Quality targets: bounds of measures, and whether the interval of a measure meets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kitchen.errors import ConfigError, QualityError, did_you_mean
from kitchen.statistics.intervals import Interval
from kitchen.types import Table

Verdict = Literal["met", "not met", "cannot tell", "not measured"]
NO_VALUE = "not measured"


@dataclass(frozen=True)
class Targets:
    """Targets by the name of a measure, in its unit."""

    # smallest values by measure, such as at_least.exact_match=0.5
    at_least: Mapping[str, float] = field(default_factory=dict)
    # largest values by measure, such as at_most.loss=2.5
    at_most: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for measure in self.at_least.keys() & self.at_most.keys():
            if self.at_least[measure] > self.at_most[measure]:
                raise ConfigError(
                    f"{measure} must be at least {self.at_least[measure]:g} and at most "
                    f"{self.at_most[measure]:g}, which no value is: change one of the targets"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the measures that have targets."""
        return tuple(dict.fromkeys((*self.at_least, *self.at_most)))

    def check_names(self, setting: str, known: Sequence[str]) -> None:
        """Raise ConfigError for a measure that is not known; `setting` names the targets."""
        for measure in self.names:
            if measure not in known:
                raise ConfigError(
                    f"{setting}: there is no measure {measure!r}; {did_you_mean(measure, known)}"
                )

    def check(self, measured: Mapping[str, Interval]) -> tuple[TargetResult, ...]:
        """Compare every target with its measure; a count has an interval of no width."""
        bounds = [(measure, "at least", bound) for measure, bound in self.at_least.items()]
        bounds += [(measure, "at most", bound) for measure, bound in self.at_most.items()]
        return tuple(
            TargetResult(measure, side, bound, measured.get(measure))
            for measure, side, bound in bounds
        )


@dataclass(frozen=True)
class TargetResult:
    """One target beside the measured value."""

    measure: str
    side: str  # "at least" or "at most"
    bound: float
    value: Interval | None  # None if it is not measured

    @property
    def verdict(self) -> Verdict:
        """The decision: is the whole interval on the right side of the bound, or on the wrong one?

        "cannot tell" if the interval spans the target.
        """
        if self.value is None:
            return "not measured"
        low, high, bound = self.value.low, self.value.high, self.bound
        if self.side == "at least":
            met, missed = low >= bound, high < bound
        else:
            met, missed = high <= bound, low > bound
        if met:
            return "met"
        return "not met" if missed else "cannot tell"

    @property
    def estimate_meets(self) -> bool:
        """True if the estimate, without its interval, meets the target."""
        if self.value is None:
            return False
        if self.side == "at least":
            return self.value.estimate >= self.bound
        return self.value.estimate <= self.bound

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table: measure, target, value, number of items and verdict."""
        target = f"{self.side} {self.bound:g}"
        if self.value is None:
            return self.measure, target, NO_VALUE, "", "not met (not measured)"
        exact = self.value.low == self.value.high
        value = f"{self.value.estimate:g}" if exact else self.value.format()
        return self.measure, target, value, str(self.value.n or ""), self.verdict


def exact(value: float, n: int) -> Interval:
    """Return a value that is known exactly, such as a count, as an interval of no width.

    `n` is the number of items that it is about, or 0.
    """
    return Interval(value, value, value, 0.95, "exact", n)


def summarise(results: Sequence[TargetResult]) -> str:
    """Return "3/8 met, 2 cannot tell at n = 50 (the interval spans the target), 1 not measured".

    A target whose measure is missing is not met.
    """
    verdicts = [result.verdict for result in results]
    parts = [f"{verdicts.count('met')}/{len(results)} met"]
    if unsure := verdicts.count("cannot tell"):
        spanning = [result.value for result in results if result.verdict == "cannot tell"]
        sizes = sorted({value.n for value in spanning if value is not None})
        n = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        parts.append(f"{unsure} cannot tell at n = {n} (the interval spans the target)")
    for verdict in ("not met", "not measured"):
        if count := verdicts.count(verdict):
            parts.append(f"{count} {verdict}")
    return ", ".join(parts)


def target_table(by_set: Mapping[str, Sequence[TargetResult]]) -> Table:
    """Return all targets beside their values, set by set."""
    rows = []
    for name, results in by_set.items():
        rows += [(name, *result.cells()) for result in results]
    summary = "; ".join(f"{name}: {summarise(results)}" for name, results in by_set.items())
    columns = ("set", "measure", "target", "value, 95 % interval", "n", "verdict")
    return Table(f"Quality targets ({summary})", columns, tuple(rows))


def require_met(results: Sequence[TargetResult], where: str) -> None:
    """Raise QualityError for targets that are not met, or that are not measured."""
    missed = [each for each in results if each.verdict in ("not met", "not measured")]
    if missed:
        reasons = [
            f"{measure} {value}, not {target}"
            for measure, target, value, *_ in map(TargetResult.cells, missed)
        ]
        raise QualityError(f"{where}: quality targets are not met: {'; '.join(reasons)}")
