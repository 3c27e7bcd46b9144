"""Frozen linear layers, against the layers that they were made from."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from adapters.peft.model.linear import FusedLinear
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.sampling.frozen_linear import FrozenLinear

ROW_COUNTS = (1, 2, 3, 20, 70)  # on both sides of the limits where another kernel takes over
# relative and absolute
TOLERANCES = {
    torch.bfloat16: (0.02, 0.15),
    torch.float32: (1e-5, 2e-5),
    torch.float64: (1e-5, 2e-5),
}


def with_lora(layer: Any) -> LoraLinear:
    """Return a layer with random LoRA weights of rank 4."""
    shape = (layer.in_features, layer.out_features)
    adapted = LoraLinear(layer, layer.weight, 4, 0.5, torch.float32, shape, layer.weight.device)
    nn.init.normal_(adapted.a)
    nn.init.normal_(adapted.b)
    return adapted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "cpu_flags",
    ["GenuineIntel", "GenuineIntel amx_bf16", "AuthenticAMD", "AuthenticAMD avx512_bf16"],
    indirect=True,
)
@pytest.mark.usefixtures("cpu_flags")
def test_frozen_layers_match_trainable_ones(dtype: torch.dtype) -> None:
    """Layers with and without bias, LoRA and residual, on one thread and in two lanes."""
    lanes = Lanes(2, 2)
    rtol, atol = TOLERANCES[dtype]
    for rows, bias, lora in product(ROW_COUNTS, (False, True), (False, True)):
        torch.manual_seed(3)
        layers: list[Any] = [nn.Linear(48, size, bias, dtype=dtype) for size in (32, 16)]
        if lora:
            layers = [with_lora(layer) for layer in layers]
        fused = FusedLinear(layers)
        x = torch.randn(rows, 48).to(dtype)
        addend = torch.randn(rows, 48).to(dtype)
        with torch.inference_mode():
            frozen = FrozenLinear(fused)
            for residual in (None, addend):
                expected = fused.forward(x, copy_of(residual))[0]
                for output in outputs_in_three_threads(frozen, x, residual, lanes):
                    torch.testing.assert_close(output, expected, rtol=rtol, atol=atol)
                    assert output.is_contiguous()


def outputs_in_three_threads(
    frozen: FrozenLinear, x: torch.Tensor, residual: torch.Tensor | None, lanes: Lanes
) -> list[torch.Tensor]:
    """Return the output of this thread and of each of two lanes."""
    residuals = [copy_of(residual) for _ in range(3)]
    outputs = [frozen.forward(x, residuals[0])[0]]
    return outputs + lanes.map(lambda _, added: frozen.forward(x, added)[0], residuals[1:])


def copy_of(residual: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy that a layer may write into."""
    return None if residual is None else residual.clone()


@pytest.mark.parametrize("cpu_flags", ["AuthenticAMD avx2"], indirect=True)
@pytest.mark.usefixtures("cpu_flags")
@pytest.mark.parametrize("rows", [1, 20])
def test_small_updates_survive_bfloat16_weights(rows: int) -> None:
    """A processor without fast bfloat16 computes in float32 and rounds once, as in training."""
    torch.manual_seed(3)
    layer: Any = nn.Linear(48, 32, False, dtype=torch.bfloat16)
    weights = with_lora(layer)
    with torch.no_grad():
        weights.b.mul_(1e-4)  # far below the spacing of numbers near those of the layer
    x = torch.randn(rows, 48).to(torch.bfloat16)
    with torch.inference_mode():
        output = FrozenLinear(FusedLinear([weights])).forward(x.float())[0]
        update = output - x.float() @ layer.weight.float().t()
        expected = 0.5 * x.float() @ weights.a.t() @ weights.b.t()
        torch.testing.assert_close(update, expected, rtol=1e-3, atol=3e-6)
