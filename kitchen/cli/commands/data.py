"""`kitchen data`: the content of a data set, to look at before a recipe is run on it."""

from __future__ import annotations

import json as json_
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kitchen.cli.commands.json_output import as_json
from kitchen.cli.console import console, table
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.adapters import adapter_class, build
from kitchen.config.extras import check_installed
from kitchen.config.splits import SplitRoles, assign_splits, is_held_out, shortened
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import DataError
from kitchen.ports import DatasetInfo, DatasetStore, StreamedRow
from kitchen.types import Table

_MAX_SHOWN = 300  # characters of a value
_TYPE_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    type(None): "null",
}


@dataclass(frozen=True)
class DataQuery:
    """The arguments of `kitchen data`."""

    name: str
    split: str | None = None  # None: the first
    rows: int = 3


def show_data(query: DataQuery, adapters: AdapterChoice, *, json: bool) -> int:
    """Print splits, columns and rows; reads no more rows than it shows.

    Raises the errors of the data set store.
    """
    store = _store(adapters)
    info = store.info(query.name)
    roles, problem = _roles(info)
    split = query.split or (roles.train if roles else next(iter(info.splits)))
    rows = list(islice(store.stream(query.name, split=split), query.rows))
    columns = _columns(rows)
    if json:
        listed = [vars(row) for row in rows]
        facts = {**vars(info), "roles": vars(roles) if roles else None, "split": split}
        print(as_json({**facts, "columns": columns, "rows": listed}))
        return 0
    out = console()
    for shown in (_splits_table(info, roles), *_tables(info, split, columns, rows)):
        out.print(table(shown))
        out.print()
    if problem:
        out.print(problem, soft_wrap=True)
    out.print("to see what would be trained on, or which columns to rename:")
    out.print(f"  {_preview_command(query.name, adapters)}", soft_wrap=True)
    return 0


def _roles(info: DatasetInfo) -> tuple[SplitRoles | None, str]:
    """Return what a run without settings does with each split, or why it would be refused."""
    try:
        return assign_splits(info), ""
    except DataError as error:
        return None, str(error)


def _splits_table(info: DatasetInfo, roles: SplitRoles | None) -> Table:
    """Return a table of the splits, their roles and files, and of the files that are not data."""
    rows = []
    for split, count in info.splits.items():
        use = "held out" if roles is None and is_held_out(split) else "?"
        if roles is not None:
            use = "not used"
            use = "held out" if split in roles.held_out else use
            use = "trained on" if split == roles.train else use
        files = shortened(info.files.get(split, ()))
        rows.append((split, use, "" if count is None else f"{count:,}", files))
    if info.not_read:
        rows.append(("", "not read", "", shortened(info.not_read)))
    return Table("Splits", ("split", "use", "rows", "files"), tuple(rows))


def _preview_command(name: str, adapters: AdapterChoice) -> str:
    words = ["kitchen", "check", "recipes.sl_basic", f"dataset={name}"]
    adapter = adapters.names["datasets"]
    if adapter is not None:
        words += ["--datasets", adapter]
    return shlex.join([*words, "--training", "fake", "--preview"])


def _store(adapters: AdapterChoice) -> DatasetStore:
    add_cwd_to_path()  # an adapter may be a class in this folder
    names = adapters.chosen()
    name = names["datasets"]
    check_installed("datasets", name, adapter_class("datasets", name))
    store: DatasetStore = build("datasets", names, {})
    return store


def _columns(rows: Sequence[StreamedRow]) -> dict[str, str]:
    """Return column to the types of its values in these rows: "text or null"."""
    types: dict[str, list[str]] = {}
    for streamed in rows:
        for column, value in streamed.row.items():
            types.setdefault(column, []).append(_type_name(value))
    return {column: " or ".join(dict.fromkeys(names)) for column, names in types.items()}


def _type_name(value: Any) -> str:
    """Return the type of a value: `text`, or `list of {role: text, content: text}`."""
    if isinstance(value, Mapping):
        items = [f"{key}: {_type_name(inner)}" for key, inner in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        if not value:
            return "empty list"
        return f"list of {' or '.join(dict.fromkeys(map(_type_name, value)))}"
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def _tables(
    info: DatasetInfo, split: str, columns: Mapping[str, str], rows: Sequence[StreamedRow]
) -> Iterator[Table]:
    facts = (
        ("size", "" if info.size is None else f"{info.size / 1e6:,.1f} MB"),
        ("revision", info.revision or ""),
        ("licence", info.license),
        ("about", info.about),
    )
    yield Table(info.name, ("property", "value"), tuple(fact for fact in facts if fact[1]))
    title = f"Columns of {split}, in its first rows"
    yield Table(title, ("column", "holds"), tuple(columns.items()))
    yield Table("The first rows", ("where", "column", "value"), tuple(_cells(rows)))


def _cells(rows: Sequence[StreamedRow]) -> Iterator[tuple[str, str, str]]:
    """Yield place, column and shortened value of each cell."""
    for streamed in rows:
        for column, value in streamed.row.items():
            yield streamed.where, column, _shortened(value)


def _shortened(value: Any) -> str:
    text = value
    if not isinstance(value, str):
        text = json_.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
