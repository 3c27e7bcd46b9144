"""What changes where it lies, and must be kept by a save point."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from typing import Any, Protocol, get_type_hints

from kitchen.ports.future import Future
from kitchen.types import Checkpoint


class Checkpointable(Protocol):
    """A value with a state of its own. Calls take effect in the order they are made."""

    def save(self, name: str) -> Future[Checkpoint]:
        """Keep the whole state under a name that is not in use; a name used twice is an error."""
        ...

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        """Become, to the last bit, what was saved. Raises CorruptCheckpoint, naming the file."""
        ...

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        """Forget a checkpoint; one that is gone already is no error."""
        ...


def is_checkpointable(kind: Any) -> bool:
    return all(hasattr(kind, verb) for verb in ("save", "load", "delete"))


@cache
def hides_checkpointable(kind: Any) -> bool:
    """A dataclass around a live value would be missed by the save points."""
    return is_dataclass(kind) and any(
        is_checkpointable(inner) for inner in get_type_hints(kind).values()
    )
