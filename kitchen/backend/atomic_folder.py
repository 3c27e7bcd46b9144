"""Folders and files that appear whole or not at all, and the SHA-256 of files."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kitchen.backend.temporary import MARKER, delete_if_unused, held, is_marked
from kitchen.errors import ConfigError, RunFailed


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to write into, and rename it to `folder` when the block succeeds.

    With `replace`, a folder that is there stays until then. Nothing is left behind if the block
    fails. A file in the temporary folder marks it as made here:
    those of killed writers are deleted, others are not, whatever their names. Raises ConfigError
    for a folder in use, and RunFailed if the disk is full or not writable.
    """
    folder = folder.expanduser().absolute()
    if not replace:
        check_folder_unused(folder)
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.part"):
            if _is_part_of(folder, left):
                delete_if_unused(left)
        part.mkdir(parents=True)
        with held(part):
            (part / MARKER).touch()
            yield part
            _give_usual_permissions(part)
            (part / MARKER).unlink(missing_ok=True)
            _replace_folder(folder, part)
    except OSError as error:
        raise RunFailed(
            f"{error.filename or folder}: {error.strerror or error}; free some space or make it "
            "writable, or give another folder"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _give_usual_permissions(folder: Path) -> None:
    """Let others read the files as the umask says: libraries write some for their owner only."""
    usual = (folder / MARKER).stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | usual)


def _replace_folder(folder: Path, part: Path) -> None:
    """Rename a folder to another, whose content comes back if that fails."""
    if not (folder.is_dir() and any(folder.iterdir())):
        os.replace(part, folder)
        return
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    os.replace(folder, old)
    try:
        (old / MARKER).touch()  # a later writer deletes it if this one is killed
        os.replace(part, folder)
    except BaseException:
        (old / MARKER).unlink(missing_ok=True)
        os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _is_part_of(folder: Path, path: Path) -> bool:
    token = path.name.removeprefix(f".{folder.name}.").removesuffix(".part")
    return is_marked(path) and re.fullmatch("[0-9a-f]{8}", token) is not None


def check_folder_unused(folder: Path) -> None:
    """Raise ConfigError for a file, a folder that is not empty, and the working directory."""
    if folder.is_symlink() or folder.is_file():
        raise ConfigError(f"{folder} exists and is not a folder; give another path")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; delete it, or give another folder")
    if folder.absolute() == Path.cwd():
        raise ConfigError(
            f"{folder} is the working directory, which cannot be replaced; give a folder inside it"
        )


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is seen whole or not at all; its folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as folder:
        part = Path(folder) / path.name
        part.write_bytes(content)
        os.replace(part, path)


def sha256_of_files(files: Iterable[Path]) -> str:
    """Return the SHA-256 of concatenated files, in hex: `cat FILES | sha256sum`."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
