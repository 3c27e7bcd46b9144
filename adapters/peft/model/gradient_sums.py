"""Sums of gradients over micro-batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)


class GradientSums(Generic[K]):
    """Gradients by key, such as a parameter, added up in the order in which they arrive."""

    def __init__(self) -> None:
        self.totals: dict[K, torch.Tensor] = {}

    def add(self, keys: Iterable[K], gradients: Iterable[torch.Tensor | None]) -> None:
        """Add gradients, which the sums may overwrite later; None adds nothing."""
        for key, gradient in zip(keys, gradients, strict=True):
            if gradient is not None:
                total = self.totals.get(key)
                self.totals[key] = gradient if total is None else total.add_(gradient)
