"""The trackers of pyproject.toml, and scripted ones, as if they were installed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from kitchen.config.trackers import GROUP

ROOT = Path(__file__).parents[2]


def write_entry_points(folder: Path, entries: Mapping[str, str] | None = None) -> Path:
    """Write the metadata of a distribution that provides trackers; by default, all of ours.

    Returns the folder, to be put on the path of imports, which is named after the distribution.
    """
    if entries is None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        entries = project["entry-points"][GROUP]
    metadata = folder / f"{folder.name}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1\n")
    lines = [f"[{GROUP}]", *(f"{name} = {target}" for name, target in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder
