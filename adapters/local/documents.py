"""Rows of JSON and Parquet files, which are read whole."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adapters.local.lines import BOM, checked
from kitchen.errors import BackendError, DataError
from kitchen.ports.datasets import Row

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonRows:
    """The objects of a JSON array, or of the array under "data"; kept as text, parsed when they are asked for."""

    def __init__(self, path: Path, shown: str) -> None:
        raw = path.read_bytes()
        self.fingerprint = hashlib.sha256(raw).hexdigest()
        self._shown, self._text = shown, _decoded(raw, shown)
        self._breaks = [found.start() for found in re.finditer("\n", self._text)]  # characters from the start
        self._starts = array("q")  # (rows,) characters from the start
        try:
            for start, end, row in _elements(self._text):
                self._starts.append(start)
                checked(row, self._text[start:end], self._error)
        except json.JSONDecodeError as error:
            raise DataError(f"{shown}:{error.lineno}:{error.colno}: {error.msg}; "
                            "the file must be a JSON array of objects") from error
        except (RecursionError, ValueError) as error:
            raise DataError(f"{shown}: cannot be read: {error}") from error
        if not self._starts:
            raise DataError(f"{shown}: has no rows; give it at least one, or another file")

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._shown}")
        row: Row = json.JSONDecoder().raw_decode(self._text, self._starts[index])[0]
        return row

    def where(self, index: int) -> str:
        return f"{self._shown}:{bisect_left(self._breaks, self._starts[index]) + 1}"

    def _error(self, text: str) -> DataError:
        return DataError(f"{self.where(-1)}: {text}")


class ParquetRows:
    """The rows of a Parquet file, in memory as Arrow columns."""

    def __init__(self, path: Path, shown: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise BackendError(f"{shown} needs pyarrow: pip install 'crucible-kitchen[local]'") from error
        with path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            try:
                self._table: Any = pyarrow.parquet.ParquetFile(file).read()
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"{shown}: cannot be read as Parquet: {error}") from error
        self._shown = shown
        names = self._table.column_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{shown}: two columns are called {twice[0]!r}; rename one")
        if not len(self):
            raise DataError(f"{shown}: has no rows; give it at least one, or another file")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._shown}")
        row: Row = self._table.slice(index, 1).to_pylist()[0]
        return row

    def where(self, index: int) -> str:
        return f"{self._shown} row {index + 1}"


def _decoded(raw: bytes, shown: str) -> str:
    try:
        return raw.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        at = error.start + (len(BOM) if raw.startswith(BOM) else 0)
        line, begin = raw.count(b"\n", 0, at) + 1, raw.rfind(b"\n", 0, at) + 1
        raise DataError(f"{shown}:{line}: byte {at - begin + 1} of the line (0x{raw[at]:02x}, "
                        f"byte {at + 1} of the file) is not UTF-8; save the file as UTF-8") from error


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
    raise json.JSONDecodeError('an object without the field "data" (is it JSONL? call it .jsonl)', text, start)


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
