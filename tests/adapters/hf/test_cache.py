"""Notes in the cache of the hub: whole, and without parts of killed writers."""

from __future__ import annotations

from pathlib import Path

from adapters.hf.cache import write
from kitchen.backend.temporary import hold

KILLED, LIVING = "kitchen-0123456789abcdef.part", "kitchen-fedcba9876543210.part"


def test_parts_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    kept = [f".v1.{KILLED}", ".main.0a_bcdef", ".main.kitchen-notes.part", ".main.lock", "main"]
    for name in (f".main.{KILLED}", *kept):
        (tmp_path / name).write_text("old")
    living = tmp_path / f".main.{LIVING}"
    with living.open("w") as file:
        hold(file.fileno())
        write(tmp_path / "main", "new")
    assert {path.name for path in tmp_path.iterdir()} == {living.name, *kept}
    assert (tmp_path / "main").read_text() == "new"
