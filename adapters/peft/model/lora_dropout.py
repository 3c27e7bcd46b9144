"""Reproducible dropout, determined only by the seed, the call, the datum and the layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch


class DropoutTarget(Protocol):
    """A layer whose low-rank path applies dropout while `dropout` is set."""

    dropout: Dropout | None


class Dropout:
    """Dropout on the inputs of the low-rank path (Srivastava et al., 2014, JMLR 15).

    Its mask depends neither on the micro-batches, nor on torch's random state, and a second pass
    repeats it.
    """

    def __init__(self, rate: float, seed: int, layers: Sequence[DropoutTarget]) -> None:
        self._rate, self._seed, self._layers = rate, seed, list(layers)
        self._numbers = {layer: number for number, layer in enumerate(self._layers)}
        self._datum_lengths: Sequence[tuple[int, int]] = ()
        self._call = 0

    @contextmanager
    def active(self, call: int, datum_lengths: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Turn dropout on within a block.

        `call` counts forward_backwards; `datum_lengths` has the index and the length of each datum
        of the micro-batch.
        """
        if not self._rate:
            yield
            return
        self._call, self._datum_lengths = call, datum_lengths
        for layer in self._layers:
            layer.dropout = self
        try:
            yield
        finally:
            for layer in self._layers:
                layer.dropout = None

    def __call__(self, x: torch.Tensor, layer: DropoutTarget) -> torch.Tensor:
        """Apply dropout to (1, N, inputs), datum by datum."""
        mask = torch.empty_like(x)
        end = 0
        for datum, length in self._datum_lengths:
            numbers = (self._seed, self._call, datum, self._numbers[layer])
            state = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
            generator = torch.Generator(x.device).manual_seed(int(state >> np.uint64(1)))
            drawn = torch.rand((length, x.shape[-1]), generator=generator, device=x.device)
            start, end = end, end + length
            mask[0, start:end] = (drawn >= self._rate).to(x.dtype)
        return x * mask.div_(1 - self._rate)
