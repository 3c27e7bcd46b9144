"""Locks on temporary files and folders, by which those of killed writers are recognised."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def hold(descriptor: int) -> None:
    """Lock an open file or folder until it is closed, or its process ends in any way."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder during the block."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        hold(descriptor)
        yield
    finally:
        os.close(descriptor)


def delete_if_unused(path: Path) -> None:
    """Delete a temporary file or folder unless a living process holds it or it cannot be locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # renamed or deleted by now, a link, or not ours
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # in use, or not ours
        return
    finally:
        os.close(descriptor)
