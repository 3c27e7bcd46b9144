"""Files that are copied out of a folder, which no symbolic link may take from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kitchen.errors import BackendError


def files_inside(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, sorted; raises as `check_inside` does."""
    entries = sorted(folder.rglob("*"))
    check_inside(folder, entries)
    return [path for path in entries if path.is_file()]


def check_inside(folder: Path, paths: Iterable[Path]) -> None:
    """Raise BackendError for a path that a symbolic link takes out of the folder, by its name.

    In the cache of a hub, files are links to a folder `blobs` beside the folders of commits.
    """
    root = folder.resolve()
    if root.parent.name == "snapshots" and (root.parents[1] / "blobs").is_dir():
        root = root.parents[1]
    for path in paths:
        target = path.resolve()
        if not target.is_relative_to(root):
            raise BackendError(
                f"{path} is a symbolic link to {target}, outside of its folder, so it is not "
                "copied; if it belongs to the model, replace the link by the file"
            )
