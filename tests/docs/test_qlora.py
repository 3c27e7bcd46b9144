"""Memory on the page on QLoRA: every figure is that of the formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.peft.runtime.memory import ModelShape

PAGE = Path(__file__).parents[2] / "docs" / "qlora.md"
RANK, TOKENS, ITEM = 16, 2048, 2
# layers, width, inner width of the MLP, heads, key heads, head size, vocabulary, tied embeddings:
# Llama 3.2 and 3.1 (arXiv:2407.21783), Qwen2.5 (arXiv:2412.15115)
MODELS = {
    "1B": (16, 2048, 8192, 32, 8, 64, 128_256, True),
    "3B": (28, 3072, 8192, 24, 8, 128, 128_256, True),
    "8B": (32, 4096, 14_336, 32, 8, 128, 128_256, False),
    "14B": (48, 5120, 13_824, 40, 8, 128, 152_064, False),
    "32B": (64, 5120, 27_648, 40, 8, 128, 152_064, False),
    "70B": (80, 8192, 28_672, 64, 8, 128, 128_256, False),
}
BILLIONS = {"1B": 1.24, "3B": 3.21, "8B": 8.03, "14B": 14.8, "32B": 32.8, "70B": 70.6}


def shape(name: str) -> ModelShape:
    layers, width, inner, heads, key_heads, head, vocabulary, tied = MODELS[name]
    keys, values = [(width, key_heads * head)] * 2
    attention = (width, heads * head), keys, values, (heads * head, width)
    mlp = (width, inner), (width, inner), (inner, width)
    return ModelShape(layers, width, vocabulary, (*attention, *mlp) * layers, tied)


def row(name: str) -> str:
    """Return the row of a model: weights, LoRA, activations and totals."""
    model = shape(name)
    weights = [model.weight_bytes(ITEM, kind) for kind in ("none", "4bit", "4bit-double")]
    lora, fixed = model.lora_bytes(RANK), model.fixed_bytes(ITEM, "4bit")
    activations = [
        TOKENS * model.token_bytes(RANK, ITEM, checkpointing=checkpointing)
        for checkpointing in (False, True)
    ]
    totals = [weights[1] + lora + fixed + part for part in activations]
    cells = [*weights, lora, *activations, *totals]
    return " | ".join([f"| {name}", *(f"{cell / 1e9:.1f}" for cell in cells)]) + " |"


@pytest.mark.parametrize("name", MODELS)
def test_memory_on_the_page_is_computed(name: str) -> None:
    assert row(name) in PAGE.read_text()
    assert shape(name).weight_bytes(1) / 1e9 == pytest.approx(BILLIONS[name], rel=0.005)
