"""`kitchen data`: what is in a data set, before a recipe is tried on it."""

from __future__ import annotations

import json as json_
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kitchen.cli.commands.failure import as_json
from kitchen.cli.console import console, table
from kitchen.config.adapters import adapter_class, build
from kitchen.config.discovery import add_cwd_to_path
from kitchen.config.extras import check_installed
from kitchen.config.request import AdapterChoice
from kitchen.ports import DatasetInfo, DatasetStore, StreamedRow
from kitchen.types import Table

_SHOWN = 300  # characters of a value
_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    type(None): "null",
}


@dataclass(frozen=True)
class Look:
    """What was typed after `kitchen data`."""

    name: str
    split: str | None = None  # None: the first
    rows: int = 3


def data(look: Look, adapter_choice: AdapterChoice, *, json: bool) -> int:
    """Reads no more rows than it shows; raises what the data set store does."""
    store = _store(adapter_choice)
    info = store.info(look.name)
    split = look.split or next(iter(info.splits))
    found = list(islice(store.stream(look.name, split=split), look.rows))
    columns = _columns(found)
    if json:
        print(
            as_json(
                {
                    **vars(info),
                    "split": split,
                    "columns": columns,
                    "rows": [vars(each) for each in found],
                }
            )
        )
        return 0
    out = console()
    for shown in _tables(info, split, columns, found):
        out.print(table(shown))
        out.print()
    out.print("what would be trained on, or what to do where the columns have other names:")
    chosen = (
        ""
        if adapter_choice.names["datasets"] is None
        else f" --datasets {shlex.quote(adapter_choice.names['datasets'])}"
    )
    setting = shlex.quote(f"dataset={look.name}")
    out.print(
        f"  kitchen check recipes.sl_basic {setting}{chosen} --training fake --preview",
        soft_wrap=True,
    )
    return 0


def _store(adapter_choice: AdapterChoice) -> DatasetStore:
    add_cwd_to_path()  # an adapter may be a class in this folder
    names = adapter_choice.chosen()
    check_installed("datasets", names["datasets"], adapter_class("datasets", names["datasets"]))
    store: DatasetStore = build("datasets", names, {})
    return store


def _columns(rows: Sequence[StreamedRow]) -> dict[str, str]:
    """Column to what its values are, in the rows that were read."""
    kinds: dict[str, list[str]] = {}
    for each in rows:
        for name, value in each.row.items():
            kinds.setdefault(name, []).append(_kind(value))
    return {name: " or ".join(dict.fromkeys(found)) for name, found in kinds.items()}


def _kind(value: Any) -> str:
    """`text`, `list of {role: text, content: text}`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_kind(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"list of {' or '.join(dict.fromkeys(map(_kind, value)))}" if value else "empty list"
    return _NAMES.get(type(value), type(value).__name__)


def _tables(
    info: DatasetInfo, split: str, columns: Mapping[str, str], found: Sequence[StreamedRow]
) -> Sequence[Table]:
    splits = ", ".join(
        name if rows is None else f"{name} ({rows:,} rows)" for name, rows in info.splits.items()
    )
    size = "" if info.size is None else f"{info.size / 1e6:,.1f} MB"
    about = (
        ("splits", splits),
        ("size", size),
        ("revision", info.revision or ""),
        ("licence", info.license),
        ("about", info.about),
    )
    rows = tuple(
        (each.where, name, _short(value)) for each in found for name, value in each.row.items()
    )
    return (
        Table(info.name, ("what", "is"), tuple((what, text) for what, text in about if text)),
        Table(
            f"Columns of {split}, in its first rows", ("column", "holds"), tuple(columns.items())
        ),
        Table("The first rows", ("where", "column", "value"), rows),
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json_.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
