"""A prefix shared by several micro-batches: computed once, with an accumulated gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import nn

from adapters.peft.batching.packed_layout import build_layout
from adapters.peft.model.decoder import Decoder
from adapters.peft.model.gradient_sums import GradientSums
from adapters.peft.runtime.worker import raise_if_closed
from kitchen.types import Tokens


class SharedPrefix:
    """P tokens with which the sequences of several micro-batches begin.

    They are computed when the first micro-batch needs them, with a graph if gradients are enabled
    then. Micro-batches attend to detached leaves, so that each has a separate graph, and none is
    retained for the others.
    """

    def __init__(self, decoder: Decoder, tokens: Tokens, device: torch.device) -> None:
        self._decoder = decoder
        self._layout = build_layout([np.asarray(tokens)], device)
        self._gradients = GradientSums[int]()  # by index among the leaves

    @property
    def states(self) -> torch.Tensor:
        """(P, H) final states."""
        return self.leaves[0]

    @property
    def kv(self) -> Sequence[torch.Tensor]:
        """(P, 2 · kv_heads, D) keys and values of each layer."""
        return self.leaves[1:]

    @cached_property
    def leaves(self) -> list[torch.Tensor]:
        """States, keys and values as leaves of the micro-batches' graphs."""
        return [output.detach().requires_grad_(output.requires_grad) for output in self._outputs]

    def accumulate(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Add one micro-batch's gradients with respect to `leaves`, in float32 or better."""
        self._gradients.add(
            range(len(gradients)),
            [
                None if grad is None else grad.to(torch.promote_types(grad.dtype, torch.float32))
                for grad in gradients
            ],
        )

    def backward(self, parameters: Sequence[nn.Parameter]) -> Sequence[torch.Tensor | None]:
        """Return the accumulated gradients with respect to parameters."""
        totals = self._gradients.totals
        reached = sorted(totals)
        if not reached:
            return [None] * len(parameters)
        outputs = [self._outputs[index] for index in reached]
        return torch.autograd.grad(
            outputs,
            parameters,
            [totals[index].to(self._outputs[index].dtype) for index in reached],
            allow_unused=True,
        )

    @cached_property
    def _outputs(self) -> list[torch.Tensor]:
        kv = list[torch.Tensor]()
        return [self._decoder.hidden(self._layout, raise_if_closed, kv_out=kv), *kv]
