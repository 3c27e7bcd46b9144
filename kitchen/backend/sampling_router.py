"""A training client whose samplers may come from another service, by the name of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import ConfigError
from kitchen.ports.sampling import Sampler, SamplingClient, Tokenizer
from kitchen.ports.training import TrainingClient
from kitchen.types import Checkpoint

# kinds of weights that a sampling client has and nobody can train
SAMPLED_KINDS = ("openai", "ensemble")


def is_sampled_elsewhere(weights: object) -> bool:
    """Return whether a name of weights is answered by a sampling client."""
    return isinstance(weights, str) and weights.partition(":")[0] in SAMPLED_KINDS


def server_of(client: object, weights: object) -> str:
    """Return the address of the server that has a model, by an optional method of a client."""
    find_server = getattr(client, "server_of", None)
    return "" if find_server is None else str(find_server(weights))


class SamplingRouter:
    """Sends calls about models of other services to the sampling client, all others to training.

    It has the methods of the training client, and passes as one of its class. Ensembles have a
    client of their own, which `open_ensembles` returns when it is first needed; it is given the
    router, since the members of an ensemble may be models of any client.
    """

    def __init__(
        self,
        training: TrainingClient,
        sampling: SamplingClient | None,
        open_ensembles: Callable[[TrainingClient], SamplingClient] | None = None,
    ) -> None:
        self._training, self._sampling = training, sampling
        self._open_ensembles = open_ensembles
        self._services: dict[str, _OtherService] = {}

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return self._training.__class__

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._training, name)
        if not hasattr(_OtherService, name):
            return method

        def call(weights: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_sampled_elsewhere(weights):
                return method(weights, *args, **kwargs)
            return getattr(self._service(weights), name)(weights, *args, **kwargs)

        return call

    def server_of(self, weights: object) -> str:
        """Return the address, without secrets, of the service that has a model, if it has one."""
        if not isinstance(weights, str) or not is_sampled_elsewhere(weights):
            return ""
        return self._service(weights).server_of(weights)

    def _service(self, weights: str) -> _OtherService:
        kind = weights.partition(":")[0]
        if kind not in self._services:
            self._services[kind] = _OtherService(self._client(kind))
        return self._services[kind]

    def _client(self, kind: str) -> SamplingClient:
        if kind == "ensemble" and self._open_ensembles is not None:
            return self._open_ensembles(cast(TrainingClient, self))
        if kind == "ensemble" or self._sampling is None:
            raise ConfigError(f"there is no sampling client for weights of the kind {kind!r}")
        return self._sampling

    def __repr__(self) -> str:
        return repr(self._training)


class _OtherService:
    """The methods of TrainingClient, ModelCatalog and CheckpointStore that name a model of it."""

    def __init__(self, sampling: SamplingClient) -> None:
        self._sampling = sampling

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        return self._sampling.sampler(weights)

    def find(self, model: str) -> None:
        """Call the client's own `find`, if it has one; else an unknown model fails later."""
        find = getattr(self._sampling, "find", None)
        if find is not None:
            find(model)

    def tokenizer(self, model: str) -> Tokenizer:
        """Return the client's own tokenizer, or that of samplers which read and write text."""
        tokenizer = getattr(self._sampling, "tokenizer", None)
        return TextTokenizer() if tokenizer is None else tokenizer(model)

    def sha256(self, model: str) -> str | None:
        """Return the digest that the client has of a model, if it has one."""
        find_sha256 = getattr(self._sampling, "sha256", None)
        return None if find_sha256 is None else find_sha256(model)

    def server_of(self, model: str) -> str:
        """Return the address that the client gives for a model, if it gives one."""
        return server_of(self._sampling, model)

    def hidden_size(self, model: str) -> None:
        return None

    def open(self, model: str, *_: Any) -> None:
        check_trainable(model)

    lora = notes = open

    def export(self, weights: str, *_: Any, **__: Any) -> None:
        raise ConfigError(_only_sampled(weights, "exported"))


def check_trainable(model: str) -> None:
    """Raise ConfigError for a model that only a sampling client has."""
    if is_sampled_elsewhere(model):
        raise ConfigError(_only_sampled(model, "trained"))


def _only_sampled(model: str, use: str) -> str:
    return f"{model} is a model of another service, which can be sampled but not {use}"
