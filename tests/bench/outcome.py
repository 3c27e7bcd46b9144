"""The steps of all sides as rates, peaks and shares of the machine's ceilings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.figures import Figure, Ratio
from tests.bench.results import DROPPED
from tests.bench.turns import Step

COUNTINGS = ("flops", "flops_shared")  # each row for itself; a shared prefix once


@dataclass(frozen=True)
class Goal:
    """A target: a minimum or maximum, and what it is for."""

    least: float
    aim: float | None = None
    at_most: bool = False

    def shown(self, reached: float) -> str:
        kept = reached <= self.least if self.at_most else reached >= self.least
        sign = "at most" if self.at_most else "at least"
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return f"{'reached' if kept else 'MISSED'}: {sign} {self.least:g}{aim}"


@dataclass(frozen=True)
class Reported:
    """A figure with its text, and its target if there is one."""

    what: str
    value: float
    shown: str
    goal: Goal | None = None

    @property
    def note(self) -> str:
        return f"{self.what}: {self.shown}" + (
            f"; {self.goal.shown(self.value)}" if self.goal else ""
        )


def to_reach(reported: Iterable[Reported]) -> tuple[tuple[str, str, str], ...]:
    """Return the figures that have a target, and whether it was reached."""
    return tuple((one.what, one.shown, one.goal.shown(one.value)) for one in reported if one.goal)


@dataclass(frozen=True)
class Outcome:
    """The results of all sides, by name.

    Rates count the tokens and FLOPs that our side reports for the same step.
    """

    taken: Mapping[str, Sequence[Step]]
    ours: str
    gauge: str = ""  # who reported "gemm_gflops" between their steps

    def speed(self, name: str, goal: Goal | None = None) -> Reported:
        ratio = Ratio.of(self._rates(self.ours), self._rates(name))
        return Reported(f"speed against {name}", ratio.of_medians, ratio.shown(), goal)

    def memory(self, name: str, goal: Goal | None = None) -> Reported:
        share = self._peak(self.ours) / self._peak(name)
        return Reported(f"memory against {name}", share, f"{share:.2f}", goal)

    def part(self, part: str, name: str) -> Reported:
        """Compare one part of a step by the seconds that both sides report."""
        ours, theirs = (
            [step.values[part] for step in self.taken[each][DROPPED:]] for each in (self.ours, name)
        )
        ratio = Ratio.of(theirs[: len(ours)], ours[: len(theirs)])
        return Reported(
            f"{part} against {name}",
            ratio.of_medians,
            f"{Figure.of(ours).shown()} s, {ratio.shown()}",
        )

    def share(self, goal: Goal) -> Reported:
        shares = self._shares(self.ours)
        shown = (
            f"{shares['flops']:.0%}, or {shares['flops_shared']:.0%} with shared prefixes counted "
            "once"
        )
        return Reported("share of the GEMM rate", shares["flops_shared"], shown, goal)

    def row(self, name: str) -> tuple[str, ...]:
        left = (
            f" (left after {len(self.taken[name])})"
            if len(self.taken[name]) < len(self.taken[self.ours])
            else ""
        )
        kept = self.taken[name][DROPPED:]
        if not kept:
            return name + left, "–", "–", f"{self._peak(name):,.0f}", "", ""
        useful = {key: Figure.of(self._useful(name, key)).median for key in self._countings()}
        return (
            name + left,
            Figure.of([step.seconds for step in kept]).shown(),
            Figure.of(self._rates(name)).shown(0),
            f"{self._peak(name):,.0f}",
            " / ".join(dict.fromkeys(f"{rate:,.0f}" for rate in useful.values())),
            " / ".join(dict.fromkeys(f"{share:.0%}" for share in self._shares(name).values())),
        )

    def records(self, work: str) -> list[dict[str, Any]]:
        """Return one record per side: every step, and figures of those that count."""
        found = []
        for name, steps in self.taken.items():
            record: dict[str, Any] = {
                "work": work,
                "side": name,
                "dropped": DROPPED,
                "seconds": [step.seconds for step in steps],
                "steps": [_scalars(step) for step in steps],
            }
            if name != self.gauge and steps[DROPPED:]:
                record["tokens_per_second"] = Figure.of(self._rates(name)).record()
                record["share_of_gemm"] = self._shares(name)
            found.append(record)
        return found

    def _countings(self) -> list[str]:
        return [key for key in COUNTINGS if key in self.taken[self.ours][0].values]

    def _rates(self, name: str) -> list[float]:
        """Return tokens per second: by the side's own count, or by ours for the same rows."""
        both = list(zip(self.taken[name], self.taken[self.ours], strict=False))[DROPPED:]
        return [
            step.values.get("tokens", our.values["tokens"]) / step.seconds for step, our in both
        ]

    def _useful(self, name: str, key: str) -> list[float]:
        """Return useful GFLOP/s."""
        both = list(zip(self.taken[name], self.taken[self.ours], strict=False))[DROPPED:]
        return [1e-9 * our.values[key] / step.seconds for step, our in both]

    def _shares(self, name: str) -> dict[str, float]:
        """Return median shares of the highest rate of all rounds: other load only lowers it."""
        ceiling = max(
            (step.values["gemm_gflops"] for step in self.taken.get(self.gauge, ())), default=0.0
        )
        return {
            key: Figure.of(self._useful(name, key)).median / ceiling
            for key in self._countings()
            if ceiling
        }

    def _peak(self, name: str) -> float:
        return max(float(step.values["peak_mb"]) for step in self.taken[name])


def _scalars(step: Step) -> dict[str, Any]:
    """Return the values of a step without texts and other lists."""
    return {key: value for key, value in step.values.items() if not isinstance(value, list)}
