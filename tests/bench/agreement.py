"""Checks that both sides of a benchmark compute the same values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tests.bench.turns import Step


@dataclass(frozen=True)
class AgreementCheck:
    """A value that all sides report for each step, and its largest allowed difference.

    If exact steps are given, `tolerance` limits how much further from them ours may be than theirs.
    """

    value: str
    tolerance: float
    relative: bool = False

    def difference(
        self, ours: Sequence[Step], theirs: Sequence[Step], exact: Sequence[Step] = ()
    ) -> float:
        """Return the largest difference over the steps; infinity if a number is not finite."""
        differences = list[float]()
        # a side that was eliminated has fewer steps
        for our_step, their_step, exact_step in zip(ours, theirs, exact or theirs, strict=False):
            difference = self._difference(exact_step, our_step)
            if exact:
                difference -= self._difference(exact_step, their_step)
            differences.append(difference)
        if any(math.isnan(difference) for difference in differences):
            return math.inf
        return max([0.0, *differences])

    def describe(self, difference: float, exact: bool = False) -> str:
        verdict = "within" if difference <= self.tolerance else "NOT WITHIN"
        amount = f"{difference:.1e}{' (relative)' if self.relative else ''}"
        if exact:
            text = f"our {self.value} is further from float32 than theirs by at most {amount}"
        else:
            text = f"{self.value} differs by at most {amount}"
        return f"{text} ({verdict} {self.tolerance:g})"

    def _difference(self, reference: Step, step: Step) -> float:
        return _difference(reference.values[self.value], step.values[self.value], self.relative)


def losses_and_gradients(dtype: str) -> tuple[AgreementCheck, ...]:
    """Compare losses and gradient norms; both sides start from the same weights.

    The last step therefore depends on all earlier ones. bfloat16 has 8 bits of precision, so two
    correct implementations that round differently drift apart. Where float32 steps are measured
    too (SFT on a CPU), the tolerance applies to how much further from them ours are than theirs
    (docs/benchmarks.md).
    """
    loss, gradient = (1e-3, 1e-4) if dtype == "float32" else (3e-2, 5e-2)
    return AgreementCheck("loss", loss), AgreementCheck("grad_norm", gradient, relative=True)


def _difference(a: Any, b: Any, relative: bool) -> float:
    """Return the difference of two numbers, or the fraction of tokens in which two texts differ."""
    if isinstance(a, list):
        pairs = list[tuple[Any, Any]]()
        for left, right in zip(a, b, strict=True):
            pairs += zip_longest(left, right)
        fraction: float = sum(left != right for left, right in pairs) / len(pairs)
        return fraction
    difference: float = abs(float(a) - float(b))
    return difference / abs(float(a)) if relative else difference
