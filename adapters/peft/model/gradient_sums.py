"""Sums of gradients over micro-batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)


class GradientSums(Generic[K]):
    """Gradients by key, such as a parameter, added up in the order in which they arrive."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        """`dtype`: that of the sums; by default that of the gradients."""
        self.totals: dict[K, torch.Tensor] = {}
        self._dtype = dtype

    def add(self, keys: Iterable[K], gradients: Iterable[torch.Tensor | None]) -> None:
        """Add gradients, which the sums may overwrite later; None adds nothing.

        Keys are distinct. A CUDA device adds all gradients in few launches.
        """
        totals, added = list[torch.Tensor](), list[torch.Tensor]()
        for key, gradient in zip(keys, gradients, strict=True):
            if gradient is None:
                continue
            total = self.totals.get(key)
            if total is None:
                self.totals[key] = gradient.to(self._dtype or gradient.dtype)
            else:
                totals.append(total)
                added.append(gradient)
        if totals:
            torch._foreach_add_(totals, added)
