"""Servers that take token ids: their kinds, and the check that they read the right ones."""

from __future__ import annotations

from collections.abc import Mapping
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
from kitchen.ports.sampling import Tokenizer
from kitchen.types import Tokens

COMPLETIONS = "completions"
# kinds by "owned_by" in the list of models
KITCHEN, SGLANG = OWNER, "sglang"
PROBE = "The quick brown fox jumps over 1,234 lazy dogs.\n\n\tdef f(x): return x**2  # naïve café"
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
    body = {
        "model": model,
        "prompt": PROBE,
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
    _check_ids(read, tokenizer, f"{model} on {server}", tokenizer_name)
    context = description_of(model, listed).get("max_model_len")
    kind = owner_of(model, listed)
    weights = await connection.weights_sha256(model, kind)
    return TokenServer(kind, context if isinstance(context, int) else None, weights)


def _check_ids(read: Tokens, tokenizer: Tokenizer, place: str, name: str) -> None:
    """Raise BackendError unless ids are those of the probe, with or without a first token."""
    expected = [tokenizer.encode(PROBE, special=special) for special in (True, False)]
    if any(np.array_equal(read, ids) for ids in expected):
        return
    raise BackendError(
        f"{place} has another tokenizer than sampling.tokenizer={name}: it encodes a probe text as "
        f"{len(read)} tokens that begin with {read[:5].tolist()}, and {name} as "
        f"{len(expected[0])} that begin with {expected[0][:5].tolist()}; name the model that the "
        "server serves"
    )
