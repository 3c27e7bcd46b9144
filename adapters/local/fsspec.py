"""Blobs at any URL that fsspec opens: memory://, s3://bucket/prefix, file:///folder and others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, unquote

from kitchen.errors import BackendError, KitchenError, RunFailed, did_you_mean
from kitchen.ports.blobs import blob_name

# file systems where other processes see a growing file, but a rename only when it is complete
_RENAMING_PROTOCOLS = {"file", "local", "sftp", "ssh"}
_PART = ".kitchen-part-"


class FsspecBlobs:
    """Blobs at a URL, each written atomically.

    Object stores put a whole object at once; in file systems a rename has the same effect. Raises
    BackendError if a package or a key is missing, RunFailed if the store rejects a request. User
    names, passwords and queries of the URL are never shown.
    """

    packages = ("fsspec",)

    def __init__(self, root: str) -> None:
        self._label, self._secrets = _without_secrets(root)
        self._files, base, self._protocol = self._open(root)
        self._base = base.rstrip("/")
        # memory:// is a dict that other threads may change while it is listed
        self._lock: AbstractContextManager[Any] = (
            Lock() if self._protocol == "memory" else nullcontext()
        )

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with self._translated_errors(name), self._lock:
            try:
                return bytes(self._files.cat_file(path))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with self._translated_errors(name), self._lock:
            if self._protocol not in _RENAMING_PROTOCOLS:
                self._files.pipe_file(path, bytes(data))
                return
            folder = path.rpartition("/")[0]
            self._files.makedirs(folder, exist_ok=True)
            part = f"{folder}/{_PART}{secrets.token_hex(8)}"
            try:
                self._files.pipe_file(part, bytes(data))
                self._files.mv(part, path)
            except BaseException:  # Ctrl-C too
                with suppress(OSError):
                    self._files.rm_file(part)
                raise

    def folders(self) -> Sequence[str]:
        with self._translated_errors(""), self._lock:
            self._files.invalidate_cache()
            try:
                entries = self._files.ls(self._base, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        paths = [entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory"]
        return sorted({path.rpartition("/")[2] for path in paths})

    def list(self, prefix: str = "") -> Sequence[str]:
        folder = prefix.rpartition("/")[0]
        if folder and any(part in ("", ".", "..") for part in folder.split("/")):
            return []
        start = f"{self._base}/{folder}" if folder else self._base
        with self._translated_errors(prefix), self._lock:
            self._files.invalidate_cache()
            try:
                paths = self._files.find(start)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = [str(path)[len(self._base) :].lstrip("/") for path in paths]
        return sorted(
            name
            for name in names
            if name.startswith(prefix) and not name.rpartition("/")[2].startswith(_PART)
        )

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._translated_errors(name), self._lock:
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._files.rm_file(path)

    def locate(self, name: str) -> str:
        separator = "" if self._label.endswith("/") else "/"
        return f"{self._label}{separator}{blob_name(name)}"

    def _path(self, name: str) -> str:
        if name.rpartition("/")[2].startswith(_PART):
            raise ValueError(
                f"{name!r} is not a blob name: such names are reserved for temporary files"
            )
        return f"{self._base}/{blob_name(name)}"

    def _open(self, root: str) -> tuple[Any, str, str]:
        try:
            import fsspec
        except ImportError as error:
            raise BackendError(
                f"{self._label} needs fsspec: pip install 'crucible-kitchen[local]'"
            ) from error
        protocol = root.partition("://")[0] if "://" in root else "file"
        if "::" in protocol:
            raise BackendError(
                f"{self._label}: a chained URL cannot be written; give the URL of the store itself"
            )
        if protocol not in fsspec.available_protocols():
            raise BackendError(
                f"{self._label}: fsspec does not support {protocol!r}; "
                f"{did_you_mean(protocol, fsspec.available_protocols())}"
            )
        try:
            files, base = fsspec.core.url_to_fs(root)
        except ImportError as error:
            raise BackendError(
                f"{self._label} needs another package: {_install_hint(error)}"
            ) from error
        except Exception as error:  # noqa: BLE001 as below
            raise self._translate(self._label, error) from (None if self._secrets else error)
        return files, str(base), protocol

    @contextmanager
    def _translated_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 stores share no base class
            raise self._translate(f"{self._label} {name!r}", error) from (
                None if self._secrets else error
            )

    def _translate(self, where: str, error: Exception) -> KitchenError:
        text = str(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = f"{where}: {type(error).__name__}: {text}"
        if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
            return BackendError(f"{text}; check that credentials are set and allow writing there")
        return RunFailed(
            f"{text}; check that the location exists, has free space and can be reached"
        )


def _install_hint(error: ImportError) -> str:
    """Return the command that installs the missing module, which the error's cause names."""
    module = getattr(error.__cause__, "name", None) or error.name
    return f"pip install {module.partition('.')[0]}" if module else str(error)


def _without_secrets(root: str) -> tuple[str, tuple[str, ...]]:
    """Return the URL without secrets, and the secrets.

    A secret key may contain slashes, so the last "@" ends it.
    """
    scheme, mark, rest = root.partition("://")
    body, _, query = rest.partition("?")
    user, _, place = body.rpartition("@")
    if not mark or not (user or query):
        return root, ()
    hidden = [user, *user.split(":"), query, *(value for _, value in parse_qsl(query))]
    hidden += [unquote(part) for part in hidden]
    return f"{scheme}://{place}", tuple(
        sorted({part for part in hidden if len(part) > 2}, key=len, reverse=True)
    )
