"""The kernels that compute a layer, chosen once for its device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from adapters.peft.model.elementwise import Elementwise, TorchElementwise
from adapters.peft.model.layer_attention import LayerAttention, TiledLayerAttention
from adapters.peft.model.linear import FusedLinear, is_low_precision
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.model.packed_lora import PackedLoraLinear
from adapters.peft.model.varlen_attention import FlashKernel, VarlenAttention, has_flash_kernel


@dataclass(frozen=True)
class LayerKernels:
    """Kernels of a layer: matrix products, attention and the elementwise operations between."""

    linear: Callable[[Sequence[nn.Linear | LoraLinear]], FusedLinear]  # layers with the same input
    elementwise: Elementwise
    attention: Callable[[int, float], LayerAttention]  # number of key heads, scale of the scores


def choose_kernels(like: torch.Tensor, head_dim: int) -> LayerKernels:
    """Return the kernels for weights with the device and dtype of `like`."""
    if like.device.type != "cuda" or not is_low_precision(like.dtype):
        return LayerKernels(FusedLinear, TorchElementwise(), TiledLayerAttention)
    elementwise = _choose_elementwise(like.device)
    if not has_flash_kernel(like.device, like.dtype, head_dim):
        return LayerKernels(PackedLoraLinear, elementwise, TiledLayerAttention)
    flash = FlashKernel(like.device)

    def attention(kv_heads: int, scale: float) -> LayerAttention:
        return VarlenAttention(flash, kv_heads, scale)

    return LayerKernels(PackedLoraLinear, elementwise, attention)


def _choose_elementwise(device: torch.device) -> Elementwise:
    """Return Triton's kernels on a CUDA device, if Triton is installed, else those of torch."""
    if device.type == "cuda" and find_spec("triton") is not None:
        from adapters.peft.model.triton_elementwise import TritonElementwise

        return TritonElementwise()
    return TorchElementwise()
