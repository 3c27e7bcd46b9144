"""Linear products with LoRA in low precision, and by either library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from adapters.peft.model.linear import FusedLinear, linear, linear_onednn
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.sampling.frozen_linear import FrozenLinear

# a residual stream of such numbers, which bfloat16 knows to a quarter or a half
WIDTH, STREAM = 64, 100.0


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("cpu_flags", ["amx_bf16", ""], indirect=True)
def test_small_lora_updates_survive_rounding(cpu_flags: None, frozen: bool, rows: int) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(WIDTH, 4096 // rows, bias=False, dtype=torch.bfloat16)
    adapted = LoraLinear(
        layer, layer.weight, 4, 0.5, torch.float32, (WIDTH, len(layer.weight)), layer.weight.device
    )
    nn.init.normal_(adapted.a, std=0.1)
    nn.init.normal_(adapted.b, std=0.1)
    x, stream = (
        torch.randn(rows, WIDTH).bfloat16(),
        STREAM * torch.randn(rows, layer.out_features).bfloat16(),
    )
    with torch.inference_mode():
        update = (x.float() @ adapted.a.t() @ adapted.b.t()) * adapted.scale
        products = [
            FrozenLinear(FusedLinear([each])) if frozen else FusedLinear([each])
            for each in (layer, adapted)
        ]
        plain, updated = (product.forward(x, stream.clone())[0].float() for product in products)
    assert 0.01 < update.abs().median() < 0.1
    kept_share = ((updated - plain) * update).sum() / (update * update).sum()
    assert 0.8 < kept_share < 1.2


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_onednn_multiplies_as_torch_does(turned: bool, biased: bool, added: bool) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(50, 24), torch.randn(40, 24)
    weight = weight.t().contiguous().t() if turned else weight
    bias, onto = torch.randn(40) if biased else None, torch.randn(50, 40) if added else None
    exact = (
        x.double() @ weight.double().t()
        + (0 if bias is None else bias)
        + (0 if onto is None else onto)
    )
    torch.testing.assert_close(
        linear_onednn(x, weight, bias, onto).double(), exact, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("rows", [50, 128, 150])
@pytest.mark.parametrize("onednn", [True, False, None])
def test_a_product_and_its_gradient_agree_with_torch(onednn: bool | None, rows: int) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(24, 40)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    x, residual = torch.randn(rows, 24), torch.randn(rows, 40)
    out = linear(x, weight, bias, onednn=onednn)
    added = linear(x, weight, bias, residual, onednn=onednn)
    gradient = linear(residual, weight.t(), onednn=onednn)
    torch.testing.assert_close(out, layer(x).detach())
    torch.testing.assert_close(added, layer(x).detach() + residual)
    torch.testing.assert_close(gradient, residual @ weight)


class OnednnRows(TorchDispatchMode):
    """Records the numbers of rows that oneDNN's products see."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = set[int]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "_linear_pointwise" in str(function):
            self.rows.add(len(args[0]))
        return function(*args, **(kwargs or {}))


def test_onednn_sees_few_numbers_of_rows() -> None:
    """It keeps memory for each: 100 steps of other lengths took 590 MB (docs/benchmarks.md)."""
    weight = torch.randn(40, 24)
    with OnednnRows() as onednn:
        for rows in range(0, 320):
            assert linear(torch.randn(rows, 24), weight, onednn=True).shape == (rows, 40)
    assert onednn.rows == {64, 128, 192, 256}
