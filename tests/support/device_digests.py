"""Digests of the weights on each device of a group."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from adapters.peft.training.data_parallel import DataParallelTrainer
from adapters.peft.training.trainer import Trainer

if TYPE_CHECKING:
    from adapters.peft.runtime.devices.process import DeviceWorker
    from adapters.peft.session import PeftSession


def weight_digests(session: PeftSession) -> list[str]:
    """Return a digest of the weights on each device."""

    def on_all(trainer: Trainer) -> list[str]:
        assert isinstance(trainer, DataParallelTrainer)
        own, others = trainer.group.run(
            digest_on_device, lambda rank: (trainer.name,), lambda: _digest(trainer)
        )
        return [own, *others]

    return session.submit(on_all).result()


def digest_on_device(worker: DeviceWorker, name: str) -> str:
    return _digest(worker.objects[name])


def _digest(trainer: Trainer) -> str:
    hashed = hashlib.sha256()
    for tensor in trainer.weights.tensors().values():
        hashed.update(tensor.numpy().tobytes())
    return hashed.hexdigest()
