"""A sampler on a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeVar

from tinker import types

from adapters.tinker.datums import model_input, prompt_logprobs, sampled, top_logprobs
from adapters.tinker.service import Service
from adapters.tinker.tickets import Line, explained, follow, settle, using
from adapters.tinker.waiting import Waiting
from adapters.tinker.works import Work, fail, work
from kitchen.backend.sampling_checks import unfit, unreadable
from kitchen.errors import ConfigError, RunFailed, SessionLost
from kitchen.ports.future import Failed, Future, Pending
from kitchen.types import Floats, Sampled, Tokens

T = TypeVar("T")
SEEDS = 2**31  # some servers read them as 32 bits with a sign
IDS = 2**31 - 1  # token ids, and tokens of a prompt: how many there may be, the server knows


class TinkerSampler:
    """Requests go out in the order they are made, and do not wait for each other."""

    def __init__(
        self, service: Service, opening: Callable[[Any], Any], waiting: Waiting | None = None
    ) -> None:
        """`opening` makes the SDK's client, on a thread of the sampler's own; `waiting` hears of
        queues.
        """
        self._service = service
        self._line, heard = Line("sampler on a server"), waiting or Waiting("sampling")
        self._connected: Any = None
        self._client = work()

        def opened() -> Any:
            self._connected = service.client()
            return heard.over(opening(self._connected))

        self._end = using(service, self, self._line)
        self._line.put(lambda: settle(self._client, opened))

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        if problem := unreadable(tokens, vocabulary=IDS, context=IDS):
            return Failed(problem)
        return self._ask(
            lambda client: client.compute_logprobs(model_input(tokens)), prompt_logprobs
        )

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        if problem := unreadable(tokens, vocabulary=IDS, context=IDS) or _bad_k(k):
            return Failed(problem)
        return self._ask(
            lambda client: client.sample(
                model_input(tokens),
                1,
                types.SamplingParams(max_tokens=1, temperature=1.0),
                include_prompt_logprobs=True,
                topk_prompt_logprobs=k,
            ),
            top_logprobs,
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
        problem = unfit(
            count=count,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            stop=stop,
        ) or unreadable(prompt, vocabulary=IDS, context=IDS)
        if problem:
            return Failed(problem)
        how = types.SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k or -1,
            seed=seed % SEEDS,
            stop=[each if isinstance(each, str) else int(each) for each in stop] or None,
        )
        return self._ask(
            lambda client: client.sample(model_input(prompt), count, how),
            lambda answer: [sampled(each) for each in answer.sequences],
        )

    def close(self) -> None:
        self._end()

    def _ask(self, ask: Callable[[Any], Any], told: Callable[[Any], T]) -> Future[T]:
        answer = work()
        answer.add_done_callback(self._look)

        def job() -> None:
            try:
                follow(ask(self._client.result()), told, answer)
            except BaseException as error:  # noqa: BLE001 it surfaces on the future
                fail(answer, explained(error))

        if not self._line.put(job):
            return Failed(RunFailed("the sampler is closed"))
        self._service.watch(answer)
        return Pending(answer)

    def _look(self, answer: Work[Any]) -> None:
        if isinstance(answer.exception(), SessionLost):
            self._service.lose(self._connected)


def _bad_k(k: int) -> ConfigError | None:
    fits = isinstance(k, Integral) and k >= 1
    return None if fits else ConfigError(f"k is {k!r}, and must be a whole number of at least 1")
