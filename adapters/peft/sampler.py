"""The local sampler: a frozen copy of some weights that answers requests in batches."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.folders import model_folder
from adapters.peft.device import Machine
from adapters.peft.model.base_model import BaseModel
from adapters.peft.model.lora import Tensors
from adapters.peft.runtime.worker import Worker, nested_call_error
from adapters.peft.sampling.batch import serve_batch
from adapters.peft.sampling.frozen_model import (
    FrozenModel,
    freeze,
    freeze_whole,
    load_checkpoint,
    load_named,
)
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

if TYPE_CHECKING:
    from adapters.peft.sampling.on_devices import DeviceSamplers


class PeftSampler:
    """A sampler whose requests wait until one is awaited; all that wait then form one batch."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        load: Callable[[], FrozenModel],
        fetch: Callable[[], object] | None = None,
        devices: DeviceSamplers | None = None,
    ) -> None:
        """`fetch` downloads what `load` opens, while other workers may compute.

        Its errors are ignored: `load` raises them again. `devices`: the same model on all devices.
        """
        self._machine, self._devices = machine, devices
        self._worker = Worker(f"sampling {name}")
        if fetch is not None:
            self._worker.submit(fetch, exclusive=False)
        self.model: concurrent.futures.Future[FrozenModel] | Failed = self._worker.submit(load)
        self._pending: list[Request] = []
        # the batch that blocking threads wait for, as long as it has not started
        self._next_batch: list[Request] | None = None
        self._lock, self._closed = threading.Lock(), False

    @classmethod
    def from_adapter(
        cls,
        machine: Machine,
        tokenizer: FolderTokenizer,
        base: BaseModel,
        lora: Lora,
        tensors: Tensors,
        devices: DeviceSamplers | None = None,
    ) -> PeftSampler:
        """Sample from a base model with LoRA weights."""
        return cls(
            machine,
            base.name,
            lambda: freeze(machine, base, tokenizer, lora, tensors, base.name),
            devices=devices,
        )

    @classmethod
    def from_model(
        cls,
        machine: Machine,
        tokenizer: FolderTokenizer,
        model: BaseModel,
        devices: DeviceSamplers | None = None,
    ) -> PeftSampler:
        """Sample from a whole model, which nobody changes any more."""
        return cls(machine, model.name, lambda: freeze_whole(model, tokenizer), devices=devices)

    @classmethod
    def from_weights(
        cls, machine: Machine, blobs: BlobStore, weights: str | Checkpoint
    ) -> PeftSampler:
        """Sample from a model by name, a PEFT adapter's folder or a checkpoint."""
        devices = new_device_samplers(machine)
        if isinstance(weights, Checkpoint):
            from_blobs = load_checkpoint if devices is None else devices.load_checkpoint
            return cls(
                machine,
                weights.path,
                lambda: from_blobs(machine, blobs, weights),
                devices=devices,
            )
        from_hub = load_named if devices is None else devices.load_named
        return cls(
            machine,
            weights,
            lambda: from_hub(machine, weights),
            lambda: model_folder(machine.hub, weights),
            devices,
        )

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return self._submit(ScoringRequest(np.array(tokens)))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return self._submit(ScoringRequest(np.array(tokens), k))

    def target_logprobs(self, tokens: Tokens, targets: Tokens) -> Future[Floats]:
        """Score other tokens than those of the sequence: row i of (T - 1, K) is at position i + 1.

        Cells of -1 get NaN.
        """
        return self._submit(ScoringRequest(np.array(tokens), targets=np.array(targets)))

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
        return self._submit(
            SamplingRequest(
                np.array(prompt), count, max_tokens, temperature, top_p, top_k, seed, stop
            )
        )

    def stream(
        self,
        prompt: Tokens,
        on_token: Callable[[int, int], object],
        *,
        count: int = 1,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: Sequence[str] | Sequence[int] = (),
    ) -> Future[Sequence[Sampled]]:
        """Sample as `sample` does, and call `on_token` with each token as it is drawn.

        `on_token` takes the index of the completion and the token. It is called on another thread
        and must return at once.
        """
        return self._submit(
            SamplingRequest(
                np.array(prompt), count, max_tokens, temperature, top_p, top_k, seed, stop, on_token
            )
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pending, self._pending = self._pending, []
        _reject_all(pending, RunFailed("the sampler was closed before this request had its turn"))
        self._worker.close()
        # a reference to the closed sampler must not keep the weights in memory
        self.model, self._devices = Failed(RunFailed("the sampler is closed")), None

    def _submit(self, request: Request) -> Future[Any]:
        if error := nested_call_error():
            return Failed(error)
        with self._lock:
            if self._closed:
                return Failed(RunFailed("the sampler is closed"))
            self._pending.append(request)
        return LazyFuture(request.work, lambda blocks: self._start(request, blocks))

    def _start(self, request: Request, blocks: bool) -> None:
        """Start the batch of all pending requests when one of them is awaited.

        Threads that block arrive in no order: their requests during another batch form one batch.
        """
        with self._lock:
            if request not in self._pending:
                return
            batch, self._pending = self._pending, []
            if blocks and self._next_batch is not None:
                self._next_batch += batch
                return
            self._next_batch = batch if blocks else None
            future = self._worker.submit(lambda: self._serve(batch))
            future.add_done_callback(lambda done: _reject_all(batch, done.exception()))

    def _serve(self, batch: list[Request]) -> None:
        with self._lock:
            if self._next_batch is batch:
                self._next_batch = None
        model = self.model.result()

        def serve(requests: Sequence[Request]) -> None:
            serve_batch(model, requests, self._machine)

        if self._devices is None:
            serve(batch)
        else:
            self._devices.serve(batch, serve)


def new_device_samplers(machine: Machine) -> DeviceSamplers | None:
    """Return an object that samples on all devices; None if there is only one."""
    if machine.devices == 1:
        return None
    from adapters.peft.sampling.on_devices import DeviceSamplers

    return DeviceSamplers()


def _reject_all(requests: Sequence[Request], error: BaseException | None) -> None:
    """Set an error, if there is one, on every future without a result."""
    for request in requests:
        if error is not None:
            reject(request, error)
