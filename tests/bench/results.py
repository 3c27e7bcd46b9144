"""The input and output of a benchmark: a table for people, records for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.turns import MODEL, Setup

DROPPED = 2  # first steps that are not counted: they allocate memory and select kernels


@dataclass(frozen=True)
class Options:
    """The command-line options of a benchmark."""

    folder: Path  # for the start weights and logs of this run
    seed: int = 0
    # counted steps of each side; None: the default of the benchmark
    pairs: int | None = None
    model: str = MODEL  # a name that LocalHub resolves
    device: str = "cpu"  # or cuda

    def setup(self, pairs: int, dtype: str = "float32") -> Setup:
        """Return the setup of a benchmark with this default number of counted steps."""
        return Setup(
            self.folder, self.seed, DROPPED + (self.pairs or pairs), dtype, self.model, self.device
        )


@dataclass(frozen=True)
class Result:
    """The result of one benchmark. Its field names are keys of the JSON lines."""

    work: str  # name of the benchmark
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # metrics with targets, agreement, explanations
    records: tuple[Mapping[str, Any], ...] = ()  # one JSON line each
    sound: bool = True  # whether the sides computed the same values
    # name, result and verdict of the metrics with a target
    figures: tuple[tuple[str, str, str], ...] = ()


def name_for(work: str, dtype: str) -> str:
    """Return the name of a benchmark, with the data type unless it is float32."""
    return work if dtype == "float32" else f"{work}_{dtype}"


BenchmarkFunction: TypeAlias = Callable[[Options], Result]
