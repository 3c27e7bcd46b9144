"""The port for values with mutable state, which save points must save."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from typing import Any, Protocol, get_type_hints

from kitchen.ports.future import Future
from kitchen.types import Checkpoint


class Checkpointable(Protocol):
    """A value with mutable state. Calls take effect in the order they are made."""

    def save(self, name: str) -> Future[Checkpoint]:
        """Save the whole state under a new name; a name used twice is an error."""
        ...

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        """Restore the saved state to the last bit; raises CorruptCheckpoint that names the file."""
        ...

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        """Delete a checkpoint; deleting one that does not exist is no error."""
        ...


def is_checkpointable(kind: Any) -> bool:
    return all(hasattr(kind, verb) for verb in ("save", "load", "delete"))


@cache
def hides_checkpointable(kind: Any) -> bool:
    """Return whether a dataclass holds a checkpointable value, which save points would miss."""
    return is_dataclass(kind) and any(
        is_checkpointable(inner) for inner in get_type_hints(kind).values()
    )
