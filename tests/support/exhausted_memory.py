"""An allocation that is larger than the memory of any machine."""

from __future__ import annotations


def exhaust(worker: object = None) -> None:
    """Ask for a petabyte, here or on another device."""
    import torch

    torch.empty(2**50, dtype=torch.uint8)
