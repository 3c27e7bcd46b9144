"""Requests answered in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch

from adapters.peft.batching.micro_batch import micro_batch
from adapters.peft.batching.packing import pack, shared
from adapters.peft.device import Machine
from adapters.peft.model.logprob_head import likeliest, score
from adapters.peft.model.network import Network, Way
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.worker import pass_on
from adapters.peft.sampling.conversation_cache import Keys
from adapters.peft.sampling.draw import Row
from adapters.peft.sampling.frozen_model import Frozen
from adapters.peft.sampling.kv_grid import key
from adapters.peft.sampling.requests import Request, Sampling, Scoring, answer, fail
from adapters.peft.sampling.scheduler import Writing
from kitchen.errors import ConfigError
from kitchen.types import Array, Datum, Sampled, Tokens

STEPS = 64  # tokens that completions grow by, before others may have their turn


def serve(model: Frozen, requests: Sequence[Request], machine: Machine) -> None:
    """Every request gets its answer, or the error that names what is wrong with it."""
    wanted = [request for request in requests if not request.work.cancelled()]
    fit = [request for request in wanted if not _refused(request, model.network)]
    scorings, samplings = (
        [r for r in fit if isinstance(r, Scoring)],
        [r for r in fit if isinstance(r, Sampling)],
    )
    lanes = machine.lanes if model.network.way == Way.FUSED else machine.lanes.one()
    _score(model.network, scorings, machine, lanes)
    if samplings:
        _sample(model, samplings, machine, lanes)


def _refused(request: Request, network: Network) -> bool:
    room = 1 if isinstance(request, Sampling) else 0
    try:
        problem = request.problem(network.vocabulary, network.context - room)
    except (TypeError, ValueError) as error:  # or those who ask with it would have the error too
        problem = ConfigError(f"the request cannot be read: {error}")
    if problem is not None:
        fail(request, problem)
    return problem is not None


def _score(network: Network, requests: Sequence[Scoring], machine: Machine, lanes: Lanes) -> None:
    data = [
        Datum(request.tokens[:-1], {"target_tokens": request.tokens[1:]}) for request in requests
    ]
    long = [place for place, datum in enumerate(data) if len(datum.tokens)]
    for request in requests:
        if len(request.tokens) == 1:
            none = np.empty((0, request.k) if request.k else 0, np.float32)
            _tell(request, none, none.astype(np.int64) if request.k else None)
    budget = max(machine.budget // lanes.count, 1)
    packed = pack(
        [data[place].tokens for place in long], budget, least=network.least, lanes=lanes.count
    )
    lanes.in_parts(
        lambda _, some: _score_some(
            network,
            [requests[long[place]] for place in some],
            [data[long[place]] for place in some],
            machine.high,
        ),
        packed,
    )


def _score_some(
    network: Network, requests: Sequence[Scoring], data: Sequence[Datum], high: torch.dtype
) -> None:
    masks = [np.ones(len(datum.tokens), bool) for datum in data]
    batch = micro_batch(data, masks, tuple(range(len(data))), network.device, network.least)
    with torch.inference_mode():
        states = network.hidden(batch.layout)
        if not all(request.k for request in requests):
            logprobs = score(
                network.head, states.index_select(0, batch.where), batch, high
            ).logprobs
        likely = {}
        for count in sorted({request.k for request in requests if request.k}):
            rows = [row for row, index in enumerate(batch.indices) if requests[index].k == count]
            # of what they share, once
            places = np.unique(np.concatenate([batch.layout.places[row] for row in rows]))
            on_device = torch.from_numpy(places).to(states.device)
            likely[count] = (
                places,
                *likeliest(network.head, states.index_select(0, on_device), count, high),
            )
    for row, index in enumerate(batch.indices):
        if k := requests[index].k:
            places, ids, values = likely[k]
            at = np.searchsorted(places, batch.layout.places[row])
            _tell(requests[index], values[at], ids[at])
        else:
            _tell(requests[index], batch.spread(row, logprobs, data[index]).astype(np.float32))


def _tell(request: Scoring, logprobs: Array, ids: Array | None = None) -> None:
    """Of all tokens but the first, before which there is nothing: it has no number there, and no
    token (-1).
    """
    told = _led(logprobs, np.nan)
    answer(request, told if ids is None else (_led(ids, -1), told))


def _led(found: Array, by: float) -> Array:
    return np.concatenate([np.full_like(found, by, shape=(1, *found.shape[1:])), found])


def _sample(model: Frozen, requests: Sequence[Sampling], machine: Machine, lanes: Lanes) -> None:
    begun = model.said.take(request.prompt for request in requests)
    rows = [
        Row(
            request,
            index,
            min(request.max_tokens, model.network.context - len(request.prompt)),
            frozenset(model.tokenizer.stop_ids)
            | {int(one) for one in request.stop if not isinstance(one, str)},
            key(request.prompt) in begun,
        )
        for request in requests
        for index in range(request.count)
    ]
    most = machine.settings.sample_batch
    count = min(lanes.count, most, len(rows))
    budget, share = -(-machine.budget // count), -(-len(rows) // count)
    shares = [rows[start : start + share] for start in range(0, len(rows), share)]
    spell = model.tokenizer.spell

    def opened() -> list[Writing]:
        held = model.held(_cut_between(shares), machine.budget, begun)
        return [
            Writing(
                model.body(budget, _of(mine, begun), held), mine, spell, machine.high, most // count
            )
            for mine in shares
        ]

    parts = lanes.together(opened)
    begun.clear()  # each lane lets go of what it has read
    while any(lanes.each(lambda _, part: part.go_on(STEPS), parts)):
        pass_on()
    model.said.put(part.ended for part in parts)
    written: dict[Sampling, list[Sampled]] = {request: [] for request in requests}
    for row in rows:
        written[row.request].append(row.sampled())
    for request, sampled in written.items():
        answer(request, sampled)


def _cut_between(shares: Sequence[Sequence[Row]]) -> list[Tokens]:
    """The prompts whose completions several lanes write, but those that are read faster with others
    like them.
    """
    prompts = {key(row.request.prompt): row.request.prompt for mine in shares for row in mine}
    ends = [
        (key(before[-1].request.prompt), key(after[0].request.prompt))
        for before, after in pairwise(shares)
    ]
    cut = dict.fromkeys(one for one, other in ends if one == other)
    return [
        prompts[which]
        for which in cut
        if not any(
            2 * shared(prompts[which], other) > len(prompts[which])
            for name, other in prompts.items()
            if name != which
        )
    ]


def _of(rows: Sequence[Row], begun: Mapping[bytes, Keys | None]) -> dict[bytes, Keys | None]:
    return {which: begun[which] for row in rows if (which := key(row.request.prompt)) in begun}
