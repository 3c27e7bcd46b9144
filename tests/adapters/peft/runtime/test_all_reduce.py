"""Sums over devices: another thread can end one that waits."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from tests.support.polling import wait_until

torch = pytest.importorskip("torch")

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
