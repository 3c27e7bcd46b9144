"""What the makers of the packaged data sets share; what they write is the same, byte for byte, on
any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


def shuffle(items: list[Any], rng: Random) -> None:
    """Fisher and Yates, in place; only `random()` itself is promised to stay the same from one
    Python to the next.
    """
    for at in range(len(items) - 1, 0, -1):
        other = int(rng.random() * (at + 1))
        items[at], items[other] = items[other], items[at]


def write(folder: Path, files: Mapping[str, Iterable[T]], row: Callable[[T], str]) -> None:
    """Each as a JSONL file of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in files.items():
        text = "".join(row(each) + "\n" for each in made)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")
