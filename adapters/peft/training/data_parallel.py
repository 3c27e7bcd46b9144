"""Data parallel training: every device has the weights, and computes a part of each batch.

All devices make the same calls with the same batch. `MicroBatchRunner` runs only the datums of its
device and gathers the results, so that each device has those of the whole batch. Gradients are
summed over the devices before a step, which each of them then takes by itself.
"""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import torch

from adapters.peft.runtime.devices.group import DeviceGroup
from adapters.peft.runtime.devices.peers import Aborted
from adapters.peft.runtime.devices.process import DeviceWorker
from adapters.peft.runtime.worker import current_worker, working_for
from adapters.peft.training.trainer import Trainer
from kitchen.backend.losses import Options
from kitchen.errors import RunFailed
from kitchen.types import Adam, Datum, Floats, Loss, LossOutput, OptimStepResult

LossValue = tuple[float, Sequence[Floats], Mapping[str, float]]
Tensors = dict[str, torch.Tensor]
_NUMBERS = count(1)  # of trainers, under which the other processes know them


class DataParallelTrainer(Trainer):
    """The trainer of device 0; those of the other devices make the same calls."""

    group: DeviceGroup
    name: str  # of the trainers on the other devices

    def attach(self, group: DeviceGroup, name: str) -> None:
        """Compute with the trainers that have this name on the other devices."""
        self.group, self.name = group, name
        self.attach_peers(group)
        weakref.finalize(self, group.forget, name)

    def forward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        return self._on_all("forward", super().forward, data, loss, options)

    def forward_backward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        return self._on_all("forward_backward", super().forward_backward, data, loss, options)

    def step(self, adam: Adam) -> OptimStepResult:
        step = super().step
        if not self.pending:
            return step(adam)  # raises
        result, others = self.group.run(
            _step, lambda rank: (self.name, adam), lambda: step(adam), is_step=True
        )
        if any(other != result.metrics for other in others):
            raise RunFailed(
                "the devices do not agree on the norm of the gradient: "
                f"{[dict(metrics) for metrics in (result.metrics, *others)]}; their weights are no "
                "longer the same. Resume from the last save point, on devices of one kind"
            )
        return result

    def discard_gradient(self) -> None:
        super().discard_gradient()
        self.group.run(_discard_gradient, lambda rank: (self.name,), lambda: None)

    def synchronise(self) -> None:
        """Send the weights and the optimiser's state of this device to all others."""
        state = (
            self.weights.tensors(),
            self.optimiser.tensors(),
            self.optimiser.steps,
            self.calls,
        )
        self.group.run(_load_state, lambda rank: (self.name, *state), lambda: None)

    def _on_all(
        self,
        method: str,
        own: Callable[[Sequence[Datum], str | Loss, Options | None], LossOutput],
        data: Sequence[Datum],
        loss: str | Loss,
        options: Options | None,
    ) -> LossOutput:
        """Run a method on all devices, with a loss that is called in this process."""
        self.check(data, loss, options)
        if isinstance(loss, str):
            arguments = (self.name, method, data, loss, 0, options)
            output, _ = self.group.run(
                _compute, lambda rank: arguments, lambda: own(data, loss, options)
            )
            return output
        shared = SharedLoss(loss, data)
        try:
            output, _ = self.group.run(
                _compute,
                lambda rank: (self.name, method, data, None, shared.group, options),
                lambda: shared.within(lambda: own(data, shared, options)),
                {"loss": shared.of_members, "loss of the batch": shared.of_batch},
            )
        except Exception as error:
            if shared.error is None or shared.error is error:
                raise
            raise error from shared.error
        return output


def open_on_devices(
    group: DeviceGroup, opener: Callable[..., Trainer], machine: Any, *arguments: Any
) -> DataParallelTrainer:
    """Open a trainer on all devices by `opener(machine, *arguments, kind)`."""
    name = f"trainer {next(_NUMBERS)}"
    trainer, _ = group.run(
        _open,
        lambda rank: (name, opener, arguments),
        lambda: opener(machine, *arguments, DataParallelTrainer),
    )
    assert isinstance(trainer, DataParallelTrainer)
    trainer.attach(group, name)
    return trainer


