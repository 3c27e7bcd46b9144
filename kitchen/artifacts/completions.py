"""Completions of a prompt by opened weights, prompted as their run was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from kitchen.artifacts.open import (
    NO_TEMPLATE_REASON,
    OpenWeights,
    SamplingParams,
    answer_text,
    open_on,
    prompt_tokens,
)
from kitchen.config.adapters import Kitchen
from kitchen.config.order import Order
from kitchen.config.trust import check_trusted_adapters, check_trusted_settings
from kitchen.errors import ConfigError
from kitchen.types import Sampled

_SAMPLING_PORTS = ("training", "hub")  # beside the blob store
V = TypeVar("V")


@dataclass(frozen=True)
class CompletionRequest:
    """A prompt, and how it is completed."""

    prompt: str
    params: SamplingParams
    count: int = 1
    system: str = ""
    raw: bool = False  # without the chat template


@dataclass(frozen=True)
class Completions:
    """The completions of a prompt."""

    texts: Sequence[str]
    sampled: Sequence[Sampled]  # the tokens of each, and why it ended
    no_template: str  # why the chat template was not used; "" if it was


def complete(opened: OpenWeights, request: CompletionRequest) -> Completions:
    """Sample the completions of a prompt."""
    tokenizer = opened.tokenizer()
    separator = opened.separator(tokenizer)
    no_template = "--raw turns it off" if request.raw else ""
    if not request.raw and tokenizer.chat and separator is not None:
        no_template = NO_TEMPLATE_REASON
    tokens = prompt_tokens(
        request.prompt,
        tokenizer,
        request.system,
        raw=no_template,
        chat_template_kwargs=opened.chat_template_kwargs,
    )
    with opened.sampler() as sampler:
        sampled = sampler.sample(
            tokens,
            count=request.count,
            max_tokens=request.params.max_tokens,
            temperature=request.params.temperature,
            top_p=request.params.top_p,
            seed=request.params.seed,
            stop=request.params.stop,
        ).result()
    prefix = "" if request.raw else separator or ""
    texts = [answer_text(one.tokens, tokenizer).removeprefix(prefix) for one in sampled]
    return Completions(texts, sampled, no_template)


@dataclass(frozen=True)
class RunSampler:
    """Samples from the weights of a run, with the adapters in its record."""

    run: str
    order: Order
    objects: Mapping[str, Any]  # adapters that exist already, by port, with the blob store
    trust: bool  # whether the record may name adapters that are not installed

    def __call__(
        self, weights: str, prompt: str, *, count: int, system: str, raw: bool, **params: Any
    ) -> list[str]:
        """Return the texts of completions; `params` are those of SamplingParams."""
        if count < 1 or params["max_tokens"] < 1:
            raise ConfigError(
                f"count={count} and max_tokens={params['max_tokens']} must be at least 1"
            )
        request = CompletionRequest(prompt, SamplingParams(**params), count, system, raw)
        with open_on(weights, self._kitchen) as opened:
            return list(complete(opened, request).texts)

    @cached_property
    def _kitchen(self) -> Kitchen:
        """The adapters, built on first use: the local engine loads a model only once."""
        for port, reason in self.order.missing_objects(self.objects).items():
            if port in _SAMPLING_PORTS:
                raise ConfigError(f"run {self.run!r}: {reason}; pass it to kitchen.resume again")
        names = _of_sampling(self.order.recorded_adapters(self.objects))
        settings = _of_sampling(self.order.recorded_settings(self.objects))
        check_trusted_adapters(self.run, names, trust=self.trust)
        check_trusted_settings(self.run, settings, trust=self.trust)
        return Kitchen.named(names, settings, self.objects)


def _of_sampling(by_port: Mapping[str, V]) -> dict[str, V]:
    return {port: value for port, value in by_port.items() if port in _SAMPLING_PORTS}
