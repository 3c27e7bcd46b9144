"""Rows of files of lines, such as JSONL: indexed by their offsets, and read on demand."""

from __future__ import annotations

import hashlib
import io
import json
import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from kitchen.errors import DataError
from kitchen.ports.datasets import OnBadRow, Row, StreamedRow
from kitchen.safe_text import read_json

BOM = b"\xef\xbb\xbf"
MARK_EVERY = 8  # rows from one index mark to the next
Rows = Iterator[tuple[int, int, Row]]  # offset in bytes, line from 1, row


class LineReader:
    """Yields the lines of a file as text, and tracks its position for error messages."""

    def __init__(self, file: BinaryIO, label: str, limit_mb: int, line: int = 0) -> None:
        self.label = label
        self.line = line
        self.offset = file.tell()
        self._file = file
        self._limit_mb = limit_mb

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        limit = self._limit_mb * 1_000_000
        raw = self._file.readline(limit + 1)
        if not raw:
            raise StopIteration
        self.line += 1
        start = self.offset
        self.offset += len(raw)
        if len(raw) > limit:
            while not raw.endswith(b"\n") and (raw := self._file.readline(limit)):
                self.offset += len(raw)
            raise self.error(
                f"the line has more than {self._limit_mb} MB; split it, "
                "or allow longer ones (--set datasets.max_line_mb=N)"
            )
        try:
            return (raw.removeprefix(BOM) if start == 0 else raw).decode()
        except UnicodeDecodeError as error:
            at = error.start + (len(BOM) if start == 0 and raw.startswith(BOM) else 0)
            raise self.error(
                f"byte {at + 1} of the line (0x{raw[at]:02x}, byte {start + at + 1} of the file) "
                "is not UTF-8; save the file as UTF-8"
            ) from error

    def error(self, text: str, line: int | None = None, column: int | None = None) -> DataError:
        place = f"{self.label}:{line or self.line}"
        if column:
            place += f":{column}"
        return DataError(f"{place}: {text}")


ParseRows = Callable[[LineReader, OnBadRow | None], Rows]


def _skip(error: DataError) -> None:
    """Leave a row out whose error has been reported when the file was opened."""


class LineRows:
    """A data set in a file of lines, read and checked once when it is opened.

    The index needs a byte per row: a mark of 8 bytes, or 16 in a file beyond 4 GB, at every eighth
    row; the rows between are read from the mark before them.
    """

    def __init__(
        self,
        path: Path,
        label: str,
        limit_mb: int,
        parse_rows: ParseRows,
        start: tuple[int, int] = (0, 0),  # offset and number of lines before the first row
        on_bad_row: OnBadRow | None = None,  # takes the errors of rows that are left out
    ) -> None:
        self._path = path
        self._label = label
        self._limit_mb = limit_mb
        self._parse_rows = parse_rows
        with reading(label), path.open("rb") as file:
            self._stamp = stamp(file)
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
            self._index(file, start, on_bad_row)
        self._skip_bad_row = None if on_bad_row is None else _skip
        if not self._count:
            raise no_rows(label)

    def _index(self, file: BinaryIO, start: tuple[int, int], on_bad_row: OnBadRow | None) -> None:
        offset, lines_before = start
        typecode = "I" if self._stamp[0] < 2**32 else "Q"
        self._offsets = array(typecode)  # of the marks, bytes from the start
        self._lines = array(typecode)  # of the marks, from 1
        self._count = 0  # rows
        self._is_even = True  # each row is one line, and no lines lie between rows
        file.seek(offset)
        reader = LineReader(file, self._label, self._limit_mb, lines_before)
        for row_offset, line, _ in self._parse_rows(reader, on_bad_row):
            if self._count % MARK_EVERY == 0:
                self._offsets.append(row_offset)
                self._lines.append(line)
            self._is_even = self._is_even and line == self._lines[0] + self._count
            self._count += 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._label}")
        _, row = self._read(index)
        return row

    def where(self, index: int) -> str:
        line = self._lines[0] + index if self._is_even else self._read(index)[0]
        return f"{self._label}:{line}"

    def _read(self, index: int) -> tuple[int, Row]:
        """Return the row's line and the row."""
        mark = index // MARK_EVERY
        line_near = self._lines[0] + index if self._is_even else self._lines[mark]
        place = f"{self._label}:{line_near}"
        try:
            with self._path.open("rb") as file:
                if stamp(file) != self._stamp:
                    raise DataError(f"{place}: the file changed after it was opened; start again")
                file.seek(self._offsets[mark])
                lines_before = self._lines[mark] - 1
                reader = LineReader(file, self._label, self._limit_mb, lines_before)
                rows = self._parse_rows(reader, self._skip_bad_row)
                _, line, row = next(islice(rows, index % MARK_EVERY, None))
                return line, row
        except OSError as error:
            raise DataError(
                f"{place}: {error.strerror}; keep the file in place while it is in use"
            ) from error


def open_jsonl(
    path: Path, label: str, limit_mb: int, on_bad_row: OnBadRow | None = None
) -> LineRows:
    return LineRows(path, label, limit_mb, _json_rows, on_bad_row=on_bad_row)


def stream_jsonl(
    path: Path, label: str, limit_mb: int, on_bad_row: OnBadRow | None = None
) -> Iterator[StreamedRow]:
    with reading(label), path.open("rb") as file:
        yield from streamed(_json_rows(LineReader(file, label, limit_mb), on_bad_row), label)


def streamed(rows: Rows, label: str) -> Iterator[StreamedRow]:
    """Yield rows with their place; raises DataError at the end if there were none."""
    line = 0
    for _, line, row in rows:
        yield StreamedRow(f"{label}:{line}", row)
    if not line:
        raise no_rows(label)


class NoRows(DataError):
    """A file without rows."""


def no_rows(label: str) -> NoRows:
    return NoRows(f"{label}: has no rows; add at least one, or choose another file")


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Translate OSError into DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{label}: {error.strerror}; check that it exists and may be read"
        ) from error


def stamp(file: BinaryIO | io.BufferedReader) -> tuple[int, int]:
    """Return size in bytes and modification time in ns, which reveal that a file has changed."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def checked(row: object, text: str, error: Callable[[str], DataError]) -> Row:
    """Return the row; raises `error` if it is not an object, or not encodable as UTF-8."""
    if not isinstance(row, dict):
        kinds = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}
        raise error(
            f"{kinds.get(type(row), 'a number')} where a row must be an object, such as "
            '{"prompt": "...", "completion": "..."}'
        )
    if "\\ud" in text or "\\uD" in text:
        for field, value in row.items():
            try:
                json.dumps([field, value], ensure_ascii=False).encode()
            except UnicodeEncodeError as broken:
                raise error(
                    f"field {field!r} has half of a surrogate pair (\\ud800 to \\udfff), "
                    "which is not a character; remove it"
                ) from broken
    return row


def _json_rows(reader: LineReader, on_bad_row: OnBadRow | None) -> Rows:
    while True:
        offset = reader.offset
        try:
            text = next(reader, None)
            if text is None:
                return
            if not text.strip():
                continue
            row = _json_row(text, reader)
        except DataError as error:
            if on_bad_row is None:
                raise
            on_bad_row(error)
        else:
            yield offset, reader.line, row


def _json_row(text: str, reader: LineReader) -> Row:
    try:
        row = read_json(text)
    except json.JSONDecodeError as error:
        raise reader.error(
            f"is not JSON: {error.msg}; each line must be one JSON object", column=error.colno
        ) from error
    except ValueError as error:
        raise reader.error(f"cannot be read: {error}") from error
    return checked(row, text, reader.error)
