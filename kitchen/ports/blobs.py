"""The port for blobs: named bytes in a folder, in memory or behind a URL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kitchen.safe_text import read_json


class BlobStore(Protocol):
    """A store of bytes by name, safe to use from threads.

    A write is visible whole or not at all, and the last write wins.

    A name is a relative path with forward slashes: no "..", no empty part, no leading slash
    (ValueError).
    """

    def read(self, name: str) -> bytes | None:
        """Return the bytes, or None if the name does not exist."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a blob, and replace the one that has the name already."""
        ...

    def list(self, prefix: str = "") -> Sequence[str]:
        """Return all names that begin with `prefix`, sorted."""
        ...

    def delete(self, name: str) -> None:
        """Delete a blob; deleting one that does not exist is no error."""
        ...

    def locate(self, name: str) -> str:
        """Return the path or URL at which a person finds the blob, without secrets."""
        ...


@runtime_checkable
class AppendableBlobs(BlobStore, Protocol):
    """A store that can also add to a blob at a cost that does not depend on the blob's size."""

    def append(self, name: str, data: bytes) -> None:
        """Add bytes at the end of a blob, which is created if it does not exist.

        One writer appends at a time. A reader at the same moment may see a part of the bytes.
        """
        ...


@runtime_checkable
class BrowsableBlobs(BlobStore, Protocol):
    """A store that can also list its topmost folders without listing what they hold."""

    def folders(self) -> Sequence[str]:
        """Return the first parts of all names that have a slash, sorted."""
        ...


def blob_name(name: str) -> str:
    """Return a valid name unchanged; every adapter passes names through here.

    Raises ValueError for a name that no blob can have.
    """
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise ValueError(
            f"{name!r} is not a valid blob name: use a relative path with forward slashes and "
            "without '..'"
        )
    return name


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def seal(text: str) -> bytes:
    """Return a text with its digest, as JSON, so that damage is found when it is read."""
    return json.dumps({"sha256": sha256(text), "record": text}).encode()


def unseal(data: bytes) -> str:
    """Return the text that was sealed; raises ValueError if it is damaged."""
    try:
        sealed = read_json(data)
    except ValueError as error:
        raise ValueError("it is not JSON" if data else "it is empty or missing") from error
    text = sealed.get("record") if isinstance(sealed, dict) else None
    if not isinstance(text, str) or sealed.get("sha256") != sha256(text):
        raise ValueError("its SHA-256 differs")
    return text
