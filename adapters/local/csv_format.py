"""Rows of CSV files, in the dialects that spreadsheets and pandas write."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from adapters.local.line_formats import LineReader, LineRows, Rows, reading, streamed
from kitchen.errors import DataError
from kitchen.ports.datasets import OnBadRow, StreamedRow

DELIMITERS = (",", ";", "\t", "|")
_KNOWN = """
    prompt completion question answer instruction input context output response messages
    conversations chosen rejected label system text
"""
# a header of these words alone, without a delimiter, is separated by spaces
KNOWN_COLUMNS = frozenset(_KNOWN.split())
# how pandas, Excel and MySQL write a missing value
MISSING = frozenset({"", "NaN", "nan", "<NA>", "#N/A", "\\N"})
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


@dataclass(frozen=True)
class CsvDialect:
    """The header of a CSV file, and how its values are separated."""

    columns: Sequence[str]  # "" for one without a name
    delimiter: str = ","
    spaced: bool = False  # a space follows each delimiter, and is not part of the value


def open_csv(path: Path, label: str, limit_mb: int, on_bad_row: OnBadRow | None = None) -> LineRows:
    with reading(label), path.open("rb") as file:
        reader = LineReader(file, label, limit_mb)
        dialect = _read_header(reader)
    start = (reader.offset, reader.line)
    parse_rows = partial(_csv_rows, dialect=dialect)
    return LineRows(path, label, limit_mb, parse_rows, start, on_bad_row)


def stream_csv(
    path: Path, label: str, limit_mb: int, on_bad_row: OnBadRow | None = None
) -> Iterator[StreamedRow]:
    with reading(label), path.open("rb") as file:
        reader = LineReader(file, label, limit_mb)
        dialect = _read_header(reader)
        yield from streamed(_csv_rows(reader, on_bad_row, dialect=dialect), label)


def _read_header(reader: LineReader) -> CsvDialect:
    first = next((line for line in reader if line.strip()), None)
    delimiter = None
    if first is not None and (separator := _SEPARATOR_LINE.fullmatch(first)):
        delimiter = separator[1]  # the first line of files that Excel is to open
        first = next((line for line in reader if line.strip()), None)
    if first is None:
        raise DataError(f"{reader.label}: is empty; the first line must name the columns")
    with _csv_errors(reader, reader.line):
        delimiter = delimiter or _delimiter(first)
    lines = _Lines(first, reader)
    columns = _next_cells(csv.reader(lines, delimiter=delimiter, strict=True), reader, reader.line)
    assert columns is not None, "the header has at least one line"
    spaced = any(column.startswith(" ") for column in columns[1:])
    if spaced:  # a quote character counts only at the start of a value
        spaced_lines = csv.reader([first], delimiter=delimiter, skipinitialspace=True)
        columns = next(iter(spaced_lines), columns)
    columns = [column.strip() for column in columns]
    _check_columns(columns, reader)
    return CsvDialect(columns, delimiter, spaced)


@dataclass
class _Lines:
    """The lines of a file, beginning with the first, which was read already."""

    first: str | None
    reader: LineReader

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line, self.first = self.first, None
        return next(self.reader) if line is None else line


def _delimiter(header: str) -> str:
    """Return the delimiter of a header: a comma, unless only another one separates names."""
    counts = {mark: len(next(csv.reader([header], delimiter=mark), [])) for mark in DELIMITERS}
    if counts[","] < 2:
        words = header.lower().replace('"', "").split()
        if max(counts.values()) < 2 and len(words) > 1 and KNOWN_COLUMNS.issuperset(words):
            return " "
        return max(DELIMITERS, key=lambda mark: counts[mark])
    return ","


def _check_columns(columns: Sequence[str], reader: LineReader) -> None:
    for number, column in enumerate(columns, 1):
        has_names = any(columns)
        if (not column and not has_names) or _is_number(column):
            raise reader.error(
                f"has no header: column {number} is called {column!r}; the first line must name "
                "the columns, such as prompt,completion"
            )
        if column and column in columns[: number - 1]:
            raise reader.error(f"two columns are called {column!r}; rename one")


def _csv_rows(reader: LineReader, on_bad_row: OnBadRow | None, *, dialect: CsvDialect) -> Rows:
    for offset, line, cells in _records(reader, on_bad_row, dialect):
        values = [None if cell.strip() in MISSING else cell for cell in cells]
        try:
            if all(value is None for value in values):
                continue  # an empty row of a spreadsheet
            _check_cells(values, dialect.columns, reader, line)
        except DataError as error:
            if on_bad_row is None:
                raise
            on_bad_row(error)
        else:
            named = zip(dialect.columns, values, strict=True)
            yield offset, line, {column: value for column, value in named if column}


def _check_cells(
    values: Sequence[str | None], columns: Sequence[str], reader: LineReader, line: int
) -> None:
    if len(values) != len(columns):
        raise reader.error(
            f"has {len(values)} columns where the header names {len(columns)} "
            f"({', '.join(columns)}); put values with commas, quotes or line breaks between "
            "double quotes",
            line,
        )
    # the first column without a name is the index that pandas writes
    for number, (column, value) in enumerate(zip(columns, values, strict=True), 1):
        if not column and number > 1 and value is not None:
            raise reader.error(
                f"has a value in column {number}, which has no name in the header; name the "
                "column there, or empty its values",
                line,
            )


def _records(
    reader: LineReader, on_bad_row: OnBadRow | None, dialect: CsvDialect
) -> Iterator[tuple[int, int, list[str]]]:
    # the csv module reads no line before it needs it, so the offsets are right
    records = csv.reader(
        reader, delimiter=dialect.delimiter, skipinitialspace=dialect.spaced, strict=True
    )
    while True:
        offset = reader.offset
        line = reader.line + 1
        try:
            cells = _next_cells(records, reader, line)
        except DataError as error:
            # beyond its first line, it is unknown where the next row begins
            if on_bad_row is None or reader.line != line:
                raise
            on_bad_row(error)
            continue
        if cells is None:
            return
        if cells:
            yield offset, line, cells


def _next_cells(records: Iterator[list[str]], reader: LineReader, line: int) -> list[str] | None:
    with _csv_errors(reader, line):
        return next(records, None)


@contextmanager
def _csv_errors(reader: LineReader, line: int) -> Iterator[None]:
    """Translate errors of the csv module into DataError."""
    try:
        yield
    except csv.Error as error:
        if "new-line character" in str(error):
            raise reader.error(
                "has carriage returns (\\r) that end no line; save the file with line feeds (\\n) "
                "at the ends of lines",
                line,
            ) from error
        raise reader.error(
            f"is not CSV: {error}; check where a double quote opens and closes (a value of "
            f"more than {csv.field_size_limit():,} characters needs JSONL)",
            line,
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
