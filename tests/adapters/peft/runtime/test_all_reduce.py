"""Sums over devices: another thread can end one that waits."""

from __future__ import annotations

import concurrent.futures
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import wait_until

torch = pytest.importorskip("torch")

from adapters.peft.runtime.devices import all_reduce  # noqa: E402
from adapters.peft.runtime.devices.all_reduce import AllReduce  # noqa: E402
from adapters.peft.runtime.devices.peers import LostPeer  # noqa: E402
from tests.support.device_faults import running_functions  # noqa: E402


def test_abort_ends_the_wait_for_a_missing_device(tmp_path: Path) -> None:
    reduce = AllReduce(0, 2, str(tmp_path / "store"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reduce, [torch.ones(3)])
        wait_until(lambda: "_wait_for_all" in running_functions())
        reduce.abort()
        with pytest.raises(LostPeer, match="was aborted, because another device failed"):
            waiting.result(timeout=60)


def test_a_device_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_reduce, "TIMEOUT", timedelta(seconds=0.1))
    reduce = AllReduce(0, 3, str(tmp_path / "store"))
    with pytest.raises(LostPeer, match=r"device 1, device 2 did not answer within 0\.1 seconds"):
        reduce([torch.ones(3)])


class StuckGroup:
    """A group in whose sums another device takes no part; like NCCL, it can be aborted."""

    def __init__(self) -> None:
        self.waits, self._aborted = threading.Event(), threading.Event()

    def allreduce(self, tensors: list[Any]) -> StuckGroup:
        return self

    def wait(self) -> None:
        self.waits.set()
        assert self._aborted.wait(60)

    def abort(self) -> None:
        self._aborted.set()


GROUP = StuckGroup()


class Stuck(AllReduce):
    def _connect(self, device: torch.device) -> Any:
        return GROUP


def test_abort_ends_a_sum_that_waits_for_a_device() -> None:
    reduce = Stuck(0, 2, "")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reduce, [torch.ones(3)])
        assert GROUP.waits.wait(60)
        reduce.abort()
        with pytest.raises(LostPeer, match="was aborted, because another device failed"):
            waiting.result(timeout=60)


def test_no_sum_starts_after_an_abort(tmp_path: Path) -> None:
    devices = [AllReduce(rank, 2, str(tmp_path / "store")) for rank in range(2)]
    tensors = [torch.ones(3), torch.full((3,), 2.0)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda reduce, tensor: reduce([tensor]), devices, tensors))
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 3] * 2
    for reduce in devices:
        reduce.abort()  # Gloo has connections
        with pytest.raises(LostPeer, match="was aborted, because another device failed"):
            reduce([torch.ones(3)])
