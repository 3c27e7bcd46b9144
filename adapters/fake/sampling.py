"""Sampling from a bigram model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from numbers import Integral

import numpy as np

from adapters.fake.bigram import Bigram, Table, log_softmax
from adapters.fake.tokenizer import END, VOCABULARY, Bytes
from kitchen.backend.sampling_checks import unfit, unreadable
from kitchen.errors import ConfigError
from kitchen.ports.future import Done, Failed, Future
from kitchen.types import Floats, Sampled, Tokens

CONTEXT = 4096  # tokens


class FakeSampler:
    """Draws from a bigram model; the drawing tables of the last settings are kept."""

    def __init__(self, model: Bigram) -> None:
        self._model = model
        self._drawing: dict[tuple[float, float, int], Table] = {}

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        if problem := unreadable(tokens, vocabulary=VOCABULARY, context=CONTEXT):
            return Failed(problem)
        scored = self._model.score(tokens[:-1], tokens[1:])
        return Done(np.concatenate([[np.nan], scored]).astype(np.float32))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        if problem := unreadable(tokens, vocabulary=VOCABULARY, context=CONTEXT):
            return Failed(problem)
        if not (isinstance(k, Integral) and 1 <= k <= VOCABULARY):
            return Failed(
                ConfigError(
                    f"k is {k!r}, and must be a whole number from 1 to the vocabulary of "
                    f"{VOCABULARY}"
                )
            )
        rows = self._model.logprobs[tokens[:-1]]
        best = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        values = np.take_along_axis(rows, best, axis=1)
        return Done(
            (
                np.vstack([np.full((1, k), -1), best]),
                np.vstack([np.full((1, k), np.nan), values]).astype("f4"),
            )
        )

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
        problem = unreadable(prompt, vocabulary=VOCABULARY, context=CONTEXT) or unfit(
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
        stops = frozenset(Bytes.stop_ids) | {int(one) for one in stop if not isinstance(one, str)}
        texts = tuple(one.encode() for one in stop if isinstance(one, str))
        scores = (
            self._model.logprobs
            if temperature == 0
            else log_softmax(self._model.logits / temperature)
        )
        drawn = []
        for index in range(count):
            steps = (
                self._greedy(int(prompt[-1]))
                if temperature == 0 or top_k == 1
                else self._random(int(prompt[-1]), (temperature, top_p, top_k), [seed, index])
            )
            ids, reason = _until(steps, stops, texts, max_tokens)
            before = np.concatenate([prompt[-1:], ids[:-1]])
            drawn.append(
                Sampled(ids, scores[before, ids].astype(np.float32), "stop" if reason else "length")
            )
        return Done(drawn)

    def close(self) -> None: ...

    def _greedy(self, last: int) -> Iterator[int]:
        while True:
            last = self._likeliest[last]
            yield last

    def _random(
        self, last: int, setting: tuple[float, float, int], seed: Sequence[int]
    ) -> Iterator[int]:
        table, rng = self._table(setting), np.random.default_rng(seed)
        while True:
            last = int(table[last].searchsorted(rng.random(), side="right"))
            yield last

    @cached_property
    def _likeliest(self) -> Sequence[int]:
        found: list[int] = self._model.logits.argmax(1).tolist()
        return found

    def _table(self, setting: tuple[float, float, int]) -> Table:
        """(V, V) cumulative probabilities; top-p as in Holtzman et al., 2020 (arXiv:1904.09751)."""
        if setting not in self._drawing:
            self._drawing = {setting: _cumulative(self._model.logits, *setting)}
        return self._drawing[setting]


def _cumulative(logits: Table, temperature: float, top_p: float, top_k: int) -> Table:
    probabilities = np.exp(log_softmax(logits / temperature))
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    if top_k:
        ranked[:, top_k:] = 0.0
    ranked /= ranked.sum(1, keepdims=True)
    ranked[ranked.cumsum(1) - ranked >= top_p] = 0.0  # the token that reaches top_p stays
    kept = np.zeros_like(ranked)
    np.put_along_axis(kept, order, ranked, axis=1)
    summed = kept.cumsum(1)
    return np.asarray(summed / summed[:, -1:])


def _until(
    steps: Iterator[int], stops: frozenset[int], texts: Sequence[bytes], max_tokens: int
) -> tuple[Tokens, bool]:
    """(T,) ids up to and with the first stop, and whether there was one."""
    ids: list[int] = []
    written = bytearray()
    for token in steps:
        ids.append(token)
        if token < END:
            written.append(token)
        stopped = token in stops or any(written.endswith(text) for text in texts)
        if stopped or len(ids) == max_tokens:
            return np.array(ids, np.int64), stopped
    raise AssertionError("a bigram model never ends by itself")
