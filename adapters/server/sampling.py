"""Requests that sample from weights and score prompts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from tinker import types

from adapters.server.futures import Gone, Result
from adapters.server.records import SAMPLER, CheckpointRecord, SamplerRecord, check_number
from adapters.server.sampler_scheduler import QueuedRequest, SamplerScheduler
from adapters.server.sessions import Sessions, snapshot_name
from adapters.server.target_tokens import TargetTokens, parse_targets
from adapters.tinker_protobuf import MAX_NUMBERS, TopTokens, sample_response
from kitchen.backend.losses import UNPUBLISHED
from kitchen.errors import BackendError, ConfigError, DataError
from kitchen.ports.future import Done, Future, arrival
from kitchen.ports.sampling import Sampler
from kitchen.types import Array, Sampled, Tokens

# tokens of a completion without a limit, from a model whose context length is unknown
DEFAULT_MAX_TOKENS = 2048
MAX_SAMPLES = 4096  # completions of one request
TOKEN_BYTES = 36  # of a token id in memory, as a Python int, while its request waits


class SamplingApi:
    """Sampling sessions, each on weights that do not change."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.scheduler = SamplerScheduler(sessions.training.sampler, sessions.limits)
        sessions.on_end.append(
            lambda session_id: self.scheduler.close_samplers(snapshot_name(f"{session_id}:"))
        )

    def create(self, request: types.CreateSamplingSessionRequest) -> str:
        """Return a sampling session's id; raises DataError or BackendError for unknown weights."""
        client = self._sessions.client(request.session_id)
        if request.model_path is None and request.base_model is None:
            raise DataError("a sampling session needs base_model or model_path")
        saved: CheckpointRecord | SamplerRecord | None = None
        base = str(request.base_model)
        if request.model_path is not None:
            snapshot = self._sessions.snapshot(request.model_path)
            saved = snapshot or self._sessions.checkpoint_to_sample(request.model_path)
            base = self._sessions.base_of(request.model_path, saved.base, request.base_model)
        self._sessions.models.get(base)
        limit = self._sessions.limits.samplers_per_session
        if len(self._sessions.records.all(SamplerRecord, f"{client.record.id}:")) >= limit:
            raise ConfigError(f"the session has {limit} sampling sessions; end it and open another")
        number = check_number("sampling_session_seq_id", request.sampling_session_seq_id)
        record = SamplerRecord(
            id=f"{client.record.id}{SAMPLER}{number}",
            session=client.record.id,
            base=base,
            path=request.model_path,
            weights=None if saved is None else saved.weights,
        )
        self._sessions.records.put(record)
        return record.id

    def sample(self, request: types.SampleRequest) -> tuple[str, list[str]]:
        """Queue a request; return its id, and an id for each completion."""
        if request.sampling_session_id is None or request.seq_id is None:
            raise DataError(
                "sampling_session_id and seq_id are missing: open a sampling session first"
            )
        record = self._record(request.sampling_session_id)
        request_id = f"{record.id}:{request.seq_id}"
        if request_id not in self._sessions.futures:
            self._queue(request, request.seq_id, record, request_id)
        return request_id, [f"{request_id}:{index}" for index in range(request.num_samples)]

    def cancel(self, request_id: str) -> None:
        """Cancel a request to sample that nobody waits for; raises DataError for any other."""
        if SAMPLER not in request_id:
            raise DataError(f"{request_id!r} is not a request to sample; only those are cancelled")
        self._sessions.futures.cancel(request_id)

    def _queue(
        self, request: types.SampleRequest, number: int, record: SamplerRecord, request_id: str
    ) -> None:
        futures = self._sessions.futures
        futures.check_room(record.session)
        if not 1 <= request.num_samples <= MAX_SAMPLES:
            raise ConfigError(
                f"num_samples is {request.num_samples}, and must be from 1 to {MAX_SAMPLES}"
            )
        started: asyncio.Future[Awaitable[bytes]] = asyncio.get_running_loop().create_future()
        model = self._sessions.models.get(record.base)
        queued = QueuedRequest(
            record.id,
            number,
            request.num_samples,
            lambda sampler: _send(sampler, request, model.context),
            started,
        )
        self.scheduler.submit(record.weights or model.name, record.session, queued)
        num_tokens = sum(len(getattr(chunk, "tokens", ())) for chunk in request.prompt.chunks)
        futures.add(
            request_id,
            record.session,
            _result(started),
            queue=record.session,
            size=TOKEN_BYTES * num_tokens,
        )

    def _record(self, sampler_id: str) -> SamplerRecord:
        """Return an open sampling session; raises Gone."""
        record = self._sessions.records.get(SamplerRecord, sampler_id)
        if record is None:
            raise Gone(
                f"there is no sampling session {sampler_id!r}: it has ended, or belongs to another "
                "server"
            )
        client = self._sessions.client(record.session)
        if record.id in client.snapshots:
            client.snapshots.move_to_end(record.id)
        return record


