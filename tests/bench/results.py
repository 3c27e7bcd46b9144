"""The input and output of a benchmark: a table for people, records for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.turns import MODEL, Setup

DROPPED = 2  # first steps, which no figure counts: they allocate memory and choose kernels


@dataclass(frozen=True)
class Order:
    """The command-line options of a benchmark."""

    folder: Path  # for files of this run: start weights, logs
    seed: int = 0
    # measured steps of each side, beyond the dropped; None: as many as the work takes
    pairs: int | None = None
    model: str = MODEL  # as the local hub knows it
    device: str = "cpu"  # or cuda

    def setup(self, pairs: int, dtype: str = "float32") -> Setup:
        """Return the setup of a benchmark with this default number of pairs."""
        return Setup(
            self.folder, self.seed, DROPPED + (self.pairs or pairs), dtype, self.model, self.device
        )


@dataclass(frozen=True)
class Result:
    """The result of one benchmark."""

    work: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # the target, and what was compared
    records: tuple[Mapping[str, Any], ...] = ()  # one JSON line each
    sound: bool = True  # the sides computed the same
    # targets: what is measured, the result, whether it is reached
    figures: tuple[tuple[str, str, str], ...] = ()


def named(work: str, dtype: str) -> str:
    """Name a benchmark in a format other than the default."""
    return work if dtype == "float32" else f"{work}_{dtype}"


Work: TypeAlias = Callable[[Order], Result]
