"""Servers that take token ids: their kinds, and the check that they read the right ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.openai.connection import (
    OWNER,
    Connection,
    Request,
    Requester,
    description_of,
    owner_of,
)
from adapters.openai.token_answers import choices_of, token_ids
from kitchen.errors import BackendError
from kitchen.ports.sampling import Message, Tokenizer
from kitchen.types import Tokens

COMPLETIONS = "completions"
# kinds by "owned_by" in the list of models
KITCHEN, SGLANG = OWNER, "sglang"
PROBE = "The quick brown fox jumps over 1,234 lazy dogs.\n\n\tdef f(x): return x**2  # naïve café"
TURN: Sequence[Message] = ({"role": "user", "content": "Hi"},)
# a server may take other values from the configuration of its model
NEUTRAL: Mapping[str, Any] = {"min_p": 0, "repetition_penalty": 1}


@dataclass(frozen=True)
class TokenServer:
    """Facts about a server that takes token ids."""

    kind: str  # its "owned_by", such as "vllm"
    context: int | None  # maximum number of tokens; None if it is not known
    weights: str | None = None  # SHA-256 of the model's weights; None if it is not known

    @property
    def scores_without_sampling(self) -> bool:
        return self.kind == KITCHEN

    @property
    def echoes_scores(self) -> bool:
        """True if a prompt is scored by echoing it, which gives no other tokens."""
        return self.kind == SGLANG


async def open_server(
    connection: Connection,
    model: str,
    tokenizer: Tokenizer,
    tokenizer_name: str,
    requester: Requester,
) -> TokenServer:
    """Return the facts about a server; raises BackendError if it encodes a text otherwise."""
    listed = await connection.models()
    probe = probe_text(tokenizer)
    body = {
        "model": model,
        "prompt": probe,
        "n": 1,
        "max_tokens": 1,
        "temperature": 0.0,
        "return_token_ids": True,
    }
    server = connection.name

    def check(answer: Any) -> Tokens:
        return token_ids(choices_of(answer)[0], "prompt_token_ids", server)

    # never from the cache: the server may have another model now
    request = Request(COMPLETIONS, body, requester, None, is_kept=False, weights="")
    read = await connection.post(request, check)
    _check_ids(read, tokenizer, probe, f"{model} on {server}", tokenizer_name)
    context = description_of(model, listed).get("max_model_len")
    kind = owner_of(model, listed)
    weights = await connection.weights_sha256(model, kind)
    return TokenServer(kind, context if isinstance(context, int) else None, weights)


def probe_text(tokenizer: Tokenizer) -> str:
    """Return a text whose ids tell tokenizers apart, by their special tokens, too."""
    turn = tokenizer.render_text(TURN, answer=True) if tokenizer.chat else ""
    return PROBE + tokenizer.decode(np.array(tokenizer.stop_ids, np.int64), special=True) + turn


def _check_ids(read: Tokens, tokenizer: Tokenizer, probe: str, place: str, name: str) -> None:
    """Raise BackendError unless ids are those of the probe, with or without a first token."""
    expected = [tokenizer.encode(probe, special=special) for special in (True, False)]
    if any(np.array_equal(read, ids) for ids in expected):
        return
    nearest = max(expected, key=lambda ids: _first_difference(read, ids))
    at = _first_difference(read, nearest)
    theirs, ours = (ids[at : at + 5].tolist() for ids in (read, nearest))
    raise BackendError(
        f"{place} has another tokenizer than sampling.tokenizer={name}: it encodes a probe text as "
        f"{len(read)} tokens, and {name} as {len(nearest)}; at {_shown(tokenizer, nearest, at)} "
        f"they are {theirs} and {ours}; name the model that the server serves"
    )


def _first_difference(one: Tokens, other: Tokens) -> int:
    """Return the place of the first id that differs, or the shorter length."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if differs.size else length


def _shown(tokenizer: Tokenizer, ids: Tokens, at: int) -> str:
    return repr(tokenizer.decode(ids[at : at + 5], special=True)) if at < len(ids) else "the end"
