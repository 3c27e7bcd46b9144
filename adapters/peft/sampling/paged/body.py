"""A decoder body whose steps are graphs over a paged KV cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from adapters.peft.runtime.worker import raise_if_closed
from adapters.peft.sampling.conversation_cache import CAPACITY_FACTOR, KV
from adapters.peft.sampling.draw import STATUSES, Drawn, Row, not_finite
from adapters.peft.sampling.kv_cache import prompt_key
from adapters.peft.sampling.paged.decoder import PagedDecoder
from adapters.peft.sampling.paged.kernels import PAGE
from adapters.peft.sampling.paged.pages import PagedPrompt, PagedPromptStore
from adapters.peft.sampling.prefill import PromptReader, PromptSlot
from kitchen.types import Tokens

RESERVED_TOKENS = 256  # of each completion, whose pages are made before it starts


class PagedBody:
    """A DecoderBody on the pages and graphs of a model; rows share the pages of equal prompts."""

    admit_below = 0.75  # not as soon as one has finished: several prompts are read faster together

    def __init__(
        self,
        decoder: PagedDecoder,
        reader: PromptReader,
        budget: int,
        cached: dict[bytes, KV | None],
    ) -> None:
        """`budget`: prompt tokens that are prefilled together.

        `cached` holds the KV of prefixes, by prompt, and is emptied as prompts are read.
        """
        self._decoder = decoder
        self._reader = reader
        self._cached = cached
        # tokens whose KV the conversation cache still has room for
        self._free_tokens = CAPACITY_FACTOR * budget
        self._prompts: dict[bytes, PagedPrompt] = {}  # in use, or needed again soon
        self._needed_again: Collection[bytes] = ()
        decoder.clear()

    def draw(self, states: torch.Tensor, rows: Sequence[Row], accum_dtype: torch.dtype) -> Drawn:
        """Sample the next token of each row; sums are in float32, or float64 for float64."""
        truncated = self._decoder.sample(states, rows)
        return _DrawnByGraph(self._decoder, len(rows), truncated)

    def prefill(self, prompts: Sequence[Tokens], needed_again: Collection[bytes]) -> torch.Tensor:
        """Add one row for each prompt and return their (r, H) states.

        Prompts whose key is in `needed_again` are retained, so that they are read only once.
        """
        by_key = {prompt_key(prompt): prompt for prompt in prompts}
        self._read({key: by_key[key] for key in by_key if key not in self._prompts})
        added = [self._prompts[prompt_key(prompt)] for prompt in prompts]
        table = self._decoder.table
        pages_per_row = max(len(prompt.pages) for prompt in added) + RESERVED_TOKENS // PAGE
        self._decoder.reserve(len(table.prompts) + len(added), pages_per_row)
        self._decoder.pages.reserve(len(added) * RESERVED_TOKENS // PAGE)
        table.append(added)
        for prompt in added:
            prompt.users += 1
        self._free_prompts(needed_again)
        return torch.stack([prompt.state for prompt in added])

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed the (R,) newest token of each row and return their (R, H) states."""
        raise_if_closed()
        return self._decoder.step(ids)

    def retain(self, rows: Sequence[int]) -> None:
        """Evict all rows but these, which stay in this order."""
        table = self._decoder.table
        retained = frozenset(rows)
        for row, prompt in enumerate(table.prompts):
            if row not in retained:
                self._decoder.pages.give_back(table.completion_pages(row))
                prompt.users -= 1
        table.retain(rows)
        self._free_prompts(self._needed_again)

    def sequence_kv(self, row: int) -> KV | None:
        """Return keys and values of all tokens of a row.

        None once the conversation cache is full: the rows that finish first have a place in it.
        """
        table = self._decoder.table
        if (size := table.length(row)) > self._free_tokens:
            return None
        self._free_tokens -= size
        return self._decoder.pages.read(*table.sequence(row))

    def _read(self, prompts: dict[bytes, Tokens]) -> None:
        """Read prompts into new pages."""
        pages = self._decoder.pages
        counts = [-(-len(prompt) // PAGE) for prompt in prompts.values()]
        pages.reserve(sum(counts))
        new = [
            PagedPrompt(tokens, pages.take(count))
            for tokens, count in zip(prompts.values(), counts, strict=True)
        ]
        store = PagedPromptStore(pages, new)
        slots = [
            PromptSlot(prompt.tokens, store, number, self._cached.pop(key, None))
            for number, (key, prompt) in enumerate(zip(prompts, new, strict=True))
        ]
        states = self._reader.read(slots)
        for key, prompt in zip(prompts, new, strict=True):
            prompt.state = states[key]
            self._prompts[key] = prompt

    def _free_prompts(self, needed_again: Collection[bytes]) -> None:
        """Free the pages of prompts that no row has, and that are not needed again."""
        self._needed_again = needed_again
        for key, prompt in list(self._prompts.items()):
            if not prompt.users and key not in needed_again:
                self._decoder.pages.give_back(prompt.pages)
                del self._prompts[key]


@dataclass(frozen=True)
class _DrawnByGraph:
    """Tokens that a graph samples; they are valid until the next ones are sampled."""

    decoder: PagedDecoder
    count: int
    truncated: bool

    @property
    def tokens(self) -> torch.Tensor:
        return self.decoder.tokens(self.count)

    def fetch(self) -> tuple[Sequence[int], Sequence[float]]:
        results = self.decoder.results(self.count)
        if (results[2] == STATUSES.index("not finite")).any():
            raise not_finite()
        if self.truncated:
            unsettled = np.flatnonzero(results[2] == STATUSES.index("not settled"))
            if len(unsettled):
                self.decoder.sample_again(unsettled.tolist())
                results = self.decoder.results(self.count)
        ids: list[int] = results[0].astype(np.int64).tolist()
        logprobs: list[float] = results[1].tolist()
        return ids, logprobs
