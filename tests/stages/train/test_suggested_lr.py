"""Suggested learning rates: the published numbers, and reasons why there is none."""

from __future__ import annotations

import pytest

from kitchen.types import Lora
from stages.train.optim import OptimStep
from stages.train.schedules import Constant, Cosine, Linear, Schedule
from stages.train.suggested_lr import (
    TrainedModel,
    learning_rate_table,
    model_family,
    plain_alpha,
    suggested_lr,
)


@pytest.mark.parametrize(
    ("name", "hidden_size", "rate"),
    [
        ("Llama", 2048, 4.908e-4),
        ("Llama", 4096, 2.856e-4),
        ("Llama", 8192, 1.662e-4),
        ("Qwen", 2560, 4.904e-4),
        ("Qwen", 4096, 4.730e-4),
        ("Llama", 2000, 5e-4),
        ("Qwen", 2000, 5e-4),
    ],
)
def test_formula_gives_the_published_numbers(name: str, hidden_size: int, rate: float) -> None:
    assert suggested_lr(name, hidden_size) == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("meta-llama/Llama-3.1-8B@main", "Llama"),
        ("Qwen/Qwen3-8B-Base", "Qwen"),
        ("someone/Meta-Llama-3-8B", "Llama"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "Qwen"),
        ("path:/models/qwen2.5-0.5b/", "Qwen"),
        ("packaged:smollm2-135m-instruct", None),
        ("HuggingFaceTB/SmolLM2-135M", None),
        ("tiny", None),
        ("TinyLlama/TinyLlama-1.1B", None),
        ("path:/home/llama/mine", None),
        ("mistralai/Mistral-7B-v0.3", None),
    ],
)
def test_family_is_found_in_the_model_name(model: str, expected: str | None) -> None:
    assert model_family(model) == expected


@pytest.mark.parametrize(
    "schedule", [Constant(0.25, 3_000), Linear(0.25, 40), Cosine(0.25, 7, 0.1)]
)
def test_table_shows_the_peak_of_the_schedule(schedule: Schedule) -> None:
    assert OptimStep(schedule).preview(TrainedModel("tiny", None, None)).rows[0][:2] == (
        "configured",
        "0.25",
    )


@pytest.mark.parametrize(
    ("learner", "value", "why"),
    [
        (
            TrainedModel("meta-llama/Llama-3.1-8B", 4096, None),
            "0.00029",
            "5e-5 · 10 · (2000 / 4096)^0.781, fitted on Llama",
        ),
        (
            TrainedModel("meta-llama/Llama-3.1-8B", 4096, 64.0),
            "0.00029",
            "with LoRA of alpha 32; here alpha is 64",
        ),
        (TrainedModel("meta-llama/Llama-3.1-8B", 4096, 32.0), "0.00029", "with LoRA of alpha 32"),
        (
            TrainedModel("meta-llama/Llama-3.1-8B", 4096, None, has_lora=False),
            "2.9e-05",
            "fitted on Llama; the best rate for all weights is about a tenth of LoRA's",
        ),
        (TrainedModel("tiny", None, None, has_lora=False), "", "a tenth of LoRA's"),
    ],
)
def test_suggestion_is_shown_with_its_basis(learner: TrainedModel, value: str, why: str) -> None:
    _, (_, shown, reason) = learning_rate_table(Constant(1e-3), learner).rows
    assert shown == value
    assert why in reason
    assert ("here alpha" in reason) == (learner.alpha == 64.0)


@pytest.mark.parametrize(("rank", "alpha", "note"), [(16, 32.0, ""), (64, 64.0, "with alpha 64")])
def test_rslora_is_compared_by_its_scale(rank: int, alpha: float, note: str) -> None:
    assert plain_alpha(Lora(rank, alpha=8.0, kind="rslora")) == alpha
    assert plain_alpha(Lora(rank, alpha=8.0)) == 8.0
    model = TrainedModel("meta-llama/Llama-3.1-8B", 4096, alpha, is_rslora=True)
    _, (_, _, basis) = learning_rate_table(Constant(1e-3), model).rows
    assert ("this rsLoRA scales like plain LoRA with alpha" in basis) == bool(note)
    assert note in basis


@pytest.mark.parametrize("model", ["packaged:smollm2", "meta-llama/Llama-3.1-8B"])
def test_no_suggestion_without_a_family_or_size(model: str) -> None:
    size = None if "Llama" in model else 576
    rows = learning_rate_table(Constant(1e-3), TrainedModel(model, size, 32.0)).rows
    assert [name for name, *_ in rows] == ["configured"]
