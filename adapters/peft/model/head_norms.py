"""Norms of queries and keys, head by head, before they are rotated, as in Qwen3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from adapters.peft.model.elementwise import Elementwise, RMSNorm


class HeadNorms:
    """An RMSNorm of D features for each query, and another for each key.

    Henry et al., 2020, arXiv:2010.04245.
    """

    def __init__(self, attention: Any, elementwise: Elementwise, heads: int, kv_heads: int) -> None:
        """`attention`: a module of transformers with `q_norm` and `k_norm`."""
        self._norms = elementwise.norm(attention.q_norm), elementwise.norm(attention.k_norm)
        self._slices = slice(heads), slice(heads, heads + kv_heads)
        self._count = heads + kv_heads

    @property
    def weights(self) -> torch.Tensor:
        """The (2, D) weights of the norms of queries and of keys."""
        return torch.stack([norm.weight for norm in self._norms])

    @property
    def eps(self) -> float:
        """The epsilon of both norms."""
        return self._norms[0].eps

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        """Normalise (N, heads + 2 · kv_heads, D) in place; return queries and keys before that."""
        before = qkv[:, : self._count].clone()
        for norm, part, rows in self._rows(before):
            qkv[:, part] = norm.normalize(rows).view_as(qkv[:, part])
        return before

    def backward(self, gradient: torch.Tensor, before: torch.Tensor) -> None:
        """Replace the gradient w.r.t. normalised queries and keys by that w.r.t. `before`."""
        width = gradient.shape[-1]
        for norm, part, rows in self._rows(before):
            _, rms = norm.forward(rows)
            drows = norm.backward(gradient[:, part].reshape(-1, width), rows, rms)
            gradient[:, part] = drows.view_as(gradient[:, part])

    def _rows(self, heads: torch.Tensor) -> Iterator[tuple[RMSNorm, slice, torch.Tensor]]:
        """Yield each norm with its heads, and these as (N · heads, D) contiguous rows."""
        for norm, part in zip(self._norms, self._slices, strict=True):
            yield norm, part, heads[:, part].reshape(-1, heads.shape[-1])


def find_head_norms(
    attention: Any, elementwise: Elementwise, heads: int, kv_heads: int
) -> HeadNorms | None:
    """Return the norms of an attention module of transformers, if it has any."""
    if not hasattr(attention, "q_norm"):
        return None
    return HeadNorms(attention, elementwise, heads, kv_heads)
