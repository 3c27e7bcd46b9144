"""Rows of text files: a row of plain text per line, or one per file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from adapters.local.line_formats import (
    LineReader,
    LineRows,
    ParseRows,
    Rows,
    reading,
    streamed,
)
from kitchen.errors import DataError
from kitchen.ports.datasets import OnBadRow, StreamedRow

TextRows = Literal["line", "file"]


def open_text(
    path: Path, label: str, limit_mb: int, rows: TextRows, on_bad_row: OnBadRow | None = None
) -> LineRows:
    return LineRows(path, label, limit_mb, _PARSERS[rows], on_bad_row=on_bad_row)


def stream_text(
    path: Path, label: str, limit_mb: int, rows: TextRows, on_bad_row: OnBadRow | None = None
) -> Iterator[StreamedRow]:
    with reading(label), path.open("rb") as file:
        reader = LineReader(file, label, limit_mb)
        yield from streamed(_PARSERS[rows](reader, on_bad_row), label)


def _lines(reader: LineReader, on_bad_row: OnBadRow | None) -> Rows:
    """Yield a row for each line that is not blank."""
    while True:
        offset = reader.offset
        try:
            text = next(reader, None)
        except DataError as error:
            if on_bad_row is None:
                raise
            on_bad_row(error)
            continue
        if text is None:
            return
        if text.strip():
            yield offset, reader.line, {"text": text.rstrip("\r\n")}


def _whole_file(reader: LineReader, on_bad_row: OnBadRow | None) -> Rows:
    """Yield the text of the file as one row."""
    try:
        text = "".join(reader)
    except DataError as error:
        if on_bad_row is None:
            raise
        on_bad_row(error)
        return
    if text.strip():
        yield 0, 1, {"text": text}


_PARSERS: Mapping[TextRows, ParseRows] = MappingProxyType({"line": _lines, "file": _whole_file})
