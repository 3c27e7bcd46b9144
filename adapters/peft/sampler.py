"""A frozen copy of some weights that answers in batches."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adapters.peft.base import Base, Network, base_name
from adapters.peft.batches import micro_batch
from adapters.peft.checkpoints import CONFIG, WEIGHTS, adapter_lora, read
from adapters.peft.decoding import write
from adapters.peft.drawing import Row
from adapters.peft.head import likeliest, score
from adapters.peft.lora import Adapter, Tensors, adapted_paths
from adapters.peft.machine import Machine
from adapters.peft.packing import pack
from adapters.peft.requests import Asked, Request, Sampling, Scoring
from adapters.peft.tokenizer import FolderTokenizer, load_tokenizer
from adapters.peft.worker import Worker
from kitchen.errors import BackendError, RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import Failed, Future
from kitchen.types import Array, Checkpoint, Datum, Floats, Lora, Sampled, Tokens


@dataclass(frozen=True)
class Frozen:
    """A model ready to answer: its modules, its tokenizer, and the base that it shares."""

    network: Network
    tokenizer: FolderTokenizer
    base: Base


class PeftSampler:
    """Requests wait until one of them is wanted; then all that wait are served, in batches by length."""

    def __init__(self, machine: Machine, name: str, load: Callable[[], Frozen]) -> None:
        self._machine = machine
        self._worker = Worker(f"sampling {name}", machine.alone)
        self._frozen = self._worker.submit(load)
        self._waiting: list[Request] = []
        self._lock, self._closed = threading.Lock(), False

    @classmethod
    def of(cls, machine: Machine, tokenizer: FolderTokenizer, base: Base, lora: Lora, tensors: Tensors) -> PeftSampler:
        return cls(machine, base.name, lambda: frozen(machine, base, tokenizer, lora, tensors, base.name))

    @classmethod
    def named(cls, machine: Machine, blobs: BlobStore, weights: str | Checkpoint) -> PeftSampler:
        if isinstance(weights, Checkpoint):
            return cls(machine, weights.path, lambda: _of_checkpoint(machine, blobs, weights))
        return cls(machine, weights, lambda: _of_name(machine, weights))

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return self._ask(Scoring(np.array(tokens)))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return self._ask(Scoring(np.array(tokens), k or -1))

    def sample(
        self, prompt: Tokens, *, count: int = 1, max_tokens: int, temperature: float = 1.0, top_p: float = 1.0,
        top_k: int = 0, seed: int = 0, stop: Sequence[str] | Sequence[int] = (),
    ) -> Future[Sequence[Sampled]]:
        return self._ask(Sampling(np.array(prompt), count, max_tokens, temperature, top_p, top_k, seed, stop))

    def close(self) -> None:
        with self._lock:
            self._closed, waiting, self._waiting = True, self._waiting, []
        for request in waiting:
            request.work.cancel()
        self._worker.close()

    def _ask(self, request: Request) -> Future[Any]:
        with self._lock:
            if self._closed:
                return Failed(RunFailed("the sampler is closed"))
            self._waiting.append(request)
        return Asked(request.work, lambda: self._demand(request))

    def _demand(self, request: Request) -> None:
        with self._lock:
            if request in self._waiting:
                served, self._waiting = self._waiting, []
                self._worker.submit(lambda: self._serve(served))

    def _serve(self, requests: Sequence[Request]) -> None:
        try:
            model = self._frozen.result()
            fit = [request for request in requests if not _refused(request, model.network)]
            settings, high = self._machine.settings, self._machine.high
            serve_scorings(model.network, [r for r in fit if isinstance(r, Scoring)], high, settings.micro_batch_tokens)
            serve_samplings(model, [r for r in fit if isinstance(r, Sampling)], high, settings.micro_batch_tokens,
                            settings.sample_batch)
        except BaseException as error:  # noqa: BLE001 it surfaces on every future that has no answer yet
            for request in requests:
                if not request.work.done():
                    request.work.set_exception(error)


def frozen(machine: Machine, base: Base, tokenizer: FolderTokenizer, lora: Lora, tensors: Tensors, source: str) -> Frozen:
    model = base.tree()
    if tensors:
        Adapter(model, lora, machine.high, adapted_paths(tensors)).freeze(tensors, machine.dtype, source)
    return Frozen(Network(model), tokenizer, base)


def serve_scorings(network: Network, requests: Sequence[Scoring], high: torch.dtype, budget: int) -> None:
    data = [Datum(r.tokens[:-1], {"target_tokens": r.tokens[1:]}) for r in requests]
    masks = [np.ones(len(datum.tokens), bool) for datum in data]
    for place, request in enumerate(requests):
        if len(request.tokens) == 1:
            request.work.set_result(_first(request, np.empty((0,)), np.empty((0, 0))))
    long = [place for place, datum in enumerate(data) if len(datum.tokens)]
    for packed in pack([len(data[place].tokens) for place in long], budget):
        batch = micro_batch(data, masks, tuple(long[place] for place in packed), network.device)
        with torch.inference_mode():
            states = network.hidden(batch.ids).flatten(0, 1).index_select(0, batch.where)
            logprobs = score(network.head, states, batch.targets, high)[:, 0]
            for row, index in enumerate(batch.indices):
                request, mine = requests[index], batch.owner == row
                places = torch.from_numpy(np.flatnonzero(mine)).to(states.device)
                top = likeliest(network.head, states[places], request.k, high) if request.k else ()
                request.work.set_result(_first(request, logprobs[mine], *top))


def _first(request: Scoring, logprobs: Array, ids: Array | None = None, values: Array | None = None) -> Any:
    """The first token has nothing before it."""
    if not request.k:
        return np.concatenate([[np.nan], logprobs]).astype(np.float32)
    none = np.full((1, request.k), -1, np.int64)
    if ids is None or values is None or not len(logprobs):
        return none, np.full((1, request.k), np.nan, np.float32)
    return np.vstack([none, ids]), np.vstack([np.full((1, request.k), np.nan), values]).astype(np.float32)


def serve_samplings(model: Frozen, requests: Sequence[Sampling], high: torch.dtype, budget: int, batch: int) -> None:
    rows = [
        Row(request, index, min(request.max_tokens, model.network.context - len(request.prompt)),
            frozenset(model.tokenizer.stop_ids) | {int(one) for one in request.stop if not isinstance(one, str)})
        for request in requests for index in range(request.count)
    ]
    by_length = sorted(rows, key=lambda row: -len(row.request.prompt))
    for start in range(0, len(by_length), batch):
        write(model.network, by_length[start : start + batch], model.tokenizer.spell, high, budget)
    written: dict[Sampling, list[Sampled]] = {request: [] for request in requests}
    for row in rows:
        written[row.request].append(row.sampled())
    for request, sampled in written.items():
        request.work.set_result(sampled)


def _refused(request: Request, network: Network) -> bool:
    room = 1 if isinstance(request, Sampling) else 0
    problem = request.problem(network.vocabulary, network.context - room)
    if problem is not None:
        request.work.set_exception(problem)
    return problem is not None


def _of_checkpoint(machine: Machine, blobs: BlobStore, checkpoint: Checkpoint) -> Frozen:
    saved = read(blobs, checkpoint)
    base = machine.base(saved.model)
    if base.sha256 != saved.model_sha256:
        raise BackendError(f"checkpoint {checkpoint.path!r} was trained on {saved.model!r} with SHA-256 "
                           f"{saved.model_sha256[:16]}…, and {saved.model!r} now has {base.sha256[:16]}…")
    tensors = saved.tensors(WEIGHTS)
    return frozen(machine, base, load_tokenizer(base.folder), saved.lora, tensors, checkpoint.path)


def _of_name(machine: Machine, name: str) -> Frozen:
    from safetensors.torch import load_file

    folder = machine.hub.fetch(name)
    if not (folder / CONFIG).is_file():
        base = machine.base(name)
        return frozen(machine, base, load_tokenizer(base.folder), Lora(), {}, name)
    if not base_name(folder):
        raise BackendError(f"{name}: {CONFIG} does not say which base model it belongs to (base_model_name_or_path)")
    base = machine.base(base_name(folder))
    lora = adapter_lora(json.loads((folder / CONFIG).read_text()), name)
    return frozen(machine, base, load_tokenizer(base.folder), lora, load_file(folder / WEIGHTS), name)
