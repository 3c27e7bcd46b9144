"""The requests that sample and score."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker import types

from adapters.server.promises import Answer, Gone
from adapters.server.records import SamplerRecord
from adapters.server.sessions import Sessions, own
from adapters.server.wire import samples
from kitchen.errors import BackendError, ConfigError, DataError
from kitchen.ports.future import Done, Failed, Future, arrival
from kitchen.ports.training import Sampler
from kitchen.types import Array, Sampled, Tokens

MOST_OPEN = 4  # samplers that are in memory at once; the others are opened again when they are asked
GATHER = 0.005  # seconds that requests wait for others, to be served with them in the order of their numbers
ROOM = 2048  # tokens that a completion without a limit may have, where a model has no context to be full
MOST = 4096  # completions of one request
LATER = ("topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k")  # what no training client has
Waiting = tuple[types.SampleRequest, "asyncio.Future[Awaitable[bytes]]"]


@dataclass
class Open:
    """A sampler in memory."""

    sampler: Sampler
    busy: int = 0  # requests that wait for it


class SamplingApi:
    """Sampling sessions, each of which draws from weights that stand still."""

    def __init__(self, sessions: Sessions) -> None:
        self._all = sessions
        self._open: OrderedDict[str, Open] = OrderedDict()  # by weights, those asked for last at the end
        self._waiting: dict[str, dict[int, Waiting]] = {}  # by sampling session, and by number
        sessions.ended.append(self._let_go)

    def create(self, asked: types.CreateSamplingSessionRequest) -> str:
        """Its id; raises DataError or BackendError for weights or models that are not there."""
        client = self._all.client(asked.session_id)
        if asked.model_path is None and asked.base_model is None:
            raise DataError("a sampling session needs base_model or model_path")
        saved = None if asked.model_path is None else self._all.checkpoint(asked.model_path)
        base = str(asked.base_model) if saved is None else saved.base
        self._all.menu.dish(base)
        record = SamplerRecord(
            id=f"{client.record.id}:sample:{asked.sampling_session_seq_id}", session=client.record.id, base=base,
            path=asked.model_path, inner=None if saved is None else saved.inner)
        self._all.records.put(record)
        return record.id

    def record(self, sampler_id: str) -> SamplerRecord:
        """Raises Gone."""
        found = self._all.records.get(SamplerRecord, sampler_id)
        if found is None:
            raise Gone(f"there is no sampling session {sampler_id!r}: it has ended, or is another server's")
        client = self._all.client(found.session)
        if found.id in client.snapshots:
            client.snapshots.move_to_end(found.id)
        return found

    def sample(self, asked: types.SampleRequest) -> tuple[str, list[str]]:
        """The id of the request, and one of each sequence that is asked for."""
        if asked.sampling_session_id is None or asked.seq_id is None:
            raise DataError("sampling_session_id and seq_id are missing: open a sampling session first")
        record = self.record(asked.sampling_session_id)
        request_id = f"{record.id}:{asked.seq_id}"
        if request_id not in self._all.promises:
            self._all.promises.check_room(record.session)
            if not 1 <= asked.num_samples <= MOST:
                raise ConfigError(f"num_samples is {asked.num_samples}, and must be from 1 to {MOST}")
            begun: asyncio.Future[Awaitable[bytes]] = asyncio.get_running_loop().create_future()
            if record.id not in self._waiting:
                self._waiting[record.id] = {}
                asyncio.get_running_loop().call_later(GATHER, self._begin, record)
            self._waiting[record.id][asked.seq_id] = asked, begun
            self._all.promises.make(request_id, record.session, _told(begun))
        return request_id, [f"{request_id}:{index}" for index in range(asked.num_samples)]

    def close(self) -> None:
        for each in self._open.values():
            each.sampler.close()

    def _begin(self, record: SamplerRecord) -> None:
        """What waits is asked of the sampler in the order of its numbers, before any of it is waited for."""
        for _, (asked, begun) in sorted(self._waiting.pop(record.id).items()):
            if not begun.done():
                begun.set_result(self._begun(record, asked))

    def _begun(self, record: SamplerRecord, asked: types.SampleRequest) -> Awaitable[bytes]:
        try:
            opened = self._opened(record)
            work = _answer(opened.sampler, asked, self._all.menu.dish(record.base).context)
        except Exception as error:  # noqa: BLE001 it is the answer
            return Failed(error)
        opened.busy += 1
        answer = asyncio.ensure_future(work)
        answer.add_done_callback(lambda _: self._finished(opened))
        return answer

    def _finished(self, opened: Open) -> None:
        opened.busy -= 1
        self._shrink()

    def _opened(self, record: SamplerRecord) -> Open:
        """Of the record's weights, which other sampling sessions may draw from too."""
        weights = record.inner or self._all.menu.dish(record.base).ours
        key = weights if isinstance(weights, str) else weights.path
        if key not in self._open:
            self._open[key] = Open(self._all.training.sampler(weights))
            self._shrink(keep=key)
        self._open.move_to_end(key)
        return self._open[key]

    def _shrink(self, keep: str = "") -> None:
        """Close those that nobody waits for, the one asked longest ago first."""
        idle = [key for key, each in self._open.items() if not each.busy and key != keep]
        for key in idle[: max(len(self._open) - MOST_OPEN, 0)]:
            self._open.pop(key).sampler.close()

    def _let_go(self, session_id: str) -> None:
        for key in [each for each in self._open if each.startswith(own(f"{session_id}:"))]:
            self._open.pop(key).sampler.close()


def _answer(sampler: Sampler, asked: types.SampleRequest, context: int | None) -> Awaitable[bytes]:
    """Asks at once for completions, scores of the prompt and its likeliest tokens, and gathers what comes."""
    for name in LATER:
        if getattr(asked, name):
            raise BackendError(f"{name} is not served here; leave it out")
    prompt, how = _tokens(asked.prompt), asked.sampling_params
    scored = bool(asked.prompt_logprobs or asked.topk_prompt_logprobs)
    room = (context or len(prompt) + ROOM) - len(prompt)
    nothing = Sampled(prompt[:0], np.empty(0, np.float32), "length")
    drawn: Future[Sequence[Sampled]] = Done([nothing] * asked.num_samples)
    if room > 0 or not scored:  # a prompt as long as the context can be scored, and has no room for a token more
        drawn = sampler.sample(
            prompt, count=asked.num_samples, max_tokens=how.max_tokens if how.max_tokens is not None else max(room, 1),
            temperature=how.temperature, top_p=how.top_p, top_k=0 if how.top_k == -1 else how.top_k,
            seed=how.seed if how.seed is not None else secrets.randbelow(2**31), stop=_stop(how.stop))
    logprobs: Future[Any] = sampler.logprobs(prompt) if asked.prompt_logprobs else Done(None)
    top: Future[Any] = sampler.top_logprobs(prompt, asked.topk_prompt_logprobs) if asked.topk_prompt_logprobs else Done(
        None)
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
            raise DataError(f"the prompt has a chunk of {chunk.type}, and this server reads text alone")
    return np.array([token for chunk in prompt.chunks for token in chunk.tokens], np.int64)


def _stop(asked: Any) -> Sequence[str] | Sequence[int]:
    if asked is None:
        return ()
    if not len(asked):
        raise BackendError("stop=[] would keep the model's own stop tokens from stopping, which is not served here; "
                           "leave it out")
    return (asked,) if isinstance(asked, str) else tuple(asked)


async def _told(begun: asyncio.Future[Awaitable[bytes]]) -> Answer:
    return Answer(message=await (await begun))
