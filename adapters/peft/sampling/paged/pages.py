"""The paged KV cache: pages of tokens, and which of them hold a prompt or a completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from adapters.peft.sampling.kv_cache import HeadLayout
from adapters.peft.sampling.paged.kernels import PAGE
from kitchen.types import Array, Tokens

GROWTH = 1.5  # by which the number of pages is multiplied when they are used up


class PageStore:
    """The keys and values of all layers, in pages that are taken and given back.

    Page 0 is never taken: rows that only pad a batch use it.
    """

    def __init__(
        self, heads: HeadLayout, layers: int, like: torch.Tensor, on_move: Callable[[], None]
    ) -> None:
        """`on_move` is called when the tensors of the pages are replaced."""
        self._shape = heads.kv_heads, PAGE, heads.head_dim
        self._on_move = on_move
        self._like = like
        # per layer (2, pages, kv_heads, PAGE, D); zeros, because what is masked must be finite
        self.layers = [like.new_zeros(2, 1, *self._shape) for _ in range(layers)]
        self._free = list[int]()

    @property
    def nbytes(self) -> int:
        """The size of all pages in bytes."""
        return sum(layer.nbytes for layer in self.layers)

    def reserve(self, count: int) -> None:
        """Make sure that `count` pages are free."""
        if count <= len(self._free):
            return
        held = self.layers[0].shape[1]
        total = max(held - len(self._free) + count, int(GROWTH * held))
        self._on_move()  # first, so that graphs release their memory
        for number, pages in enumerate(self.layers):  # one after the other: each is freed at once
            grown = self._like.new_zeros(2, total, *self._shape)
            grown[:, :held] = pages
            self.layers[number] = grown
        self._free = [*range(total - 1, held - 1, -1), *self._free]

    def take(self, count: int) -> list[int]:
        """Return the numbers of pages that were free."""
        self.reserve(count)
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages."""
        self._free += reversed(pages)

    def free_all(self) -> None:
        """Free all pages."""
        self._free = list(range(self.layers[0].shape[1] - 1, 0, -1))

    def read(self, pages: Array, slots: Array) -> torch.Tensor:
        """Return the (layers, T, 2 · kv_heads, D) of (T,) slots of the pages of a sequence."""
        at, within = self._on_device(pages[slots // PAGE]), self._on_device(slots % PAGE)
        # (T, 2, kv_heads, D) of each layer
        of_layers = [layer.permute(1, 3, 0, 2, 4)[at, within] for layer in self.layers]
        return torch.stack(of_layers).flatten(2, 3)

    def _on_device(self, index: Array) -> torch.Tensor:
        return torch.from_numpy(index.astype(np.int64)).to(self._like.device)


@dataclass(eq=False)
class PagedPrompt:
    """A prompt in the cache, with the rows that complete it."""

    tokens: Tokens
    pages: list[int]
    users: int = 0
    state: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (H,) after its end


class PagedPromptStore:
    """Prompts whose pages are being filled; a `PromptStore`."""

    def __init__(self, store: PageStore, prompts: Sequence[PagedPrompt]) -> None:
        self._store = store
        self._prompts = prompts
        self._index: tuple[tuple[int, ...], tuple[torch.Tensor, ...]] | None = None

    def write_prompts(self, layer: int, prompts: Sequence[int], kv: torch.Tensor) -> None:
        """Store the (p, S, 2 · kv_heads, D) keys and values of a layer, padded on the right."""
        source, page, within = self._places(tuple(prompts), kv.shape[1])
        flat = kv.flatten(0, 1).index_select(0, source)
        pages = self._store.layers[layer].permute(1, 3, 0, 2, 4)  # (pages, PAGE, 2, kv_heads, D)
        pages[page, within] = flat.view(len(flat), 2, -1, flat.shape[-1])

    def _places(self, prompts: tuple[int, ...], width: int) -> tuple[torch.Tensor, ...]:
        """Return where each token of some prompts is in (p · S,), its page, and its slot in it."""
        if self._index is None or self._index[0] != prompts:
            members = [self._prompts[number] for number in prompts]
            slots = [np.arange(len(prompt.tokens)) for prompt in members]
            source = [row * width + at for row, at in enumerate(slots)]
            pages = [
                np.array(prompt.pages)[at // PAGE]
                for prompt, at in zip(members, slots, strict=True)
            ]
            within = np.concatenate(slots) % PAGE
            parts = np.concatenate(source), np.concatenate(pages), within
            device = self._store.layers[0].device
            self._index = prompts, tuple(torch.from_numpy(part).to(device) for part in parts)
        return self._index[1]
