"""Operations between the matrix products of a layer: norms, rotations and gated activations."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn import functional

Rope = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, (N, 1, D / 2)


class RMSNorm:
    """x / sqrt(mean x² + eps) · weight; the mean in float32 or better.

    Zhang and Sennrich, 2019, arXiv:1910.07467.
    """

    def __init__(self, module: Any) -> None:
        width = len(module.weight)
        self.weight = module.weight.detach()
        self.eps = float(module.variance_epsilon)
        accum_dtype = torch.promote_types(self.weight.dtype, torch.float32)
        self._root = width**0.5
        least = (width * module.variance_epsilon) ** 0.5
        self._least = self.weight.new_tensor(least, dtype=accum_dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise (N, H); also return sqrt(mean x² + eps), (N, 1).

        In few calls, because with few rows the overhead of calls dominates.
        """
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=self._least.dtype)
        rms = length.hypot_(self._least).div_(self._root)
        return self.rescale(x, rms), rms

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (N, H); on a CUDA device in one call."""
        if x.device.type == "cpu":
            return self.forward(x)[0]
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def rescale(self, x: torch.Tensor, rms: torch.Tensor) -> torch.Tensor:
        """Normalise (N, H) whose root mean squares (N, 1) are known."""
        return (x / rms).to(x.dtype).mul_(self.weight)

    def backward(
        self,
        gradient: torch.Tensor,
        x: torch.Tensor,
        rms: torch.Tensor,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the gradient w.r.t. x, plus `added`; overwrites `gradient`."""
        gradient.mul_(self.weight)
        along = torch.linalg.vecdot(gradient, x)[:, None] / (rms.pow(3) * x.shape[-1])
        gradient.div_(rms).addcmul_(x, along.to(x.dtype), value=-1)
        return gradient if added is None else gradient.add_(added)


def apply_rope(x: torch.Tensor, rope: Rope) -> None:
    """Rotate (N, heads, D) by position, in place: feature i with i + D / 2.

    Su et al., 2021, arXiv:2104.09864.
    """
    first, second = x.chunk(2, -1)
    cos, sin = rope
    rotated = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(rotated)


class Elementwise(Protocol):
    """Kernels for the operations of a layer that are not matrix products."""

    def norm(self, module: Any) -> RMSNorm:
        """Return the norm with the weights of a module of transformers."""
        ...

    def rotate(self, x: torch.Tensor, rope: Rope, *, back: bool = False) -> None:
        """Rotate (N, heads, D) by position, or back, in place, as `apply_rope` does."""
        ...

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """(N, 2 · I) to silu(gate) · up (N, I).

        Shazeer, 2020, arXiv:2002.05202.
        """
        ...

    def swiglu_again(self, gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Recompute `swiglu` for the backward pass; also return what its gradient can reuse."""
        ...

    def swiglu_backward(
        self, gradient: torch.Tensor, gate_up: torch.Tensor, activated: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the gradient w.r.t. `gate_up`; overwrites `gradient`."""
        ...


class TorchElementwise:
    """Elementwise kernels of torch, on any device."""

    def norm(self, module: Any) -> RMSNorm:
        return RMSNorm(module)

    def rotate(self, x: torch.Tensor, rope: Rope, *, back: bool = False) -> None:
        cos, sin = rope
        apply_rope(x, (cos, -sin) if back else rope)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate).mul_(up)

    def swiglu_again(self, gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        gate, up = gate_up.chunk(2, -1)
        activated = functional.silu(gate)
        return activated * up, activated

    def swiglu_backward(
        self, gradient: torch.Tensor, gate_up: torch.Tensor, activated: torch.Tensor | None
    ) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        dgate_up = torch.empty_like(gate_up)
        dgate, dup = dgate_up.chunk(2, -1)
        torch.mul(gradient, functional.silu(gate) if activated is None else activated, out=dup)
        torch.ops.aten.silu_backward.grad_input(gradient.mul_(up), gate, grad_input=dgate)
        return dgate_up
