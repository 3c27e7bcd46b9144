"""The kernels of a decoding step between its matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from adapters.peft.model.elementwise import RMSNorm
from adapters.peft.sampling.kv_cache import HeadLayout
from adapters.peft.sampling.paged.weights import HeadNormWeights, Product

PAGE = 64  # tokens
# rows of `Batch.rows`, by number
END, PROMPT, START, LIVE = range(4)


@dataclass(frozen=True)
class Batch:
    """The rows of a step, on the device: B of them, of which some may be padding.

    The tokens of a row have slots, slot s in page s // PAGE of its table. Those of the prompt come
    first; the completion begins on a new page, so that the pages of a prompt can be shared.
    """

    # (4, B) int32: slot of the newest token, slots of the prompt, first slot of the completion,
    # and 1, or 0 for padding
    rows: torch.Tensor
    table: torch.Tensor  # (B, W) int32 pages of each row
    cos: torch.Tensor  # (W · PAGE, D / 2) rotations by position
    sin: torch.Tensor


class Kernels(Protocol):
    """Computations of a decoding step; a layer's pages are (2, pages, kv_heads, PAGE, D)."""

    def add_norm(self, x: torch.Tensor, added: Product | None, norm: RMSNorm) -> torch.Tensor:
        """Add a product to the residual stream (R, H), in place, and return it normalised."""
        ...

    def rope_and_store(
        self,
        qkv: Product,
        heads: HeadLayout,
        batch: Batch,
        pages: torch.Tensor,
        norms: HeadNormWeights | None = None,
    ) -> torch.Tensor:
        """Normalise queries and keys where the model does, and rotate them; store keys and values.

        Return (R, query_heads, D) queries.
        """
        ...

    def attend(
        self, query: torch.Tensor, heads: HeadLayout, batch: Batch, pages: torch.Tensor
    ) -> torch.Tensor:
        """Map rotated queries to (R, query_heads · D) attention outputs."""
        ...

    def swiglu(self, gate_up: Product) -> torch.Tensor:
        """Map (R, 2 · n) gates and values to (R, n) silu(gate) · value."""
        ...

    def sample(
        self, logits: torch.Tensor, controls: torch.Tensor, *, truncated: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sample from (R, V) logits; arguments and results are those of `draw_static`."""
        ...
