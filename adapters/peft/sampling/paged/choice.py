"""The choice between decoding by graphs and decoding call by call, and that of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from adapters.peft.sampling.paged.kernels import Kernels
from adapters.peft.sampling.paged.torch_kernels import TorchKernels

TRITON_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
TRITON_HEAD_DIMS = frozenset({16, 32, 64, 128, 256})


def paged_obstacle(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Return why a model cannot be decoded by graphs, or None."""
    if _FORCED:
        return None
    if device.type != "cuda":
        return "the device has no CUDA graphs"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if dtype not in TRITON_DTYPES:
        return f"its weights are {dtype}"
    if head_dim not in TRITON_HEAD_DIMS:
        return f"its heads have {head_dim} features"
    return None


def choose_kernels(device: torch.device) -> Kernels:
    """Return kernels in Triton for CUDA, in torch otherwise."""
    if device.type == "cuda":
        # Triton is installed with torch for CUDA only
        from adapters.peft.sampling.paged.triton_kernels import TritonKernels

        return TritonKernels()
    return TorchKernels()


@contextmanager
def paged_decoding_everywhere() -> Iterator[None]:
    """Decode by recorded steps on any device within a block; for tests."""
    _FORCED.append(True)
    try:
        yield
    finally:
        _FORCED.pop()


_FORCED = list[bool]()
