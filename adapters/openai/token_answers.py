"""Answers of the completions endpoint with token ids and log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.openai.errors import MalformedAnswer
from kitchen.errors import BackendError
from kitchen.types import Floats, Sampled, Tokens

_STOP_REASONS = ("stop", "length")
MAX_LOGPROB = 1e-3  # rounding may put that of a certain token above 0
IMPOSSIBLE = -9999.0  # log-probability that vLLM sends for probability 0


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


@dataclass(frozen=True)
class Asked:
    """The limits of a request, which its completions have to keep."""

    prompt: Tokens
    max_tokens: int
    vocabulary: int
    scored: bool  # whether log-probabilities were asked for; they are NaN if not


def completion(choice: Mapping[str, Any], asked: Asked, server: str) -> Sampled:
    """Read one completion; raises MalformedAnswer, BackendError."""
    check_prompt(choice, asked.prompt, server)
    tokens = token_ids(choice, "token_ids", server)
    if len(tokens) > asked.max_tokens:
        raise MalformedAnswer(
            f"a completion has {len(tokens)} tokens, and max_tokens is {asked.max_tokens}"
        )
    _check_vocabulary(tokens, asked.vocabulary)
    reason = choice.get("finish_reason")
    if reason not in _STOP_REASONS:
        raise MalformedAnswer(f"a completion ended with {reason!r}")
    logprobs = np.full(len(tokens), np.nan, np.float32)
    if asked.scored:
        logprobs = _scores(_token_logprobs(choice, server), len(tokens))
    return Sampled(tokens, logprobs, reason)


def prompt_scores(
    choice: Mapping[str, Any], tokens: Tokens, k: int, vocabulary: int, server: str
) -> tuple[Floats, Tokens, Floats]:
    """Read the log-probabilities of a prompt in vLLM's form.

    Returns (T,) those of its tokens, and (T, k) the likeliest ids with theirs. Among these, the
    log-probability of an impossible token (null or minus infinity) is -9999, as vLLM sends it.
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
    for place in range(1, len(tokens)):
        entry = entries[place]
        own[place] = _score(entry[str(int(tokens[place]))]["logprob"])
        ids[place], top[place] = _likeliest(entry, k)
    _check_vocabulary(ids[1:], vocabulary)
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
    scores = _scores(values[1 : len(tokens)], len(tokens) - 1)
    return np.concatenate([np.array([np.nan], np.float32), scores])


def _likeliest(entry: Mapping[str, Any], k: int) -> tuple[list[int], list[float]]:
    """Return the k likeliest tokens of a position; the prompt's own may be one more."""
    if len(entry) < k:
        raise MalformedAnswer(f"{len(entry)} tokens where {k} were asked for")
    listed = [(_listed_score(it["logprob"]), it.get("rank"), token) for token, it in entry.items()]
    ordered = sorted(listed, key=lambda item: (-item[0], item[1] is None))[:k]
    return [int(token) for _, _, token in ordered], [score for score, _, _ in ordered]


def _token_logprobs(choice: Mapping[str, Any], server: str) -> Sequence[Any]:
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, Mapping) else None
    if not isinstance(values, list):
        raise BackendError(f"{server} returns no log-probabilities with completions")
    return values


def _scores(values: Sequence[Any], count: int) -> Floats:
    if len(values) != count:
        raise MalformedAnswer(f"token_logprobs has {len(values)} numbers for {count} tokens")
    return np.array([_score(value) for value in values], np.float32)


def _score(value: Any) -> float:
    """Return a log-probability; raises MalformedAnswer for a value that is none."""
    if type(value) not in (int, float) or not IMPOSSIBLE <= value <= MAX_LOGPROB:
        raise MalformedAnswer(f"{str(value)[:40]} is no log-probability")
    return float(value)


def _listed_score(value: Any) -> float:
    """Return a log-probability among the likeliest, where an impossible token may be listed."""
    if value is None or (type(value) in (int, float) and value < IMPOSSIBLE):
        return IMPOSSIBLE
    return _score(value)


def _check_vocabulary(ids: Tokens, vocabulary: int) -> None:
    """Raise MalformedAnswer for an id that no model with this vocabulary has."""
    if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise MalformedAnswer(f"there is no token id {wrong} among {vocabulary}")