def _send(sampler: Sampler, request: types.SampleRequest, context: int | None) -> Awaitable[bytes]:
    """Submit completions, prompt scores and top tokens at once, and gather the results."""
    if request.prompt_alt_tokens_k:
        raise BackendError("prompt_alt_tokens_k is not supported by this server; leave it out")
    if request.record_stability_info:
        raise BackendError(
            "record_stability_info is not supported by this server: it is for the loss "
            "stable_reinforce, of which no published formula was found; use "
            f"{UNPUBLISHED['stable_reinforce']}"
        )
    prompt = _tokens(request.prompt)
    room = (context or len(prompt) + DEFAULT_MAX_TOKENS) - len(prompt)
    max_tokens = request.sampling_params.max_tokens
    max_tokens = max_tokens if max_tokens is not None else max(room, 1)
    _check_top(request, len(prompt), min(max_tokens, room))
    targets = parse_targets(request.target_prompt_logprobs, len(prompt))
    # a prompt that fills the context can be scored, but not continued
    is_full = room <= 0 and bool(
        request.prompt_logprobs or request.topk_prompt_logprobs or targets is not None
    )
    empty = Sampled(prompt[:0], np.empty(0, np.float32), "length")
    submitted: list[Future[Any]] = [Done([empty] * request.num_samples), *[Done(None)] * 3]
    if not is_full:
        submitted[0] = _draw(sampler, request, prompt, max_tokens)
    if request.prompt_logprobs:
        submitted[1] = sampler.logprobs(prompt)
    if request.topk_prompt_logprobs:
        submitted[2] = sampler.top_logprobs(prompt, request.topk_prompt_logprobs)
    if targets is not None:
        submitted[3] = _score_targets(sampler, prompt, targets.ids)
    return _gather(sampler, request, prompt, submitted, targets)


def _check_top(request: types.SampleRequest, prompt_length: int, max_tokens: int) -> None:
    """Raise DataError for more top tokens than a result may have."""
    lengths = {
        "topk_prompt_logprobs": prompt_length,
        "topk_sample_logprobs": (prompt_length + max(max_tokens, 0)) * request.num_samples,
    }
    for name, length in lengths.items():
        if length * (getattr(request, name) or 0) > MAX_NUMBERS:
            raise DataError(
                f"{name}={getattr(request, name)} of {length} tokens is more than the "
                f"{MAX_NUMBERS:.0e} numbers that this server computes; ask for fewer, or lower "
                "max_tokens or num_samples"
            )


def _score_targets(sampler: Sampler, prompt: Tokens, ids: Array) -> Future[Any]:
    """Score other tokens at each position of the prompt, where the sampler can."""
    score = getattr(sampler, "target_logprobs", None)
    if score is None:
        raise BackendError(
            "target_prompt_logprobs is not supported by the training adapter of this server; use "
            "prompt_logprobs or topk_prompt_logprobs"
        )
    scored: Future[Any] = score(prompt, ids)
    return scored


def _draw(
    sampler: Sampler, request: types.SampleRequest, prompt: Tokens, max_tokens: int
) -> Future[Sequence[Sampled]]:
    params = request.sampling_params
    return sampler.sample(
        prompt,
        count=request.num_samples,
        max_tokens=max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=0 if params.top_k == -1 else params.top_k,
        seed=params.seed if params.seed is not None else secrets.randbelow(2**31),
        stop=_stop(params.stop),
    )


async def _gather(
    sampler: Sampler,
    request: types.SampleRequest,
    prompt: Tokens,
    submitted: Sequence[Future[Any]],
    targets: TargetTokens | None,
) -> bytes:
    """Wait for completions and scores of the prompt; then score the completions if asked to."""
    results = await asyncio.gather(*map(arrival, submitted))
    samples, prompt_logprobs, prompt_top, of_targets = results
    last_n = request.prompt_logprobs_last_n
    if last_n is not None and prompt_logprobs is not None:
        prompt_logprobs = _only_last(prompt_logprobs, last_n)
    if last_n is not None and prompt_top is not None:
        ids, nats = prompt_top
        prompt_top = (ids, _only_last(nats, last_n))
    return sample_response(
        samples,
        prompt_logprobs,
        prompt_top,
        await _sampled_top(sampler, prompt, samples, request.topk_sample_logprobs),
        None if targets is None else targets.message(of_targets),
    )


async def _sampled_top(
    sampler: Sampler, prompt: Tokens, samples: Sequence[Sampled], k: int | None
) -> Sequence[TopTokens]:
    """Return the likeliest tokens at each position of each completion.

    The sampler scores prompt and completion once more, as one sequence.
    """
    if not k:
        return []
    whole = [np.concatenate([prompt, sample.tokens]) for sample in samples]
    scored = [sampler.top_logprobs(tokens, k) for tokens in whole]
    tops = await asyncio.gather(*map(arrival, scored))
    return [(ids[len(prompt) :], nats[len(prompt) :]) for ids, nats in tops]


def _only_last(nats: Array, last_n: int) -> Array:
    """Return a copy with NaN in all but the last rows."""
    if not 1 <= last_n < len(nats):
        raise DataError(
            f"prompt_logprobs_last_n is {last_n}, and must be from 1 to {len(nats) - 1}"
        )
    copy = nats.copy()
    copy[:-last_n] = np.nan
    return copy


def _tokens(prompt: Any) -> Tokens:
    for chunk in prompt.chunks:
        if not isinstance(chunk, types.EncodedTextChunk):
            raise DataError(
                f"the prompt has a chunk of {chunk.type}; this server reads encoded_text only"
            )
    tokens = list(chain.from_iterable(chunk.tokens for chunk in prompt.chunks))
    try:
        return np.array(tokens, np.int64)
    except OverflowError:
        bad = next(token for token in tokens if not -(2**63) <= token < 2**63)
        raise DataError(
            f"the prompt has token {str(bad)[:40]}, which no vocabulary contains"
        ) from None


def _stop(stop: Any) -> Sequence[str] | Sequence[int]:
    if stop is None:
        return ()
    if not len(stop):
        raise BackendError(
            "stop=[] would disable the model's own stop tokens, which this server does not "
            "support; leave it out"
        )
    return (stop,) if isinstance(stop, str) else tuple(stop)


async def _result(started: asyncio.Future[Awaitable[bytes]]) -> Result:
    return Result(message=await (await started))
