"""The journals of a run as Parquet files, for pandas, Polars and DuckDB."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kitchen.backend.atomic_folder import atomic_folder
from kitchen.config.extras import install_command_for
from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.runs.store import read_journal

Row = Mapping[str, Any]
_JSON = {b"kitchen.encoding": b"json"}  # metadata of a column whose texts are JSON
_POSITION = {"n": "int64", "stage": "string", "step": "int64"}
# columns that a file has whether or not a row has a value, with their Arrow types
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "metrics": _POSITION,
    "requests": {
        "started": "timestamp",
        "attempt": "int64",
        "stage": "string",
        "step": "int64",
        "port": "string",
        "verb": "string",
        "model": "string",
        "duration_ms": "float64",
        "input_tokens": "int64",
        "output_tokens": "int64",
        "retries": "int64",
        "http_status": "int64",
        "error_type": "string",
        "replayed": "bool_",
    },
    "samples": _POSITION,
    "tables": {**_POSITION, "title": "string", "columns": "texts", "rows": "text_rows"},
}
_EXACT_IN_FLOAT = 2**53  # float64 holds all integers up to here


def export_parquet(blobs: BlobStore, run: str, folder: Path) -> Sequence[Path]:
    """Write metrics, requests, samples and tables of a run into a new folder; return the files.

    Each key of a journal becomes a column, null where a row does not have it. Raises ConfigError if
    pyarrow is missing, the folder is in use, or a row has a value of a wrong type.
    """
    arrow = _arrow()
    tables = {}
    for name in _COLUMNS:
        file = blobs.locate(f"{run}/{name}.jsonl")
        tables[name] = _table(arrow, name, read_journal(blobs, run, name), file)
    with atomic_folder(folder) as part:
        for name, table in tables.items():
            named = table.replace_schema_metadata({b"kitchen.run": run.encode()})
            arrow.parquet.write_table(named, part / f"{name}.parquet")
    return [folder / f"{name}.parquet" for name in tables]


def _arrow() -> Any:
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            f"Parquet files need pyarrow, which cannot be imported here ({error}): "
            f"{install_command_for('pyarrow') or 'pip install pyarrow'}"
        ) from error


def _table(arrow: Any, journal: str, rows: Sequence[Row], file: str) -> Any:
    """Return a journal as an Arrow table; `file` is its name in errors."""
    columns = dict.fromkeys(_COLUMNS[journal])
    for row in rows:
        columns |= dict.fromkeys(row)
    arrays, fields = [], []
    for name in columns:
        values = [row.get(name) for row in rows]
        kind = _COLUMNS[journal].get(name) or _kind(values)
        is_json = kind == "json"
        try:
            arrays.append(_array(arrow, kind, values))
        except (ValueError, TypeError) as error:  # errors of Arrow are among them
            raise ConfigError(
                f"{file} has a value of {name!r} that is not of the type {kind} ({error}); restore "
                "it from a copy, or delete that line"
            ) from error
        fields.append(arrow.field(name, arrays[-1].type, metadata=_JSON if is_json else None))
    return arrow.Table.from_arrays(arrays, schema=arrow.schema(fields))


def _kind(values: Sequence[Any]) -> str:
    """Return the narrowest type that holds the values unchanged; "json" if they are mixed."""
    found = {type(value) for value in values if value is not None}
    if found <= {int}:
        return "int64" if all(-(2**63) <= (value or 0) < 2**63 for value in values) else "json"
    if found <= {int, float}:
        whole = [value for value in values if type(value) is int]
        return "float64" if all(abs(value) <= _EXACT_IN_FLOAT for value in whole) else "json"
    return {frozenset({str}): "string", frozenset({bool}): "bool_"}.get(frozenset(found), "json")


def _encodable(value: Any) -> Any:
    r"""Return texts with halves of surrogate pairs, which UTF-8 does not have, as `\ud800`."""
    if isinstance(value, list):
        return list(map(_encodable, value))
    is_text = isinstance(value, str)
    return value.encode("utf-8", "backslashreplace").decode() if is_text else value


def _array(arrow: Any, kind: str, values: Sequence[Any]) -> Any:
    if kind == "json":
        values = [None if value is None else json.dumps(value) for value in values]
    if kind == "timestamp":
        values = [None if value is None else datetime.fromisoformat(value) for value in values]
    if kind in ("string", "texts", "text_rows"):
        values = list(map(_encodable, values))
    texts = arrow.list_(arrow.string())
    types = {
        "json": arrow.string(),
        "timestamp": arrow.timestamp("ms", "UTC"),
        "texts": texts,
        "text_rows": arrow.list_(texts),
    }
    return arrow.array(values, types[kind] if kind in types else getattr(arrow, kind)())
