"""Completions of a prompt by opened weights, prompted as their run was trained."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from kitchen.artifacts.open import (
    INCOMPLETE_CHARACTER,
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
from kitchen.ports import Future, Tokenizer
from kitchen.types import Sampled, Tokens

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


@runtime_checkable
class StreamingSampler(Protocol):
    """A sampler that hands out the tokens of a completion as they are drawn."""

    def stream(
        self,
        prompt: Tokens,
        on_token: Callable[[int, int], object],
        *,
        count: int = 1,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: Sequence[str] | Sequence[int] = (),
    ) -> Future[Sequence[Sampled]]:
        """Sample as `sample` does, and call `on_token` with each token as it is drawn.

        `on_token` takes the index of the completion and the token, and is called on any thread.
        """


def complete(
    opened: OpenWeights,
    request: CompletionRequest,
    show: Callable[[str], object] | None = None,
) -> Completions:
    """Sample the completions of a prompt.

    `show` is called with the pieces of a single completion, as they are generated if the sampler
    can stream.
    """
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
    prefix = "" if request.raw else separator or ""
    params = asdict(request.params)
    with opened.sampler() as sampler:
        if show is not None and request.count == 1 and isinstance(sampler, StreamingSampler):
            pieces = TextPieces(tokenizer, prefix)
            sampled = _streamed(sampler, tokens, params, lambda token: show(pieces.add(token)))
        else:
            pieces = None
            sampled = sampler.sample(tokens, count=request.count, **params).result()
    texts = [answer_text(one.tokens, tokenizer).removeprefix(prefix) for one in sampled]
    if show is not None and request.count == 1:
        show(texts[0][len(pieces.text) if pieces else 0 :])
    return Completions(texts, sampled, no_template)


def _streamed(
    sampler: StreamingSampler,
    prompt: Tokens,
    params: Mapping[str, Any],
    show: Callable[[int], object],
) -> Sequence[Sampled]:
    """Sample a completion, and show its tokens on this thread."""
    tokens = stream_tokens(sampler, prompt, params)
    while True:
        try:
            show(next(tokens))
        except StopIteration as end:
            sampled: Sequence[Sampled] = end.value
            return sampled


def stream_tokens(
    sampler: StreamingSampler, prompt: Tokens, params: Mapping[str, Any]
) -> Generator[int, None, Sequence[Sampled]]:
    """Yield the tokens of a completion as they are drawn, on this thread, and return it."""
    tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    future = sampler.stream(prompt, lambda _, token: tokens.put(token), **params)
    arrived: concurrent.futures.Future[Sequence[Sampled]] = concurrent.futures.Future()
    arrived.add_done_callback(lambda _: tokens.put(None))

    def wait() -> None:
        try:
            arrived.set_result(future.result())
        except BaseException as error:  # noqa: BLE001 raised on the caller's thread
            arrived.set_exception(error)

    context = copy_context()  # for the progress of loading
    threading.Thread(target=context.run, args=(wait,), name="streaming", daemon=True).start()
    while (token := tokens.get()) is not None:
        yield token
    return arrived.result()


class TextPieces:
    """The text of a completion, decoded piece by piece as its tokens arrive."""

    def __init__(self, tokenizer: Tokenizer, prefix: str) -> None:
        self.text = ""  # returned so far
        self._tokenizer = tokenizer
        self._prefix = prefix  # left out at the start
        self._tokens: list[int] = []

    def add(self, token: int) -> str:
        """Return the text that a token completes; an incomplete character is held back."""
        self._tokens.append(token)
        text = answer_text(np.array(self._tokens), self._tokenizer).rstrip(INCOMPLETE_CHARACTER)
        if self._prefix.startswith(text):  # it may be the prefix that is left out
            return ""
        piece = text.removeprefix(self._prefix)[len(self.text) :]
        self.text += piece
        return piece


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
