"""Limits of a model, its context length and its vocabulary, for rows, prompts and answers."""

from __future__ import annotations

from typing import Literal

from kitchen.errors import DataError
from kitchen.ports.sampling import Tokenizer
from kitchen.types import Tokens

Overlong = Literal["error", "drop", "truncate", "split"]


def check_sequence(tokens: Tokens, tokenizer: Tokenizer, overlong: Overlong, where: str) -> None:
    """Raise DataError for a row with unknown tokens, or one longer than the model's context.

    A row that is too long is refused unless overlong is drop or truncate.
    """
    check_vocabulary(tokens, tokenizer, where)
    context = tokenizer.context_length
    if context is not None and len(tokens) > context and overlong in ("error", "split"):
        raise DataError(
            f"{where}: {len(tokens)} tokens are more than the model's context of {context}; "
            "shorten the row, or set rendering.overlong to 'truncate' or 'drop' (or to 'split', "
            "for rows of plain text)"
        )


def longest_sequence(max_tokens: int, tokenizer: Tokenizer) -> int:
    """Return the length of the longest sequence: max_tokens, or the model's shorter context."""
    context = tokenizer.context_length
    return max_tokens if context is None else min(max_tokens, max(context, 2))


def length_limit(
    max_tokens: int, tokenizer: Tokenizer, setting: str = "rendering.max_tokens"
) -> tuple[str, str]:
    """Return the limit on sequences that applies, as text, and the fix for those that exceed it."""
    longest = longest_sequence(max_tokens, tokenizer)
    if longest < max_tokens:
        return f"the model's context of {tokenizer.context_length} tokens", "shorten the rows"
    return f"{setting}={max_tokens}", f"raise {setting}, or shorten the rows"


def check_vocabulary(tokens: Tokens, tokenizer: Tokenizer, where: str) -> None:
    """Raise DataError for a token that the tokenizer has and the model does not know."""
    known = tokenizer.model_vocabulary
    if known is None or not len(tokens) or int(tokens.max()) < known:
        return
    token = tokens[tokens >= known][:1]
    text = tokenizer.decode(token, special=True)
    raise DataError(
        f"{where}: the tokenizer has the token {int(token[0])}{f' ({text!r})' if text else ''}, "
        f"but the model knows only the token ids below {known}; resize its embeddings "
        "(model.resize_token_embeddings(len(tokenizer)) in transformers, then save_pretrained), or "
        "use a tokenizer without added tokens"
    )


def has_room(
    prompt: Tokens,
    max_tokens: int,
    setting: str,
    tokenizer: Tokenizer,
    where: str,
    overlong: Overlong = "error",
) -> bool:
    """Return whether a prompt leaves room for an answer of max_tokens in the model's context.

    With overlong=truncate, an answer of one token is enough: longer ones end with the context.
    Raises DataError for a prompt without room, except with overlong=drop.
    """
    check_vocabulary(prompt, tokenizer, where)
    context = tokenizer.context_length
    needed = 1 if overlong == "truncate" else max_tokens
    if context is None or len(prompt) + needed <= context:
        return True
    if overlong == "drop":
        return False
    raise DataError(
        f"{where}: a prompt of {len(prompt)} tokens leaves no room for an answer of {needed} in "
        f"the model's context of {context} tokens; shorten the prompt, or lower {setting} "
        f"({max_tokens})"
    )
