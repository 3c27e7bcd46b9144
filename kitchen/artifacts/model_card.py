"""The model card of weights: what they came from, how they were made and how well they do, in
Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from kitchen.artifacts.weights import Weights, parse_weights_name
from kitchen.config.yaml import yaml_value
from kitchen.secrets import mask
from kitchen.types import Checkpoint

# a value that is a place on some machine
_PLACE = re.compile(r"^(path:|file:|~|\.{0,2}/|[A-Za-z]:[\\/]|\\\\)")
_INSIDE = re.compile(  # up to its last part
    r"(?<![\w.:/])(?:path:|file://)?~?/(?:[^\s/\"'`,;|]+/)+(?=[^\s/])|\b[A-Za-z]:\\(?:[^\s\\\"'`,;|]+\\)+"
)
_REPOSITORY = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_HUB_OF_DATA = "hf"  # the adapter whose data sets are those of a hub


@dataclass(frozen=True)
class Base:
    """The model that weights belong to."""

    name: str  # in the grammar of weights; empty where it is not known
    sha256: str = ""
    license: str = ""


def model_card(repo: str, base: Base, weights: Weights, tables: Sequence[Mapping[str, Any]]) -> str:
    """For the repository of an adapter; `tables` are rows of tables.jsonl. No secrets, and no
    folders of this machine.

    Of the tables those with a column "measure" are shown: others, such as answers side by side, may
    quote the data.
    """
    record = weights.record or {}
    shown = [table for table in tables if "measure" in table["columns"]]
    parts = [
        _front(base, record),
        f"# {repo.rpartition('/')[2]}",
        _about(base, weights),
        *(
            [
                "## Evaluation",
                *(
                    part
                    for table in shown
                    for part in (f"**{_public(table['title'])}**", _table(table))
                ),
            ]
            if shown
            else []
        ),
        *_section("Data", ("split", "SHA-256"), _data(record)),
        *_section(
            "Settings", ("setting", "value"), _flat(record.get("order", {}).get("settings", {}))
        ),
        "## How to load it",
        _loading(repo, base),
    ]
    return mask("\n\n".join(parts)) + "\n"


def public_name(model: str) -> str:
    """A model by a name that says nothing of this machine: a folder by its own name alone."""
    return f"path:{_public(model)}" if parse_weights_name(model).kind == "path" else model


def _front(base: Base, record: Mapping[str, Any]) -> str:
    """What a hub reads of it, in YAML."""
    lines = ["library_name: peft", "pipeline_tag: text-generation"]
    if _is_of_hub(base.name):
        lines += [
            f"base_model: {yaml_value(parse_weights_name(base.name).name)}",
            "base_model_relation: adapter",
        ]
    if base.license:
        lines.append(f"license: {yaml_value(base.license)}")
    order = record.get("order", {})
    if order and order["adapters"].get("datasets") == _HUB_OF_DATA:
        repositories = [re.split("[:@]", name)[0] for name in _datasets(record)]
        names = dict.fromkeys(name for name in repositories if _REPOSITORY.fullmatch(name))
        lines += ["datasets:", *(f"- {yaml_value(name)}" for name in names)] if names else []
    return "\n".join(["---", *lines, "tags:", "- lora", "- crucible-kitchen", "---"])


def _about(base: Base, weights: Weights) -> str:
    facts = (weights.record or {}).get("facts", {})
    source = weights.source if isinstance(weights.source, Checkpoint) else None
    recipe = f" with the recipe `{weights.record['recipe']}`" if weights.record else ""
    rows = [
        ("base model", f"`{public_name(base.name)}`" if base.name else ""),
        ("its SHA-256", base.sha256),
        ("LoRA", facts.get("lora", "")),
        ("trained from", facts.get("weights", "")),
        ("optimiser steps", str(source.step) if source else ""),
        ("SHA-256 of the checkpoint", source.sha256 if source else ""),
        ("dtype of the base", facts.get("model.dtype", "")),
        ("run", weights.run),
        ("device", facts.get("machine.device", "")),
    ]
    made = f"LoRA weights, made{recipe} by crucible-kitchen {version('crucible-kitchen')}."
    return f"{made}\n\n{_grid(('what', 'is'), [row for row in rows if row[1]])}"


def _datasets(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the data sets that a run has read."""
    for key, value in record.get("facts", {}).items():
        if key.startswith("data.") and key.endswith(".dataset"):
            yield value


def _data(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in record.get("facts", {}).items():
        if key.startswith("data.") and key.endswith(".sha256"):
            yield _public(key.removeprefix("data.").removesuffix(".sha256")), value


def _flat(settings: Any, above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{_public(key)}.")
        else:
            yield f"{above}{_public(key)}", f"`{yaml_value(_without_folders(value))}`"


def _without_folders(value: Any) -> Any:
    if isinstance(value, str):
        return _public(value)
    if isinstance(value, Mapping):
        return {_public(key): _without_folders(each) for key, each in value.items()}
    return [_without_folders(each) for each in value] if isinstance(value, list | tuple) else value


def _loading(repo: str, base: Base) -> str:
    tokenizer = f'tokenizer = AutoTokenizer.from_pretrained("{repo}")'
    if _is_of_hub(base.name):
        lines = [
            "from peft import AutoPeftModelForCausalLM",
            "from transformers import AutoTokenizer",
            "",
            f'model = AutoPeftModelForCausalLM.from_pretrained("{repo}")',
            tokenizer,
        ]
    else:
        lines = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'base = AutoModelForCausalLM.from_pretrained("FOLDER")  # of the base model named '
            "above",
            f'model = PeftModel.from_pretrained(base, "{repo}")',
            tokenizer,
        ]
    code = "\n".join(lines)
    shell = f"pip install 'crucible-kitchen[local,hf]'\nkitchen chat {repo}"
    if base.name.startswith("path:"):
        shell += f"  # where the folder {public_name(base.name).removeprefix('path:')} is"
    return f"With transformers and peft:\n\n```python\n{code}\n```\n\nOr with the kitchen:\n\n```bash\n{shell}\n```"


def _section(title: str, columns: Sequence[str], rows: Iterator[tuple[str, str]]) -> Sequence[str]:
    found = list(rows)
    return [f"## {title}", _grid(columns, found)] if found else []


def _table(table: Mapping[str, Any]) -> str:
    return _grid(
        _without_folders(table["columns"]),
        [[_public(str(cell)) for cell in row] for row in table["rows"]],
    )


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _public(text: str) -> str:
    """Folders fall away, those that hold a file and those in the middle of a text."""
    if _PLACE.match(text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1].removeprefix("path:")
    return _INSIDE.sub("", text)


def _is_of_hub(name: str) -> bool:
    return bool(name) and parse_weights_name(name).kind == "hub"
