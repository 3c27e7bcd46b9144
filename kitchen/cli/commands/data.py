"""`kitchen data`: the content of a data set, to look at before a recipe is run on it."""

from __future__ import annotations

import json as json_
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from kitchen.cli.commands.json_output import print_json
from kitchen.cli.console import console, table
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.adapters import adapter_class, build
from kitchen.config.extras import check_installed
from kitchen.config.splits import GENERATED, SplitRoles, assign_splits, is_held_out, shortened
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import DataError
from kitchen.ports import DatasetInfo, DatasetStore, StreamedRow
from kitchen.types import Table

_MAX_SHOWN = 300  # characters of a value
_MAX_COUNTED = 200_000_000  # bytes of a data set whose rows are counted by reading them
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


@dataclass
class SplitCount:
    """The rows of one split, and the values in its columns."""

    rows: int | None = None  # that can be read; None if they were not counted
    filled: dict[str, int] = field(default_factory=dict)  # rows with a value, by column
    unreadable: list[str] = field(default_factory=list)  # errors of the rows that cannot be read


def show_data(query: DataQuery, adapters: AdapterChoice, *, json: bool) -> int:
    """Print splits, columns and rows, with counts of all rows unless the data set is large.

    Raises the errors of the data set store; a row that cannot be read is an error if it would be
    shown, and counted otherwise.
    """
    if query.name.startswith(GENERATED):
        raise DataError(
            f"{query.name}: its problems are generated, and have no rows; to see them: "
            f"kitchen check recipes.rl dataset={query.name} --training fake --preview"
        )
    store = _store(adapters)
    info = store.info(query.name)
    roles, problem = _roles(info)
    split = query.split or (roles.train if roles else next(iter(info.splits)))
    rows = list(islice(store.stream(query.name, split=split), min(query.rows, sys.maxsize)))
    columns = _columns(rows)
    counts = {name: _count(store, info, name) for name in info.splits}
    if json:
        listed = [vars(row) for row in rows]
        facts = {**vars(info), "roles": vars(roles) if roles else None, "split": split}
        facts["splits"] = {name: count.rows for name, count in counts.items()}
        facts["unreadable"] = {name: count.unreadable for name, count in counts.items()}
        print_json({**facts, "columns": columns, "rows": listed})
        return 0
    out = console()
    tables = _tables(info, split, columns, counts[split], rows)
    for shown in (_splits_table(info, roles, counts), *tables):
        out.print(table(shown))
        out.print()
    problems = [_unreadable(name, count) for name, count in counts.items() if count.unreadable]
    for text in filter(None, (*problems, problem)):
        out.print(text, soft_wrap=True)
    out.print(
        "to see what would be trained on, rows that are left out, and which columns to rename"
    )
    out.print("(without --training fake, tokens are those of the model instead of bytes):")
    out.print(f"  {_preview_command(query.name, columns, adapters)}", soft_wrap=True)
    return 0


def _roles(info: DatasetInfo) -> tuple[SplitRoles | None, str]:
    """Return what a run without settings does with each split, or why it would be refused."""
    try:
        return assign_splits(info), ""
    except DataError as error:
        return None, str(error)


def _count(store: DatasetStore, info: DatasetInfo, split: str) -> SplitCount:
    """Count the rows of a split by reading them, unless the data set is large."""
    known = info.splits[split]
    if info.size is None or info.size > _MAX_COUNTED:
        return SplitCount(known)
    count = SplitCount(0)

    def add_unreadable(error: DataError) -> None:
        count.unreadable.append(str(error))

    try:
        for streamed in store.stream(info.name, split=split, on_bad_row=add_unreadable):
            count.rows = (count.rows or 0) + 1
            for column, value in streamed.row.items():
                is_filled = value is not None and value not in ("", [], {})
                count.filled[column] = count.filled.get(column, 0) + is_filled
    except DataError as error:  # it affects the whole file
        add_unreadable(error)
    return count


def _unreadable(split: str, count: SplitCount) -> str:
    """Return a sentence on the rows of a split that cannot be read."""
    number = len(count.unreadable)
    what = "1 row cannot be read" if number == 1 else f"{number:,} rows cannot be read, the first"
    return f"{split}: {what}: {count.unreadable[0]}"


def _splits_table(
    info: DatasetInfo, roles: SplitRoles | None, counts: Mapping[str, SplitCount]
) -> Table:
    """Return a table of the splits, their roles and files, and of the files that are not data."""
    rows = []
    for split, count in counts.items():
        use = "held out" if roles is None and is_held_out(split) else "?"
        if roles is not None:
            use = "not used"
            use = "held out" if split in roles.held_out else use
            use = "trained on" if split == roles.train else use
            if split == roles.train and not roles.held_out:
                use = "trained on, but for a held-out share"
        files = shortened(info.files.get(split, ()))
        rows.append((split, use, "not counted" if count.rows is None else f"{count.rows:,}", files))
    if info.not_read:
        rows.append(("", "not read", "", shortened(info.not_read)))
    return Table("Splits", ("split", "use", "rows", "files"), tuple(rows))


def _preview_command(name: str, columns: Collection[str], adapters: AdapterChoice) -> str:
    recipe = "recipes.sl_basic"
    if {"chosen", "rejected"}.issubset(columns):
        recipe = "recipes.dpo"
    elif "label" in columns and not {"completion", "messages"}.isdisjoint(columns):
        recipe = "recipes.kto"
    words = ["kitchen", "check", recipe, f"dataset={name}"]
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
    info: DatasetInfo,
    split: str,
    columns: Mapping[str, str],
    count: SplitCount,
    rows: Sequence[StreamedRow],
) -> Iterator[Table]:
    facts = (
        ("size", "" if info.size is None else _size(info.size)),
        ("revision", info.revision or ""),
        ("licence", info.license),
        ("about", info.about),
    )
    yield Table(info.name, ("property", "value"), tuple(fact for fact in facts if fact[1]))
    if count.filled:
        cells = [
            (column, columns.get(column, "not in the rows below"), f"{filled:,} of {count.rows:,}")
            for column, filled in count.filled.items()
        ]
        title = f"Columns of {split}: types in the first rows, and rows with a value"
        yield Table(title, ("column", "holds", "rows with a value"), tuple(cells))
    else:
        title = f"Columns of {split}, in its first rows"
        yield Table(title, ("column", "holds"), tuple(columns.items()))
    yield Table("The first rows", ("where", "column", "value"), tuple(_cells(rows)))


def _size(num_bytes: int) -> str:
    """Return a size such as 1.2 MB; small ones in kB."""
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.1f} kB"


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
