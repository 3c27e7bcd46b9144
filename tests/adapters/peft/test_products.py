"""Products with LoRA beside them, in few bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adapters.peft import processor
from adapters.peft.fixed import Fixed
from adapters.peft.lora import LoraLinear
from adapters.peft.products import Product

WIDTH, STREAM = 64, 100.0  # a residual stream of such numbers, which bfloat16 knows to a quarter or a half


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("quick", [True, False])
def test_an_update_smaller_than_the_rounding_of_the_stream_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, frozen: bool, rows: int, quick: bool
) -> None:
    monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: quick)
    torch.manual_seed(1)
    layer = nn.Linear(WIDTH, 4096 // rows, bias=False, dtype=torch.bfloat16)
    adapted = LoraLinear(layer, layer.weight, 4, 0.5, torch.float32, (WIDTH, len(layer.weight)), layer.weight.device)
    nn.init.normal_(adapted.a, std=0.1)
    nn.init.normal_(adapted.b, std=0.1)
    x, stream = torch.randn(rows, WIDTH).bfloat16(), STREAM * torch.randn(rows, layer.out_features).bfloat16()
    with torch.inference_mode():
        update = (x.float() @ adapted.a.t() @ adapted.b.t()) * adapted.scale
        products = [Fixed(Product([each])) if frozen else Product([each]) for each in (layer, adapted)]
        plain, updated = (product.forward(x, stream.clone())[0].float() for product in products)
    assert 0.01 < update.abs().median() < 0.1
    kept = ((updated - plain) * update).sum() / (update * update).sum()
    assert 0.8 < kept < 1.2
