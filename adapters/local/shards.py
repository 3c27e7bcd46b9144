"""Rows of several files as one data set."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from adapters.local.line_formats import NoRows
from kitchen.ports.datasets import Dataset, Row, StreamedRow


class ShardedRows:
    """The rows of several files, one file after the other."""

    def __init__(self, shards: Sequence[Dataset]) -> None:
        self._shards = shards
        self._ends = list(accumulate(map(len, shards)))  # rows up to and including each shard

    @property
    def fingerprint(self) -> str:
        digests = " ".join(shard.fingerprint for shard in self._shards)
        return hashlib.sha256(digests.encode()).hexdigest()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int, /) -> Row:
        shard, row = self._find(index)
        return shard[row]

    def where(self, index: int) -> str:
        shard, row = self._find(index)
        return shard.where(row)

    def _find(self, index: int) -> tuple[Dataset, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        at = bisect_right(self._ends, index)
        return self._shards[at], index - self._ends[at] + len(self._shards[at])


def open_shards(openers: Sequence[Callable[[], Dataset]]) -> Dataset:
    """Open the files of a split; empty ones are left out if another has rows."""
    shards: list[Dataset] = []
    empty: NoRows | None = None
    for open_shard in openers:
        try:
            shards.append(open_shard())
        except NoRows as error:
            empty = empty or error
    if not shards and empty is not None:
        raise empty
    return shards[0] if len(openers) == 1 else ShardedRows(shards)


def stream_shards(streams: Sequence[Iterator[StreamedRow]]) -> Iterator[StreamedRow]:
    """Yield the rows of all files; an empty one is an error only if all are."""
    empty: NoRows | None = None
    has_rows = False
    for stream in streams:
        try:
            for row in stream:
                has_rows = True
                yield row
        except NoRows as error:
            empty = empty or error
    if not has_rows and empty is not None:
        raise empty
