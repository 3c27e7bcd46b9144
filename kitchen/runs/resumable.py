"""Failures after which resuming a run can help."""

from __future__ import annotations

from kitchen.errors import ApiError, BackendError, ConfigError, DataError, SessionLost
from kitchen.ports.blobs import BlobStore

_AWAY = (ApiError, SessionLost)  # a server may answer later


def has_save_point(blobs: BlobStore, run: str) -> bool:
    """Return whether a run has saved a state that it can be resumed from."""
    return any(name.endswith(".json") for name in blobs.list(f"{run}/save/"))


def resuming_can_help(failure: BaseException, blobs: BlobStore, run: str) -> bool:
    """Return whether a resumed run might not fail again with the same error.

    Its record has the settings and the digest of the data, so that mistakes in them would fail
    again. Without a save point, it would start over with a backend that lacks the same thing.
    """
    if isinstance(failure, ConfigError | DataError) or blobs.read(f"{run}/run.json") is None:
        return False
    is_lacking = isinstance(failure, BackendError) and not isinstance(failure, _AWAY)
    return not is_lacking or has_save_point(blobs, run)
