"""Rows of JSON files, which are read whole, and of Parquet files, which are laid out anew."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from adapters.local.lines import BOM, Rows, checked, no_rows, reading, streamed
from kitchen.errors import BackendError, DataError
from kitchen.ports.datasets import Row, StreamedRow

_BATCH = 1000  # rows that are decoded together
# rows in a piece of what is laid out: to open each piece touches a page of the file
_TOGETHER = 10_000
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonRows:
    """The objects of a JSON array, or of the array under "data"; kept as text, parsed when they are
    asked for.
    """

    def __init__(self, path: Path, shown: str) -> None:
        self._shown, (self._text, self.fingerprint) = shown, _read(path, shown)
        # (rows,) characters from the start; (rows,) line from 1
        self._starts, self._lines = array("q"), array("q")
        for start, line, _ in _objects(self._text, shown):
            self._starts.append(start)
            self._lines.append(line)
        if not self._starts:
            raise no_rows(shown)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._shown}")
        row: Row = json.JSONDecoder().raw_decode(self._text, self._starts[index])[0]
        return row

    def where(self, index: int) -> str:
        return f"{self._shown}:{self._lines[index]}"


class ParquetRows:
    """The rows of a Parquet file, laid out once in a temporary file where each can be read by
    itself.

    Parquet gives whole row groups: in a shuffled order each row would cost tens of milliseconds.
    """

    def __init__(self, path: Path, shown: str) -> None:
        self._shown = shown
        with reading(shown), path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
            parquet = _parquet(file, shown)
            with _arrow_errors(shown):
                self._map, self._table = _laid_out(parquet)
        if not len(self):
            raise no_rows(shown)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._shown}")
        row: Row = self._table.slice(index, 1).to_pylist()[0]
        _let_go(self._map)
        return row

    def where(self, index: int) -> str:
        return f"{self._shown} row {index + 1}"


def _laid_out(parquet: Any) -> tuple[mmap.mmap, Any]:
    """A memory-mapped file without a name, which goes with the last who reads it, and the table in
    it.
    """
    import pyarrow

    with tempfile.TemporaryFile(prefix="kitchen-") as file:
        with pyarrow.ipc.new_stream(file, parquet.schema_arrow) as out:
            for batch in parquet.iter_batches(batch_size=_TOGETHER, use_threads=False):
                out.write_batch(batch)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    table = pyarrow.ipc.open_stream(pyarrow.py_buffer(mapped)).read_all()
    _let_go(mapped)
    return mapped, table


def _let_go(mapped: mmap.mmap) -> None:
    """Pages that were read count as memory of this process, 64 kB around each row; they can be read
    again.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def stream_json(path: Path, shown: str) -> Iterator[StreamedRow]:
    """The text of the file is read whole, its rows one by one."""
    yield from streamed(_objects(_read(path, shown)[0], shown), shown)


def stream_parquet(path: Path, shown: str) -> Iterator[StreamedRow]:
    number = 0
    with reading(shown), path.open("rb") as file:
        parquet = _parquet(file, shown)
        with _arrow_errors(shown):
            batches = parquet.iter_batches(batch_size=_BATCH, use_threads=False)
            for number, row in enumerate(
                (row for batch in batches for row in batch.to_pylist()), 1
            ):
                yield StreamedRow(f"{shown} row {number}", row)
    if not number:
        raise no_rows(shown)


def parquet_length(path: Path, shown: str) -> int:
    """How many rows the file says it has."""
    with reading(shown), path.open("rb") as file:
        return int(_parquet(file, shown).metadata.num_rows)


def _parquet(file: BinaryIO, shown: str) -> Any:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise BackendError(
            f"{shown} needs pyarrow: pip install 'crucible-kitchen[local]'"
        ) from error
    with _arrow_errors(shown):
        parquet = ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        names = parquet.schema_arrow.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{shown}: two columns are called {twice[0]!r}; rename one")
    return parquet


@contextmanager
def _arrow_errors(shown: str) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        raise DataError(f"{shown}: cannot be read as Parquet: {error}") from error


def _read(path: Path, shown: str) -> tuple[str, str]:
    """Text and fingerprint."""
    with reading(shown):
        raw = path.read_bytes()
    return _decoded(raw, shown), hashlib.sha256(raw).hexdigest()


def _objects(text: str, shown: str) -> Rows:
    at, line = 0, 1

    def error(said: str) -> DataError:
        return DataError(f"{shown}:{line}: {said}")

    try:
        for start, end, row in _elements(text):
            at, line = start, line + text.count("\n", at, start)
            yield start, line, checked(row, text[start:end], error)
    except json.JSONDecodeError as broken:
        raise DataError(
            f"{shown}:{broken.lineno}:{broken.colno}: {broken.msg}; "
            "the file must be a JSON array of objects"
        ) from broken
    except (RecursionError, ValueError) as broken:
        raise DataError(f"{shown}: cannot be read: {broken}") from broken


def _decoded(raw: bytes, shown: str) -> str:
    try:
        return raw.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        at = error.start + (len(BOM) if raw.startswith(BOM) else 0)
        line, begin = raw.count(b"\n", 0, at) + 1, raw.rfind(b"\n", 0, at) + 1
        raise DataError(
            f"{shown}:{line}: byte {at - begin + 1} of the line (0x{raw[at]:02x}, "
            f"byte {at + 1} of the file) is not UTF-8; save the file as UTF-8"
        ) from error


def _elements(text: str) -> Iterator[tuple[int, int, Any]]:
    """Begin, end and value of each element: json.loads alone would not say where an element stood."""
    decoder = json.JSONDecoder()
    start = _skip(text, 0)
    if start == len(text):
        return
    wrapped = text.startswith("{", start)
    at = _data(text, start, decoder) if wrapped else start
    if not text.startswith("[", at):
        raise json.JSONDecodeError("an array of objects is expected here", text, at)
    at = _skip(text, at + 1)
    while not text.startswith("]", at):
        value, end = decoder.raw_decode(text, at)
        yield at, end, value
        at = _after(text, end, "]")
    if wrapped:
        json.loads(text)  # what comes after the array
    elif _skip(text, at + 1) != len(text):
        raise json.JSONDecodeError("more follows after the array", text, _skip(text, at + 1))


def _data(text: str, start: int, decoder: json.JSONDecoder) -> int:
    """Where the value of "data" begins in the object at `start`."""
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
    """Where the next element begins, or `close` stands."""
    at = _skip(text, end)
    if text.startswith(close, at):
        return at
    if not text.startswith(",", at):
        raise json.JSONDecodeError(f"a comma or {close!r} is expected here", text, at)
    if text.startswith(close, _skip(text, at + 1)):
        raise json.JSONDecodeError(f"a comma before {close!r}", text, at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
