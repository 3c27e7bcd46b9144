"""Computed memory: it is the memory that a model and its activations really take."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from adapters.local.hub import LocalHub
from adapters.peft.batching.packed_layout import build_layout
from adapters.peft.batching.packing import NO_SHARING
from adapters.peft.device import Machine
from adapters.peft.model.base_model import BaseModel
from adapters.peft.model.lora import LoraAdapter
from adapters.peft.model.network import ForwardMode, Network
from adapters.peft.runtime.memory import MAX_TOKENS, MIN_TOKENS, ModelShape, micro_batch_tokens
from adapters.peft.settings import Settings
from kitchen.types import Lora
from tests.support.tiny_model import tiny_model

RANK, TOKENS, GB = 4, 400, 10**9
# Llama 3.1 8B
LINEAR = ((4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096))
MLP = ((4096, 14_336), (4096, 14_336), (14_336, 4096))
LLAMA_8B = ModelShape(32, 4096, 128_256, (*LINEAR, *MLP) * 32, tied=False)
SHARED = "4bit" if find_spec("bitsandbytes") else "none"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"path:{tiny_model(tmp_path_factory.mktemp('tiny'), context=1024)}"


def loaded(model: str, dtype: str, quantization: str = "none") -> BaseModel:
    settings = Settings(device="cpu", dtype=dtype, threads=1, quantization=quantization)
    return Machine(settings, LocalHub()).base(model)


def saved_bytes(base: BaseModel, mode: ForwardMode, *, checkpointing: bool) -> int:
    """Return the bytes that a forward pass saves for the backward pass, without weights."""
    model = base.copy_modules()
    LoraAdapter(model, Lora(rank=RANK), torch.float32).initialise()
    network = Network(model, mode, checkpointing=checkpointing)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = list[torch.Tensor]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)  # so that its memory is not reused
        return tensor

    layout = build_layout([np.arange(3, 203), np.arange(5, 205)], network.device, NO_SHARING)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.hidden(layout)
    storages: dict[int, Any] = {s.data_ptr(): s for s in (t.untyped_storage() for t in saved)}
    return sum(s.nbytes() for at, s in storages.items() if at not in weights)


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("mode", [ForwardMode.FUSED, ForwardMode.PACKED])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_take_the_computed_memory(
    model: str, dtype: str, item: int, mode: ForwardMode, checkpointing: bool
) -> None:
    base = loaded(model, dtype)
    shape = ModelShape.of(base.model)
    fused = mode == ForwardMode.FUSED
    computed = shape.saved_bytes(RANK, item, checkpointing=checkpointing, fused=fused)
    measured = saved_bytes(base, mode, checkpointing=checkpointing) / TOKENS
    assert measured / computed == pytest.approx(1, abs=0.05 if fused else 0.4)


@pytest.mark.parametrize("quantization", ["none", SHARED])
def test_weights_take_the_computed_memory(model: str, quantization: str) -> None:
    base = loaded(model, "float32", quantization)
    shape = ModelShape.of(base.model)
    measured = sum(parameter.nbytes for parameter in base.model.parameters())
    states = [getattr(p, "quant_state", None) for p in base.model.parameters()]
    measured += sum(state.absmax.nbytes for state in states if state is not None)
    assert shape.weight_bytes(4, quantization) == pytest.approx(measured, rel=0.02)  # but norms


def test_sizes_are_those_of_the_model(model: str) -> None:
    shape = ModelShape.of(loaded(model, "float32").model)
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.tied) == (2, 64, 320, True)
    attention = [(64, 64), (64, 32), (64, 32), (64, 64)]
    assert list(shape.linear) == [*attention, (64, 128), (64, 128), (128, 64)] * 2
    assert shape.lora_bytes(RANK) == 16 * 4 * 2 * (2 * 128 + 2 * 96 + 3 * 192)


@pytest.mark.parametrize(
    ("memory", "checkpointing", "tokens"),
    [
        (16, False, 1024),
        (24, True, 4096),
        (80, False, 8192),
        (48, False, 2048),
        (141, False, 8192),
    ],
)
def test_micro_batches_grow_with_the_device(memory: int, checkpointing: bool, tokens: int) -> None:
    found = micro_batch_tokens(memory * GB, LLAMA_8B, 16, 2, checkpointing=checkpointing)
    assert found == tokens


def test_micro_batches_depend_on_how_a_model_is_trained() -> None:
    assert micro_batch_tokens(24 * GB, LLAMA_8B, 16, 2) == MIN_TOKENS
    assert micro_batch_tokens(24 * GB, LLAMA_8B, 16, 2, quantization="4bit") == 2048
    assert micro_batch_tokens(80 * GB, LLAMA_8B, 16, 2, fused=False) == 4096
    assert micro_batch_tokens(1000 * GB, LLAMA_8B, None, 2) == MAX_TOKENS
    assert micro_batch_tokens(160 * GB, LLAMA_8B, None, 2) == MIN_TOKENS


def test_llama_8b_has_its_published_size() -> None:
    assert LLAMA_8B.weight_bytes(2) == pytest.approx(2 * 8.03e9, rel=0.001)
