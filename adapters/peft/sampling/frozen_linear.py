"""Products with weights that no longer change, for as few rows as decoding has."""

from __future__ import annotations

from math import gcd

import torch

from adapters.peft.model.decoder import Decoder
from adapters.peft.model.linear import Product, by_onednn, rounds, to
from adapters.peft.runtime.cpu import has_onednn, is_intel, multiplied_in

FEW = 2  # rows, up to which reading the weights as they lie is all the time there is
SOME = 8  # rows, up to which low-rank products are in float32
# rows, up to which several cores have parts of the weights; of more, the answers would take long to
# turn
PARTED = 128
USUAL = 32  # rows that weights are laid out for


class Fixed(Product):
    """y = W x + b + B A x with A and B that are not trained; on a CPU, W is a copy laid out for
    some tens of rows.

    Where products are in float32, so is the copy, and B A is added to it. In bfloat16 that would be
    lost in rounding, and B A stays beside it.
    """

    def __init__(self, product: Product) -> None:
        self.weight, self.low, self._wide = product.weight, [], multiplied_in(product.weight)
        self.bias = to(product.bias, self._wide)
        self._sides = _sides(product, self._wide)  # (in, ranks), (ranks, out)
        self._whole = (
            self._copy()
            if self.weight.device.type == "cpu"
            and has_onednn()
            and (self._wide in (torch.float32, torch.bfloat16))
            else None
        )
        laid_out = self._whole is not None and self._wide == torch.bfloat16
        self._high = _sides(product, torch.float32) if laid_out else None
        self._few = FEW if self.weight.dtype == torch.float32 else 0
        self._parted = self.weight.device.type == "cpu" and not is_intel()
        self._none = self.weight.new_empty(0)

    def _copy(self) -> torch.Tensor:
        whole = self.weight.to(self._wide)
        if self._wide == torch.float32 and self._sides is not None:
            whole = torch.addmm(whole, self._sides[1].t(), self._sides[0].t())
        laid_out: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(whole, USUAL)
        return laid_out

    def forward(
        self, x: torch.Tensor, onto: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, in) to (N, out), added to `onto` if that is given; nothing is kept for a way back."""
        narrow, x, onto = x.dtype, x.to(self._wide), to(onto, self._wide)
        late = onto if self._sides is not None and rounds(self._wide) else None
        first = onto if late is None else None
        if self._whole is None or len(x) <= self._few:
            out = self._plain(x, first)
        else:
            out = by_onednn(x, self._whole, self.bias, first)
            if self._sides is not None and self._wide != torch.float32:
                self._add_low(out, x, *self._sides)
        return (out if late is None else out + late).to(narrow), self._none

    def _add_low(
        self, out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor
    ) -> None:
        """In bfloat16 so small a product takes several times as long as in float32."""
        if len(x) > SOME or self._high is None:
            out.addmm_(x @ down, up)
        else:
            out.add_((x.float() @ self._high[0]) @ self._high[1])

    def _plain(self, x: torch.Tensor, onto: torch.Tensor | None) -> torch.Tensor:
        """What is added to W x is what that product begins with: with few rows each operation more
        is felt.
        """
        weight = self.weight.to(self._wide)
        added = (
            onto
            if self.bias is None
            else self.bias.expand(len(x), -1)
            if onto is None
            else onto + self.bias
        )
        if self._sides is not None:
            low = x @ self._sides[0]
            added = (
                low @ self._sides[1] if added is None else torch.addmm(added, low, self._sides[1])
            )
        if self._parted and len(x) <= (PARTED if torch.get_num_threads() > 1 else FEW):
            return _in_parts(x, weight, added)
        return x @ weight.t() if added is None else torch.addmm(added, x, weight.t())


def fix(decoder: Decoder) -> None:
    """Let all its layers compute so."""
    for layer in decoder.layers:
        layer.into, layer.out = Fixed(layer.into), Fixed(layer.out)
        layer.up, layer.down = Fixed(layer.up), Fixed(layer.down)


def _sides(product: Product, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A and B of all its layers, as one matrix each."""
    if not product.low:
        return None
    down = torch.cat([layer.a.detach() for *_, layer in product.low]).to(dtype).t()
    up = down.new_zeros(down.shape[1], len(product.weight))  # 0 between different layers
    for columns, ranks, layer in product.low:
        up[ranks, columns] = (layer.b.detach() * layer.scale).t().to(up.dtype)
    return down, up


def _in_parts(x: torch.Tensor, weight: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    """(N, in) to (N, out), each core with its part of the weights: MKL's plain product keeps one
    busy alone where the processor is not Intel's.

    A core by itself reads the weights for two rows in less time than for one.
    """
    parts = gcd(len(weight), torch.get_num_threads())
    rows = x if parts > 1 or len(x) > 1 else torch.cat([x, x])
    pieces, columns = weight.view(parts, -1, weight.shape[1]), rows.t().expand(parts, -1, -1)
    if added is None:
        found = torch.bmm(pieces, columns)
    else:
        found = torch.baddbmm(added.t().view(parts, -1, len(x)), pieces, columns)
    if len(x) == 1:
        # not with the strides of a column, or it is taken for one
        return found[..., 0].contiguous().view(1, -1)
    return found.view(-1, len(x)).t().contiguous()
