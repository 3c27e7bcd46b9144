"""Faults of the second device of a group, and what the threads of this process do."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from adapters.peft.runtime.devices.all_reduce import AllReduce
from adapters.peft.training.data_parallel import DataParallelTrainer
from adapters.peft.training.trainer import Trainer

if TYPE_CHECKING:
    from adapters.peft.runtime.devices.process import DeviceWorker


class Exhausted(AllReduce):
    """A sum for which a device has no memory."""

    def __init__(self) -> None:
        super().__init__(1, 2, "")

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        raise torch.OutOfMemoryError("out of memory")


def exhaust_memory_in_sums(trainer: Trainer) -> None:
    """Let the other devices run out of memory in each later sum."""
    assert isinstance(trainer, DataParallelTrainer)
    trainer.group.run(exhaust_memory_on_device, lambda rank: (), lambda: None)


def exhaust_memory_on_device(worker: DeviceWorker) -> None:
    worker.reduce = Exhausted()


def running_functions() -> set[str]:
    """Return the names of the functions that the threads of this process are in."""
    names = set()
    for frame in sys._current_frames().values():
        names |= {caller.f_code.co_name for caller, _ in traceback.walk_stack(frame)}
    return names
