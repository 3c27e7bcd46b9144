"""Helpers of scripts that generate packaged data sets, to the same bytes on any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


def shuffle(items: list[Any], rng: Random) -> None:
    """Shuffle in place (Fisher and Yates).

    Of the module random, only `random()` is guaranteed to stay the same in later Pythons.
    """
    for at in range(len(items) - 1, 0, -1):
        other = int(rng.random() * (at + 1))
        items[at], items[other] = items[other], items[at]


def write(folder: Path, files: Mapping[str, Iterable[T]], row: Callable[[T], str]) -> None:
    """Write each file as JSONL; `row` turns an item into a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, items in files.items():
        text = "".join(row(item) + "\n" for item in items)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")
