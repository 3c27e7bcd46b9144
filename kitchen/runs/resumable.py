"""Failures after which resuming a run can help."""

from __future__ import annotations

from collections.abc import Iterator

from kitchen.errors import (
    ApiError,
    ConfigError,
    DataError,
    Diverged,
    Interrupted,
    QualityError,
    SessionLost,
)
from kitchen.ports.blobs import BlobStore

# a server may answer later; a full disk can be emptied. OSError includes killed worker processes
_OUTSIDE = (ApiError, SessionLost, Interrupted, KeyboardInterrupt, OSError, MemoryError)


def has_save_point(blobs: BlobStore, run: str) -> bool:
    """Return whether a run has saved a state that it can be resumed from."""
    return newest_save_point(blobs, run) != ""


def newest_save_point(blobs: BlobStore, run: str) -> str:
    """Return the name of the newest save point of a run; empty if it has none."""
    names = [name for name in blobs.list(f"{run}/save/") if name.endswith(".json")]
    return max(names, key=lambda name: (len(name), name), default="")  # their numbers grow


def resuming_can_help(failure: BaseException, blobs: BlobStore, run: str) -> bool:
    """Return whether a resumed run might not fail again with the same error.

    Its record has the settings and the digest of the data, so that mistakes in them would fail
    again, and a run repeats what it did to the last bit. Without a save point it would start over,
    so only a cause outside of the run can be gone; with one, code may be corrected meanwhile.
    """
    if isinstance(failure, ConfigError | DataError | Diverged | QualityError):
        return False
    if blobs.read(f"{run}/run.json") is None:
        return False
    return has_save_point(blobs, run) or has_outside_cause(failure)


def has_outside_cause(failure: BaseException) -> bool:
    """Return whether an error comes from outside of the run, such as a server or a full disk."""
    return any(isinstance(error, _OUTSIDE) for error in _causes(failure))


def _causes(failure: BaseException) -> Iterator[BaseException]:
    """Yield an error, those of a group, and those that it was raised from."""
    yield failure
    if isinstance(failure, BaseExceptionGroup):
        for error in failure.exceptions:
            yield from _causes(error)
    cause = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)
    if cause is not None:
        yield from _causes(cause)
