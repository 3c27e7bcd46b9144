"""The choice of a layer's kernels by device and dtype."""

from __future__ import annotations

import pytest
import torch

from adapters.peft.model.elementwise import TorchElementwise
from adapters.peft.model.layer_attention import TiledLayerAttention
from adapters.peft.model.layer_kernels import choose_kernels
from adapters.peft.model.linear import FusedLinear
from adapters.peft.model.packed_lora import PackedLoraLinear
from adapters.peft.model.varlen_attention import VarlenAttention


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_cpu_has_the_general_kernels(dtype: torch.dtype) -> None:
    kernels = choose_kernels(torch.ones(4, dtype=dtype), 64)
    assert kernels.linear is FusedLinear
    assert isinstance(kernels.elementwise, TorchElementwise)
    assert isinstance(kernels.attention(2, 0.125), TiledLayerAttention)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_float32_on_cuda_has_the_general_kernels() -> None:
    kernels = choose_kernels(torch.ones(4, device="cuda"), 64)
    assert kernels.linear is FusedLinear
    assert isinstance(kernels.attention(2, 0.125), TiledLayerAttention)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("head_dim", "flash"), [(64, True), (256, True), (60, False)])
def test_bfloat16_on_cuda_has_fewer_launches(head_dim: int, flash: bool) -> None:
    kernels = choose_kernels(torch.ones(4, device="cuda", dtype=torch.bfloat16), head_dim)
    assert kernels.linear is PackedLoraLinear
    assert not isinstance(kernels.elementwise, TorchElementwise)
    assert isinstance(kernels.attention(2, 0.125), VarlenAttention) == flash
