"""Members of an ensemble: weights that are asked for answers, with a time limit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from kitchen.artifacts.weights import Weights, find_weights, naming_damaged
from kitchen.backend.sampling_router import is_sampled_elsewhere
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import (
    ApiError,
    BackendError,
    ConfigError,
    CorruptCheckpoint,
    DataError,
    describe_error,
    exits_as_failures,
)
from kitchen.ports import (
    BlobStore,
    Future,
    ModelCatalog,
    Sampler,
    Tokenizer,
    TrainingClient,
    arrival,
)
from kitchen.types import Sampled, Tokens

# seconds for the first request to a member, since a local model is loaded for it
LOADING_SECONDS = 600.0
GIVE_UP = 5  # probes that fail one after another, after which a member is not asked any more
# HTTP statuses of a request with a wrong key or without credit, or for a model that is not there
WRONG_SETTINGS = frozenset({401, 402, 403, 404})
# and of one that the server cannot answer, such as a prompt that is too long
REFUSED_ALONE = frozenset({400, 413, 422})

log = structlog.get_logger("stages.ensemble")


@dataclass(frozen=True)
class RequestLimits:
    """Limits of the requests to members, and what their answers must have."""

    seconds: float  # for each request
    concurrency: int  # requests to a member at the same time
    needs_logprobs: bool = False
    # seconds before the second probe in a row, doubled before each further one; at most `seconds`
    pause: float = 1.0


@dataclass(frozen=True)
class NoAnswer:
    """A request to a member that brought no answer."""

    reason: str
    late: bool = False  # whether it took too long
    sent: bool = True  # whether the member was asked at all
    refused: bool = False  # whether this prompt alone cannot be answered

    @property
    def read_prompt(self) -> bool:
        """True if the member may have read the prompt, as it does for an answer that is late."""
        return self.sent and self.late


class Member:
    """Weights that are asked for answers; failures are values, and are counted.

    Damaged weights are errors, which end the run, and so are wrong settings: a request that is
    refused for its key or its model before the member has answered any.

    After a failure, the next request goes out alone, as a probe. So requests that fail together,
    as all do when a server starts again, count once.
    """

    def __init__(self, weights: Weights, tokenizer: Tokenizer, limits: RequestLimits) -> None:
        self.weights, self.tokenizer, self.limits = weights, tokenizer, limits
        self._sampler: Sampler | None = None
        self._broken = ""  # why the weights could not be opened
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._alone = asyncio.Lock()
        self._was_asked = False  # whether a request was sent
        self._has_answered = False
        self._has_failed = False  # since the last answer
        self._probes = 0  # that have failed since the last answer
        self._error: Exception | None = None  # that ends the run

    def open(self, client: TrainingClient, blobs: BlobStore | None) -> None:
        """Open the sampler, unless it is open; if a backend fails, no request is sent."""
        if self._sampler is not None or self._broken:
            return
        try:
            with naming_damaged(self.weights, client, blobs):
                self._sampler = client.sampler(self.weights.source)
        except BackendError as error:
            self._give_up(describe_error(error))

    def close(self) -> None:
        """Close the sampler, if it is open."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    async def ask(self, prompt: Tokens, **options: Any) -> Sequence[Sampled] | NoAnswer:
        """Return sampled answers; `options` are those of `Sampler.sample`.

        The first request goes out alone, with a long time limit, because a local model is loaded
        for it.
        """
        async with self._slots:
            async with self._alone:
                if self._error is None and not self._broken:
                    if not self._was_asked:
                        return await self._first_request(prompt, options)
                    if self._has_failed:
                        return await self._probe(prompt, options)
            if self._error is not None:
                raise self._error
            if self._broken:
                return NoAnswer(f"not asked: {self._broken}", sent=False)
            return await self._request(prompt, self.limits.seconds, options)

    async def _first_request(
        self, prompt: Tokens, options: Mapping[str, Any]
    ) -> Sequence[Sampled] | NoAnswer:
        self._was_asked = True
        limit = max(self.limits.seconds, LOADING_SECONDS)
        answers = await self._request(prompt, limit, options)
        try:
            self._check_logprobs(answers)
        except ConfigError as error:
            self._error = error
            raise
        return answers

    async def _probe(
        self, prompt: Tokens, options: Mapping[str, Any]
    ) -> Sequence[Sampled] | NoAnswer:
        """Send one request alone; after GIVE_UP that failed in a row, no more are sent.

        A refusal of its prompt alone is no failure of the member.
        """
        if self._probes:
            await asyncio.sleep(
                min(self.limits.pause * 2 ** (self._probes - 1), self.limits.seconds)
            )
        answers = await self._request(prompt, self.limits.seconds, options)
        if isinstance(answers, NoAnswer) and not answers.refused:
            self._probes += 1
            if self._probes == GIVE_UP:
                reason = answers.reason
                self._give_up(f"{GIVE_UP} requests in a row failed, the last one: {reason}")
        return answers

    async def _request(
        self, prompt: Tokens, seconds: float, options: Mapping[str, Any]
    ) -> Sequence[Sampled] | NoAnswer:
        assert self._sampler is not None
        future = self._sampler.sample(prompt, **options)
        try:
            with exits_as_failures():
                async with asyncio.timeout(seconds) as limit:
                    answers = await arrival(future)
        except (ConfigError, CorruptCheckpoint) as error:
            self._error = error
            raise
        except Exception as error:  # noqa: BLE001 a failed answer is a value
            if limit.expired():
                _cancel(future)
                self._has_failed = True
                return NoAnswer(f"late: it took more than {seconds:g} s", late=True)
            return self._failure(error)
        self._has_answered, self._has_failed, self._probes = True, False, 0
        return answers

    def _failure(self, error: Exception) -> NoAnswer:
        """Return a failure as a value; raises ApiError for wrong settings."""
        status = error.status if isinstance(error, ApiError) else None
        if status in WRONG_SETTINGS and not self._has_answered:
            text = f"{self.weights.name}: {error}"
            self._error = ApiError(text, status=status or 0)
            raise self._error from error
        if status in REFUSED_ALONE:
            self._has_failed, self._probes = False, 0  # the server is up
            return NoAnswer(describe_error(error), refused=True)
        if isinstance(error, DataError):  # possibly without a request
            return NoAnswer(describe_error(error), refused=True)
        self._has_failed = True
        return NoAnswer(describe_error(error))

    def _give_up(self, reason: str) -> None:
        self._broken = reason
        log.warning(f"{self.weights.name} is not asked any more: {reason}")

    def _check_logprobs(self, answers: Sequence[Sampled] | NoAnswer) -> None:
        """Raise ConfigError if the vote needs log-probabilities and the first answer has none."""
        if not self.limits.needs_logprobs or isinstance(answers, NoAnswer):
            return
        if any(math.isnan(mean_logprob(answer)) for answer in answers):
            raise _no_logprobs(self.weights, self.tokenizer)


