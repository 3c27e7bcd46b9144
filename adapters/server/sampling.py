"""The requests that sample and score."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
from tinker import types

from adapters.server.lines import Lines, Wanted
from adapters.server.promises import Answer, Gone
from adapters.server.records import SamplerRecord
from adapters.server.sessions import Sessions, own
from adapters.server.wire import MOST_NUMBERS, samples
from kitchen.errors import BackendError, ConfigError, DataError
from kitchen.ports.future import Done, Future, arrival
from kitchen.ports.sampling import Sampler
from kitchen.types import Array, Sampled, Tokens

# tokens that a completion without a limit may have, where a model has no context to be full
ROOM = 2048
MOST = 4096  # completions of one request
# what no training client has
LATER = ("topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k")
INT = 36  # bytes of a token id while its request waits
MOST_SAMPLERS = 10_000  # sampling sessions of one session


class SamplingApi:
    """Sampling sessions, each of which draws from weights that stand still."""

    def __init__(self, sessions: Sessions) -> None:
        self._all, self.lines = sessions, Lines(sessions.training.sampler)
        sessions.ended.append(lambda session_id: self.lines.let_go(own(f"{session_id}:")))

    def create(self, asked: types.CreateSamplingSessionRequest) -> str:
        """Its id; raises DataError or BackendError for weights or models that are not there."""
        client = self._all.client(asked.session_id)
        if asked.model_path is None and asked.base_model is None:
            raise DataError("a sampling session needs base_model or model_path")
        saved = None if asked.model_path is None else self._all.checkpoint(asked.model_path)
        base = str(asked.base_model) if saved is None else saved.base
        self._all.menu.dish(base)
        if len(self._all.records.all(SamplerRecord, f"{client.record.id}:")) >= MOST_SAMPLERS:
            raise ConfigError(
                f"the session has {MOST_SAMPLERS} sampling sessions; end it and open another"
            )
        record = SamplerRecord(
            id=f"{client.record.id}:sample:{asked.sampling_session_seq_id}",
            session=client.record.id,
            base=base,
            path=asked.model_path,
            inner=None if saved is None else saved.inner,
        )
        self._all.records.put(record)
        return record.id

    def record(self, sampler_id: str) -> SamplerRecord:
        """Raises Gone."""
        found = self._all.records.get(SamplerRecord, sampler_id)
        if found is None:
            raise Gone(
                f"there is no sampling session {sampler_id!r}: it has ended, or is another server's"
            )
        client = self._all.client(found.session)
        if found.id in client.snapshots:
            client.snapshots.move_to_end(found.id)
        return found

    def sample(self, asked: types.SampleRequest) -> tuple[str, list[str]]:
        """The id of the request, and one of each sequence that is asked for."""
        if asked.sampling_session_id is None or asked.seq_id is None:
            raise DataError(
                "sampling_session_id and seq_id are missing: open a sampling session first"
            )
        record = self.record(asked.sampling_session_id)
        request_id = f"{record.id}:{asked.seq_id}"
        if request_id not in self._all.promises:
            self._all.promises.check_room(record.session)
            if not 1 <= asked.num_samples <= MOST:
                raise ConfigError(
                    f"num_samples is {asked.num_samples}, and must be from 1 to {MOST}"
                )
            begun: asyncio.Future[Awaitable[bytes]] = asyncio.get_running_loop().create_future()
            dish = self._all.menu.dish(record.base)
            self.lines.join(
                record.inner or dish.ours,
                record.session,
                Wanted(
                    record.id,
                    asked.seq_id,
                    asked.num_samples,
                    lambda sampler: _answer(sampler, asked, dish.context),
                    begun,
                ),
            )
            self._all.promises.make(
                request_id,
                record.session,
                _told(begun),
                queue=record.session,
                size=INT * sum(len(getattr(chunk, "tokens", ())) for chunk in asked.prompt.chunks),
            )
        return request_id, [f"{request_id}:{index}" for index in range(asked.num_samples)]


def _answer(sampler: Sampler, asked: types.SampleRequest, context: int | None) -> Awaitable[bytes]:
    """Asks at once for completions, scores of the prompt and its likeliest tokens, and gathers what
    comes.
    """
    for name in LATER:
        if getattr(asked, name):
            raise BackendError(f"{name} is not served here; leave it out")
    prompt, how = _tokens(asked.prompt), asked.sampling_params
    if len(prompt) * (asked.topk_prompt_logprobs or 0) > MOST_NUMBERS:
        raise DataError(
            f"topk_prompt_logprobs={asked.topk_prompt_logprobs} of {len(prompt)} tokens is more "
            "than the "
            f"{MOST_NUMBERS:.0e} numbers that this server answers with"
        )
    scored = bool(asked.prompt_logprobs or asked.topk_prompt_logprobs)
    room = (context or len(prompt) + ROOM) - len(prompt)
    nothing = Sampled(prompt[:0], np.empty(0, np.float32), "length")
    drawn: Future[Sequence[Sampled]] = Done([nothing] * asked.num_samples)
    # a prompt as long as the context can be scored, and has no room for a token more
    if room > 0 or not scored:
        drawn = sampler.sample(
            prompt,
            count=asked.num_samples,
            max_tokens=how.max_tokens if how.max_tokens is not None else max(room, 1),
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=0 if how.top_k == -1 else how.top_k,
            seed=how.seed if how.seed is not None else secrets.randbelow(2**31),
            stop=_stop(how.stop),
        )
    logprobs: Future[Any] = sampler.logprobs(prompt) if asked.prompt_logprobs else Done(None)
    top: Future[Any] = (
        sampler.top_logprobs(prompt, asked.topk_prompt_logprobs)
        if asked.topk_prompt_logprobs
        else Done(None)
    )
    return _gathered(drawn, logprobs, top, asked.prompt_logprobs_last_n)


async def _gathered(
    drawn: Future[Sequence[Sampled]], logprobs: Future[Any], top: Future[Any], last: int | None
) -> bytes:
    written, nats, likeliest = await asyncio.gather(arrival(drawn), arrival(logprobs), arrival(top))
    if last is not None:
        nats = None if nats is None else _from_end(nats, last)
        likeliest = None if likeliest is None else (likeliest[0], _from_end(likeliest[1], last))
    return samples(written, nats, likeliest)


def _from_end(nats: Array, last: int) -> Array:
    """NaN in all but the last rows."""
    if not 1 <= last < len(nats):
        raise DataError(f"prompt_logprobs_last_n is {last}, and must be from 1 to {len(nats) - 1}")
    found = nats.copy()
    found[:-last] = np.nan
    return found


def _tokens(prompt: Any) -> Tokens:
    for chunk in prompt.chunks:
        if not isinstance(chunk, types.EncodedTextChunk):
            raise DataError(
                f"the prompt has a chunk of {chunk.type}, and this server reads text alone"
            )
    return np.array([token for chunk in prompt.chunks for token in chunk.tokens], np.int64)


def _stop(asked: Any) -> Sequence[str] | Sequence[int]:
    if asked is None:
        return ()
    if not len(asked):
        raise BackendError(
            "stop=[] would keep the model's own stop tokens from stopping, which is not served "
            "here; "
            "leave it out"
        )
    return (asked,) if isinstance(asked, str) else tuple(asked)


async def _told(begun: asyncio.Future[Awaitable[bytes]]) -> Answer:
    return Answer(message=await (await begun))
