"""Decoding steps as graphs: one token of each row, on tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from adapters.peft.runtime.cpu import matmul_dtype
from adapters.peft.sampling.draw import (
    CONTROLS,
    Row,
    draw_all_candidates,
    set_controls,
    set_uniforms,
)
from adapters.peft.sampling.frozen_linear import FrozenLinear
from adapters.peft.sampling.paged.graphs import Graphs, SideStream
from adapters.peft.sampling.paged.kernels import END, LIVE, PAGE, Batch, Kernels
from adapters.peft.sampling.paged.pages import PageStore
from adapters.peft.sampling.paged.row_table import RowTable
from adapters.peft.sampling.paged.weights import PagedWeights, Product
from kitchen.types import Array

MAX_POWER_OF_TWO = 64  # rows; larger graphs are for multiples of it
RETAINED_BYTES = 2 * 2**30  # of pages that are retained between batches, with their graphs


def bucket(rows: int) -> int:
    """Return how many rows the graph for some rows has.

    It depends on their number only, so that results do not depend on the graphs recorded before.
    """
    if rows <= MAX_POWER_OF_TWO:
        return 1 << (rows - 1).bit_length()
    return -(-rows // MAX_POWER_OF_TWO) * MAX_POWER_OF_TWO


class PagedDecoder:
    """The weights, pages, buffers and graphs of a frozen model; for one batch at a time."""

    def __init__(self, weights: PagedWeights, head: FrozenLinear, kernels: Kernels) -> None:
        self._weights = weights
        self._head = head
        self._kernels = kernels
        self._side = SideStream(weights.device)
        self._graphs = Graphs(weights.device)
        self.table = RowTable(weights.device)
        self.pages = self._no_pages()
        self._controls_rows: Sequence[Row] = ()
        self._truncated = False
        self._accum_dtype = torch.promote_types(weights.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._weights.device

    def clear(self) -> None:
        """Forget all rows and prompts, as before a new batch."""
        self.table.clear()
        self.pages.free_all()

    def release(self) -> None:
        """Free the memory of the pages, unless it is little; forget all rows and prompts."""
        self.clear()
        if self.pages.nbytes > RETAINED_BYTES:
            self._graphs.clear()
            self.pages = self._no_pages()

    def reserve(self, rows: int, pages_per_row: int) -> None:
        """Make room for this many rows, and pages of each; new buffers drop all graphs."""
        if not self.table.reserve(bucket(rows), pages_per_row):
            return
        self._graphs.clear()
        size, device, dtype = self.table.capacity, self.device, self._weights.dtype
        self._ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._states = torch.zeros(size, self._weights.width, dtype=dtype, device=device)
        self._controls = torch.ones(len(CONTROLS), size, dtype=torch.float64, device=device)
        self._tokens = torch.zeros(size, dtype=torch.int64, device=device)
        # token, log-probability and status
        self._results = torch.zeros(3, size, dtype=torch.float64, device=device)
        on_host: dict[str, Any] = {"dtype": torch.float64, "pin_memory": device.type == "cuda"}
        self._host_controls = torch.ones(len(CONTROLS), size, **on_host)
        self._host_results = torch.zeros(3, size, **on_host)
        positions = torch.arange(self.table.width * PAGE, device=device)
        cos, sin = self._weights.rope(self._states[:1], positions)
        self._cos, self._sin = cos[:, 0].contiguous(), sin[:, 0].contiguous()

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Decode one token of each row; return (R, H) states, valid until the next step."""
        self.reserve(len(ids), self.table.widest())
        self.table.start_step(self.pages)
        padded = bucket(len(ids))
        self._record_step(padded)
        self.table.upload(padded)
        self._ids[: len(ids)].copy_(ids)
        self._graphs.replay(("step", padded))
        self.table.finish_step()
        return self._states[: len(ids)]

    def sample(self, states: torch.Tensor, rows: Sequence[Row]) -> bool:
        """Start sampling the next token of each row; return whether any has top-k or top-p."""
        count = len(rows)
        padded = bucket(count)
        self.reserve(count, 1)
        if states.data_ptr() != self._states.data_ptr():
            self._states[:count].copy_(states)
        self._set_controls(rows)
        key = "sample", padded, self._truncated
        if key not in self._graphs:
            truncated = self._truncated
            self._graphs.record(key, lambda: self._sample(padded, truncated))
        self._graphs.replay(key)
        return self._truncated

    def results(self, count: int) -> Array:
        """Return (3, R) tokens, log-probabilities and statuses of what was sampled last."""
        self._host_results.copy_(self._results, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        results: Array = self._host_results.numpy()[:, :count]
        return results

    def sample_again(self, places: Sequence[int]) -> None:
        """Sample rows whose top-p or top-k was not settled, from all of their logits."""
        where = torch.tensor(places, device=self.device)
        drawn = draw_all_candidates(
            self._logits(self._states[where]), self._controls[:, where], self._accum_dtype
        )
        self._tokens[where] = drawn[0]
        self._results[:2, where] = torch.stack([part.double() for part in drawn])
        self._results[2, where] = 0

    def tokens(self, count: int) -> torch.Tensor:
        """Return the (R,) tokens that were sampled last, on the device."""
        return self._tokens[:count]

    def _no_pages(self) -> PageStore:
        layers = self._weights.layers
        like = torch.empty(0, dtype=self._weights.dtype, device=self.device)
        return PageStore(layers[0].heads, len(layers), like, self._graphs.clear)

    def _set_controls(self, rows: Sequence[Row]) -> None:
        controls = self._host_controls.numpy()
        if rows is self._controls_rows:
            set_uniforms(controls, rows)
        else:
            self._controls_rows = rows
            self._truncated = set_controls(controls, rows)
        self._controls.copy_(self._host_controls, non_blocking=True)

    def _record_step(self, padded: int) -> None:
        """Record the graph of a step, with rows that are all padding."""
        key: Hashable = ("step", padded)
        if key not in self._graphs:
            for buffer in (self.table.rows, self.table.table, self._ids):
                buffer.zero_()
            self.table.changed = True
            self._graphs.record(key, lambda: self._forward(padded))

    def _forward(self, padded: int) -> None:
        """Compute the states after the newest token of each row."""
        kernels, side = self._kernels, self._side
        rows, table = self.table.rows[:, :padded], self.table.table[:padded]
        batch = Batch(rows, table, self._cos, self._sin)
        x = self._weights.embed(self._ids[:padded])
        added: Product | None = None
        for layer, pages in zip(self._weights.layers, self.pages.layers, strict=True):
            normed = kernels.add_norm(x, added, layer.input_norm)
            qkv = layer.qkv_proj.forward(normed, side)
            query = kernels.rope_and_store(qkv, layer.heads, batch, pages, layer.head_norms)
            attended = kernels.attend(query, layer.heads, batch, pages)
            added = layer.o_proj.forward(attended, side)
            normed = kernels.add_norm(x, added, layer.post_attention_norm)
            gate_up = layer.gate_up_proj.forward(normed, side)
            added = layer.down_proj.forward(kernels.swiglu(gate_up), side)
        self._states[:padded].copy_(kernels.add_norm(x, added, self._weights.norm))
        rows[END].add_(rows[LIVE])

    def _sample(self, padded: int, truncated: bool) -> None:
        drawn = self._kernels.sample(
            self._logits(self._states[:padded]), self._controls[:, :padded], truncated=truncated
        )
        self._tokens[:padded].copy_(drawn[0])
        for result, computed in zip(self._results, drawn, strict=True):
            result[:padded].copy_(computed)

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        return self._head.forward(states.to(matmul_dtype(states)))[0]
