"""Log-probabilities in the forms of the two endpoints and of vLLM."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from adapters.server.openai.generation import Scores
from adapters.server.openai.text import INCOMPLETE, CompletionText
from kitchen.ports.sampling import Tokenizer
from kitchen.types import Tokens

MIN_LOGPROB = -9999.0  # in place of minus infinity, which JSON does not have


def chat_logprobs(
    tokens: Iterable[int], scores: Scores, tokenizer: Tokenizer, k: int
) -> Mapping[str, Any]:
    """Return the log-probabilities of an answer; k is the number of likeliest tokens."""
    content = []
    for place, token in enumerate(tokens):
        entry = _chat_entry(int(token), _of_token(int(token), scores, place), tokenizer)
        top = [_chat_entry(other, nats, tokenizer) for other, nats in _likeliest(scores, place)[:k]]
        content.append({**entry, "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokens: Sequence[int],
    scores: Scores,
    tokenizer: Tokenizer,
    k: int,
    offsets: Sequence[int],
) -> Mapping[str, Any]:
    """Return the log-probabilities of a text; `offsets` are those of `text_offsets`.

    The first token of a prompt has none. As in the OpenAI API, the token itself is among the
    likeliest, even if it is not one of them.
    """
    names = [token_name(int(token), tokenizer) for token in tokens]
    chosen = [_of_token(int(token), scores, place) for place, token in enumerate(tokens)]
    tops: list[Mapping[str, float] | None] = []
    for place, (name, nats) in enumerate(zip(names, chosen, strict=True)):
        likeliest = {
            token_name(other, tokenizer): value for other, value in _likeliest(scores, place)[:k]
        }
        tops.append(None if nats is None else {**likeliest, name: nats})
    return {
        "tokens": names,
        "token_logprobs": chosen,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def text_offsets(
    tokens: Iterable[int], tokenizer: Tokenizer, stop_ids: Sequence[int] = (), *, start: int = 0
) -> Sequence[int]:
    """Return the characters before each token, `start` before the first.

    All tokens of a character have the offset of that character.
    """
    text = CompletionText(tokenizer, stop_ids=stop_ids)
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(text.add(int(token)))
    return offsets


def prompt_logprobs(
    tokens: Tokens, scores: Scores, tokenizer: Tokenizer, k: int
) -> Sequence[Mapping[str, Any] | None]:
    """Return the log-probabilities of a prompt as vLLM does, by token id; the first has none.

    The rank of a token that is not among the likeliest is null.
    """
    entries: list[Mapping[str, Any] | None] = [None]
    for place, token in list(enumerate(map(int, tokens)))[1:]:
        likeliest = _likeliest(scores, place)[:k]
        by_id = {
            str(other): _prompt_entry(other, nats, rank, tokenizer)
            for rank, (other, nats) in enumerate(likeliest, 1)
        }
        own = _prompt_entry(token, _of_token(token, scores, place), None, tokenizer)
        entries.append({str(token): own, **by_id})
    return entries


def token_name(token: int, tokenizer: Tokenizer) -> str:
    """Return the text of a token, or its id where it is only a part of a character."""
    text = _text(token, tokenizer)
    return f"token_id:{token}" if INCOMPLETE in text else text


def _text(token: int, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(np.array([token], np.int64), special=True)


def _chat_entry(token: int, nats: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    text = token_name(token, tokenizer)
    # the bytes of a part of a character are not known here
    encoded = None if text.startswith("token_id:") else list(text.encode())
    return {"token": text, "logprob": nats, "bytes": encoded}


def _prompt_entry(
    token: int, nats: float | None, rank: int | None, tokenizer: Tokenizer
) -> Mapping[str, Any]:
    return {"logprob": nats, "rank": rank, "decoded_token": _text(token, tokenizer)}


def _likeliest(scores: Scores, place: int) -> list[tuple[int, float]]:
    pairs = zip(scores.top_ids[place], scores.top_logprobs[place], strict=True)
    return [(int(token), _finite(float(nats))) for token, nats in pairs if token >= 0]


def _of_token(token: int, scores: Scores, place: int) -> float | None:
    """Return the log-probability of a token; equal to the one among the likeliest, if it is there.

    The two come from different passes, whose last bits may differ.
    """
    nats = dict(_likeliest(scores, place)).get(token, float(scores.logprobs[place]))
    return None if math.isnan(nats) else _finite(nats)


def _finite(nats: float) -> float:
    return max(nats, MIN_LOGPROB)
