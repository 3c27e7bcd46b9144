"""DoRA: LoRA weights, and trained norms of the rows of the weights (Liu et al., 2024).

arXiv:2402.09353
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from adapters.peft.model.lora_linear import LoraLinear, scaled_b

ROWS = 4096  # rows of W + scale · B A that exist at the same time


class DoraLinear(LoraLinear):
    """y = m / ‖W + scale · B A‖ · (W x + scale · B A x) + b, with one m and one norm for each row.

    W is frozen; A, B and m are trained. The norm is a constant in the backward pass, as in section
    4.3 of the paper and in PEFT.
    """

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
        super().__init__(base, weight, rank, scale, dtype, sizes, device)
        self.magnitude = nn.Parameter(torch.zeros(sizes[1], dtype=dtype, device=device))
        self._norms: torch.Tensor | None = None
        self._versions: list[int] = []  # of A and B when the norms were computed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute y in the dtype of m, and round it once: a scale near 1 would be lost in rounding.

        As in PEFT, dropout applies to the inputs of the whole update, which are those of W as well:
        y = W x + b + m / ‖…‖ · (W d + scale · B A d) - W d, with d = dropout(x).
        """
        dropped = x if self.dropout is None else self.dropout(x, self)
        low_rank = nn.functional.linear(dropped, self.a.to(x.dtype))
        update = nn.functional.linear(low_rank, scaled_b(self.b, self.scale, x.dtype))
        product = self._product(dropped)
        if self.row_scale is not None:  # B has it already
            out = product * self.row_scale + update
        else:
            row_scale = self.magnitude / self._constant_norms()
            out = (product.to(row_scale.dtype) + update) * row_scale
        if self.dropout is not None:
            out = out + (self._product(x) - product)
        bias: Any = self.base.bias
        return (out if bias is None else out + bias).to(x.dtype)

    def named_weights(self) -> dict[str, nn.Parameter]:
        return {**super().named_weights(), "lora_magnitude_vector": self.magnitude}

    def freeze(self, dtype: torch.dtype) -> None:
        """Cast weights that stay fixed, with the scale of the rows applied to B."""
        self.row_scale = (self.magnitude / self.row_norms()).detach()
        self.magnitude.requires_grad_(False)
        self.freeze_as(self.b.detach() * self.scale * self.row_scale[:, None], dtype)

    def merged(self) -> torch.Tensor:
        """Return m / ‖W + scale · B A‖ · (W + scale · B A); not for quantised bases."""
        return super().merged() * (self.magnitude / self.row_norms()).detach()[:, None]

    def row_norms(self) -> torch.Tensor:
        """(out,) norms of the rows of W + scale · B A, in the dtype of A; above 0."""
        with torch.no_grad():
            weight, norms = self._matrix(), list[torch.Tensor]()
            parts = zip(torch.split(weight, ROWS), torch.split(self.b, ROWS), strict=True)
            for part, b in parts:
                merged = part.to(self.a.dtype) + (b @ self.a) * self.scale
                norms.append(torch.linalg.vector_norm(merged, dim=1))
            return torch.cat(norms).clamp_(min=torch.finfo(self.a.dtype).tiny)

    def _constant_norms(self) -> torch.Tensor:
        """Return the norms of the rows, computed anew only if A or B have changed."""
        versions = [self.a._version, self.b._version]
        if self._norms is None or versions != self._versions:
            with torch.inference_mode(False):
                self._norms, self._versions = self.row_norms(), versions
        return self._norms

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        """Return W x, without the bias."""
        weight, bias = self.weight[0], self.base.bias
        if weight is not None:
            return nn.functional.linear(x, weight.to(x.dtype))
        product: torch.Tensor = self.base(x)
        return product if bias is None else product - bias  # type: ignore[operator]

    def _matrix(self) -> torch.Tensor:
        """Return W (out, in); a quantised one as it is multiplied."""
        weight = self.weight[0]
        if weight is not None:
            return weight.detach()
        from peft.utils.integrations import dequantize_module_weight

        dequantised: torch.Tensor = dequantize_module_weight(self.base)
        return dequantised.detach()
