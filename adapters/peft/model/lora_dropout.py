"""Dropout that can be repeated: what is dropped follows from the seed, the call, the datum and the
layer alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch


class DropoutTarget(Protocol):
    """A layer whose low-rank path takes dropout while `dropout` is set."""

    dropout: Dropout | None


class Dropout:
    """Inputs of the low-rank path set to zero at random, the rest scaled up (Srivastava et al.,
    2014, JMLR 15).

    Neither the cut into micro-batches, nor a second pass, nor torch's own random state changes it.
    """

    def __init__(self, rate: float, seed: int, layers: Sequence[DropoutTarget]) -> None:
        self._rate, self._seed, self._layers = rate, seed, list(layers)
        self._numbers = {layer: number for number, layer in enumerate(self._layers)}
        self._rows: Sequence[tuple[int, int]] = ()
        self._call = 0

    @contextmanager
    def during(self, call: int, rows: Sequence[tuple[int, int]]) -> Iterator[None]:
        """On within; `rows`: datum and length of each sequence of the micro-batch, `call` counts
        forward_backwards.
        """
        if not self._rate:
            yield
            return
        self._call, self._rows = call, rows
        for layer in self._layers:
            layer.dropout = self
        try:
            yield
        finally:
            for layer in self._layers:
                layer.dropout = None

    def __call__(self, x: torch.Tensor, layer: DropoutTarget) -> torch.Tensor:
        """Of (1, N, inputs), datum after datum."""
        kept = torch.empty_like(x)
        end = 0
        for datum, length in self._rows:
            numbers = (self._seed, self._call, datum, self._numbers[layer])
            state = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
            generator = torch.Generator(x.device).manual_seed(int(state >> np.uint64(1)))
            drawn = torch.rand((length, x.shape[-1]), generator=generator, device=x.device)
            kept[0, end : (end := end + length)] = (drawn >= self._rate).to(x.dtype)
        return x * kept.div_(1 - self._rate)
