"""Linear layers with LoRA in few matrix products, for a device on which each call takes long."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from adapters.peft.model.linear import FusedLinear, product, scale_rows
from adapters.peft.model.lora_linear import LoraLinear


class PackedLoraLinear(FusedLinear):
    """A FusedLinear whose A and B are copied side by side in the dtype of its base.

    The copies are renewed when the weights have changed, not at each call. B A x is computed first,
    and W x added to it while it is computed: on a GPU this hides the time that reading the sum
    takes, and the sum is rounded once.
    """

    def __init__(self, layers: Sequence[nn.Linear | LoraLinear]) -> None:
        super().__init__(layers)
        self._versions: list[int] = []  # of the weights that were copied
        rank = self.lora[-1].ranks.stop if self.lora else 0
        self._a = self.weight.new_empty(rank, self.weight.shape[1])  # scale · A
        self._b = self.weight.new_zeros(len(self.weight), rank)  # 0 between different layers

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, in) to (N, out), plus a residual (N, out) if given, and to scale · A x (N, ranks)."""
        if self.lora:
            self._renew()
            low_rank = x @ self._a.t()
            out = low_rank @ self._b.t()
            if self.row_scale is not None:
                base = product(x, self.weight.t(), self.row_scale.dtype)
                out = scale_rows(base, self.row_scale, out).to(x.dtype)
            else:
                out.addmm_(x, self.weight.t())
        else:
            low_rank = x.new_empty(0)
            out = x @ self.weight.t()
        if self.bias is not None:
            out.add_(self.bias)
        if residual is not None:
            out.add_(residual)
        return out, low_rank

    def backward(
        self, gradient: torch.Tensor, x: torch.Tensor, low_rank: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the gradients w.r.t. x and w.r.t. `trainable`."""
        gradients, dlow_rank = self.parameter_gradients(gradient, x, low_rank)
        if not self.lora:
            return gradient @ self.weight, gradients
        return (dlow_rank @ self._a).addmm_(gradient, self.weight), gradients

    def parameter_gradients(
        self, gradient: torch.Tensor, x: torch.Tensor, low_rank: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the gradients w.r.t. `trainable`, and (N, ranks) w.r.t. scale · A x."""
        if not self.lora:
            return [], torch.empty_like(low_rank)
        dlow_rank = gradient @ self._b
        da = product(dlow_rank.t(), x, self.lora[0].layer.a.dtype)
        if self._scale != 1:
            da.mul_(self._scale)
        gradients = []
        for columns, ranks, layer in self.lora:
            db = product(gradient[:, columns].t(), low_rank[:, ranks], layer.b.dtype)
            gradients += [da[ranks], db]
        return gradients, dlow_rank

    def _renew(self) -> None:
        """Copy A and B if they have changed."""
        # weights of inference mode never change, and have no version
        versions = [0 if p.is_inference() else p._version for p in self.trainable]
        if versions == self._versions:
            return
        copies, weights = list[torch.Tensor](), list[torch.Tensor]()
        for columns, ranks, layer in self.lora:
            copies += [self._a[ranks], self._b[columns, ranks]]
            weights += [layer.a, layer.b]
        with torch.no_grad():
            torch._foreach_copy_(copies, weights)
            if self._scale != 1:
                self._a.mul_(self._scale)
        self._versions = versions

    @property
    def _scale(self) -> float:
        """The scale of B A, which all layers of an adapter have in common."""
        return self.lora[0].layer.scale
