"""Sums of tensors over devices, by torch.distributed: NCCL on CUDA devices, else Gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from adapters.peft.runtime.devices.peers import LostPeer

BUCKET = 2**25  # numbers that are summed at once: 128 MB in float32
TIMEOUT = timedelta(minutes=5)  # for a device that is alive but does not answer
POLL_SECONDS = 0.01  # between two looks for the other devices


class AllReduce:
    """Sums over the devices of a group; its connections are made by the first sum.

    It does not use the default group of torch.distributed, which belongs to the user's code.
    """

    def __init__(self, rank: int, count: int, store: str) -> None:
        """`store`: path of a new file in a private folder; the devices find each other by it."""
        self._rank, self._count, self._path = rank, count, store
        self._group: Any = None
        self._aborted = threading.Event()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum; raises LostPeer if a device is gone."""
        try:
            for bucket in _buckets(tensors):
                self._sum(bucket)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise LostPeer(
                f"the gradients could not be summed over the devices: {error}"
            ) from error

    def abort(self) -> None:
        """End the running sum and all later ones; another thread calls this.

        A sum by Gloo ends only with the process of another device: Gloo cannot abort one. On a CUDA
        device, the running sum returns wrong numbers.
        """
        self._aborted.set()
        # older versions of torch have no `abort` for Gloo; that of NCCL may have to wait
        if (abort := getattr(self._group, "abort", None)) is not None:
            threading.Thread(target=abort, name="abort of a sum", daemon=True).start()

    def _sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum tensors of one dtype in one buffer, of float32 or better."""
        dtype = torch.promote_types(tensors[0].dtype, torch.float32)
        buffer = torch.cat([tensor.reshape(-1).to(dtype) for tensor in tensors])
        if self._group is None:
            self._group = self._connect(buffer.device)
        self._raise_if_aborted()
        self._group.allreduce([buffer]).wait()
        self._raise_if_aborted()
        parts = torch.split(buffer, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def _connect(self, device: torch.device) -> Any:
        import torch.distributed as distributed

        library: Any = distributed  # its backends are untyped
        store = library.FileStore(self._path, self._count)
        self._wait_for_all(store)
        if device.type == "cuda":
            return library.ProcessGroupNCCL(store, self._rank, self._count, TIMEOUT)
        options = library.ProcessGroupGloo._Options()
        options._timeout = TIMEOUT
        options._devices = [library.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return library.ProcessGroupGloo(store, self._rank, self._count, options)

    def _wait_for_all(self, store: Any) -> None:
        """Wait until all devices are here: the wait of torch itself could not be aborted."""
        store.set(f"device {self._rank}", "here")
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        names = [f"device {rank}" for rank in range(self._count)]
        while time.monotonic() < deadline:
            self._raise_if_aborted()  # first: `check` waits for a file that has been deleted
            if store.check(names):
                return
            time.sleep(POLL_SECONDS)
        missing = ", ".join(name for name in names if not store.check([name]))
        raise LostPeer(f"{missing} did not answer within {TIMEOUT.total_seconds():g} seconds")

    def _raise_if_aborted(self) -> None:
        if self._aborted.is_set():
            raise LostPeer("the sum of gradients was aborted, because another device failed")


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield runs of tensors of one dtype, of at most BUCKET numbers unless one is larger."""
    bucket, size = list[torch.Tensor](), 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.numel() > BUCKET):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket
