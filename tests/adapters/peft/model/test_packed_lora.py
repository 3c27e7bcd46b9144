"""LoRA products in few calls, against FusedLinear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adapters.peft.model.linear import FusedLinear, product
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.model.packed_lora import PackedLoraLinear
from adapters.peft.training.adamw import Optimiser
from kitchen.types import Adam

CPU = torch.device("cpu")


def layers(scale: float, biases: bool, dtype: torch.dtype = torch.float64) -> list[LoraLinear]:
    """Three layers with the same six inputs, and with LoRA weights of ranks 2 to 4."""
    torch.manual_seed(1)
    made = []
    for number, size in enumerate((4, 3, 5)):
        base = nn.Linear(6, size, bias=biases, dtype=dtype).requires_grad_(False)
        wide = torch.promote_types(dtype, torch.float32)
        layer = LoraLinear(base, base.weight, 2 + number, scale, wide, (6, size), CPU)
        nn.init.normal_(layer.a)
        nn.init.normal_(layer.b)
        made.append(layer)
    return made


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("trained", [(), (1,), (0, 2), (0, 1, 2)])
def test_packed_products_equal_fused_ones(
    trained: tuple[int, ...], biases: bool, scale: float
) -> None:
    parts: list[Any] = [
        layer if number in trained else layer.base
        for number, layer in enumerate(layers(scale, biases))
    ]
    packed, fused = PackedLoraLinear(parts), FusedLinear(parts)
    x, residual, gradient = (torch.randn(8, n, dtype=torch.float64) for n in (6, 12, 12))
    with torch.no_grad():
        for plus in (None, residual):
            out, low_rank = packed.forward(x, plus)
            expected, expected_low_rank = fused.forward(x, plus)
            torch.testing.assert_close(out, expected)
            torch.testing.assert_close(low_rank, expected_low_rank)
        dx, gradients = packed.backward(gradient, x, low_rank)
        expected_dx, expected_gradients = fused.backward(gradient, x, expected_low_rank)
    torch.testing.assert_close(dx, expected_dx)
    assert len(gradients) == 2 * len(trained)
    for got, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert got.is_contiguous()
        torch.testing.assert_close(got, expected_gradient)


def test_products_follow_weights_that_change() -> None:
    [layer, *_] = layers(2.0, False)
    packed, x = PackedLoraLinear([layer]), torch.ones(1, 6, dtype=torch.float64)

    def matches() -> bool:
        with torch.no_grad():
            return torch.allclose(packed.forward(x)[0], layer(x))

    assert matches()
    optimiser = Optimiser({"a": layer.a, "b": layer.b})
    layer.a.grad, layer.b.grad = torch.ones_like(layer.a), torch.ones_like(layer.b)
    before = layer.b.detach().clone()
    optimiser.step(Adam(learning_rate=0.1))
    assert not torch.equal(layer.b, before)
    assert matches()
    with torch.no_grad():
        layer.b.copy_(before)
    assert matches()


def test_gradients_in_bfloat16_have_the_dtype_of_the_weights() -> None:
    parts = layers(2.0, False, torch.bfloat16)
    packed = PackedLoraLinear(parts)
    x, gradient = torch.randn(8, 6).bfloat16(), torch.randn(8, 12).bfloat16()
    with torch.no_grad():
        out, low_rank = packed.forward(x)
        dx, gradients = packed.backward(gradient, x, low_rank)
    assert out.dtype == low_rank.dtype == dx.dtype == torch.bfloat16
    assert {each.dtype for each in gradients} == {torch.float32}


def test_product_is_rounded_to_the_dtype_asked_for() -> None:
    first, second = torch.randn(3, 40).bfloat16(), torch.randn(40, 2).bfloat16()
    assert product(first, second, torch.float32).dtype == torch.float32
    assert torch.equal(product(first, second, torch.bfloat16), first @ second)
