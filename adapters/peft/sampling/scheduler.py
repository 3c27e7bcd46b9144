"""The scheduler: completions are decoded together, and waiting rows replace finished ones."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Protocol

import torch

from adapters.peft.sampling.conversation_cache import KV
from adapters.peft.sampling.draw import DecodeText, Row, draw
from adapters.peft.sampling.kv_grid import prompt_key
from kitchen.types import Tokens

PREFILL_TOKENS = 8192  # prompt tokens that are prefilled before another worker may have its turn


class DecoderBody(Protocol):
    """The rows of a batch, each with its KV cache; every step adds one token to each of them."""

    @property
    def join_below(self) -> float:
        """The share of the largest batch at or below which waiting rows join."""
        ...

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Map (r, H) final states to (r, V) logits."""
        ...

    def prefill(self, prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        """Add one row for each prompt and return their (r, H) states.

        `later` holds the keys of prompts that are needed again soon.
        """
        ...

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed the (R,) newest token of each row and return their (R, H) states."""
        ...

    def retain(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, which keep this order."""
        ...

    def cached(self, row: int) -> KV | None:
        """Return keys and values of all that a row has read; None if they are not available."""
        ...


class Scheduler:
    """Rows from prompt to stop, at most `max_rows` at a time.

    Which row joins when depends on the requests and on what was decoded, never on timing.
    """

    def __init__(
        self,
        body: DecoderBody,
        rows: Sequence[Row],
        decode_text: DecodeText,
        high: torch.dtype,
        max_rows: int,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        self._body = body
        self._decode_text = decode_text
        self._high = high
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._waiting = deque(rows)
        self._running = list[Row]()
        self._states = torch.empty(0)
        self._joining = False
        # KV of finished rows that later prompts may continue, by `prompt_key`
        self.finished: dict[bytes, KV | None] = {}

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
                if self._admits():
                    prefilled += self._join()
                    if self._joining or prefilled >= self._prefill_tokens:
                        return True  # reading many prompts takes as long as writing
                else:
                    self._step()
        return bool(self._waiting or self._running)

    def _drop_cancelled(self) -> None:
        self._waiting = deque(row for row in self._waiting if not row.request.work.cancelled())
        active = [
            place for place, row in enumerate(self._running) if not row.request.work.cancelled()
        ]
        self._states = self._retain(active, self._states)

    def _admits(self) -> bool:
        """True where waiting rows join before the next token is decoded."""
        if not self._waiting:
            return False
        return self._joining or len(self._running) <= self._body.join_below * self._max_rows

    def _step(self) -> None:
        tokens, logprobs = draw(self._body.logits(self._states), self._running, self._high)
        unfinished = _append_tokens(self._running, tokens, logprobs, self._decode_text)
        tokens = self._retain(unfinished, tokens)
        if self._running:
            self._states = self._body.step(tokens)

    def _join(self) -> int:
        """Prefill waiting rows while there is room, up to `prefill_tokens` of prompts.

        If more rows wait and fit, they join before any row decodes. Returns the number of prompt
        tokens to read.
        """
        joined = list[Row]()
        room, tokens = self._max_rows - len(self._running), 0
        # where no row can join later, all join now
        limit = self._prefill_tokens if self._body.join_below else math.inf
        while self._waiting and len(joined) < room and tokens < limit:
            joined.append(self._waiting.popleft())
            repeated = len(joined) > 1 and joined[-2].request.prompt is joined[-1].request.prompt
            tokens += 0 if repeated else len(joined[-1].request.prompt)
        self._joining = len(joined) < room and bool(self._waiting)
        later = {prompt_key(row.request.prompt) for row in islice(self._waiting, self._max_rows)}
        states = self._body.prefill([row.request.prompt for row in joined], later)
        self._states = torch.cat([self._states, states]) if self._running else states
        self._running = self._running + joined
        return tokens

    def _retain(self, rows: Sequence[int], beside: torch.Tensor) -> torch.Tensor:
        """Drop all rows but these; return what remains of a tensor with one entry per row."""
        if len(rows) == len(self._running):
            return beside
        for place, row in enumerate(self._running):
            if (
                row.stop_reason
                and self.finished.get(key := prompt_key(row.cached_tokens())) is None
            ):
                self.finished[key] = self._body.cached(place) if row.continued else None
        index = torch.tensor(rows, dtype=torch.int64, device=beside.device)
        self._running = [self._running[place] for place in rows]
        self._body.retain(rows)
        return beside[index]


def _append_tokens(
    rows: Sequence[Row], tokens: torch.Tensor, logprobs: torch.Tensor, decode_text: DecodeText
) -> list[int]:
    """Append one token to each row; return the places of the rows that are not finished."""
    # one transfer from the device
    values = torch.stack([tokens.double(), logprobs.double()]).tolist()
    for row, token, logprob in zip(rows, *values, strict=True):
        row.add(int(token), logprob, decode_text)
    return [place for place, row in enumerate(rows) if not row.stop_reason]