def check_gives_logprobs(weights: Weights, models: ModelCatalog) -> None:
    """Raise ConfigError for a model on a server that is used for text alone."""
    if not is_sampled_elsewhere(weights.source):
        return
    tokenizer = weights.tokenizer(models)
    if isinstance(tokenizer, TextTokenizer):
        raise _no_logprobs(weights, tokenizer)


def _no_logprobs(weights: Weights, tokenizer: Tokenizer) -> ConfigError:
    hint = "choose vote=majority, or members that report them"
    if isinstance(tokenizer, TextTokenizer):
        hint += ": sampling.tokenizer=MODEL exchanges token ids with servers that take them"
    elif is_sampled_elsewhere(weights.source):
        hint += "; servers that take token ids report them at temperature=0 and temperature=1 only"
    return ConfigError(
        f"vote=confidence needs log-probabilities, and {weights.name} reports none: {hint}"
    )


def _cancel(future: Future[Any]) -> None:
    """Cancel a request that is late, if it can be, so that it holds up no others."""
    cancel = getattr(future, "cancel", None)
    if cancel is not None:
        cancel()


def mean_logprob(answer: Sampled) -> float:
    """Return the mean log-probability of an answer's tokens, in nats; NaN if one is not known."""
    if not len(answer.logprobs):
        return math.nan
    return float(np.asarray(answer.logprobs, np.float64).mean())


def find_members(
    names: Sequence[str],
    limits: RequestLimits,
    client: TrainingClient,
    models: ModelCatalog,
    blobs: BlobStore | None,
) -> list[Member]:
    """Find the weights of all members, without loading them."""
    found = [find_weights(name, client, blobs) for name in names]
    return [Member(weights, weights.tokenizer(models), limits) for weights in found]
