"""Continuous batching of completions: waiting rows replace those that have finished.

`_admit` starts waiting rows; `_retain` frees the KV cache of finished ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Protocol

import torch

from adapters.peft.sampling.conversation_cache import KV
from adapters.peft.sampling.draw import DecodeText, Drawn, Row
from adapters.peft.sampling.kv_cache import prompt_key
from kitchen.types import Tokens

PREFILL_TOKENS = 8192  # prompt tokens that are prefilled before another worker may have its turn


class DecoderBody(Protocol):
    """The rows of a batch, each with its KV cache; every step adds one token to each of them."""

    @property
    def admit_below(self) -> float:
        """The share of `max_rows` still running at or below which waiting rows are admitted."""
        ...

    def draw(self, states: torch.Tensor, rows: Sequence[Row], accum_dtype: torch.dtype) -> Drawn:
        """Sample the next token of each row from its (r, H) final state."""
        ...

    def prefill(self, prompts: Sequence[Tokens], needed_again: Collection[bytes]) -> torch.Tensor:
        """Add one row for each prompt and return their (r, H) states.

        `needed_again` holds the keys of prompts that rows admitted soon have too.
        """
        ...

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed the (R,) newest token of each row and return their (R, H) states."""
        ...

    def retain(self, rows: Sequence[int]) -> None:
        """Evict all rows but these from the KV cache; they stay in this order."""
        ...

    def sequence_kv(self, row: int) -> KV | None:
        """Return keys and values of all tokens of a row; None if they are not to be retained."""
        ...


class Scheduler:
    """Rows from prompt to stop, at most `max_rows` at a time.

    Which row is admitted when depends on the requests and on what was decoded, never on timing.
    """

    def __init__(
        self,
        body: DecoderBody,
        rows: Sequence[Row],
        decode_text: DecodeText,
        accum_dtype: torch.dtype,
        max_rows: int,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        self._body = body
        self._decode_text = decode_text
        self._accum_dtype = accum_dtype
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._waiting = deque(rows)
        self._running = list[Row]()
        self._states = torch.empty(0)
        self._admitting = False
        # KV of finished rows for the conversation cache, by `prompt_key`
        self.finished_kv: dict[bytes, KV | None] = {}

    def advance(self, steps: int) -> bool:
        """Decode up to `steps` more tokens of each row; return whether any work is left.

        Cancelled requests are dropped.
        """
        with torch.inference_mode():
            self._drop_cancelled()
            prefilled = 0
            for _ in range(steps):
                if not (self._waiting or self._running):
                    return False
                if self._admits_rows():
                    prefilled += self._admit()
                    if self._admitting or prefilled >= self._prefill_tokens:
                        return True  # prefilling many prompts takes as long as decoding
                else:
                    self._step()
        return bool(self._waiting or self._running)

    def _drop_cancelled(self) -> None:
        self._waiting = deque(row for row in self._waiting if not row.request.work.cancelled())
        active = [
            place for place, row in enumerate(self._running) if not row.request.work.cancelled()
        ]
        self._states = self._retain(active, self._states)

    def _admits_rows(self) -> bool:
        """Return true if waiting rows are admitted before the next token is decoded."""
        if not self._waiting:
            return False
        return self._admitting or len(self._running) <= self._body.admit_below * self._max_rows

    def _step(self) -> None:
        drawn = self._body.draw(self._states, self._running, self._accum_dtype)
        unfinished = _append_tokens(self._running, *drawn.fetch(), self._decode_text)
        tokens = self._retain(unfinished, drawn.tokens)
        if self._running:
            self._states = self._body.step(tokens)

    def _admit(self) -> int:
        """Prefill waiting rows while there is room, up to `prefill_tokens` of prompts.

        If more rows wait and fit, they are admitted before any row decodes. Returns the number of
        prompt tokens that were read.
        """
        admitted = list[Row]()
        room, tokens = self._max_rows - len(self._running), 0
        # where no row can be admitted later, all are now
        limit = self._prefill_tokens if self._body.admit_below else math.inf
        while self._waiting and len(admitted) < room and tokens < limit:
            prompt = self._waiting[0].request.prompt
            repeated = bool(admitted) and admitted[-1].request.prompt is prompt
            tokens += 0 if repeated else len(prompt)
            admitted.append(self._waiting.popleft())
        self._admitting = len(admitted) < room and bool(self._waiting)
        needed_again = {
            prompt_key(row.request.prompt) for row in islice(self._waiting, self._max_rows)
        }
        states = self._body.prefill([row.request.prompt for row in admitted], needed_again)
        self._states = torch.cat([self._states, states]) if self._running else states
        self._running = self._running + admitted
        return tokens

    def _retain(self, rows: Sequence[int], per_row: torch.Tensor) -> torch.Tensor:
        """Evict all rows but these; return their entries of `per_row`, which has one for each row.

        KV of finished rows that continue a conversation is offered to the conversation cache.
        """
        if len(rows) == len(self._running):
            return per_row
        for place, row in enumerate(self._running):
            if (
                row.stop_reason
                and self.finished_kv.get(key := prompt_key(row.tokens_with_kv())) is None
            ):
                retained = row.continues_cached
                self.finished_kv[key] = self._body.sequence_kv(place) if retained else None
        index = torch.tensor(rows, dtype=torch.int64, device=per_row.device)
        self._running = [self._running[place] for place in rows]
        self._body.retain(rows)
        return per_row[index]


def _append_tokens(
    rows: Sequence[Row], tokens: Sequence[int], logprobs: Sequence[float], decode_text: DecodeText
) -> list[int]:
    """Append one token to each row; return the places of the rows that are not finished."""
    for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
        row.add(token, logprob, decode_text)
    return [place for place, row in enumerate(rows) if not row.stop_reason]
