"""Blobs as files in a folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kitchen.backend.temporary import delete_if_unused, hold
from kitchen.errors import ConfigError, RunFailed
from kitchen.ports.blobs import blob_name

_TEMPORARY = re.compile(r"\.kitchen-[0-9a-f]{16}\.part")
# a concurrent `delete` may remove the empty folder that a write has just created
_ATTEMPTS = 100
_REMEDIES = {
    errno.ENOSPC: "free some space, or give another folder (--runs DIR)",
    errno.EDQUOT: "free some space, or give another folder (--runs DIR)",
    errno.EACCES: "make it writable, or give another folder (--runs DIR)",
    errno.EPERM: "make it writable, or give another folder (--runs DIR)",
    errno.EROFS: "make it writable, or give another folder (--runs DIR)",
    errno.ENAMETOOLONG: "give a shorter name, or a folder with a shorter path (--runs DIR)",
}


class LocalBlobs:
    """Blobs in a folder, each written to a temporary file, synced to the disk and renamed.

    Every method raises ValueError for an invalid blob name, and RunFailed, which names the path and
    the remedy, if the disk is full, the folder is not writable, a symbolic link leads out of it, or
    a blob is a pipe or device. A name that begins with another blob's name and a slash cannot be
    written, because a file cannot be a folder.
    """

    def __init__(self, root: str = "runs") -> None:
        if "\0" in root:
            raise ConfigError(f"{root!r} cannot be a folder, as it has a NUL character (--runs)")
        self._root = Path(root).expanduser().absolute()
        self._real_root = os.path.realpath(self._root).rstrip(os.sep) + os.sep
        self._swept: set[str] = set()  # folders in the root without files of killed writers

    def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with _translated_errors(path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _translated_errors(path):
            self._sweep(name)
            for attempt in range(_ATTEMPTS):
                try:
                    _make_folder(path.parent)
                    _replace(path, data)
                    return
                except FileNotFoundError:
                    if attempt == _ATTEMPTS - 1:
                        raise

    def append(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with _translated_errors(path):
            is_new = not path.exists()
            _make_folder(path.parent)
            with path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                _sync(path.parent)

    def folders(self) -> Sequence[str]:
        with _translated_errors(self._root):
            try:
                return sorted(entry.name for entry in os.scandir(self._root) if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []

    def list(self, prefix: str = "") -> Sequence[str]:
        folder = prefix.rpartition("/")[0]
        if folder and any(part in ("", ".", "..") for part in folder.split("/")):
            return []
        names = []
        for path, _, files in os.walk(self._root / folder, onerror=_ignore_absent):
            subfolder = Path(path).relative_to(self._root)
            names += [
                (subfolder / file).as_posix() for file in files if not _TEMPORARY.fullmatch(file)
            ]
        return sorted(name for name in names if name.startswith(prefix) and self._is_inside(name))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with _translated_errors(path):
            try:
                path.unlink(missing_ok=True)
            except (NotADirectoryError, IsADirectoryError):
                return
            for folder in path.parents:
                if folder == self._root or not _try_remove(folder):
                    return

    def locate(self, name: str) -> str:
        return str(self._path(name))

    def _sweep(self, name: str) -> None:
        """Before the first write into a folder of the root, delete files of killed writers there.

        A file is in use as long as its writer locks it. Should a writer lose a file that it has not
        locked yet, it writes again.
        """
        folder = name.partition("/")[0] if "/" in name else ""
        if folder in self._swept:
            return
        self._swept.add(folder)
        pattern = f"{'**/' if folder else ''}.kitchen-*.part"
        for path in (self._root / folder).glob(pattern):
            name = path.relative_to(self._root).as_posix()
            if _TEMPORARY.fullmatch(path.name) and self._is_inside(name):
                delete_if_unused(path)

    def _path(self, name: str) -> Path:
        path = self._root / blob_name(name)
        if _TEMPORARY.fullmatch(path.name):
            raise ValueError(
                f"{name!r} is not a blob name: such names are reserved for temporary files"
            )
        if not self._is_inside(name):
            raise RunFailed(
                f"{path} leads out of {self._root} through a symbolic link; remove the link, "
                "or give the folder that it points to (--runs DIR)"
            )
        if _is_special(path):
            raise RunFailed(f"{path} is a pipe, socket or device instead of a file; remove it")
        return path

    def _is_inside(self, name: str) -> bool:
        """Return whether a path stays in the root: only symbolic links below it lead out of it."""
        path = str(self._root)
        for part in name.split("/"):
            path = os.path.join(path, part)
            if os.path.islink(path):
                with _translated_errors(Path(path)):
                    real_path = os.path.realpath(self._root / name)
                return f"{real_path}{os.sep}".startswith(self._real_root)
        return True


def _is_special(path: Path) -> bool:
    """Return whether a path is neither a file nor a folder: reading it could take forever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f".kitchen-{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            hold(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except BaseException:  # Ctrl-C too
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        # another thread was first; if it is a file, the write fails
        with suppress(FileExistsError):
            folder.mkdir()
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Sync a folder to the disk: only then does a rename in it survive a power cut."""
    if os.name == "nt":  # which opens no folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _try_remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def _ignore_absent(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise RunFailed(
            f"{error.filename}: {error.strerror}; make it readable, or give another folder (--runs "
            "DIR)"
        )


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        default = "check what is there, or give another folder (--runs DIR)"
        remedy = _REMEDIES.get(error.errno or 0, default)
        raise RunFailed(f"{path}: {error.strerror or error}; {remedy}") from error
