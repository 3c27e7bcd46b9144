"""Notes in the cache of the hub: whole, and without parts of killed writers."""

from __future__ import annotations

from pathlib import Path

from adapters.hf.cache import write
from kitchen.backend.temporary import hold


def test_parts_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    for name in (".main.0a_bcdef", ".main.01234567", ".v1.0a_bcdef", ".main.lock", "main"):
        (tmp_path / name).write_text("old")
    living = tmp_path / ".main.76543210"
    with living.open("w") as file:
        hold(file.fileno())
        write(tmp_path / "main", "new")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".main.76543210", ".main.lock", ".v1.0a_bcdef", "main"]
    assert (tmp_path / "main").read_text() == "new"
