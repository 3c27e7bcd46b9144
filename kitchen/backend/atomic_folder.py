"""Folders that appear whole or not at all, and what is in them."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kitchen.errors import ConfigError, RunFailed


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A new folder beside it to write into, renamed when the block is over; nothing stays of one
    that fails.

    Raises ConfigError for a folder in use, RunFailed, which names the mend, where the disk is full
    or not writable.
    """
    folder = folder.expanduser().absolute()
    check_free(folder)
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(parents=True)
        yield part
        os.replace(part, folder)
    except OSError as error:
        raise RunFailed(
            f"{error.filename or folder}: {error.strerror or error}; make room there or make it "
            "writable, "
            "or give another folder"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_free(folder: Path) -> None:
    """Raise ConfigError for a file, a folder that is not empty, and the one that we stand in."""
    if folder.is_symlink() or folder.is_file():
        raise ConfigError(f"{folder} is there already, and is no folder; give another")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; delete it, or give another folder")
    if folder.absolute() == Path.cwd():
        raise ConfigError(
            f"{folder} is where you stand, and cannot be replaced; give a folder inside of it"
        )


def digest_of(files: Iterable[Path]) -> str:
    """Of the bytes of files, one after the other, in hex: `cat FILES | sha256sum`."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
