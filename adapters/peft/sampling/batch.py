"""Batches: all pending requests are scored and sampled together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, pairwise

import numpy as np
import torch

from adapters.peft.batching.micro_batch import build_micro_batch
from adapters.peft.batching.packing import pack, shared_prefix_length
from adapters.peft.device import Machine
from adapters.peft.model.logprob_head import score, top_logprobs
from adapters.peft.model.network import ForwardMode, Network
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.worker import yield_turn
from adapters.peft.sampling.conversation_cache import KV
from adapters.peft.sampling.draw import Row
from adapters.peft.sampling.frozen_model import FrozenModel
from adapters.peft.sampling.kv_cache import prompt_key
from adapters.peft.sampling.requests import (
    Request,
    SamplingRequest,
    ScoringRequest,
    reject,
    resolve,
)
from adapters.peft.sampling.scheduler import Scheduler
from kitchen.backend.work import report_work
from kitchen.errors import ConfigError
from kitchen.types import Array, Datum, Sampled, Tokens

STEPS_PER_TURN = 64  # tokens of each completion before another worker may have its turn


def serve_batch(model: FrozenModel, requests: Sequence[Request], machine: Machine) -> None:
    """Resolve every request with its result, or with the error of an invalid request."""
    active = [request for request in requests if not request.work.cancelled()]
    valid = [request for request in active if not _rejected(request, model.network)]
    scoring = [request for request in valid if isinstance(request, ScoringRequest)]
    sampling = [request for request in valid if isinstance(request, SamplingRequest)]
    lanes = machine.lanes if model.network.mode == ForwardMode.FUSED else machine.lanes.single()
    _score(model.network, scoring, machine, lanes)
    if sampling:
        one_lane = lanes.run(lambda: model.decodes_in_one_lane)
        _sample(model, sampling, machine, lanes.single() if one_lane else lanes)


def _rejected(request: Request, network: Network) -> bool:
    """Reject an invalid request, and return whether it was invalid."""
    room = 1 if isinstance(request, SamplingRequest) else 0
    try:
        problem = request.problem(network.vocab_size, network.context_length - room)
    except (TypeError, ValueError) as error:  # otherwise the whole batch would fail with it
        problem = ConfigError(f"the request cannot be read: {error}")
    if problem is not None:
        reject(request, problem)
    return problem is not None


def _score(
    network: Network, requests: Sequence[ScoringRequest], machine: Machine, lanes: Lanes
) -> None:
    data = [request.datum() for request in requests]
    scorable = [place for place, datum in enumerate(data) if len(datum.tokens)]
    for request in requests:
        if len(request.tokens) == 1 and request.targets is not None:
            resolve(request, np.empty(request.targets.shape, np.float32))
        elif len(request.tokens) == 1:
            empty = np.empty((0, request.k) if request.k else 0, np.float32)
            _resolve_scoring(request, empty, empty.astype(np.int64) if request.k else None)
    budget = max(machine.budget // lanes.count, 1)
    packed = pack(
        [data[place].tokens for place in scorable],
        budget,
        min_shared=network.min_shared,
        lanes=lanes.count,
    )
    lanes.map_in_chunks(
        lambda _, members: _score_packed(
            network,
            [requests[scorable[place]] for place in members],
            [data[scorable[place]] for place in members],
            machine.accum_dtype,
        ),
        packed,
    )


def _score_packed(
    network: Network,
    requests: Sequence[ScoringRequest],
    data: Sequence[Datum],
    accum_dtype: torch.dtype,
) -> None:
    masks = [np.ones(len(datum.tokens), bool) for datum in data]
    batch = build_micro_batch(
        data, masks, tuple(range(len(data))), network.device, network.min_shared
    )
    with torch.inference_mode():
        states = network.hidden(batch.layout)
        if not all(request.k for request in requests):
            scored_states = states.index_select(0, batch.scored_slots)
            logprobs = score(network.head, scored_states, batch, accum_dtype).logprobs
        top_by_k = {}
        for k in sorted({request.k for request in requests if request.k}):
            rows = [row for row, index in enumerate(batch.indices) if requests[index].k == k]
            # a shared prefix is scored once
            slots = np.unique(np.concatenate([batch.layout.slots[row] for row in rows]))
            on_device = torch.from_numpy(slots).to(states.device)
            ids, values = top_logprobs(
                network.head, states.index_select(0, on_device), k, accum_dtype
            )
            top_by_k[k] = (slots, ids, values)
    for row, index in enumerate(batch.indices):
        if requested_k := requests[index].k:
            slots, ids, values = top_by_k[requested_k]
            positions = np.searchsorted(slots, batch.layout.slots[row])
            _resolve_scoring(requests[index], values[positions], ids[positions])
        else:
            datum_logprobs = batch.unpack(row, logprobs, data[index]).astype(np.float32)
            targets = requests[index].targets
            if targets is None:
                _resolve_scoring(requests[index], datum_logprobs)
            else:
                resolve(requests[index], np.where(targets < 0, np.nan, datum_logprobs))


def _resolve_scoring(request: ScoringRequest, logprobs: Array, ids: Array | None = None) -> None:
    """Resolve a request; the first token, with nothing before it, gets NaN and the id -1."""
    values = _prepend(logprobs, np.nan)
    resolve(request, values if ids is None else (_prepend(ids, -1), values))


def _prepend(values: Array, first: float) -> Array:
    return np.concatenate([np.full_like(values, first, shape=(1, *values.shape[1:])), values])


def _sample(
    model: FrozenModel, requests: Sequence[SamplingRequest], machine: Machine, lanes: Lanes
) -> None:
    cached = model.conversations.take(request.prompt for request in requests)
    rows = list(chain.from_iterable(_rows(model, request, cached) for request in requests))
    max_rows = machine.settings.sample_batch
    count = min(lanes.count, max_rows, len(rows))
    budget = -(-machine.budget // count)
    share = -(-len(rows) // count)
    shares = [rows[start : start + share] for start in range(0, len(rows), share)]
    decode_text = partial(model.tokenizer.decode, special=True)

    def create_schedulers() -> list[Scheduler]:
        prefilled = model.prefill_only(prompts_split_between(shares), machine.budget, cached)
        return [
            Scheduler(
                model.decoder_body(budget, _select_cached(lane_rows, cached), prefilled),
                lane_rows,
                decode_text,
                machine.accum_dtype,
                max_rows // count,
            )
            for lane_rows in shares
        ]

    running = lanes.run(create_schedulers)
    cached.clear()  # each lane releases the KV that it has used
    while any(lanes.map(lambda _, scheduler: scheduler.advance(STEPS_PER_TURN), running)):
        report_work(sum(row.is_complete for row in rows), len(rows), unit="answers")
        yield_turn()
    model.end_batch()
    model.conversations.put(scheduler.finished_kv for scheduler in running)
    completions: dict[SamplingRequest, list[Sampled]] = {request: [] for request in requests}
    for row in rows:
        completions[row.request].append(row.sampled())
    for request, sampled in completions.items():
        resolve(request, sampled)


def _rows(
    model: FrozenModel, request: SamplingRequest, cached: Mapping[bytes, KV | None]
) -> list[Row]:
    """Create one row for each completion of a request."""
    max_new_tokens = min(request.max_tokens, model.network.context_length - len(request.prompt))
    extra_stops = {int(stop) for stop in request.stop if not isinstance(stop, str)}
    stop_ids = frozenset(model.tokenizer.stop_ids) | extra_stops
    continues_cached = prompt_key(request.prompt) in cached
    return [
        Row(request, index, max_new_tokens, stop_ids, continues_cached)
        for index in range(request.count)
    ]


def prompts_split_between(shares: Sequence[Sequence[Row]]) -> list[Tokens]:
    """Return the prompts whose completions are split between lanes.

    A prompt that shares more than half of its tokens with another is left out, because it is
    prefilled faster together with that one.
    """
    all_prompts = [row.request.prompt for row in chain.from_iterable(shares)]
    prompts = {prompt_key(prompt): prompt for prompt in all_prompts}
    boundaries = [
        (prompt_key(before[-1].request.prompt), prompt_key(after[0].request.prompt))
        for before, after in pairwise(shares)
    ]
    split = dict.fromkeys(before for before, after in boundaries if before == after)
    return [prompts[key] for key in split if not _mostly_shared(key, prompts)]


def _mostly_shared(key: bytes, prompts: Mapping[bytes, Tokens]) -> bool:
    """Return whether another prompt begins with more than half of this one's tokens."""
    prompt = prompts[key]
    return any(
        2 * shared_prefix_length(prompt, other) > len(prompt)
        for other_key, other in prompts.items()
        if other_key != key
    )


def _select_cached(
    rows: Sequence[Row], cached: Mapping[bytes, KV | None]
) -> dict[bytes, KV | None]:
    return {key: cached[key] for row in rows if (key := prompt_key(row.request.prompt)) in cached}
