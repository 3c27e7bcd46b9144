"""Errors of memory that runs out on a device, with its size and what helps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kitchen.errors import BackendError

_CPU_REQUEST = re.compile(r"DefaultCPUAllocator: .* allocate (\d+) bytes")
_ADVICE = (
    "set training.checkpointing=true or a smaller training.micro_batch_tokens. With LoRA, "
    "training.quantization=4bit also helps; with train=full, use train=lora (docs/memory.md). "
    "With training.devices, each device holds the whole model: one that is larger than a device "
    "needs the Tinker service or a server that splits it (docs/bigger-than-one-machine.md)"
)


@contextmanager
def explaining_memory(work: str) -> Iterator[None]:
    """Raise BackendError where work in a block, such as "training NAME", runs out of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if (reason := _reason(error)) is None:
            raise
        raise BackendError(f"{work}: {reason}. If it does not fit: {_ADVICE}") from error


def _reason(error: BaseException) -> str | None:
    """Return which memory ran out, with sizes; None for another error."""
    if isinstance(error, torch.OutOfMemoryError):
        # the sentences with sizes; the others are about the allocator
        return ". ".join(str(error).split(". ")[:3]).rstrip(". ")
    requested = _CPU_REQUEST.search(str(error))
    if requested is None and not isinstance(error, MemoryError):
        return None
    size = f" when it asked for {int(requested[1]) / 1e9:,.1f} GB" if requested else ""
    return f"the memory of this machine{_installed()} ran out{size}"


def _installed() -> str:
    try:
        return f" ({os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:,.1f} GB)"
    except (AttributeError, ValueError, OSError):  # not on this system
        return ""
