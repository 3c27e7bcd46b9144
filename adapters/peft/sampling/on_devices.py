"""Sampling on several devices: each has the frozen weights, and serves the requests of its prompts.

The seed of a completion belongs to its request, so that it does not depend on the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from adapters.peft.batching.distribution import distribute
from adapters.peft.device import Machine
from adapters.peft.model.full_weights import FullModel
from adapters.peft.runtime.devices.group import DeviceGroup
from adapters.peft.runtime.devices.peer import Handler
from adapters.peft.runtime.devices.process import DeviceWorker, Remote, served
from adapters.peft.sampling.batch import serve_batch
from adapters.peft.sampling.frozen_model import (
    FrozenModel,
    freeze,
    freeze_whole,
    load_checkpoint,
    load_named,
)
from adapters.peft.sampling.requests import (
    Request,
    SamplingRequest,
    reject,
    resolve,
)
from adapters.tokenizer import fetch_tokenizer
from kitchen.ports.blobs import BlobStore
from kitchen.types import Checkpoint, Tokens

T = TypeVar("T")
Freeze = Callable[..., FrozenModel]
Fields = dict[str, Any]
_NUMBERS = count(1)  # of samplers, under which the other processes know them


class TrainerOnDevices(Protocol):
    """A trainer whose copies on the other devices have a name there."""

    group: DeviceGroup
    name: str


class DeviceSamplers:
    """The frozen models of a sampler on the devices of a group."""

    _group: DeviceGroup

    def __init__(self) -> None:
        self._name = f"sampler {next(_NUMBERS)}"

    def copy_trainer(self, trainer: TrainerOnDevices, model: str) -> None:
        """Copy the weights of a trainer on all other devices; nothing is sent."""
        self._load(trainer.group, _freeze_trainer, (trainer.name, model), lambda: None, {})

    def load_named(self, machine: Machine, name: str) -> FrozenModel:
        """Load a model, or a PEFT adapter from a folder, on all devices."""
        own = partial(load_named, machine, name)
        return self._load(_group_of(machine), _freeze_named, (name,), own, {})

    def load_checkpoint(
        self, machine: Machine, blobs: BlobStore, checkpoint: Checkpoint
    ) -> FrozenModel:
        """Load a checkpoint on all devices; the others get its files from this one."""
        own = partial(load_checkpoint, machine, blobs, checkpoint)
        handlers = {"blobs": served(blobs)}
        return self._load(_group_of(machine), _freeze_checkpoint, (checkpoint,), own, handlers)

    def _load(
        self,
        group: DeviceGroup,
        freeze: Freeze,
        arguments: tuple[Any, ...],
        own: Callable[[], T],
        handlers: Mapping[str, Handler],
    ) -> T:
        """Run `own()` here; the other devices get a model by `freeze(worker, *arguments)`."""
        self._group = group
        weakref.finalize(self, group.forget, self._name)
        loaded, _ = group.run(
            _load_on_device, lambda rank: (self._name, freeze, arguments), own, handlers
        )
        return loaded

    def serve(self, requests: Sequence[Request], own: Callable[[Sequence[Request]], None]) -> None:
        """Serve requests on all devices; `own` serves the part of this one.

        Requests of one prompt, and of prompts with a long common prefix, go to one device as long
        as it does not get more than its share.
        """
        # tokens are passed on as they are drawn, which only this process can do
        active = [request for request in requests if not request.work.cancelled()]
        streams = [request for request in active if _is_stream(request)]
        others = [request for request in active if not _is_stream(request)]
        shares = distribute(
            [_tokens(request) for request in others],
            self._group.count,
            costs=[_new_tokens(request) for request in others],
        )
        parts = list[list[Request]]()
        for share in shares:
            parts.append([others[index] for index in share])
        _, outcomes = self._group.run(
            _serve,
            lambda rank: (self._name, list(map(_fields, parts[rank]))),
            lambda: own([*streams, *parts[0]]),
        )
        for part, outcome in zip(parts[1:], outcomes, strict=True):
            for request, (value, error) in zip(part, outcome, strict=True):
                if error is None:
                    resolve(request, value)
                else:
                    reject(request, error)


def _is_stream(request: Request) -> bool:
    return isinstance(request, SamplingRequest) and request.on_token is not None


def _tokens(request: Request) -> Tokens:
    return request.prompt if isinstance(request, SamplingRequest) else request.tokens


def _new_tokens(request: Request) -> int:
    """Return the tokens that a request may take beside its prompt."""
    if not isinstance(request, SamplingRequest):
        return 0
    try:
        return int(request.count) * int(request.max_tokens)
    except (TypeError, ValueError):  # an invalid request, which the device refuses
        return 0


def _fields(request: Request) -> tuple[type[Request], Fields]:
    """Return a request without its future, to be sent to another process."""
    return type(request), {key: value for key, value in vars(request).items() if key != "work"}


def _group_of(machine: Machine) -> DeviceGroup:
    group = machine.group()
    assert group is not None, "the machine has one device"
    return group


def _load_on_device(
    worker: DeviceWorker, name: str, freeze: Freeze, arguments: tuple[Any, ...]
) -> None:
    worker.objects[name] = freeze(worker, *arguments)


def _freeze_named(worker: DeviceWorker, name: str) -> FrozenModel:
    return load_named(worker.objects["machine"], name)


def _freeze_checkpoint(worker: DeviceWorker, checkpoint: Checkpoint) -> FrozenModel:
    blobs: Any = Remote(worker, "blobs")
    return load_checkpoint(worker.objects["machine"], blobs, checkpoint)


def _freeze_trainer(worker: DeviceWorker, name: str, model: str) -> FrozenModel:
    """Copy the weights of a trainer on this device, as they are now."""
    machine, trainer = worker.objects["machine"], worker.objects[name]
    tokenizer = fetch_tokenizer(machine.hub, model)
    if isinstance(trainer.weights, FullModel):
        return freeze_whole(trainer.base.copy(), tokenizer)
    lora, tensors = trainer.weights.lora, trainer.weights.tensors()
    return freeze(machine, trainer.base, tokenizer, lora, tensors, trainer.base.name)


def _serve(
    worker: DeviceWorker, name: str, sent: Sequence[tuple[type[Request], Fields]]
) -> list[tuple[Any, BaseException | None]]:
    """Return the result or the error of each request."""
    model: FrozenModel = worker.objects[name]
    machine: Machine = worker.objects["machine"]
    requests: list[Request] = [kind(**fields) for kind, fields in sent]
    serve_batch(model, requests, machine)
    outcomes = []
    for request in requests:
        error = request.work.exception(timeout=0)
        outcomes.append((None if error else request.work.result(), error))
    return outcomes
