"""The steps of all sides as rates, peaks and shares of the machine's GEMM rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.quartiles import Quartiles, Ratio
from tests.bench.results import DROPPED
from tests.bench.turns import Step, numbers

FLOP_COUNTS = ("flops", "flops_shared")  # every row separately; shared prefixes once


@dataclass(frozen=True)
class Target:
    """A lower or upper limit that a metric must meet, and a better value to aim for."""

    limit: float
    aim: float | None = None
    at_most: bool = False

    def verdict(self, value: float) -> str:
        met = value <= self.limit if self.at_most else value >= self.limit
        bound = "at most" if self.at_most else "at least"
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return f"{'reached' if met else 'MISSED'}: {bound} {self.limit:g}{aim}"


@dataclass(frozen=True)
class ReportedMetric:
    """A metric as number and text, with its target if it has one."""

    name: str
    value: float
    text: str
    target: Target | None = None

    @property
    def note(self) -> str:
        note = f"{self.name}: {self.text}"
        return f"{note}; {self.target.verdict(self.value)}" if self.target else note


def with_targets(metrics: Iterable[ReportedMetric]) -> tuple[tuple[str, str, str], ...]:
    """Return name, text and verdict of the metrics that have a target."""
    return tuple(
        (metric.name, metric.text, metric.target.verdict(metric.value))
        for metric in metrics
        if metric.target
    )


@dataclass(frozen=True)
class Outcome:
    """The measured steps of all sides, by name.

    Rates use the tokens and FLOPs that our side reports for the same step.
    """

    steps: Mapping[str, Sequence[Step]]
    ours: str
    gauge: str = ""  # the side that reports "gemm_gflops"

    def speed(self, name: str, target: Target | None = None) -> ReportedMetric:
        ratio = Ratio.of(self._rates(self.ours), self._rates(name))
        return ReportedMetric(f"speed against {name}", ratio.of_medians, ratio.format(), target)

    def memory(self, name: str, target: Target | None = None) -> ReportedMetric:
        ratio = self._peak(self.ours) / self._peak(name)
        return ReportedMetric(f"memory against {name}", ratio, f"{ratio:.2f}", target)

    def part(self, part: str, name: str) -> ReportedMetric:
        """Compare one part of a step by the seconds that both sides report."""
        ours = [step.values[part] for step in self.steps[self.ours][DROPPED:]]
        theirs = [step.values[part] for step in self.steps[name][DROPPED:]]
        ratio = Ratio.of(theirs[: len(ours)], ours[: len(theirs)])
        return ReportedMetric(
            f"{part} against {name}",
            ratio.of_medians,
            f"{Quartiles.of(ours).format()} s, {ratio.format()}",
        )

    def share(self, target: Target) -> ReportedMetric:
        shares = self._shares(self.ours)
        text = (
            f"{shares['flops']:.0%}, or {shares['flops_shared']:.0%} with shared prefixes counted "
            "once"
        )
        return ReportedMetric("share of the GEMM rate", shares["flops_shared"], text, target)

    def row(self, name: str) -> tuple[str, ...]:
        label = name
        if len(self.steps[name]) < len(self.steps[self.ours]):
            label += f" (eliminated after {len(self.steps[name])} steps)"
        counted = self.steps[name][DROPPED:]
        if not counted:
            return label, "–", "–", f"{self._peak(name):,.0f}", "", ""
        useful = [Quartiles.of(self._useful_rates(name, key)).median for key in self._flop_counts()]
        return (
            label,
            Quartiles.of([step.seconds for step in counted]).format(),
            Quartiles.of(self._rates(name)).format(0),
            f"{self._peak(name):,.0f}",
            " / ".join(dict.fromkeys(f"{rate:,.0f}" for rate in useful)),
            " / ".join(dict.fromkeys(f"{share:.0%}" for share in self._shares(name).values())),
        )

    def records(self, work: str) -> list[dict[str, Any]]:
        """Return one record per side: every step, and a summary of the counted steps."""
        records = []
        for name, steps in self.steps.items():
            record: dict[str, Any] = {
                "work": work,
                "side": name,
                "dropped": DROPPED,
                "seconds": [step.seconds for step in steps],
                "steps": [numbers(step.values) for step in steps],
            }
            if name != self.gauge and steps[DROPPED:]:
                record["tokens_per_second"] = Quartiles.of(self._rates(name)).record()
                record["share_of_gemm"] = self._shares(name)
            records.append(record)
        return records

    def _flop_counts(self) -> list[str]:
        return [key for key in FLOP_COUNTS if key in self.steps[self.ours][0].values]

    def _rates(self, name: str) -> list[float]:
        """Return tokens per second, by the side's own token count or else by ours."""
        pairs = list(zip(self.steps[name], self.steps[self.ours], strict=False))[DROPPED:]
        return [
            step.values.get("tokens", our.values["tokens"]) / step.seconds for step, our in pairs
        ]

    def _useful_rates(self, name: str, key: str) -> list[float]:
        """Return GFLOP/s, counting only the FLOPs that the batch needs."""
        pairs = list(zip(self.steps[name], self.steps[self.ours], strict=False))[DROPPED:]
        return [1e-9 * our.values[key] / step.seconds for step, our in pairs]

    def _shares(self, name: str) -> dict[str, float]:
        """Return median shares of the highest measured GEMM rate: other load only lowers it."""
        rates = [step.values["gemm_gflops"] for step in self.steps.get(self.gauge, ())]
        if not rates:
            return {}
        return {
            key: Quartiles.of(self._useful_rates(name, key)).median / max(rates)
            for key in self._flop_counts()
        }

    def _peak(self, name: str) -> float:
        return max(float(step.values["peak_mb"]) for step in self.steps[name])
