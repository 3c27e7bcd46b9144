"""The YAML front matter of a model card: what a hub reads of weights and their evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kitchen.artifacts.public_texts import without_folders
from kitchen.artifacts.weights import parse_weights_name
from kitchen.config.yaml import yaml_value
from kitchen.secrets import mask
from kitchen.types import Table

_REPOSITORY = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_HUB_ADAPTER = "hf"  # the adapter whose data sets are on the Hugging Face Hub
_INTERVAL = re.compile(r"([+-]?\d+(?:\.\d+)?) \[([+-]?\d+(?:\.\d+)?), ([+-]?\d+(?:\.\d+)?)\]")
_OF_OTHERS = ("before", "difference")  # columns that do not describe these weights
_TAGS_OF_LORA = ("lora", "crucible-kitchen")
_SETS = ("held-out set", "set")  # columns
_COUNTS = ("n", "problems", "claims", "comparisons", "checked", "answers", "pairs")


def front_matter(
    name: str,
    library: str,
    base: Mapping[str, str],
    record: Mapping[str, Any],
    evaluations: Sequence[Table],
) -> str:
    """Return the metadata of a card; `base` are lines on the base model, by key."""
    lines = [f"library_name: {library}", "pipeline_tag: text-generation"]
    lines += [f"{key}: {yaml_value(value)}" for key, value in base.items() if value]
    order = record.get("order", {})
    if order and order["adapters"].get("datasets") == _HUB_ADAPTER:
        repositories = map(_repository, dataset_names(record))
        names = dict.fromkeys(name for name in repositories if _REPOSITORY.fullmatch(name))
        if names:
            lines += ["datasets:", *(f"- {yaml_value(name)}" for name in names)]
    tags = ["crucible-kitchen"] if "trained" in record.get("facts", {}) else _TAGS_OF_LORA
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    if results := list(_results(record, evaluations)):
        lines += ["model-index:", f"- name: {yaml_value(name)}", "  results:"]
        lines += [f"  - {yaml_value(result)}" for result in results]
    return "\n".join(["---", *lines, "---"])


def is_of_hub(name: str) -> bool:
    return bool(name) and parse_weights_name(name).kind == "hub"


def dataset_names(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the data sets that a run has read."""
    for key, value in record.get("facts", {}).items():
        if key.startswith("data.") and key.endswith(".dataset"):
            yield value


def _repository(dataset: str) -> str:
    return re.split("[:@]", dataset)[0]


def _results(record: Mapping[str, Any], tables: Sequence[Table]) -> Iterator[Mapping[str, Any]]:
    """Yield one result of the model index for each held-out set, with the metrics of all tables."""
    by_set: dict[str, dict[str, Mapping[str, Any]]] = {}
    for table in tables:
        if " before" not in table.title:
            for cells in table.rows:
                row = dict(zip(table.columns, cells, strict=True))
                name = next((row[column] for column in _SETS if column in row), "")
                by_set.setdefault(name, {}).update(_metrics(table, row))
    for name, metrics in by_set.items():
        if metrics:
            yield {
                "task": {"type": "text-generation"},
                "dataset": _dataset(record, name),
                "metrics": list(metrics.values()),
            }


def _metrics(table: Table, row: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the measures of a row that have an interval, by name."""
    count = next((row[name] for name in _COUNTS if row.get(name, "").isdigit()), None)
    for column, cell in row.items():
        found = _INTERVAL.fullmatch(cell)
        if column in _OF_OTHERS or found is None:
            continue
        value, low, high = map(float, found.groups())
        # masked before the type is made of it, in which a secret would have another form
        name = mask(without_folders(_measure(table, row, column)))
        yield (
            name,
            {
                "type": re.sub(r"\W+", "_", name.lower()).strip("_"),
                "name": name,
                "value": value,
                # the model index has no field for intervals
                "args": {"confidence": 0.95, "interval": [low, high]}
                | ({"n": int(count)} if count else {}),
            },
        )


def _measure(table: Table, row: Mapping[str, str], column: str) -> str:
    """Return the name of a measure: in its own column, or else that of the table or the column."""
    if "measure" in row:
        return row["measure"]
    if column == "after":
        return table.title.partition(",")[0]
    label = row.get("issue") or row.get("judge or rule")
    return f"{label}, {column}" if label else column


def _dataset(record: Mapping[str, Any], name: str) -> Mapping[str, str]:
    facts, settings = record.get("facts", {}), record.get("order", {}).get("settings", {})
    known = str(facts.get(f"data.{name}.dataset") or settings.get("dataset") or name)
    public = without_folders(known)
    shown = without_folders(name)
    return {
        "type": _repository(public) or "held-out data",
        "name": " ".join(part for part in (public, shown) if part) or "held-out data",
        **({"split": shown} if shown else {}),
    }
