"""Where bytes are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class BlobStore(Protocol):
    """Names to bytes; a write is seen whole or not at all, and the last write wins. Safe to use
    from threads.

    A name is a relative path with forward slashes: no "..", no empty part, no leading slash
    (ValueError).
    """

    def read(self, name: str) -> bytes | None:
        """The bytes, or None where nothing was written."""
        ...

    def write(self, name: str, data: bytes) -> None: ...
    def list(self, prefix: str = "") -> Sequence[str]:
        """All names that begin with `prefix`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """One that is gone already is no error."""
        ...

    def locate(self, name: str) -> str:
        """Where a person finds it: a path or URL, without secrets."""
        ...


def blob_name(name: str) -> str:
    """The name, if it can be one; every adapter passes names through here."""
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise ValueError(
            f"{name!r} is no blob name: a relative path with forward slashes and no '..' is"
        )
    return name
