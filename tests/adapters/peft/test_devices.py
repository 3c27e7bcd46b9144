"""Devices without float64, such as Apple GPUs: no such tensor is made on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from adapters.peft.client import PeftTraining
from kitchen.errors import BackendError, ConfigError
from kitchen.types import Adam, Datum, Lora
from tests.support.sampling import sampling_request

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402


class Recorder(TorchDispatchMode):  # type: ignore[misc] # torch is untyped here
    """The devices and number formats of all tensors that operations return in a block.

    Arrays of NumPy, which are on the host until they are converted, are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, Any]] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        is_array = function is torch.ops.aten.lift_fresh.default
        for leaf in [] if is_array else tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.found.add((leaf.device.type, leaf.dtype))
        return result


@pytest.mark.parametrize("options", [{}, {"top_p": 0.5}, {"temperature": 0.7}])
def test_tokens_are_drawn_off_a_device_without_float64(options: dict[str, Any]) -> None:
    from adapters.peft.sampling.draw import Row, draw

    row = Row(sampling_request(np.array([1]), 0, **options), 0, 8, frozenset())
    with FakeTensorMode(), Recorder() as recorder:
        logits = torch.empty(2, 500, device="mps")
        with pytest.raises(DataDependentOutputException):  # a fake tensor has no numbers to draw by
            draw(logits, [row, row], torch.float32)
    assert ("cpu", torch.float64) in recorder.found
    assert ("mps", torch.float64) not in recorder.found


def test_training_in_float32_makes_no_float64(
    opened: Callable[..., PeftSession], weighted: list[Datum]
) -> None:
    from adapters.peft.runtime.threads import all_cores_thread

    session = opened(lora=Lora(rank=2, seed=1))
    recorder, thread = Recorder(), all_cores_thread(1)  # which computes in this test
    thread.submit(recorder.__enter__).result()
    try:
        session.forward_backward(weighted).result()
        session.optim_step(Adam(0.01)).result()
    finally:
        thread.submit(lambda: recorder.__exit__(None, None, None)).result()
    assert ("cpu", torch.float32) in recorder.found
    assert ("cpu", torch.float64) not in recorder.found


def test_an_apple_gpu_is_a_device(client: Callable[..., PeftTraining]) -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(BackendError, match=r"device=mps: .*; set training.device=cpu"):
        client(device="mps").find("tiny")
    with pytest.raises(ConfigError, match="use float32"):
        client(device="mps", dtype="float64")
