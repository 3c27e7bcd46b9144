"""Products with LoRA beside them, in few bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adapters.peft.model import linear as products
from adapters.peft.model.linear import FusedLinear, linear_onednn
from adapters.peft.model.lora import LoraLinear
from adapters.peft.runtime import cpu as processor
from adapters.peft.sampling.frozen_linear import FrozenLinear

# a residual stream of such numbers, which bfloat16 knows to a quarter or a half
WIDTH, STREAM = 64, 100.0


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("quick", [True, False])
def test_an_update_smaller_than_the_rounding_of_the_stream_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, frozen: bool, rows: int, quick: bool
) -> None:
    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: quick)
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
    kept = ((updated - plain) * update).sum() / (update * update).sum()
    assert 0.8 < kept < 1.2


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
@pytest.mark.parametrize("quick", [True, False])
def test_a_product_and_its_gradient_are_the_same_by_either_library(
    monkeypatch: pytest.MonkeyPatch, quick: bool, rows: int
) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda x: quick)
    torch.manual_seed(1)
    layer = nn.Linear(24, 40)
    x, gradient = torch.randn(rows, 24), torch.randn(rows, 40)
    out, low = FusedLinear([layer]).forward(x)
    added, _ = FusedLinear([layer]).forward(x, gradient)
    dx, _ = FusedLinear([layer]).backward(gradient, x, low)
    torch.testing.assert_close(out, layer(x).detach())
    torch.testing.assert_close(added, layer(x).detach() + gradient)
    torch.testing.assert_close(dx, gradient @ layer.weight.detach())


def test_onednn_sees_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps memory for each: 100 steps of other lengths took 590 MB (docs/benchmarks.md)."""
    seen = set[int]()

    def noted(x: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        seen.add(len(x))
        return linear_onednn(x, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(products, "prefers_onednn", lambda x: True)
    monkeypatch.setattr(products, "linear_onednn", noted)
    product = FusedLinear([nn.Linear(24, 40)])
    for rows in range(0, 320):
        assert product.forward(torch.randn(rows, 24))[0].shape == (rows, 40)
    assert seen == {64, 128, 192, 256}
