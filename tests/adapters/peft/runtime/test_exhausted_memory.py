"""Memory that runs out ends in an error with sizes and advice, on each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from adapters.peft.runtime.exhausted_memory import explaining_memory
from kitchen.errors import BackendError
from kitchen.types import Lora
from tests.support.exhausted_memory import exhaust

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession

torch = pytest.importorskip("torch")

ON_CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 23.50 GiB of "
    "which 3.25 GiB is free. Including non-PyTorch memory, this process has 20 GiB in use."
)


def test_a_session_that_runs_out_of_memory(opened: Callable[..., PeftSession]) -> None:
    session = opened()
    expected = (
        r"^training tiny: the memory of this machine \([\d.,]+ GB\) ran out when it asked for "
        r"1,125,899\.9 GB.*checkpointing=true.*with train=full, use train=lora.*"
        "bigger-than-one-machine"
    )
    with pytest.raises(BackendError, match=expected):
        session.submit(lambda trainer: exhaust()).result()


def test_another_device_that_runs_out_of_memory(opened: Callable[..., PeftSession]) -> None:
    session = opened(Lora(rank=4, seed=3), device="cpu", threads=2, devices=2)

    def on_others(trainer: Any) -> None:
        trainer.group.run(exhaust, lambda rank: (), lambda: None)

    with pytest.raises(BackendError, match=r"^device 1: the memory of this machine"):
        session.submit(on_others).result()


def test_sizes_of_a_cuda_device_are_reported() -> None:
    with pytest.raises(BackendError, match=r"GPU 1 has a total capacity of 23\.50 GiB of which"):
        with explaining_memory("device 1"):
            raise torch.OutOfMemoryError(ON_CUDA)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"), explaining_memory("training tiny"):
        raise RuntimeError("size mismatch")
