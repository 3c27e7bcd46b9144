"""The other devices, as a trainer on one of them sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

R = TypeVar("R")


class Peers(Protocol):
    """All devices of a group; every one of them makes the same calls in the same order."""

    rank: int  # of this device
    count: int

    def gather(self, items: Sequence[R]) -> list[R]:
        """Return the items of all devices, in the order of their ranks."""
        ...

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all devices, the same to the bit on each."""
        ...


class Aborted(Exception):
    """Another device failed in this call."""


class LostPeer(Exception):
    """A device of the group can no longer be reached."""
