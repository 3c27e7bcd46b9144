"""A linear layer with LoRA weights beside it, as a module of a model of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from adapters.peft.model.lora_dropout import Dropout


class LoraLinear(nn.Module):
    """y = W x + scale · B A x; W is frozen in the base's dtype, A and B are float32 or better."""

    def __init__(
        self,
        base: nn.Module,
        weight: torch.Tensor | None,
        rank: int,
        scale: float,
        dtype: torch.dtype,
        sizes: tuple[int, int],
        device: torch.device,
    ) -> None:
        """`sizes`: inputs and outputs."""
        super().__init__()
        self.base, self.scale = base, scale
        # (out, in), or None if the base is not a plain matrix; in a list, so that torch does not
        # register it as a parameter of this module
        self.weight = [weight]
        self.a = nn.Parameter(torch.zeros(rank, sizes[0], dtype=dtype, device=device))
        self.b = nn.Parameter(torch.zeros(sizes[1], rank, dtype=dtype, device=device))
        self.dropout: Dropout | None = None
        # (out,) by which W x is multiplied; of DoRA once it is frozen
        self.row_scale: torch.Tensor | None = None

    def named_weights(self) -> dict[str, nn.Parameter]:
        """Return the weights in training by PEFT's names for them."""
        return {"lora_A.weight": self.a, "lora_B.weight": self.b}

    def freeze(self, dtype: torch.dtype) -> None:
        """Cast weights that stay fixed, with their scale applied."""
        self.freeze_as(self.b.detach() * self.scale, dtype)

    def freeze_as(self, b: torch.Tensor, dtype: torch.dtype) -> None:
        """Cast weights that stay fixed, with a B that needs no scale."""
        self.b = nn.Parameter(b.to(dtype), requires_grad=False)
        self.a = nn.Parameter(self.a.detach().to(dtype), requires_grad=False)
        self.scale = 1.0

    def merged(self) -> torch.Tensor:
        """Return W + scale · B A (out, in); not for quantised bases."""
        weight = self.weight[0]
        assert weight is not None
        return weight + (self.b.detach() @ self.a.detach()) * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight[0]
        if weight is not None and self.dropout is None:
            apply: Any = _FusedLora.apply
            fused: torch.Tensor = apply(x, weight, self.base.bias, self.a, self.b, self.scale)
            return fused
        dropped = x if self.dropout is None else self.dropout(x, self)
        low_rank = nn.functional.linear(dropped, self.a.to(x.dtype))
        scaled = scaled_b(self.b, self.scale, x.dtype)
        out: torch.Tensor = self.base(x) + nn.functional.linear(low_rank, scaled)
        return out


class _FusedLora(torch.autograd.Function):
    """LoraLinear in few passes over memory; on a CPU these take as long as the products.

    The products with A and B are in the dtype of the base, as in mixed-precision training; their
    gradients are accumulated in the dtype of A and B.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        low_rank, weight = flat @ a.to(x.dtype).t(), weight.to(x.dtype)
        out = flat @ weight.t() if bias is None else torch.addmm(bias, flat, weight.t())
        out.addmm_(low_rank, scaled_b(b, scale, x.dtype).t())
        ctx.save_for_backward(flat, weight, a, b, low_rank)
        ctx.scale, ctx.shape = scale, x.shape
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        flat, weight, a, b, low_rank = ctx.saved_tensors
        dout = gradients[0].reshape(-1, gradients[0].shape[-1])
        dlow_rank = dout @ scaled_b(b, ctx.scale, dout.dtype)
        db = (dout.t() @ low_rank).to(b.dtype).mul_(ctx.scale)
        da = (dlow_rank.t() @ flat).to(a.dtype)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (dout @ weight).addmm_(dlow_rank, a.to(dout.dtype)).view(ctx.shape)
        return dx, None, None, da, db, None


def scaled_b(b: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Return scale · B in a dtype."""
    return (b if scale == 1 else b * scale).to(dtype)
