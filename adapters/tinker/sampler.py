"""A sampler on a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, TypeVar

from tinker import types

from adapters.tinker.answers import prompt_logprobs, samples, top_logprobs
from adapters.tinker.datums import model_input
from adapters.tinker.errors import translate_error
from adapters.tinker.futures import ConcurrentFuture, new_future, set_error
from adapters.tinker.job_queue import JobQueue, hold_service, resolve_from, run_into
from adapters.tinker.queue_state import QueueStateLogger
from adapters.tinker.service import Service
from kitchen.backend.hedging.hedged import Hedged, Hedging
from kitchen.backend.hedging.race import Cancellable
from kitchen.backend.sampling_checks import prompt_error, sampling_error
from kitchen.errors import ConfigError, RunFailed, SessionLost
from kitchen.ports.future import Failed, Future
from kitchen.ports.sampling import Sampler
from kitchen.types import Floats, Sampled, Tokens

T = TypeVar("T")
NUM_SEEDS = 2**31  # some servers read seeds as signed 32-bit integers
# largest token id and prompt length; the server knows the model's own, smaller limits
MAX_ID = 2**31 - 1


class TinkerSampler:
    """Samples on a server: requests go out in order, and do not wait for each other."""

    def __init__(
        self,
        service: Service,
        create_client: Callable[[Any], Any],
        queue_states: QueueStateLogger | None = None,
    ) -> None:
        """Open the sampler in the background.

        `create_client` makes the SDK's SamplingClient from its ServiceClient, on another thread.
        """
        self._service = service
        self._jobs = JobQueue("sampler on a server")
        self._service_client: Any = None
        self._client = new_future()
        states = queue_states or QueueStateLogger("sampling", on_queued=service.note_queued)

        def open_client() -> Any:
            self._service_client = service.client()
            return states.attach(create_client(self._service_client))

        self._release = hold_service(service, self, self._jobs)
        self._jobs.put(lambda: run_into(self._client, open_client, service.name))

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        if problem := prompt_error(tokens, vocabulary=MAX_ID, context=MAX_ID):
            return Failed(problem)
        server = self._service.name
        return self._submit(
            lambda client: client.compute_logprobs(model_input(tokens)),
            lambda values: prompt_logprobs(values, len(tokens), server),
        )

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        if problem := prompt_error(tokens, vocabulary=MAX_ID, context=MAX_ID) or _check_k(k):
            return Failed(problem)
        server = self._service.name
        return self._submit(
            lambda client: client.sample(
                model_input(tokens),
                1,
                types.SamplingParams(max_tokens=1, temperature=1.0),
                include_prompt_logprobs=True,
                topk_prompt_logprobs=k,
            ),
            lambda result: top_logprobs(result, len(tokens), k, server),
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
        problem = sampling_error(
            count=count,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            stop=stop,
        ) or prompt_error(prompt, vocabulary=MAX_ID, context=MAX_ID)
        if problem:
            return Failed(problem)
        params = types.SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k or -1,
            seed=seed % NUM_SEEDS,
            stop=[item if isinstance(item, str) else int(item) for item in stop] or None,
        )
        server = self._service.name
        return self._submit(
            lambda client: client.sample(model_input(prompt), count, params),
            lambda response: samples(response.sequences, count, max_tokens, server),
        )

    def close(self) -> None:
        self._release()

    @property
    def holds_back(self) -> bool:
        """True if the server has queued or refused requests in the last seconds."""
        return self._service.holds_back

    def _submit(self, request: Callable[[Any], Any], convert: Callable[[Any], T]) -> Future[T]:
        """Send a request in the background, and convert the SDK's result when it arrives."""
        future = new_future()
        future.add_done_callback(self._on_done)
        sent = list[Any]()  # the SDK's future

        def job() -> None:
            if future.done():
                return
            try:
                sent.append(request(self._client.result()))
                resolve_from(sent[0], convert, future, self._service.name)
            except BaseException as error:  # noqa: BLE001 it surfaces on the future
                set_error(future, translate_error(error, self._service.name))

        if not self._jobs.put(job):
            return Failed(RunFailed("the sampler is closed"))
        self._service.watch(future)
        return Cancellable(future, lambda: _cancel(future, sent))

    def _on_done(self, future: ConcurrentFuture[Any]) -> None:
        if isinstance(future.exception(), SessionLost):
            self._service.discard(self._service_client)


def hedged(sampler: TinkerSampler, hedging: Hedging | None, model: str) -> Sampler:
    """Return a sampler on one server, which is asked again if it is late and has room."""
    if hedging is None:
        return sampler
    return Hedged(sampler, [sampler], hedging, model=model, holds_back=lambda _: sampler.holds_back)


def _cancel(future: ConcurrentFuture[Any], sent: Sequence[Any]) -> None:
    """Stop waiting for a request; the SDK tells the server, if that can cancel requests."""
    set_error(future, RunFailed("the request was cancelled"))
    for sdk_future in sent:
        sdk_future.future().cancel()


def _check_k(k: int) -> ConfigError | None:
    if isinstance(k, Integral) and k >= 1:
        return None
    return ConfigError(f"k is {k!r}, and must be a whole number of at least 1")
