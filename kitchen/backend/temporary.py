"""Locks on temporary files and folders, by which those of killed writers are recognised."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

MARKER = ".kitchen-temporary"  # a file in each temporary folder


def hold(descriptor: int) -> None:
    """Lock an open file or folder until it is closed, or its process ends in any way."""
    with suppress(OSError):  # a file system without locks
        lock_descriptor(descriptor)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder during the block, except on Windows, which has no locks on folders."""
    if os.name == "nt":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        hold(descriptor)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Yield a new temporary folder, and delete those that killed processes left for this purpose.

    Its name is `kitchen-PURPOSE-...`, in the system's folder for temporary files. A file inside
    marks it as made here: other folders are not deleted, whatever their names.
    """
    prefix = f"kitchen-{purpose}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if _is_made_here(left, prefix):
            delete_if_unused(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    with held(folder):
        try:
            (folder / MARKER).touch()  # once it is locked
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _is_made_here(path: Path, prefix: str) -> bool:
    random_part = path.name.removeprefix(prefix)
    return is_marked(path) and re.fullmatch("[a-z0-9_]{8}", random_part) is not None


def is_marked(path: Path) -> bool:
    """Return whether a folder was made here, and not by a user under such a name."""
    return os.path.isfile(path / MARKER)  # Path.is_file raises for folders of other users


def delete_if_unused(path: Path) -> None:
    """Delete a temporary file or folder unless a living process holds it or it cannot be locked."""
    no_follow, no_wait = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | no_follow | no_wait)
    except OSError:  # renamed or deleted by now, a link, or not ours
        return
    try:
        if not lock_descriptor(descriptor, blocking=False):
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # not ours, or a file system without locks
        return
    finally:
        os.close(descriptor)