class SharedLoss:
    """A custom loss, called in the process of device 0 for all devices, by one thread at a time.

    With `group`, each device asks for the value of its groups. Without, it is called once, with the
    log-probabilities of the whole batch, and the other devices ask for the result.
    """

    def __init__(self, loss: Loss, data: Sequence[Datum]) -> None:
        self._loss, self._data, self._lock = loss, data, threading.Lock()
        self.group = int(getattr(loss, "group", 0) or 0)
        self.error: Exception | None = None  # that the loss raised
        self._worker = current_worker()
        self._batch: concurrent.futures.Future[LossValue] = concurrent.futures.Future()

    def __call__(self, data: Sequence[Datum], logprobs: Sequence[Floats], /) -> LossValue:
        with self._lock:
            try:
                value = self._loss(data, logprobs)
            except Exception as error:
                self.error = error
                raise
        if not self.group:
            self._batch.set_result(value)
        return value

    def of_members(self, indices: Sequence[int], logprobs: Sequence[Floats]) -> LossValue:
        """Return the value for groups of another device."""
        with working_for(self._worker):
            return self([self._data[index] for index in indices], logprobs)

    def of_batch(self) -> LossValue:
        """Return the value for the whole batch, once this device has computed it."""
        return self._batch.result()

    def within(self, work: Callable[[], LossOutput]) -> LossOutput:
        """Run the part of this device; if it fails, no other waits for the value any longer."""
        try:
            return work()
        finally:
            with suppress(concurrent.futures.InvalidStateError):
                self._batch.set_exception(Aborted())


class _RemoteLoss:
    """A custom loss that is called in the process of device 0."""

    def __init__(self, worker: DeviceWorker, data: Sequence[Datum], group: int) -> None:
        self._worker, self.group = worker, group
        self._indices = {id(datum): index for index, datum in enumerate(data)}

    def __call__(self, data: Sequence[Datum], logprobs: Sequence[Floats], /) -> LossValue:
        value: LossValue
        if self.group:
            indices = [self._indices[id(datum)] for datum in data]
            value = self._worker.ask("loss", indices, logprobs)
        else:
            value = self._worker.ask("loss of the batch")
        return value


def _open(
    worker: DeviceWorker, name: str, opener: Callable[..., Trainer], arguments: tuple[Any, ...]
) -> None:
    trainer = opener(worker.objects["machine"], *arguments, Trainer)
    trainer.attach_peers(worker)
    worker.objects[name] = trainer


def _compute(
    worker: DeviceWorker,
    name: str,
    method: str,
    data: Sequence[Datum],
    loss: str | None,
    group: int,
    options: Options | None,
) -> None:
    """Run a method; device 0 has the result too."""
    trainer: Trainer = worker.objects[name]
    own = loss if loss is not None else _RemoteLoss(worker, data, group)
    run = trainer.forward if method == "forward" else trainer.forward_backward
    run(data, own, options)


def _step(worker: DeviceWorker, name: str, adam: Adam) -> Mapping[str, float]:
    trainer: Trainer = worker.objects[name]
    return trainer.step(adam).metrics


def _discard_gradient(worker: DeviceWorker, name: str) -> None:
    trainer: Trainer = worker.objects[name]
    trainer.discard_gradient()


def _load_state(
    worker: DeviceWorker,
    name: str,
    weights: Tensors,
    optimiser: Tensors,
    steps: int,
    calls: int,
) -> None:
    trainer: Trainer = worker.objects[name]
    trainer.weights.load(weights, "device 0")
    trainer.optimiser.load(optimiser, steps)
    trainer.calls, trainer.pending = calls, False
