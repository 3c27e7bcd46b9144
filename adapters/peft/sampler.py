"""A frozen copy of some weights that answers in batches."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adapters.folders import whole_model
from adapters.peft.device import Machine
from adapters.peft.model.base_model import Base
from adapters.peft.model.lora import Tensors
from adapters.peft.runtime.worker import Worker, no_turn_in_a_turn
from adapters.peft.sampling.batch import serve_batch
from adapters.peft.sampling.frozen_model import FrozenModel, freeze, load_checkpoint, load_named
from adapters.peft.sampling.requests import (
    LazyFuture,
    Request,
    SamplingRequest,
    ScoringRequest,
    reject,
)
from adapters.tokenizer import FolderTokenizer
from kitchen.errors import RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import Failed, Future
from kitchen.types import Checkpoint, Floats, Lora, Sampled, Tokens


class PeftSampler:
    """Requests wait until one of them is wanted; then all that wait are served together."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        load: Callable[[], FrozenModel],
        fetch: Callable[[], object] | None = None,
    ) -> None:
        """`fetch` brings here what `load` opens, which then raises what is wrong with it; others go
        on meanwhile.
        """
        self._machine = machine
        self._worker = Worker(f"sampling {name}")
        if fetch is not None:
            self._worker.submit(fetch, alone=False)
        self._frozen: concurrent.futures.Future[FrozenModel] | Failed = self._worker.submit(load)
        self._waiting: list[Request] = []
        # what threads that block wait for, and has not begun
        self._next: list[Request] | None = None
        self._lock, self._closed = threading.Lock(), False

    @classmethod
    def of(
        cls, machine: Machine, tokenizer: FolderTokenizer, base: Base, lora: Lora, tensors: Tensors
    ) -> PeftSampler:
        return cls(
            machine, base.name, lambda: freeze(machine, base, tokenizer, lora, tensors, base.name)
        )

    @classmethod
    def named(cls, machine: Machine, blobs: BlobStore, weights: str | Checkpoint) -> PeftSampler:
        if isinstance(weights, Checkpoint):
            return cls(machine, weights.path, lambda: load_checkpoint(machine, blobs, weights))
        return cls(
            machine,
            weights,
            lambda: load_named(machine, weights),
            lambda: whole_model(machine.hub, weights),
        )

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return self._ask(ScoringRequest(np.array(tokens)))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return self._ask(ScoringRequest(np.array(tokens), k))

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
        return self._ask(
            SamplingRequest(
                np.array(prompt), count, max_tokens, temperature, top_p, top_k, seed, stop
            )
        )

    def close(self) -> None:
        with self._lock:
            self._closed, waiting, self._waiting = True, self._waiting, []
        _fail(waiting, RunFailed("the sampler was closed before this request had its turn"))
        self._worker.close()
        # who keeps the sampler need not keep the weights
        self._frozen = Failed(RunFailed("the sampler is closed"))

    def _ask(self, request: Request) -> Future[Any]:
        if why := no_turn_in_a_turn():
            return Failed(why)
        with self._lock:
            if self._closed:
                return Failed(RunFailed("the sampler is closed"))
            self._waiting.append(request)
        return LazyFuture(request.work, lambda blocks: self._demand(request, blocks))

    def _demand(self, request: Request, blocks: bool) -> None:
        """What waits is a batch; threads that block come at no order, and theirs is whole when it
        begins.
        """
        with self._lock:
            if request not in self._waiting:
                return
            served, self._waiting = self._waiting, []
            if blocks and self._next is not None:
                self._next += served
                return
            self._next = served if blocks else None
            done = self._worker.submit(lambda: self._serve(served))
            done.add_done_callback(lambda done: _fail(served, done.exception()))

    def _serve(self, served: list[Request]) -> None:
        with self._lock:
            self._next = None if self._next is served else self._next
        serve_batch(self._frozen.result(), served, self._machine)


def _fail(requests: Sequence[Request], error: BaseException | None) -> None:
    """What went wrong surfaces on every future that has no answer yet."""
    for request in requests:
        if error is not None:
            reject(request, error)
