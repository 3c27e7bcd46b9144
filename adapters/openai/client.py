"""Servers of the OpenAI API as a source of samples: text, or token ids where a server has them.

The SDK is imported on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Literal

from adapters.openai.answer_cache import AnswerCache
from adapters.openai.connection import Connection, check_listed
from adapters.openai.request_fields import RequestFields
from adapters.openai.retries import Limits
from adapters.openai.text_sampler import TextSampler
from adapters.openai.token_sampler import TokenSampler
from kitchen.backend.cache_folder import cache_folder
from kitchen.backend.hedging.hedged import Hedged, Hedging
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError, ConfigError, check_numbers
from kitchen.ports.hub import HubClient
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.secrets import is_secret
from kitchen.types import Checkpoint

PREFIX = "openai:"  # of names of weights
TOKEN_CAPABILITIES = frozenset({"token_ids", "prompt_logprobs", "top_logprobs"})


class OpenAISampling:
    """Samples from the models of a server by the names `openai:MODEL`.

    The key comes from the environment variable that `key` names. With `tokenizer`, the server is
    sent token ids and scores texts; otherwise it is sent conversations, and returns text. Raises
    ConfigError for invalid settings.
    """

    lazily = ("openai",)

    def __init__(
        self,
        hub: HubClient,
        *,
        base_url: str = "",  # of the server, with /v1; else OPENAI_BASE_URL, else OpenAI's
        key: str = "OPENAI_API_KEY",  # environment variable that holds the API key
        tokenizer: str = "",  # model with the server's tokenizer; empty to exchange text
        cache: bool = True,  # keep answers on disk, so that the same request is not paid for again
        concurrency: int = 32,  # requests under way at the same time
        timeout: float = 300.0,  # seconds for an answer, before the request is sent again
        retries: int = 6,  # how often a request that failed is sent again
        backoff: float = 0.5,  # seconds before the first retry, doubled each time
        patience: float = 600.0,  # seconds that a request may be held back by status 429
        limit_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        fields: Mapping[str, Any] | None = None,  # more fields of requests; null leaves one out
        # when a late request is sent again: percentile:0.95, fixed:2.0, adaptive; null for never
        hedge: str | None = None,
        hedge_extra: float | None = None,  # largest share of such extra requests; null for 0.05
    ) -> None:
        _check_key_variable(key)
        _check_limits(limits := Limits(concurrency, timeout, retries, backoff, patience))
        self._hub = hub
        self._tokenizer_model = tokenizer
        self._fields = RequestFields(limit_field, dict(fields or {}))
        answers = AnswerCache(cache_folder() / "openai" if cache else None)
        self._connection = Connection(base_url, key, limits, answers)
        # for extra requests, as a connection sends equal requests once
        self._extra = Connection(base_url, key, limits, answers)
        self._hedging = Hedging.from_settings("sampling.hedge", hedge, hedge_extra)
        self._lock = threading.Lock()
        self._tokenizer: Tokenizer | None = None

    @property
    def capabilities(self) -> frozenset[str]:
        """The features of servers that take token ids; none for text."""
        return TOKEN_CAPABILITIES if self._tokenizer_model else frozenset()

    def why_lacking(self, capability: str) -> str:
        """Return the end of a sentence on a capability that is absent."""
        return (
            f"{self._connection.name} lacks as long as it is used for text; if it takes token ids "
            "(vLLM, SGLang, kitchen serve), set sampling.tokenizer to the model whose tokenizer it "
            "uses"
        )

    def find(self, model: str) -> None:
        """Raise an error if the key, the SDK or a valid address is missing; without a network."""
        _model_of(model)
        if find_spec("openai") is None:
            raise BackendError(
                "the package openai is missing: pip install 'crucible-kitchen[openai]'"
            )
        self._connection.check_address()
        self._connection.read_key()
        if self._tokenizer_model:
            self._hub.find(self._tokenizer_model)

    def server_of(self, model: str) -> str:
        """Return the address of the server without secrets, for the record of a run."""
        return self._connection.name

    def online(self, model: str) -> str:
        """Ask the server for a model, and return what it reports.

        Raises BackendError if it does not list the model, or has another tokenizer.
        """
        name, address = _model_of(model), self._connection.name
        tokenizer = self.tokenizer(model)
        if isinstance(tokenizer, TextTokenizer):
            listed = self._connection.submit(self._connection.models).result()
            check_listed(name, listed, address)
            return f"{address} has {name}, and is used for text"
        sampler = TokenSampler(
            self._connection, name, tokenizer, self._tokenizer_model, self._fields
        )
        server = sampler.server().result()
        limit = "" if server.context is None else f", up to {server.context:,} of them"
        lacks = "; it cannot list the likeliest tokens of a text" if server.echoes_scores else ""
        tokens = f"the tokens of {self._tokenizer_model}{limit}{lacks}"
        return f"{address} has {name}, and reads {tokens}"

    def tokenizer(self, model: str) -> Tokenizer:
        """Return the tokenizer of the server, or one of text; raises BackendError."""
        if not self._tokenizer_model:
            return TextTokenizer()
        from adapters.tokenizer import fetch_tokenizer_alone

        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = fetch_tokenizer_alone(self._hub, self._tokenizer_model)
            return self._tokenizer

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Return a sampler of a model; what the server lacks is an error of the first request."""
        if isinstance(weights, Checkpoint):
            raise BackendError(
                f"the checkpoint {weights.path} is not on {self._connection.name}: name a model "
                "that it serves, as openai:MODEL"
            )
        sampler = self._sampler_on(self._connection, weights)
        if self._hedging is None:
            return sampler
        extra = self._sampler_on(self._extra, weights)
        return Hedged(
            sampler,
            [extra],
            self._hedging,
            model=weights,
            holds_back=lambda _: self._is_held_back(),
        )

    def _is_held_back(self) -> bool:
        """Return whether the server wants no requests with this key for now."""
        return self._connection.seconds_held_back > 0 or self._extra.seconds_held_back > 0

    def _sampler_on(self, connection: Connection, weights: str) -> Sampler:
        model = _model_of(weights)
        tokenizer = self.tokenizer(weights)
        if isinstance(tokenizer, TextTokenizer):
            return TextSampler(connection, model, tokenizer, self._fields)
        return TokenSampler(connection, model, tokenizer, self._tokenizer_model, self._fields)


def _model_of(name: str) -> str:
    """Return the server's name of a model; raises ConfigError for weights of another kind."""
    model = name.removeprefix(PREFIX)
    if model == name or not model:
        raise ConfigError(f"{name!r} is not the name of a model on a server; write openai:MODEL")
    return model


def _check_limits(limits: Limits) -> None:
    """Raise ConfigError for a number that cannot be used."""
    numbers = {f"sampling.{name}": value for name, value in asdict(limits).items()}
    above_0 = ("sampling.concurrency", "sampling.timeout", "sampling.backoff")
    check_numbers(numbers, above_0=above_0)


def _check_key_variable(name: str) -> None:
    if not is_secret(name):
        raise ConfigError(
            f"sampling.key={name!r} is not the name of a secret, so its value would show in logs; "
            "use an environment variable whose name ends with _API_KEY or _TOKEN"
        )
