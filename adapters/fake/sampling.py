"""Sampling from a bigram model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any, Literal

import numpy as np

from adapters.fake.bigram import Bigram, Table, log_softmax
from adapters.fake.tokenizer import CONTEXT, END, VOCABULARY, ByteTokenizer
from kitchen.backend.sampling_checks import prompt_error, sampling_error, targets_error
from kitchen.errors import ConfigError
from kitchen.ports.future import Done, Failed, Future
from kitchen.types import Floats, Sampled, Tokens


class FakeSampler:
    """Samples from a bigram model; the tables of the last settings are cached."""

    def __init__(self, model: Bigram) -> None:
        self.model = model
        self._scaled: dict[float, Table] = {}  # by temperature
        self._tables: dict[tuple[float, float, int], Table] = {}

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        if problem := prompt_error(tokens, vocabulary=VOCABULARY, context=CONTEXT):
            return Failed(problem)
        logprobs = self.model.score(tokens[:-1], tokens[1:])
        return Done(np.concatenate([[np.nan], logprobs]).astype(np.float32))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        if problem := prompt_error(tokens, vocabulary=VOCABULARY, context=CONTEXT):
            return Failed(problem)
        if not (isinstance(k, Integral) and 1 <= k <= VOCABULARY):
            return Failed(
                ConfigError(
                    f"k is {k!r}, and must be a whole number from 1 to the vocabulary of "
                    f"{VOCABULARY}"
                )
            )
        rows = self.model.logprobs[tokens[:-1]]
        best = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        ids = np.vstack([np.full((1, k), -1), best])
        values = np.vstack([np.full((1, k), np.nan), np.take_along_axis(rows, best, axis=1)])
        return Done((ids, values.astype("f4")))

    def target_logprobs(self, tokens: Tokens, targets: Tokens) -> Future[Floats]:
        """Score other tokens than those of the sequence: row i of (T - 1, K) is at position i + 1.

        Cells of -1 get NaN.
        """
        problem = prompt_error(tokens, vocabulary=VOCABULARY, context=CONTEXT)
        if problem := problem or targets_error(tokens, targets, vocabulary=VOCABULARY):
            return Failed(problem)
        logprobs = self.model.logprobs[np.asarray(tokens)[:-1, None], np.maximum(targets, 0)]
        return Done(np.where(np.asarray(targets) < 0, np.nan, logprobs).astype(np.float32))

    def sample(
        self,
        prompt: Tokens,
        *,
        count: int = 1,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: Sequence[str] | Sequence[int] = (),
    ) -> Future[Sequence[Sampled]]:
        problem = prompt_error(prompt, vocabulary=VOCABULARY, context=CONTEXT) or sampling_error(
            count=count,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            stop=stop,
        )
        if problem:
            return Failed(problem)
        last = int(prompt[-1])
        logprobs = self._scaled_logprobs(temperature)
        completions = []
        for index in range(count):
            if temperature == 0 or top_k == 1:
                tokens = self._greedy(last)
            else:
                tokens = self._random(last, (temperature, top_p, top_k), [seed, index])
            ids, stop_reason = _until_stop(tokens, stop, max_tokens)
            chosen = logprobs[np.concatenate([[last], ids[:-1]]), ids].astype(np.float32)
            completions.append(Sampled(ids, chosen, stop_reason))
        return Done(completions)

    def stream(
        self, prompt: Tokens, on_token: Callable[[int, int], object], **options: Any
    ) -> Future[Sequence[Sampled]]:
        """Sample as `sample` does, and call `on_token` with each completion's index and tokens."""
        sampled = self.sample(prompt, **options)
        if isinstance(sampled, Done):
            for index, completion in enumerate(sampled.value):
                for token in completion.tokens.tolist():
                    on_token(index, token)
        return sampled

    def close(self) -> None: ...

    def _scaled_logprobs(self, temperature: float) -> Table:
        """Log-probabilities at a temperature; those of greedy sampling are the model's."""
        if temperature == 0:
            return self.model.logprobs
        scaled = self._scaled.get(temperature)
        if scaled is None:
            scaled = log_softmax(self.model.logits / temperature)
            self._scaled = {temperature: scaled}  # replaced, since other threads may read it
        return scaled

    def _greedy(self, last: int) -> Iterator[int]:
        while True:
            last = self._likeliest[last]
            yield last

    def _random(
        self, last: int, setting: tuple[float, float, int], seed: Sequence[int]
    ) -> Iterator[int]:
        table = self._cumulative(setting)
        rng = np.random.default_rng(seed)
        while True:
            last = int(table[last].searchsorted(rng.random(), side="right"))
            yield last

    @cached_property
    def _likeliest(self) -> Sequence[int]:
        ids: list[int] = self.model.logits.argmax(1).tolist()
        return ids

    def _cumulative(self, setting: tuple[float, float, int]) -> Table:
        table = self._tables.get(setting)
        if table is None:
            temperature, top_p, top_k = setting
            table = _cumulative(self._scaled_logprobs(temperature), top_p, top_k)
            self._tables = {setting: table}
        return table


def _cumulative(logprobs: Table, top_p: float, top_k: int) -> Table:
    """(V, V) cumulative probabilities; top-p as in Holtzman et al., 2020 (arXiv:1904.09751)."""
    probabilities = np.exp(logprobs)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    if top_k:
        ranked[:, top_k:] = 0.0
    ranked /= ranked.sum(1, keepdims=True)
    ranked[ranked.cumsum(1) - ranked >= top_p] = 0.0  # the token that reaches top_p stays
    truncated = np.zeros_like(ranked)
    np.put_along_axis(truncated, order, ranked, axis=1)
    summed = truncated.cumsum(1)
    return np.asarray(summed / summed[:, -1:])


def _until_stop(
    tokens: Iterator[int], stop: Sequence[str] | Sequence[int], max_tokens: int
) -> tuple[Tokens, Literal["stop", "length"]]:
    """Return (T,) ids up to and including the first stop, and the stop reason."""
    extra_stop_ids = {int(token_id) for token_id in stop if not isinstance(token_id, str)}
    stop_ids = {*ByteTokenizer.stop_ids, *extra_stop_ids}
    stop_texts = tuple(string.encode() for string in stop if isinstance(string, str))
    ids: list[int] = []
    text = bytearray()
    for token in tokens:
        ids.append(token)
        if token < END:
            text.append(token)
        stopped = token in stop_ids or text.endswith(stop_texts)
        if stopped or len(ids) == max_tokens:
            return np.array(ids, np.int64), "stop" if stopped else "length"
    raise AssertionError("a bigram model never ends by itself")
