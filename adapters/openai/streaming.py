"""Answers of the chat endpoint as they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adapters.openai.chat_answers import INCOMPLETE, valid_text
from adapters.openai.connection import Connection, Request
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError
from kitchen.types import Sampled, Tokens


@dataclass
class _Choice:
    """A choice as far as it has arrived."""

    pieces: list[Tokens] = field(default_factory=list)
    reason: str | None = None  # why it ended


async def streamed(
    connection: Connection,
    request: Request,
    tokenizer: TextTokenizer,
    count: int,
    on_token: Callable[[int, int], object],
) -> Sequence[Sampled]:
    """Return completions, and call `on_token` with index and token as they arrive."""
    choices = [_Choice() for _ in range(count)]

    def add(chunk: Any) -> None:
        for part in chunk.choices:
            choice = choices[part.index]
            choice.reason = part.finish_reason or choice.reason
            text = part.delta.content or getattr(part.delta, "refusal", None)
            if text:
                choice.pieces.append(tokenizer.encode(valid_text(text)))
                for token in choice.pieces[-1].tolist():
                    on_token(part.index, token)

    await connection.stream(request, add)
    if any(choice.reason is None for choice in choices):
        raise BackendError(f"{connection.name} ended an answer before it was complete; try again")
    return [_sampled(choice, tokenizer) for choice in choices]


def _sampled(choice: _Choice, tokenizer: TextTokenizer) -> Sampled:
    is_complete = choice.reason not in INCOMPLETE
    end = [np.array([tokenizer.end_id], np.int64)] if is_complete else []
    tokens = np.concatenate([np.empty(0, np.int64), *choice.pieces, *end])
    unknown = np.full(len(tokens), np.nan, np.float32)
    return Sampled(tokens, unknown, "stop" if is_complete else "length")
