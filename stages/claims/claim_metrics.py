"""Metrics of claim extraction that are installed by entry points, such as BLEU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec

from kitchen.config.extras import install_command_for
from kitchen.config.user_functions import import_function
from kitchen.errors import ConfigError, RunFailed, did_you_mean
from stages.claims.measures import MEASURES

# gets an answer and the right answer, as texts; returns a score in 0..1
ClaimMetric = Callable[[str, str], float]
METRICS = "kitchen.claim_metrics"  # entry points: name -> ClaimMetric


def find_metrics(names: tuple[str, ...]) -> Mapping[str, ClaimMetric]:
    """Return metrics by name: those of an entry point, or MODULE:FUNCTION.

    A function of your own is recorded under the name of the function. Raises ConfigError, with the
    closest names, for an unknown one, and for a name that a measure has already.
    """
    metrics: dict[str, ClaimMetric] = {}
    for name in names:
        key = name.rpartition(":")[2]
        if key in MEASURES or key in metrics:
            raise ConfigError(
                f"evaluation.metrics=[{name}]: there is already a measure {key!r}; rename the "
                "function, or leave it out"
            )
        metrics[key] = _find(name)
    return metrics


def _find(name: str) -> ClaimMetric:
    if ":" in name:
        return import_function("evaluation.metrics", name)
    installed = {entry.name: entry for entry in entry_points(group=METRICS)}
    if name not in installed:
        raise ConfigError(
            f"evaluation.metrics=[{name}]: there is no such metric; "
            f"{did_you_mean(name, installed)} (a function of your own is named as MODULE:FUNCTION)"
        )
    metric: ClaimMetric = installed[name].load()
    return metric


def checked_score(name: str, score: object) -> float:
    """Return the score of a metric; raises RunFailed if it is not a number in 0..1."""
    if isinstance(score, int | float) and math.isfinite(score) and 0 <= score <= 1:
        return float(score)
    raise RunFailed(f"the metric {name} returned {score!r}, and must return a number in 0..1")


def bleu(answer: str, reference: str) -> float:
    """Return sentence BLEU / 100 by sacrebleu (Post, 2018, arXiv:1804.08771)."""
    if find_spec("sacrebleu") is None:
        raise ConfigError(
            "evaluation.metrics=[bleu] needs sacrebleu, which is not installed here: "
            f"{install_command_for('sacrebleu') or 'pip install sacrebleu'}"
        )
    from sacrebleu import sentence_bleu

    score: float = sentence_bleu(answer, [reference]).score
    return min(score / 100, 1.0)
