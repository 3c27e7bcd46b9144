"""Rows of JSONL and CSV files: found by where they begin, read when they are asked for."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from kitchen.errors import DataError
from kitchen.ports.datasets import Row, StreamedRow

BOM = b"\xef\xbb\xbf"
EACH = 8  # rows from one mark to the next
Rows = Iterator[tuple[int, int, Row]]  # where it begins in bytes, its line, the row


class Lines:
    """The lines of a file as text; knows where it stands, so that an error can name line and byte."""

    def __init__(self, file: BinaryIO, shown: str, limit_mb: int, line: int = 0) -> None:
        self.shown, self.line, self.offset = shown, line, file.tell()
        self._file, self._limit_mb = file, limit_mb

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        limit = self._limit_mb * 1_000_000
        raw = self._file.readline(limit + 1)
        if not raw:
            raise StopIteration
        self.line += 1
        if len(raw) > limit:
            raise self.error(
                f"a line of more than {self._limit_mb} MB; split it, "
                "or allow longer ones (--set datasets.max_line_mb=N)"
            )
        begin, self.offset = self.offset, self.offset + len(raw)
        try:
            return (raw.removeprefix(BOM) if begin == 0 else raw).decode()
        except UnicodeDecodeError as error:
            at = error.start + (len(BOM) if begin == 0 and raw.startswith(BOM) else 0)
            raise self.error(
                f"byte {at + 1} of the line (0x{raw[at]:02x}, byte {begin + at + 1} of the file) "
                "is not UTF-8; save the file as UTF-8"
            ) from error

    def error(self, text: str, line: int | None = None, column: int | None = None) -> DataError:
        place = f"{self.shown}:{line or self.line}" + (f":{column}" if column else "")
        return DataError(f"{place}: {text}")


class LineRows:
    """A data set of lines. All of it is read and checked once when it is opened; what is kept is a
    byte a row.

    That is a mark at every eighth row, of 8 bytes, or 16 in a file beyond 4 GB; those between are
    read from there.
    """

    def __init__(
        self,
        path: Path,
        shown: str,
        limit_mb: int,
        rows: Callable[[Lines], Rows],
        after: tuple[int, int] = (0, 0),
    ) -> None:
        self._path, self._shown, self._limit_mb, self._rows = path, shown, limit_mb, rows
        with reading(shown), path.open("rb") as file:
            self._stamp = stamp(file)
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
            wide = "I" if self._stamp[0] < 2**32 else "Q"
            # of the marks: bytes from the start; line, from 1
            self._offsets, self._lines = array(wide), array(wide)
            self._count, self._even = 0, True  # rows; whether each is one line, with none between
            file.seek(after[0])
            for offset, line, _ in rows(Lines(file, shown, limit_mb, after[1])):
                if self._count % EACH == 0:
                    self._offsets.append(offset)
                    self._lines.append(line)
                self._even = self._even and line == self._lines[0] + self._count
                self._count += 1
        if not self._count:
            raise no_rows(shown)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._shown}")
        return self._found(index)[1]

    def where(self, index: int) -> str:
        return f"{self._shown}:{self._lines[0] + index if self._even else self._found(index)[0]}"

    def _found(self, index: int) -> tuple[int, Row]:
        """Its line and the row."""
        mark = index // EACH
        near = f"{self._shown}:{self._lines[0] + index if self._even else self._lines[mark]}"
        try:
            with self._path.open("rb") as file:
                if stamp(file) != self._stamp:
                    raise DataError(f"{near}: the file changed after it was opened; start again")
                file.seek(self._offsets[mark])
                rows = self._rows(Lines(file, self._shown, self._limit_mb, self._lines[mark] - 1))
                _, line, row = next(islice(rows, index % EACH, None))
                return line, row
        except OSError as error:
            raise DataError(
                f"{near}: {error.strerror}; the file must stay while it is in use"
            ) from error


def open_jsonl(path: Path, shown: str, limit_mb: int) -> LineRows:
    return LineRows(path, shown, limit_mb, _objects)


def open_csv(path: Path, shown: str, limit_mb: int) -> LineRows:
    with reading(shown), path.open("rb") as file:
        lines = Lines(file, shown, limit_mb)
        columns = _header(lines)
    return LineRows(
        path, shown, limit_mb, partial(_records, columns=columns), (lines.offset, lines.line)
    )


def stream_jsonl(path: Path, shown: str, limit_mb: int) -> Iterator[StreamedRow]:
    with reading(shown), path.open("rb") as file:
        yield from streamed(_objects(Lines(file, shown, limit_mb)), shown)


def stream_csv(path: Path, shown: str, limit_mb: int) -> Iterator[StreamedRow]:
    with reading(shown), path.open("rb") as file:
        lines = Lines(file, shown, limit_mb)
        yield from streamed(_records(lines, columns=_header(lines)), shown)


def streamed(rows: Rows, shown: str) -> Iterator[StreamedRow]:
    """Rows as they go by; at the end an error if there were none."""
    line = 0
    for _, line, row in rows:
        yield StreamedRow(f"{shown}:{line}", row)
    if not line:
        raise no_rows(shown)


def no_rows(shown: str) -> DataError:
    return DataError(f"{shown}: has no rows; give it at least one, or another file")


@contextmanager
def reading(shown: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{shown}: {error.strerror}; see that it is there and may be read"
        ) from error


def stamp(file: BinaryIO | io.BufferedReader) -> tuple[int, int]:
    """Bytes and time of a file: other ones say that it was changed."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def checked(row: object, text: str, error: Callable[[str], DataError]) -> Row:
    """The row, if it is an object of which every string can be written as UTF-8."""
    if not isinstance(row, dict):
        kind = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}.get(
            type(row), "a number"
        )
        raise error(
            f"{kind} where a row must be an object, such as "
            f'{{"prompt": "...", "completion": "..."}}'
        )
    if "\\ud" in text or "\\uD" in text:
        for field, value in row.items():
            try:
                json.dumps([field, value], ensure_ascii=False).encode()
            except UnicodeEncodeError as broken:
                raise error(
                    f"field {field!r} has half of a surrogate pair (\\ud800 to \\udfff), "
                    "which is no character; remove it"
                ) from broken
    return row


