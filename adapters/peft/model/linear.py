"""Linear layers that read the same input, as one product, and the low-rank weights beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from adapters.peft.model.lora import LoraLinear
from adapters.peft.runtime.cpu import best_by_onednn, multiplied_in

# rows: oneDNN keeps memory for each number of rows that it has seen, so there must not be many
BLOCK = 64


def lay_together(layers: Sequence[nn.Linear]) -> None:
    """Put the weights of some layers, and their biases, one after the other into memory: a view
    then has them all.
    """
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if all(part is not None for part in parts):
            whole = torch.cat([part.detach() for part in parts])
            for part, piece in zip(
                parts, torch.split(whole, [len(part) for part in parts]), strict=True
            ):
                part.data = piece


class Product:
    """y = W x + b + scale · B A x over layers side by side, and its gradient; W is frozen.

    The products with A and B are in the dtype of the base, as in mixed-precision training, or in
    what that is multiplied in; their gradients are added up in the dtype of A and B.
    """

    def __init__(self, layers: Sequence[nn.Linear | LoraLinear]) -> None:
        bases: list[Any] = [
            layer.base if isinstance(layer, LoraLinear) else layer for layer in layers
        ]
        self.weight = _whole([base.weight for base in bases])  # (out, in)
        self.bias = None if bases[0].bias is None else _whole([base.bias for base in bases])
        # columns of y, columns of A x, the weights
        self.low: list[tuple[slice, slice, LoraLinear]] = []
        out = rank = 0
        for layer, base in zip(layers, bases, strict=True):
            size = base.weight.shape[0]
            if isinstance(layer, LoraLinear):
                more = layer.a.shape[0]
                self.low.append((slice(out, out + size), slice(rank, rank + more), layer))
                rank += more
            out += size

    @property
    def trained(self) -> list[nn.Parameter]:
        """A and B of each layer."""
        return [side for _, _, layer in self.low for side in (layer.a, layer.b)]

    def forward(
        self, x: torch.Tensor, onto: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, in) to (N, out), added to `onto` if that is given, and scale · A x (N, ranks)."""
        narrow, wide = x.dtype, multiplied_in(x)
        x = x.to(wide)
        late = bool(self.low) and rounds(wide)
        out = dense(x, self.weight.to(wide), to(self.bias, wide), None if late else to(onto, wide))
        if not self.low:
            return out.to(narrow), out.new_empty(0, dtype=narrow)
        down = x @ self._a(wide).t()
        for columns, ranks, layer in self.low:
            if layer.scale != 1:
                down[:, ranks].mul_(layer.scale)
            out[:, columns].addmm_(down[:, ranks], layer.b.to(wide).t())
        if late and onto is not None:
            out.add_(onto)
        return out.to(narrow), down.to(narrow)

    def backward(
        self, gradient: torch.Tensor, x: torch.Tensor, down: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The gradient by x, and those of `trained`."""
        narrow, wide = x.dtype, multiplied_in(x)
        gradient = gradient.to(wide)
        found, low = self.gradients(gradient, x, down)
        dx = dense(gradient, self.weight.to(wide).t())
        return (dx.addmm_(low, self._a(wide)) if self.low else dx).to(narrow), found

    def gradients(
        self, gradient: torch.Tensor, x: torch.Tensor, down: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Those of `trained`, and the gradient by A x (N, ranks), in what is multiplied in."""
        wide = multiplied_in(x)
        gradient, x, down = gradient.to(wide), x.to(wide), down.to(wide)
        low = torch.empty_like(down)
        if not self.low:
            return [], low
        for columns, ranks, layer in self.low:
            torch.mm(gradient[:, columns], layer.b.to(wide), out=low[:, ranks])
            if layer.scale != 1:
                low[:, ranks].mul_(layer.scale)
        da = low.t() @ x
        found = []
        for columns, ranks, layer in self.low:
            db = gradient[:, columns].t() @ down[:, ranks]
            found += [da[ranks].to(layer.a.dtype), db.to(layer.b.dtype)]
        return found, low

    def _a(self, dtype: torch.dtype) -> torch.Tensor:
        sides: list[torch.Tensor] = [layer.a for *_, layer in self.low]
        return (sides[0] if len(sides) == 1 else torch.cat(sides)).to(dtype)


def rounds(dtype: torch.dtype) -> bool:
    """Whether B A x, small as it is at first, is lost where it is added to what a residual stream
    has come to.

    Added to W x and rounded there, and to the stream with it, the most of it stays
    (docs/benchmarks.md).
    """
    return dtype.itemsize < torch.float32.itemsize


def to(x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if x is None else x.to(dtype)


def dense(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    onto: torch.Tensor | None = None,
) -> torch.Tensor:
    """x W^T + b + onto, with W (out, in) as it lies, or turned."""
    whole = len(x) - len(x) % BLOCK if best_by_onednn(x) else 0
    if whole == len(x) > 0:
        return by_onednn(x, weight, bias, onto)
    if whole:
        out = x.new_empty(len(x), len(weight))
        for rows, product in ((slice(whole), by_onednn), (slice(whole, None), by_torch)):
            out[rows] = product(x[rows], weight, bias, None if onto is None else onto[rows])
        return out
    return by_torch(x, weight, bias, onto)


def by_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, onto: torch.Tensor | None
) -> torch.Tensor:
    if bias is None:
        return x @ weight.t() if onto is None else torch.addmm(onto, x, weight.t())
    found = torch.addmm(bias, x, weight.t())
    return found if onto is None else found.add_(onto)


def by_onednn(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, onto: torch.Tensor | None
) -> torch.Tensor:
    """The same as torch.compile has it done, with W as it lies or laid out for it."""
    found: torch.Tensor
    if onto is None:
        found = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    else:
        found = torch.ops.mkldnn._linear_pointwise.binary(x, onto, weight, bias, "add")
    return found


def _whole(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Them all, without a copy where `lay_together` has been."""
    first = parts[0].detach()
    end, stored = first.storage_offset(), first.untyped_storage().data_ptr()
    for part in parts:
        if (
            part.untyped_storage().data_ptr() != stored
            or part.storage_offset() != end
            or not part.is_contiguous()
        ):
            return torch.cat([part.detach() for part in parts])
        end += part.numel()
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())
