"""The KV cache of the fused body: grids of prompts, each stored once, and of their completions.

A batch has one grid for each group of prompts that started together (`FusedBody`). Finished
completions are evicted by `KVGrid.retain`; which ones those are, the scheduler decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kitchen.types import Array, Tokens

BLOCK = 32  # tokens of a completion that fit at first; capacity doubles whenever it is used up
# Padding may multiply the tokens of a grid's prompts by this ratio, and add this many more.
MAX_PADDING_RATIO, MAX_PADDING = 1.3, 1024
# Devices on which a lone completion attends by torch's fused kernel. CUDA selects a kernel again
# for each length, which takes 60 ms (docs/benchmarks.md).
SDPA_DEVICES = frozenset({"cpu"})
MAX_CELL_RATIO = 2  # cells of a grid per completion in it
SHRINK_BELOW = 0.75  # share of a grid's cells in use at or below which it is made smaller


@dataclass(frozen=True)
class HeadLayout:
    """The attention heads of a layer; several query heads share one key and value head (GQA)."""

    query_heads: int
    kv_heads: int
    head_dim: int
    scale: float

    @property
    def heads_per_kv(self) -> int:
        """The query heads that share one key and value head."""
        return self.query_heads // self.kv_heads


def group_prompts(prompts: Sequence[Tokens]) -> list[Array]:
    """Group prompts of similar length into grids.

    Each grid is an (P, L) array of prompt numbers: equal prompts in one row, padded with -1.
    """
    equal: dict[bytes, list[int]] = {}
    for number, prompt in enumerate(prompts):
        equal.setdefault(prompt_key(prompt), []).append(number)
    grids: list[list[list[int]]] = []
    for group in sorted(equal.values(), key=lambda group: (-len(prompts[group[0]]), -len(group))):
        wider = [*grids[-1], group] if grids else [group]
        lengths = [len(prompts[numbers[0]]) for numbers in wider]
        counts = [len(numbers) for numbers in wider]
        tokens_fit = len(wider) * max(lengths) <= MAX_PADDING_RATIO * sum(lengths) + MAX_PADDING
        spare_cells = MAX_PADDING // BLOCK
        cells_fit = len(wider) * max(counts) <= MAX_CELL_RATIO * (sum(counts) + spare_cells)
        if tokens_fit and cells_fit:
            grids[-1:] = [wider]
        else:
            grids.append([group])
    return [_padded(grid) for grid in grids]


def _padded(rows: Sequence[list[int]]) -> Array:
    """Return (P, L) prompt numbers, padded with -1."""
    width = max(map(len, rows))
    return np.array([numbers + [-1] * (width - len(numbers)) for numbers in rows])


def prompt_key(prompt: Tokens) -> bytes:
    """Return the dictionary key of a prompt; equal prompts have equal keys."""
    return np.asarray(prompt, np.int64).tobytes()


class KVGrid:
    """P prompts, and beside each of them L completions that started at the same time.

    The heads and completions that share a prompt's keys attend to them in one matrix product. With
    one completion per prompt its keys follow those of the prompt, so that one product does it all.
    """

    def __init__(
        self,
        heads: HeadLayout,
        layers: int,
        rows: Array,
        lengths: Sequence[int],
        like: torch.Tensor,
        sdpa_devices: Collection[str] = SDPA_DEVICES,
    ) -> None:
        """`rows`: (P, L) batch row of each cell, -1 where empty; `lengths`: (P,) of the prompts."""
        self.rows = rows
        self.lengths = np.array(lengths)
        self.written = 0  # tokens of each completion
        self._heads = heads
        self._sdpa_devices = sdpa_devices
        self._prompt_columns = max(lengths)  # of `_prompt_kv` that hold prompts
        prompts = len(rows) * heads.kv_heads
        cells = rows.size * heads.kv_heads
        width = heads.head_dim
        # (layers, 2, P · kv_heads, S, D); zeros, because what is masked must be finite
        self._prompt_kv = like.new_zeros(layers, 2, prompts, self._prompt_columns, width)
        # (layers, 2, P · kv_heads · L, capacity, D), or None if completions follow their prompts
        self._completion_kv: torch.Tensor | None = like.new_empty(layers, 2, cells, BLOCK, width)
        self._rebuild_index()

    def write_prompts(self, layer: int, prompts: Sequence[int], kv: torch.Tensor) -> None:
        """Store the (p, S, 2 · kv_heads, D) keys and values of a layer, padded on the right."""
        count, source, _, width = kv.shape
        arranged = kv.view(count, source, 2, self._heads.kv_heads, width).permute(2, 0, 3, 1, 4)
        store = self._prompt_kv[layer].view(2, len(self.rows), -1, *self._prompt_kv.shape[3:])
        store[:, list(prompts), :, :source] = arranged

    def prompt_kv(self, prompt: int) -> torch.Tensor:
        """Return (layers, S, 2 · kv_heads, D) of one prompt, in the form of `write_prompts`."""
        kv_heads, length = self._heads.kv_heads, int(self.lengths[prompt])
        kv = self._prompt_kv[:, :, prompt * kv_heads : (prompt + 1) * kv_heads, :length]
        return kv.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def find_row(self, row: int) -> tuple[int, int] | None:
        """Return the prompt and the completion number of a batch row; None if it is not here."""
        cells = np.argwhere(self.rows == row)
        return (int(cells[0, 0]), int(cells[0, 1])) if len(cells) else None

    def length(self, prompt: int) -> int:
        """Return the tokens of a prompt and one of its completions."""
        return int(self.lengths[prompt]) + self.written

    def sequence_kv(self, prompt: int, completion: int) -> torch.Tensor:
        """Return (layers, S + written, 2 · kv_heads, D) of a prompt and one of its completions."""
        kv_heads, count = self._heads.kv_heads, self.rows.shape[1]
        if self._completion_kv is None:
            end = self._prompt_columns + self.written
            rows = slice(prompt * kv_heads, (prompt + 1) * kv_heads)
            kv = self._prompt_kv[:, :, rows, self._prompt_columns : end]
        else:
            cells = slice(
                prompt * kv_heads * count + completion, (prompt + 1) * kv_heads * count, count
            )
            kv = self._completion_kv[:, :, cells, : self.written]
        completion_kv = kv.permute(0, 3, 1, 2, 4).flatten(2, 3)
        return torch.cat([self.prompt_kv(prompt), completion_kv], 1)

    def reserve_token(self) -> None:
        """Make room for one more token of each completion."""
        if self._completion_kv is None:
            if self._prompt_columns + self.written == self._prompt_kv.shape[3]:
                self._prompt_kv = _grown(self._prompt_kv, self.written)
                self._rebuild_index()
        elif self.written == self._completion_kv.shape[3]:
            self._completion_kv = _grown(self._completion_kv, self.written)
        self.written += 1

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Map the newest tokens' queries, keys and values to attention outputs.

        (R, query_heads + 2 · kv_heads, D) to (P · kv_heads · L · heads_per_kv, D).
        """
        heads, cells = self._heads, self.rows.size * self._heads.kv_heads
        gathered = gather_rows(qkv.view(-1, heads.head_dim), self._input_index)
        query = gathered[: cells * heads.heads_per_kv]
        new_kv = gathered[cells * heads.heads_per_kv :].view(2, cells, heads.head_dim)
        if self._completion_kv is None:
            out = self._attend_joined(layer, query, new_kv)
        else:
            out = self._attend_split(layer, self._completion_kv, query, new_kv)
        return out.view(-1, heads.head_dim)

    def _attend_joined(self, layer: int, query: torch.Tensor, new_kv: torch.Tensor) -> torch.Tensor:
        """Attend where each completion's keys follow those of its prompt."""
        end = self._prompt_columns + self.written
        self._prompt_kv[layer, :, :, end - 1] = new_kv
        keys, values = self._prompt_kv[layer, :, :, :end]
        bias = None if self._bias is None else self._bias[..., :end]
        if keys.device.type not in self._sdpa_devices:
            return torch.bmm(torch.softmax(self._scores(query, keys, bias), -1), values)
        stacked = query.view(1, len(keys), -1, self._heads.head_dim)
        return scaled_dot_product_attention(
            stacked,
            keys[None],
            values[None],
            None if bias is None else bias[None],
            scale=self._heads.scale,
        )

    def _attend_split(
        self, layer: int, completion_kv: torch.Tensor, query: torch.Tensor, new_kv: torch.Tensor
    ) -> torch.Tensor:
        """Attend to the prompt, shared by its completions, and to each completion's own keys."""
        completion_kv[layer, :, :, self.written - 1] = new_kv
        keys, values = self._prompt_kv[layer]
        own_keys, own_values = completion_kv[layer, :, :, : self.written]
        prompt_scores = self._scores(query, keys, self._bias)
        own_scores = self._scores(query, own_keys, None).view(*prompt_scores.shape[:2], -1)
        weights = torch.softmax(torch.cat([prompt_scores, own_scores], -1), -1)
        from_prompt = torch.bmm(weights[..., : keys.shape[1]], values)
        from_prompt = from_prompt.view(len(own_keys), -1, self._heads.head_dim)
        by_cell = weights.view(len(own_keys), self._heads.heads_per_kv, -1)
        own_weights = by_cell[..., keys.shape[1] :]
        return torch.baddbmm(from_prompt, own_weights, own_values)

    def _scores(
        self, query: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Scale and bias the products of (·, D) queries and (K, S, D) keys: (K, ·, S)."""
        stacked = query.view(len(keys), -1, self._heads.head_dim)
        return torch.baddbmm(
            query[:1, :1] if bias is None else bias,
            stacked,
            keys.transpose(1, 2),
            beta=0 if bias is None else 1,
            alpha=self._heads.scale,
        )

    def retain(self, new_number: Array) -> bool:
        """Evict finished rows and renumber the others; return whether any is left in this grid.

        `new_number` (R,) gives each batch row its new number, -1 if it has finished. Memory is
        freed once a quarter of the cells is unused (SHRINK_BELOW).
        """
        self.rows = np.where(self.rows >= 0, new_number[self.rows], -1)
        active = self.rows >= 0
        prompts, completions = np.flatnonzero(active.any(1)), int(active.sum(1).max())
        if completions and len(prompts) * completions <= SHRINK_BELOW * active.size:
            order = np.argsort(~active[prompts], axis=1, kind="stable")
            self._shrink(prompts, order[:, :completions])
        if completions:
            self._rebuild_index()
        return bool(completions)

    @property
    def output_index(self) -> tuple[Array, Array]:
        """(r,) batch rows, and (r, query_heads) places of their heads in the output of `attend`."""
        prompts, completions = np.nonzero(self.rows >= 0)
        kv_heads, heads_per_kv = self._heads.kv_heads, self._heads.heads_per_kv
        kv_rows = prompts[:, None] * kv_heads + np.arange(kv_heads)
        cells = kv_rows * self.rows.shape[1] + completions[:, None]
        places = cells[..., None] * heads_per_kv + np.arange(heads_per_kv)
        return self.rows[prompts, completions], places.reshape(len(prompts), -1)

    def _shrink(self, prompts: Array, completions: Array) -> None:
        """Keep these prompts, and (P, L) completions of each."""
        kv_heads, count = np.arange(self._heads.kv_heads), self.rows.shape[1]
        kv_rows = prompts[:, None] * len(kv_heads) + kv_heads
        cells = kv_rows[:, :, None] * count + completions[:, None]
        self.rows = self.rows[prompts[:, None], completions]
        self.lengths = self.lengths[prompts]
        device = self._prompt_kv.device
        self._prompt_kv = self._prompt_kv.index_select(
            2, torch.from_numpy(kv_rows.ravel()).to(device)
        )
        if self._completion_kv is not None:
            self._prompt_columns = max(self.lengths)
            self._prompt_kv = self._prompt_kv[:, :, :, : self._prompt_columns].contiguous()
            self._completion_kv = self._completion_kv.index_select(
                2, torch.from_numpy(cells.ravel()).to(device)
            )

    def _rebuild_index(self) -> None:
        """Compute where the queries, keys and values of this grid lie in a batch, and the mask.

        The places count rows of (R · (query_heads + 2 · kv_heads), D). The bias masks the padding
        of prompts.
        """
        if self._completion_kv is not None and self.rows.shape[1] == 1:
            self._prompt_kv = torch.cat([self._prompt_kv, self._completion_kv], 3)
            self._completion_kv = None
        heads = self._heads
        first = np.maximum(self.rows, 0)[:, None] * (heads.query_heads + 2 * heads.kv_heads)
        kv_head = np.arange(heads.kv_heads)[:, None]
        queries = (first + kv_head * heads.heads_per_kv)[..., None] + np.arange(heads.heads_per_kv)
        keys = first + heads.query_heads + kv_head
        places = np.concatenate([queries.ravel(), keys.ravel(), (keys + heads.kv_heads).ravel()])
        self._input_index = row_index(places, self._prompt_kv.device)
        columns = np.arange(self._prompt_kv.shape[3])
        padding = (columns >= self.lengths[:, None]) & (columns < self._prompt_columns)
        self._bias: torch.Tensor | None = None
        if padding.any():
            bias = np.repeat(np.where(padding, -np.inf, 0.0), heads.kv_heads, 0)[:, None]
            self._bias = torch.from_numpy(bias).to(self._prompt_kv)


def gather_rows(source: torch.Tensor, rows: torch.Tensor | slice) -> torch.Tensor:
    """Select rows: (N, D) to (r, D)."""
    return source[rows] if isinstance(rows, slice) else source.index_select(0, rows)


def row_index(rows: Array, device: torch.device) -> torch.Tensor | slice:
    """Return an index for `gather_rows`; a slice, which copies nothing, for the first rows."""
    flat = rows.ravel()
    if np.array_equal(flat, np.arange(len(flat))):
        return slice(len(flat))
    return torch.from_numpy(flat).to(device)


def _grown(kv: torch.Tensor, more: int) -> torch.Tensor:
    """Append `more` uninitialised columns."""
    return torch.cat([kv, kv.new_empty(*kv.shape[:3], more, kv.shape[4])], 3)
