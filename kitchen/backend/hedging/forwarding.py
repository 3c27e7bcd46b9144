"""A sampler that passes requests on to others, with a bucket for requests of about their length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

from kitchen.ports.future import Future
from kitchen.ports.sampling import Sampler
from kitchen.types import Floats, Sampled, Tokens

T = TypeVar("T")


class ForwardingSampler(ABC):
    """Turns each call into a function of the sampler that is to answer it."""

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        bucket = length_bucket("logprobs", len(tokens))
        return self._submit(bucket, lambda sampler: sampler.logprobs(tokens))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        bucket = length_bucket("top_logprobs", len(tokens))
        return self._submit(bucket, lambda sampler: sampler.top_logprobs(tokens, k))

    def sample(self, prompt: Tokens, **options: Any) -> Future[Sequence[Sampled]]:
        bucket = _sampling_bucket(prompt, options)
        return self._submit(bucket, lambda sampler: sampler.sample(prompt, **options))

    @abstractmethod
    def _submit(self, bucket: Hashable, request: Callable[[Sampler], Future[T]]) -> Future[T]:
        """Send a request to a sampler, or to several."""


def length_bucket(verb: str, prompt_tokens: int, max_tokens: int = 0, count: int = 1) -> Hashable:
    """Return the bucket of requests that are about as long: each length to a power of two."""
    return verb, prompt_tokens.bit_length(), max_tokens.bit_length(), count.bit_length()


def _sampling_bucket(prompt: Tokens, options: Mapping[str, Any]) -> Hashable:
    """Return the bucket of a call of `sample`; lengths that the sampler refuses count as 0."""
    lengths = [options.get("max_tokens", 0), options.get("count", 1)]
    whole = [int(value) if isinstance(value, Integral) else 0 for value in lengths]
    return length_bucket("sample", len(prompt), *whole)
