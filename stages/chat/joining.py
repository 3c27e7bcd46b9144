"""Texts that follow one another, encoded as the model reads them."""

from __future__ import annotations

import numpy as np

from kitchen.ports.sampling import Tokenizer
from kitchen.types import Tokens

# texts of different kinds: one of them does not merge with the text that follows
_ANCHORS = ("\n", "a", "0", ".")


def encode_after(prompt: str, text: str, tokenizer: Tokenizer) -> tuple[Tokens, Tokens]:
    """Return the ids of a prompt, and those of the text that follows it.

    The ids of the text are those that it has when both are encoded as one, unless a token would
    reach across the border: the model reads the prompt before it writes the text.
    """
    before = tokenizer.encode(prompt, special=True)
    both = tokenizer.encode(prompt + text, special=True)
    if starts_with(both, before):
        return before, both[len(before) :]
    return before, encode_continuation(text, tokenizer)


def encode_continuation(text: str, tokenizer: Tokenizer) -> Tokens:
    """Return the (T,) ids of a text that follows another one.

    Some tokenizers put a space before every text, as SentencePiece does; it is not wanted here.
    """
    for anchor in _ANCHORS:
        before, both = tokenizer.encode(anchor), tokenizer.encode(anchor + text)
        if len(before) and starts_with(both, before):
            return both[len(before) :]
    return tokenizer.encode(text)


def starts_with(tokens: Tokens, prefix: Tokens) -> bool:
    """Return whether a sequence begins with another one."""
    return np.array_equal(tokens[: len(prefix)], prefix)


def common_length(one: str, other: str) -> int:
    """Return the length of the longest text that both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((at for at, (left, right) in pairs if left != right), shorter)
