"""What several micro-batches begin with, read once: keys and values go to each of them, and
gradients come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import nn

from adapters.peft.batching.packed_layout import lay_out
from adapters.peft.model.decoder import Decoder
from adapters.peft.runtime.worker import stop_if_closed
from kitchen.types import Tokens


class Begun:
    """P tokens that the sequences of several micro-batches have in common at their beginning.

    They are read when the first of them asks, with a way back if gradients are computed then. What
    the micro-batches attend to are leaves, so that each has its own way back and none is kept for
    the others.
    """

    def __init__(self, decoder: Decoder, tokens: Tokens, device: torch.device) -> None:
        self._decoder, self._layout = decoder, lay_out([np.asarray(tokens)], device)
        self._sums: list[torch.Tensor | None] = []

    @property
    def states(self) -> torch.Tensor:
        """(P, H)."""
        return self.leaves[0]

    @property
    def keys(self) -> Sequence[torch.Tensor]:
        """And values, of each layer (P, 2 · groups, D)."""
        return self.leaves[1:]

    @cached_property
    def leaves(self) -> list[torch.Tensor]:
        """States and keys, as all who read them have them."""
        return [each.detach().requires_grad_(each.requires_grad) for each in self._read]

    def add(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Those by `leaves` of one micro-batch; added up in float32 or better."""
        high = [
            None if each is None else each.to(torch.promote_types(each.dtype, torch.float32))
            for each in gradients
        ]
        before = self._sums or [None] * len(high)
        self._sums = [
            one if other is None else other if one is None else one.add_(other)
            for one, other in zip(before, high, strict=True)
        ]

    def back(self, parameters: Sequence[nn.Parameter]) -> Sequence[torch.Tensor | None]:
        """The gradients by parameters of what has come back."""
        found = (
            [
                (read, total.to(read.dtype))
                for read, total in zip(self._read, self._sums, strict=True)
                if total is not None
            ]
            if self._sums
            else []
        )
        if not found:
            return [None] * len(parameters)
        return torch.autograd.grad(
            [read for read, _ in found],
            parameters,
            [total for _, total in found],
            allow_unused=True,
        )

    @cached_property
    def _read(self) -> list[torch.Tensor]:
        keys = list[torch.Tensor]()
        return [self._decoder.hidden(self._layout, stop_if_closed, keys=keys), *keys]
