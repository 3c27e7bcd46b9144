"""Rows that cannot be read or rendered: left out and listed if reading.bad_rows=drop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from kitchen.backend.work import counted
from kitchen.errors import DataError
from kitchen.ports import Dataset, Row, StreamedRow
from kitchen.stage import Stage
from kitchen.types import Metrics, Samples, Table
from stages.data.views import rename_row, select

T = TypeVar("T")
BadRowsName = Literal["error", "drop"]
_SHOWN = 10  # rows in the table; all are in samples.jsonl


@dataclass(frozen=True)
class BadRow:
    """A row that was left out, and the reason."""

    split: str
    where: str  # its place in the data: "chats.jsonl:12"
    reason: str


@dataclass
class BadRows:
    """Collects the rows that are left out of one split."""

    split: str
    rows: list[BadRow] = field(default_factory=list)

    def add(self, error: DataError, where: str | None = None) -> None:
        """Record a row; without `where`, its place is the beginning of the message."""
        text = str(error)
        if where is None:
            where, _, reason = text.partition(": ")
        else:
            reason = text.removeprefix(f"{where}: ")
        self.rows.append(BadRow(self.split, where, reason))

    def keep(
        self, rows: Iterable[T], check: Callable[[T], object], where: Callable[[T], str]
    ) -> tuple[T, ...]:
        """Return the rows for which `check` raises no DataError; raises it if none is left."""
        good: list[T] = []
        for row in rows:
            try:
                check(row)
            except DataError as error:
                self.add(error, where(row))
            else:
                good.append(row)
        if self.rows and not good:
            raise self.all_bad()
        return tuple(good)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the error of the first bad row in place of one that no row is left."""
        try:
            yield
        except DataError as error:
            if not self.rows:
                raise
            raise self.all_bad() from error

    def all_bad(self) -> DataError:
        first = self.rows[0]
        return DataError(
            f"{first.where}: {first.reason} (reading.bad_rows=drop leaves such rows out, but then "
            f"no row of the split {self.split!r} would be left)"
        )


@dataclass(frozen=True)
class RowReader:
    """Renames the columns of rows, and parses them to find those that are bad."""

    columns: Mapping[str, str]
    parse: Callable[[Row, str], Any]

    def good_rows(self, data: Dataset, bad: BadRows) -> Dataset:
        """Return the rows of a data set that can be parsed; the others are recorded."""
        indices = counted(range(len(data)), "rows")
        good = [index for index in indices if self._is_good(data, index, bad)]
        if not good:
            raise bad.all_bad()
        return data if len(good) == len(data) else select(data, good)

    def good_stream(self, stream: Iterator[StreamedRow], bad: BadRows) -> Iterator[StreamedRow]:
        """Yield the rows of a stream that can be parsed; the others are recorded."""
        for streamed in stream:
            try:
                self._parse(streamed.row, streamed.where)
            except DataError as error:
                bad.add(error, streamed.where)
            else:
                yield streamed

    def _is_good(self, data: Dataset, index: int, bad: BadRows) -> bool:
        where = data.where(index)
        try:
            self._parse(data[index], where)
        except DataError as error:
            bad.add(error, where)
            return False
        return True

    def _parse(self, row: Row, where: str) -> None:
        self.parse(rename_row(row, self.columns, where) if self.columns else row, where)


def when_dropping(bad_rows: BadRowsName, stage: Stage) -> tuple[Stage, ...]:
    """Return the stage that leaves bad rows out, if they are to be left out."""
    return (stage,) if bad_rows == "drop" else ()


def report_bad_rows(rows: Sequence[BadRow]) -> tuple[Metrics, Table, Samples]:
    """Return the number of rows left out, a table of the first ones, and a list of all."""
    metrics = Metrics({"data/bad_rows": float(len(rows))})
    for split in dict.fromkeys(row.split for row in rows):
        metrics[f"data/bad_rows/{split}"] = float(sum(row.split == split for row in rows))
    shown = [(row.split, row.where, row.reason) for row in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        shown.append(("", "", f"and {len(rows) - _SHOWN:,} more: see samples.jsonl"))
    listed = [
        {"when": "bad row", "set": row.split, "where": row.where, "text": row.reason}
        for row in rows
    ]
    title = f"Rows left out ({len(rows):,})"
    return metrics, Table(title, ("split", "row", "reason"), tuple(shown)), Samples(tuple(listed))
