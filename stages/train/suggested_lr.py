"""A learning rate to begin with: a published formula, for the families of models that it was fitted
on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kitchen.artifacts.weights import parse_weights_name
from kitchen.types import Table
from stages.train.schedules import Schedule

EXPONENTS: Mapping[str, float] = MappingProxyType({"Llama": 0.781, "Qwen": 0.0775})
FITTED_ALPHA = 32.0  # of the LoRA weights that the formula was fitted on
_STEPS = 10_000  # of a run in which the highest rate of a schedule is looked for


@dataclass(frozen=True)
class TrainedModel:
    """What is trained, as far as it is known before it is loaded."""

    model: str
    hidden_size: int | None  # None: not known
    alpha: float | None  # of its LoRA weights; None: the backend's own


def suggested_lr(model_family: str, hidden_size: int) -> float:
    """5e-5 · 10 · (2000 / hidden size)^p for LoRA of any rank, p by family ("LoRA Without Regret",
    Thinking Machines Lab, 2025; numbers of "Supervised learning hyperparameters" in the Tinker
    cookbook).
    """
    return float(5e-5 * 10 * (2000 / hidden_size) ** EXPONENTS[model_family])


def model_family(model: str) -> str | None:
    """Whether a model is called a Llama or a Qwen.

    Its layers do not tell: SmolLM2 has those of a Llama, and the formula was not fitted on it.
    """
    called = parse_weights_name(model).name.rstrip("/").rpartition("/")[2]
    return next(
        (each for each in EXPONENTS if re.search(rf"\b{each}", called, re.IGNORECASE)), None
    )


def learning_rate_table(schedule: Schedule, learner: TrainedModel) -> Table:
    """What is set beside what is suggested, which changes nothing."""
    highest = max(schedule(step / _STEPS, 1 / _STEPS) for step in range(_STEPS))
    value, why = _suggestion(learner)
    return Table(
        "Learning rate",
        ("which", "value", "why"),
        (
            ("set", f"{highest:g}", "the highest of the schedule"),
            ("suggested for supervised fine-tuning", value, why),
        ),
    )


def _suggestion(learner: TrainedModel) -> tuple[str, str]:
    if (known := model_family(learner.model)) is None:
        return (
            "not known",
            f"{learner.model} is called neither {' nor '.join(EXPONENTS)}, which the formula is "
            "for",
        )
    if learner.hidden_size is None:
        return "not known", f"the training adapter does not know how wide {learner.model} is"
    other = (
        f"; here alpha is {learner.alpha:g}" if learner.alpha not in (None, FITTED_ALPHA) else ""
    )
    return (
        f"{suggested_lr(known, learner.hidden_size):.2g}",
        f"5e-5 · 10 · (2000 / {learner.hidden_size})^{EXPONENTS[known]:g}, fitted on {known} with "
        "LoRA of alpha "
        f"{FITTED_ALPHA:g}{other}",
    )
