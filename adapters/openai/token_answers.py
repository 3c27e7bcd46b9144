"""Answers of the completions endpoint with token ids and log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adapters.openai.errors import MalformedAnswer
from kitchen.errors import BackendError
from kitchen.types import Floats, Sampled, Tokens

_STOP_REASONS = ("stop", "length")


def choices_of(answer: Any) -> Sequence[Mapping[str, Any]]:
    """Return the choices of an answer; raises MalformedAnswer if there is none."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, list) or not choices:
        raise MalformedAnswer("it has no choices")
    if not all(isinstance(choice, Mapping) for choice in choices):
        raise MalformedAnswer("its choices are no objects")
    return choices


def token_ids(choice: Mapping[str, Any], field: str, server: str) -> Tokens:
    """Return the ids in a field of a choice; raises BackendError if the server sends none."""
    ids = choice.get(field)
    if ids is None:
        raise BackendError(
            f"{server} returns no {field}: sampling.tokenizer needs a server that knows "
            "return_token_ids, such as vLLM, SGLang or kitchen serve; without it, the server is "
            "used for text"
        )
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise MalformedAnswer(f"{field} is no list of token ids")
    return np.array(ids, np.int64)


def check_prompt(choice: Mapping[str, Any], prompt: Tokens, server: str) -> None:
    """Raise BackendError if the server has read another prompt than was sent."""
    read = token_ids(choice, "prompt_token_ids", server)
    if not np.array_equal(read, prompt):
        raise BackendError(
            f"{server} has read a prompt of {len(read)} tokens in place of the {len(prompt)} that "
            "were sent: it adds or cuts tokens, so its answers cannot be used"
        )


def completion(choice: Mapping[str, Any], prompt: Tokens, server: str, *, scored: bool) -> Sampled:
    """Read one completion; its log-probabilities are NaN unless they were asked for."""
    check_prompt(choice, prompt, server)
    tokens = token_ids(choice, "token_ids", server)
    reason = choice.get("finish_reason")
    if reason not in _STOP_REASONS:
        raise MalformedAnswer(f"a completion ended with {reason!r}")
    logprobs = np.full(len(tokens), np.nan, np.float32)
    if scored:
        logprobs = _numbers(_token_logprobs(choice, server), len(tokens))
    return Sampled(tokens, logprobs, reason)


def prompt_scores(
    choice: Mapping[str, Any], tokens: Tokens, k: int, server: str
) -> tuple[Floats, Tokens, Floats]:
    """Read the log-probabilities of a prompt in vLLM's form.

    Returns (T,) those of its tokens, and (T, k) the likeliest ids with theirs.
    """
    check_prompt(choice, tokens, server)
    entries = choice.get("prompt_logprobs")
    if entries is None:
        raise BackendError(
            f"{server} returns no prompt_logprobs, so it cannot score texts; vLLM, SGLang and "
            "kitchen serve can"
        )
    if not isinstance(entries, list) or len(entries) != len(tokens):
        raise MalformedAnswer(f"prompt_logprobs has no entry for each of {len(tokens)} tokens")
    own = np.full(len(tokens), np.nan, np.float32)
    ids = np.full((len(tokens), k), -1, np.int64)
    top = np.full((len(tokens), k), np.nan, np.float32)
    try:
        for place in range(1, len(tokens)):
            entry = entries[place]
            own[place] = entry[str(int(tokens[place]))]["logprob"]
            ids[place], top[place] = _likeliest(entry, k)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedAnswer(f"prompt_logprobs cannot be read: {error!r}") from error
    return own, ids, top


def echoed_scores(choice: Mapping[str, Any], tokens: Tokens, server: str) -> Floats:
    """Read the log-probabilities of a prompt that was echoed, as SGLang returns them."""
    check_prompt(choice, tokens, server)
    values = _token_logprobs(choice, server)
    added = len(token_ids(choice, "token_ids", server))
    if len(values) != len(tokens) + added:
        raise MalformedAnswer(
            f"token_logprobs has {len(values)} entries for {len(tokens)} + {added} tokens"
        )
    scores = _numbers(values[1 : len(tokens)], len(tokens) - 1)
    return np.concatenate([np.array([np.nan], np.float32), scores])


def _likeliest(entry: Mapping[str, Any], k: int) -> tuple[list[int], list[float]]:
    """Return the k likeliest tokens of a position; the prompt's own may be one more."""
    if len(entry) < k:
        raise ValueError(f"{len(entry)} tokens where {k} were asked for")
    ordered = sorted(entry.items(), key=lambda item: (-item[1]["logprob"], item[1]["rank"] is None))
    return [int(token) for token, _ in ordered[:k]], [it["logprob"] for _, it in ordered[:k]]


def _token_logprobs(choice: Mapping[str, Any], server: str) -> Sequence[Any]:
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, Mapping) else None
    if not isinstance(values, list):
        raise BackendError(f"{server} returns no log-probabilities with completions")
    return values


def _numbers(values: Sequence[Any], count: int) -> Floats:
    if len(values) != count or not all(isinstance(value, int | float) for value in values):
        raise MalformedAnswer(f"token_logprobs has no number for each of {count} tokens")
    return np.array(values, np.float32)
