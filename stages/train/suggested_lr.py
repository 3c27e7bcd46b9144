"""Suggested learning rates, by a published formula for the model families it was fitted on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kitchen.artifacts.weights import parse_weights_name
from kitchen.types import Lora, Table
from stages.train.schedules import PlannedSteps, Schedule, unreached_peak

EXPONENTS: Mapping[str, float] = MappingProxyType({"Llama": 0.781, "Qwen": 0.0775})
FITTED_ALPHA = 32.0  # LoRA alpha of the runs that the formula was fitted on
LORA_FACTOR = 10.0  # the best rate of LoRA divided by that of all weights
_SUGGESTED = "suggested for supervised fine-tuning"
_SOURCE = "LoRA Without Regret, Thinking Machines Lab, 2025"
_SCHEDULE_STEPS = 10_000  # steps at which a schedule is evaluated to find its highest rate


@dataclass(frozen=True)
class TrainedModel:
    """The model to train, as far as it is known before it is loaded."""

    model: str
    hidden_size: int | None  # None if not known
    alpha: float | None  # of plain LoRA with the same scale; None for the backend's default
    has_lora: bool = True  # False: all weights are trained
    is_rslora: bool = False


def plain_alpha(lora: Lora) -> float | None:
    """Return the alpha of plain LoRA of the same rank and scale; None for the backend's default."""
    if lora.alpha is None or lora.kind != "rslora":
        return lora.alpha
    return lora.alpha * math.sqrt(lora.rank)


def suggested_lr(family: str, hidden_size: int) -> float:
    """Return 5e-5 · 10 · (2000 / hidden size)^p, for LoRA of any rank, with p by family.

    For all weights it is a tenth of that.

    "LoRA Without Regret", Thinking Machines Lab, 2025; numbers from "Supervised learning
    hyperparameters" in the Tinker cookbook.
    """
    return float(5e-5 * 10 * (2000 / hidden_size) ** EXPONENTS[family])


def model_family(model: str) -> str | None:
    """Return "Llama" or "Qwen" if the model's name contains it.

    The architecture does not decide: SmolLM2 has the layers of a Llama, and the formula was not
    fitted on it.
    """
    name = parse_weights_name(model).name.rstrip("/").rpartition("/")[2]
    for family in EXPONENTS:
        if re.search(rf"\b{family}", name, re.IGNORECASE):
            return family
    return None


def learning_rate_table(
    schedule: Schedule, model: TrainedModel, planned: PlannedSteps | None = None
) -> Table:
    """Compare the learning rate in the settings with the suggested one, as a hint only."""
    steps = min(planned.count, _SCHEDULE_STEPS) if planned else _SCHEDULE_STEPS
    peak = max(schedule(step / steps, 1 / steps) for step in range(steps))
    note = unreached_peak(schedule, planned.count) if planned else ""
    return Table(
        "Learning rate",
        ("learning rate", "value", "basis"),
        (
            ("configured", f"{peak:g}", "peak of the schedule"),
            *_suggestion(model),
            *([("note", "", note)] if note else []),
        ),
    )


def _suggestion(model: TrainedModel) -> Sequence[tuple[str, str, str]]:
    """Return a row of the table; none for a model that the formula is not for."""
    family = model_family(model.model)
    if not model.has_lora:
        return _suggestion_for_all_weights(family, model.hidden_size)
    if family is None or model.hidden_size is None:
        return ()
    here = "this rsLoRA scales like plain LoRA with alpha" if model.is_rslora else "here alpha is"
    note = "" if model.alpha in (None, FITTED_ALPHA) else f"; {here} {model.alpha:g}"
    basis = (
        f"5e-5 · 10 · (2000 / {model.hidden_size})^{EXPONENTS[family]:g}, fitted on {family} with "
        f"LoRA of alpha {FITTED_ALPHA:g}{note}"
    )
    value = f"{suggested_lr(family, model.hidden_size):.2g}"
    return ((_SUGGESTED, value, basis),)


def _suggestion_for_all_weights(
    family: str | None, hidden_size: int | None
) -> Sequence[tuple[str, str, str]]:
    """Return rows of the table: LoRA's rate is too high, whatever the model."""
    tenth = f"the best rate for all weights is about a tenth of LoRA's ({_SOURCE})"
    if family is None or hidden_size is None:
        return (("note", "", tenth),)
    value = f"{suggested_lr(family, hidden_size) / LORA_FACTOR:.2g}"
    basis = f"5e-5 · (2000 / {hidden_size})^{EXPONENTS[family]:g}, fitted on {family}; {tenth}"
    return ((_SUGGESTED, value, basis),)
