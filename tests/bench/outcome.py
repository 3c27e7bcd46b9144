"""The steps of all sides as rates, peaks and shares of what the machine can do."""

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
    """A figure to reach: the least, or the most, and what is aimed at."""

    least: float
    aim: float | None = None
    at_most: bool = False

    def shown(self, reached: float) -> str:
        kept = reached <= self.least if self.at_most else reached >= self.least
        sign = "at most" if self.at_most else "at least"
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return f"{'reached' if kept else 'MISSED'}: {sign} {self.least:g}{aim}"


@dataclass(frozen=True)
class Told:
    """A figure, in words too, and the one to reach, if there is one."""

    what: str
    value: float
    shown: str
    goal: Goal | None = None

    @property
    def note(self) -> str:
        return f"{self.what}: {self.shown}" + (
            f"; {self.goal.shown(self.value)}" if self.goal else ""
        )


def to_reach(told: Iterable[Told]) -> tuple[tuple[str, str, str], ...]:
    """Those figures that there is one to reach of, and whether it is."""
    return tuple((one.what, one.shown, one.goal.shown(one.value)) for one in told if one.goal)


@dataclass(frozen=True)
class Outcome:
    """What all sides did, by name. Rates count the tokens and the work that ours tells of the same
    step.
    """

    taken: Mapping[str, Sequence[Step]]
    ours: str
    gauge: str = ""  # who told "gemm_gflops" between their steps

    def speed(self, name: str, goal: Goal | None = None) -> Told:
        ratio = Ratio.of(self._rates(self.ours), self._rates(name))
        return Told(f"speed against {name}", ratio.of_medians, ratio.shown(), goal)

    def memory(self, name: str, goal: Goal | None = None) -> Told:
        share = self._peak(self.ours) / self._peak(name)
        return Told(f"memory against {name}", share, f"{share:.2f}", goal)

    def part(self, part: str, name: str) -> Told:
        """Of a step: how many times as long another takes for it, by the seconds that both tell."""
        ours, theirs = (
            [step.values[part] for step in self.taken[each][DROPPED:]] for each in (self.ours, name)
        )
        ratio = Ratio.of(theirs[: len(ours)], ours[: len(theirs)])
        return Told(
            f"{part} against {name}",
            ratio.of_medians,
            f"{Figure.of(ours).shown()} s, {ratio.shown()}",
        )

    def share(self, goal: Goal) -> Told:
        shares = self._shares(self.ours)
        shown = f"{shares['flops']:.0%}, or {shares['flops_shared']:.0%} with shared prefixes counted once"
        return Told("share of the GEMM rate", shares["flops_shared"], shown, goal)

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
        """One per side: every step, and the figures of those that count."""
        found = []
        for name, steps in self.taken.items():
            record: dict[str, Any] = {
                "work": work,
                "side": name,
                "dropped": DROPPED,
                "seconds": [step.seconds for step in steps],
                "steps": [
                    {
                        key: value
                        for key, value in step.values.items()
                        if not isinstance(value, list)
                    }
                    for step in steps
                ],
            }
            if name != self.gauge and steps[DROPPED:]:
                record["tokens_per_second"] = Figure.of(self._rates(name)).record()
                record["share_of_gemm"] = self._shares(name)
            found.append(record)
        return found

    def _countings(self) -> list[str]:
        return [key for key in COUNTINGS if key in self.taken[self.ours][0].values]

    def _rates(self, name: str) -> list[float]:
        """Tokens a second: those that this side tells of, or ours, whose step was on the same rows."""
        both = list(zip(self.taken[name], self.taken[self.ours], strict=False))[DROPPED:]
        return [
            step.values.get("tokens", our.values["tokens"]) / step.seconds for step, our in both
        ]

    def _useful(self, name: str, key: str) -> list[float]:
        """GFLOP/s."""
        both = list(zip(self.taken[name], self.taken[self.ours], strict=False))[DROPPED:]
        return [1e-9 * our.values[key] / step.seconds for step, our in both]

    def _shares(self, name: str) -> dict[str, float]:
        """Medians, of the highest rate that the machine showed in all the rounds: neighbours only
        take from it.
        """
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
