"""Base models in 4 bits: how they are stored, and what sampling and training compute."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("bitsandbytes")

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.peft.device import Machine
from adapters.peft.model.linear import FusedLinear
from adapters.peft.model.lora import LoraAdapter
from adapters.peft.model.network import ForwardMode
from adapters.peft.model.packed_lora import PackedLoraLinear
from adapters.peft.settings import Settings
from kitchen.ports.training import TrainingSession
from kitchen.types import Adam, Datum, Lora
from tests.support.tiny_model import tiny_model

TOKENS = np.arange(3, 60)
LORA = Lora(rank=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"path:{tiny_model(tmp_path_factory.mktemp('tiny'))}"


def opened(model: str, quantization: str, lora: Lora = LORA) -> TrainingSession:
    client = PeftTraining(
        LocalHub(), FakeBlobs(), device="cpu", dtype="float32", threads=1, quantization=quantization
    )
    return client.open(model, lora)


def gradient_norm(session: TrainingSession, rate: float = 0.0) -> float:
    weights = np.ones(len(TOKENS) - 1, np.float32)
    datum = Datum(TOKENS[:-1], {"target_tokens": TOKENS[1:], "weights": weights})
    session.forward_backward([datum]).result()
    return float(session.optim_step(Adam(learning_rate=rate)).result().metrics["grad_norm"])


@pytest.mark.parametrize(("quantization", "nested"), [("4bit", False), ("4bit-double", True)])
def test_linear_layers_are_stored_in_four_bits(model: str, quantization: str, nested: bool) -> None:
    settings = Settings(device="cpu", dtype="float32", threads=1, quantization=quantization)
    base = Machine(settings, LocalHub()).base(model)
    layer = base.model.model.layers[0].mlp.down_proj.weight
    assert layer.nbytes == 64 * 128 // 2
    assert layer.quant_state.nested == nested
    assert base.model.lm_head.weight.nbytes == 320 * 64 * 4
    settings = Settings(device="cpu", dtype="float32", threads=1)
    assert base.parameters == Machine(settings, LocalHub()).base(model).parameters


@pytest.mark.parametrize(
    ("quantization", "lora"),
    [("4bit", LORA), ("4bit-double", LORA), ("4bit", Lora(rank=4, kind="dora"))],
)
def test_training_is_that_of_the_dequantised_weights(
    model: str, quantization: str, lora: Lora, tmp_path: Path
) -> None:
    settings = Settings(device="cpu", dtype="float32", threads=1, quantization=quantization)
    quantised = Machine(settings, LocalHub()).base(model)
    shutil.copytree(quantised.folder, tmp_path, dirs_exist_ok=True)
    quantised.model.dequantize().save_pretrained(tmp_path)
    session = opened(model, quantization, lora)
    exact = opened(f"path:{tmp_path}", "none", lora)
    assert gradient_norm(session, rate=1e-3) == pytest.approx(
        gradient_norm(exact, rate=1e-3), rel=1e-4
    )
    logprobs = session.snapshot().result().logprobs(TOKENS).result()[1:]
    expected = exact.snapshot().result().logprobs(TOKENS).result()[1:]
    assert np.allclose(logprobs, expected, atol=1e-3)
    assert gradient_norm(session) == pytest.approx(gradient_norm(exact), rel=1e-4)


def test_layers_in_four_bits_are_computed_by_hand(model: str) -> None:
    settings = Settings(device="cpu", dtype="float32", threads=1, quantization="4bit")
    base = Machine(settings, LocalHub()).base(model)
    assert base.mode == ForwardMode.FUSED
    copied = base.copy_modules()
    adapter = LoraAdapter(copied, Lora(rank=4), torch.float32)
    adapter.initialise()
    layers = [copied.model.layers[0].mlp.gate_proj, copied.model.layers[0].mlp.up_proj]
    x = torch.randn(5, 64)
    on_cpu, on_cuda = FusedLinear(layers), PackedLoraLinear(layers)
    with torch.no_grad():
        (plain, low_rank), (packed, _) = on_cpu.forward(x), on_cuda.forward(x)
        assert torch.allclose(plain, torch.cat([layer(x) for layer in layers], 1), atol=1e-5)
        assert torch.allclose(plain, packed, atol=1e-5)
        dx, _ = on_cpu.backward(plain, x, low_rank)
        assert torch.allclose(dx, on_cuda.backward(plain, x, low_rank)[0], atol=1e-4)
