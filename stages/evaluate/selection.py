"""Selection of the best weights: the metric of an evaluation, and which values of it are better."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kitchen.errors import ConfigError, did_you_mean
from kitchen.stage import Stage

PREFIX = "held_out_"  # of the metrics of evaluations during training
# words in the names of metrics of which lower values are better
_LOWER_IS_BETTER = {"loss", "nats", "kl", "failed", "truncated"}


@dataclass(frozen=True)
class HeldOutMeasures:
    """Measures of held-out data during training, by name without `held_out_`."""

    metrics: Mapping[str, float]

    def published(self) -> dict[str, float]:
        """Return the measures by the names under which they are published."""
        return {f"{PREFIX}{name}": value for name, value in self.metrics.items()}


class HeldOutStage(Stage):
    """Base class of stages that return Future[HeldOutMeasures]."""

    # names of the measures; one that ends in `/` stands for all names that begin with it
    measures: ClassVar[tuple[str, ...]]


@dataclass(frozen=True)
class BestConfig:
    """The metric that selects the weights which `run:ID@best` names."""

    # metric of the evaluations during training; early stopping watches it too
    metric: str = "held_out_loss"
    # whether higher values are better; null: false for a loss, nats, a KL divergence and counts of
    # failed or truncated answers, true for the others
    greater_is_better: bool | None = None

    @property
    def maximised(self) -> bool:
        """True if higher values are better."""
        if self.greater_is_better is not None:
            return self.greater_is_better
        return not _LOWER_IS_BETTER & set(re.split(r"[^a-z]+", self.metric.lower()))

    def check(self, measures: Sequence[str]) -> None:
        """Raise ConfigError unless the metric is among the measures, or begins with one in `/`."""
        known = [f"{PREFIX}{name}" for name in measures]
        begins = any(name.endswith("/") and self.metric.startswith(name) for name in known)
        if not begins and self.metric not in known:
            raise ConfigError(
                f"best.metric={self.metric!r} is not measured by the evaluations during training; "
                f"{did_you_mean(self.metric, known)}"
            )

    def value(self, measures: HeldOutMeasures) -> float:
        """Return the value of the metric; raises ConfigError if it was not measured."""
        published = measures.published()
        if self.metric not in published:
            raise ConfigError(
                f"best.metric={self.metric!r} is not measured by the evaluations during training; "
                f"{did_you_mean(self.metric, published)}"
            )
        return published[self.metric]

    def gain(self, value: float, best: float | None) -> float:
        """Return by how much a value is better than the best one so far; infinity for the first.

        NaN, such as the loss of a run that diverged, is worse than all numbers.
        """
        if math.isnan(value):
            return -math.inf
        if best is None:
            return math.inf
        return value - best if self.maximised else best - value