def _objects(lines: Lines) -> Rows:
    while True:
        begin = lines.offset
        text = next(lines, None)
        if text is None:
            return
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise lines.error(
                f"is not JSON: {error.msg}; each line must be one JSON object", column=error.colno
            ) from error
        except (RecursionError, ValueError) as error:
            raise lines.error(f"cannot be read: {error}") from error
        yield begin, lines.line, checked(row, text, lines.error)


def _header(lines: Lines) -> Sequence[str]:
    columns = next((cells for _, _, cells in _cells(lines)), None)
    if columns is None:
        raise DataError(f"{lines.shown}: is empty; the first line must name the columns")
    for number, column in enumerate(columns, 1):
        if not column.strip() or _is_number(column):
            raise lines.error(
                f"has no header: column {number} is called {column!r}; the first line must name "
                "the "
                "columns, such as prompt,completion"
            )
        if column in columns[: number - 1]:
            raise lines.error(f"two columns are called {column!r}; rename one")
    return columns


def _records(lines: Lines, *, columns: Sequence[str]) -> Rows:
    for begin, line, cells in _cells(lines):
        if len(cells) != len(columns):
            raise lines.error(
                f"has {len(cells)} columns where the header names {len(columns)} "
                f"({', '.join(columns)}); "
                "put values with commas, quotes or line breaks between double quotes",
                line,
            )
        yield begin, line, dict(zip(columns, cells, strict=True))


def _cells(lines: Lines) -> Iterator[tuple[int, int, list[str]]]:
    # takes no line before it needs it, so that the offsets are true
    reader = csv.reader(lines, strict=True)
    while True:
        begin, line = lines.offset, lines.line + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise lines.error(
                f"is not CSV: {error}; see where a double quote opens and closes (a value of more "
                "than "
                f"{csv.field_size_limit():,} characters needs JSONL)",
                line,
            ) from error
        if cells is None:
            return
        if cells:
            yield begin, line, cells


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
