"""Rows of JSON files, which are read into memory, and of Parquet files, converted to Arrow."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from adapters.local.line_formats import BOM, Rows, checked, no_rows, reading, streamed
from kitchen.errors import BackendError, DataError
from kitchen.ports.datasets import OnBadRow, Row, StreamedRow

_STREAM_BATCH = 1000  # rows decoded together
_ARROW_BATCH = 10_000  # rows; opening a batch touches a page of the file
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonRows:
    """The objects of a JSON array, or of the array under "data": held as text, parsed on demand."""

    def __init__(self, path: Path, label: str, on_bad_row: OnBadRow | None = None) -> None:
        self._label = label
        self._text, self.fingerprint = _read(path, label)
        self._starts = array("q")  # (rows,) characters from the start
        self._lines = array("q")  # (rows,) from 1
        for start, line, _ in _objects(self._text, label, on_bad_row):
            self._starts.append(start)
            self._lines.append(line)
        if not self._starts:
            raise no_rows(label)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._label}")
        row: Row = json.JSONDecoder().raw_decode(self._text, self._starts[index])[0]
        return row

    def where(self, index: int) -> str:
        return f"{self._label}:{self._lines[index]}"


class ParquetRows:
    """The rows of a Parquet file, converted once to a temporary Arrow file with random access.

    Parquet is read in whole row groups: in a shuffled order each row would cost tens of
    milliseconds.
    """

    def __init__(self, path: Path, label: str) -> None:
        self._label = label
        with reading(label), path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
            parquet = _parquet(file, label)
            with _arrow_errors(label):
                self._map, self._table = _convert(parquet)
        if not len(self):
            raise no_rows(label)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._label}")
        row: Row = self._table.slice(index, 1).to_pylist()[0]
        _release(self._map)
        return row

    def where(self, index: int) -> str:
        return f"{self._label} row {index + 1}"


def _convert(parquet: Any) -> tuple[mmap.mmap, Any]:
    """Return an unlinked memory-mapped file, which vanishes with its last reader, and its table."""
    import pyarrow

    with tempfile.TemporaryFile(prefix="kitchen-") as file:
        with pyarrow.ipc.new_stream(file, parquet.schema_arrow) as out:
            for batch in parquet.iter_batches(batch_size=_ARROW_BATCH, use_threads=False):
                out.write_batch(batch)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    table = pyarrow.ipc.open_stream(pyarrow.py_buffer(mapped)).read_all()
    _release(mapped)
    return mapped, table


def _release(mapped: mmap.mmap) -> None:
    """Release the pages, which count as memory of this process, 64 kB around each row read."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def stream_json(
    path: Path, label: str, on_bad_row: OnBadRow | None = None
) -> Iterator[StreamedRow]:
    """Read the text of the file whole, and yield its rows one by one."""
    yield from streamed(_objects(_read(path, label)[0], label, on_bad_row), label)


def stream_parquet(path: Path, label: str) -> Iterator[StreamedRow]:
    number = 0
    with reading(label), path.open("rb") as file:
        parquet = _parquet(file, label)
        with _arrow_errors(label):
            batches = parquet.iter_batches(batch_size=_STREAM_BATCH, use_threads=False)
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, row in enumerate(rows, 1):
                yield StreamedRow(f"{label} row {number}", row)
    if not number:
        raise no_rows(label)


def parquet_length(path: Path, label: str) -> int:
    """Return the number of rows in the file's metadata."""
    with reading(label), path.open("rb") as file:
        return int(_parquet(file, label).metadata.num_rows)


def _parquet(file: BinaryIO, label: str) -> Any:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise BackendError(
            f"{label} needs pyarrow: pip install 'crucible-kitchen[local]'"
        ) from error
    with _arrow_errors(label):
        parquet = ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        names = parquet.schema_arrow.names
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{label}: two columns are called {repeated[0]!r}; rename one")
    return parquet


@contextmanager
def _arrow_errors(label: str) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        raise DataError(f"{label}: cannot be read as Parquet: {error}") from error


def _read(path: Path, label: str) -> tuple[str, str]:
    """Return the text and the fingerprint of a file."""
    with reading(label):
        raw = path.read_bytes()
    return _decoded(raw, label), hashlib.sha256(raw).hexdigest()


def _objects(text: str, label: str, on_bad_row: OnBadRow | None) -> Rows:
    at = 0
    line = 1

    def error(text: str) -> DataError:
        return DataError(f"{label}:{line}: {text}")

    try:
        for start, end, row in _elements(text):
            line += text.count("\n", at, start)
            at = start
            try:
                row = checked(row, text[start:end], error)
            except DataError as bad_row:
                if on_bad_row is None:
                    raise
                on_bad_row(bad_row)
            else:
                yield start, line, row
    except json.JSONDecodeError as broken:
        raise DataError(
            f"{label}:{broken.lineno}:{broken.colno}: {broken.msg}; "
            "the file must be a JSON array of objects"
        ) from broken
    except (RecursionError, ValueError) as broken:
        raise DataError(f"{label}: cannot be read: {broken}") from broken


def _decoded(raw: bytes, label: str) -> str:
    try:
        return raw.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        at = error.start + (len(BOM) if raw.startswith(BOM) else 0)
        line = raw.count(b"\n", 0, at) + 1
        line_start = raw.rfind(b"\n", 0, at) + 1
        raise DataError(
            f"{label}:{line}: byte {at - line_start + 1} of the line (0x{raw[at]:02x}, "
            f"byte {at + 1} of the file) is not UTF-8; save the file as UTF-8"
        ) from error


def _elements(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yield start, end and value of each element; json.loads alone gives no positions."""
    decoder = json.JSONDecoder()
    start = _skip(text, 0)
    if start == len(text):
        return
    is_object = text.startswith("{", start)
    at = _find_data(text, start, decoder) if is_object else start
    if not text.startswith("[", at):
        raise json.JSONDecodeError("an array of objects is expected here", text, at)
    at = _skip(text, at + 1)
    while not text.startswith("]", at):
        value, end = decoder.raw_decode(text, at)
        yield at, end, value
        at = _after(text, end, "]")
    if is_object:
        json.loads(text)  # checks the text after the array
    elif _skip(text, at + 1) != len(text):
        raise json.JSONDecodeError("more follows after the array", text, _skip(text, at + 1))


def _find_data(text: str, start: int, decoder: json.JSONDecoder) -> int:
    """Return where the value of "data" begins in the object at `start`."""
    at = _skip(text, start + 1)
    while text.startswith('"', at):
        field, end = decoder.raw_decode(text, at)
        at = _skip(text, end)
        if not text.startswith(":", at):
            raise json.JSONDecodeError("a colon is expected here", text, at)
        at = _skip(text, at + 1)
        if field == "data":
            return at
        _, end = decoder.raw_decode(text, at)
        at = _after(text, end, "}")
    raise json.JSONDecodeError(
        'an object without the field "data" (is it JSONL? call it .jsonl)', text, start
    )


def _after(text: str, end: int, close: str) -> int:
    """Return where the next element begins, or where `close` is."""
    at = _skip(text, end)
    if text.startswith(close, at):
        return at
    if not text.startswith(",", at):
        raise json.JSONDecodeError(f"a comma or {close!r} is expected here", text, at)
    if text.startswith(close, _skip(text, at + 1)):
        raise json.JSONDecodeError(f"a comma before {close!r}", text, at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
