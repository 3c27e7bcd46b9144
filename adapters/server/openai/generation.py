"""Generation of completions, with the scores of their tokens, in the queue of a sampler."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from adapters.server.futures import FutureStore, QueueFull
from adapters.server.limits import Limits
from adapters.server.openai.weights import ServedWeights
from adapters.server.sampler_scheduler import QueuedRequest, SamplerScheduler
from adapters.server.sampling import TOKEN_BYTES
from kitchen.artifacts.completions import StreamingSampler
from kitchen.errors import RunFailed
from kitchen.ports.future import Done, Future, arrival
from kitchen.ports.sampling import Sampler
from kitchen.types import Floats, Sampled, Tokens

OnToken = Callable[[int, int], object]  # takes the index of a completion, and a token


@dataclass(frozen=True)
class Generation:
    """Completions of one prompt, and the scores that are asked for with them."""

    prompt: Tokens
    count: int
    max_tokens: int  # 0 for none
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: Sequence[str] | Sequence[int]
    # number of likeliest tokens to score at each position; None for no scores at all
    top_logprobs: int | None = None  # of completions
    prompt_logprobs: int | None = None

    @property
    def scores_completions(self) -> bool:
        """True if the log-probabilities of sampling are not those of the model."""
        is_scaled = self.temperature not in (0, 1)
        return self.top_logprobs is not None and (self.top_logprobs > 0 or is_scaled)


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of tokens under the model, in nats."""

    logprobs: Floats  # (T,); NaN for the first token of a sequence
    top_ids: Tokens  # (T, k), the likeliest first
    top_logprobs: Floats  # (T, k)

    def part(self, start: int, end: int | None = None) -> Scores:
        return Scores(
            self.logprobs[start:end], self.top_ids[start:end], self.top_logprobs[start:end]
        )


@dataclass(frozen=True)
class Generated:
    """The completions of one prompt."""

    sampled: Sequence[Sampled]
    scores: Sequence[Scores]  # of the tokens of each; empty if they were not asked for
    prompt_scores: Scores | None


class GenerationQueue:
    """Puts requests into the queues of samplers, in the order in which they came."""

    def __init__(self, scheduler: SamplerScheduler, futures: FutureStore, limits: Limits) -> None:
        self._scheduler = scheduler
        self._futures = futures  # knows when the server stops
        self._limits = limits
        self._numbers = count()
        self._waiting: Counter[str] = Counter()  # requests, by client
        self._bytes: Counter[str] = Counter()  # of their prompts

    async def run(
        self,
        weights: ServedWeights,
        generations: Sequence[Generation],
        client: str,
        on_token: OnToken | None = None,
    ) -> Sequence[Generated]:
        """Return the completions of each prompt; raises QueueFull if the client has too many.

        All prompts are submitted at once. Cancelling cancels all of them. `on_token` is called on
        any thread, with indices that count the completions of all prompts.
        """
        size = TOKEN_BYTES * sum(len(generation.prompt) for generation in generations)
        with self.room(client, len(generations), size):
            started: list[asyncio.Future[Awaitable[Generated]]] = []
            for generation in generations:
                first = len(started) * generation.count
                started.append(self._submit(weights, generation, client, _from(first, on_token)))
            results = [asyncio.ensure_future(_result(one)) for one in started]
            try:
                return await self._unless_stopped(asyncio.gather(*results))
            finally:
                for result in results:  # if one has failed, the others are not needed
                    result.cancel()

    async def _unless_stopped(self, work: asyncio.Future[list[Generated]]) -> Sequence[Generated]:
        """Return the result; raises RunFailed as soon as the server stops."""
        waited: set[asyncio.Future[Any]] = {work, self._futures.stop_signal()}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise RunFailed("the server is stopping; try again later")
        return work.result()

    @contextmanager
    def room(self, client: str, requests: int, size: int) -> Iterator[None]:
        """Count requests while they are in progress; raises QueueFull if there are too many."""
        limits = self._limits
        if (
            self._waiting[client] + requests > limits.unfetched_results
            or self._bytes[client] + size > limits.pending_bytes
        ):
            raise QueueFull(
                f"this client has {self._waiting[client]} prompts in progress; try again later"
            )
        self._waiting[client] += requests
        self._bytes[client] += size
        try:
            yield
        finally:
            self._waiting[client] -= requests
            self._bytes[client] -= size
            if not self._waiting[client]:
                del self._waiting[client], self._bytes[client]

    def _submit(
        self,
        weights: ServedWeights,
        generation: Generation,
        client: str,
        on_token: OnToken | None,
    ) -> asyncio.Future[Awaitable[Generated]]:
        started: asyncio.Future[Awaitable[Any]] = asyncio.get_running_loop().create_future()
        request = QueuedRequest(
            "openai",
            next(self._numbers),
            max(generation.count, 1),
            lambda sampler: _generate(sampler, generation, on_token),
            started,
        )
        self._scheduler.submit(weights.source, f"openai:{client}", request)
        return started


async def _result(started: asyncio.Future[Awaitable[Generated]]) -> Generated:
    return await (await started)


def _from(first: int, on_token: OnToken | None) -> OnToken | None:
    """Return a callback of one prompt, whose completions are numbered from `first` on."""
    if on_token is None:
        return None
    return lambda index, token: on_token(first + index, token)


def random_seed() -> int:
    return secrets.randbelow(2**31)


def _generate(
    sampler: Sampler, generation: Generation, on_token: OnToken | None
) -> Awaitable[Generated]:
    """Submit completions and scores of the prompt at once, and gather the results."""
    drawn = _draw(sampler, generation, on_token)
    prompt_scores: Awaitable[Scores | None] = Done(None)
    follows = generation.max_tokens > 0 and generation.scores_completions
    if generation.prompt_logprobs is not None and not follows:
        prompt_scores = _score(sampler, generation.prompt, generation.prompt_logprobs)
    return _gather(sampler, generation, drawn, prompt_scores)


def _draw(
    sampler: Sampler, generation: Generation, on_token: OnToken | None
) -> Future[Sequence[Sampled]]:
    if not generation.max_tokens:
        empty = Sampled(generation.prompt[:0], np.empty(0, np.float32), "length")
        return Done([empty] * generation.count)
    sample: Callable[..., Future[Sequence[Sampled]]] = sampler.sample
    if on_token is not None and isinstance(sampler, StreamingSampler):
        sample = partial(sampler.stream, on_token=on_token)
    return sample(
        generation.prompt,
        count=generation.count,
        max_tokens=generation.max_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        seed=generation.seed,
        stop=generation.stop,
    )


async def _gather(
    sampler: Sampler,
    generation: Generation,
    drawn: Future[Sequence[Sampled]],
    prompt_scores: Awaitable[Scores | None],
) -> Generated:
    sampled, of_prompt = await asyncio.gather(arrival(drawn), _awaited(prompt_scores))
    length = len(generation.prompt)
    if generation.max_tokens and generation.scores_completions:
        k = max(generation.top_logprobs or 0, generation.prompt_logprobs or 0)
        texts = [np.concatenate([generation.prompt, one.tokens]) for one in sampled]
        whole = await asyncio.gather(*[_score(sampler, text, k) for text in texts])
        if generation.prompt_logprobs is not None:
            of_prompt = whole[0].part(0, length)
        return Generated(sampled, [scores.part(length) for scores in whole], of_prompt)
    scores = []
    if generation.top_logprobs is not None:
        scores = [_without_top(one.logprobs) for one in sampled]
    return Generated(sampled, scores, of_prompt)


async def _awaited(scores: Awaitable[Scores | None]) -> Scores | None:
    return await scores


def _score(sampler: Sampler, tokens: Tokens, k: int) -> Awaitable[Scores]:
    """Submit a sequence to be scored, with the k likeliest tokens at each position."""
    logprobs = sampler.logprobs(tokens)
    top = sampler.top_logprobs(tokens, k) if k else None
    return _scores(logprobs, top)


async def _scores(logprobs: Future[Floats], top: Future[tuple[Tokens, Floats]] | None) -> Scores:
    if top is None:
        return _without_top(await logprobs)
    nats, (ids, top_nats) = await asyncio.gather(arrival(logprobs), arrival(top))
    return Scores(nats, ids, top_nats)


def _without_top(logprobs: Floats) -> Scores:
    shape = (len(logprobs), 0)
    return Scores(logprobs, np.empty(shape, np.int64), np.empty(shape, np.float32))
