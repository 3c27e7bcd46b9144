"""The model card of weights in Markdown: base model, training, data, settings and evaluation."""

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

# a value that is a path on this or another machine
_PATH = re.compile(r"^(path:|file:|~|\.{0,2}/|[A-Za-z]:[\\/]|\\\\)")
# the folders of a path within a text, up to its last part
_FOLDERS = re.compile(
    r"(?<![\w.:/])(?:path:|file://)?~?/(?:[^\s/\"'`,;|]+/)+(?=[^\s/])"
    r"|\b[A-Za-z]:\\(?:[^\s\\\"'`,;|]+\\)+"
)
_REPOSITORY = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_HUB_ADAPTER = "hf"  # the adapter whose data sets are on the Hugging Face Hub
_HUB_CODE = """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")"""
_LOCAL_CODE = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("FOLDER")  # of the base model named above
model = PeftModel.from_pretrained(base, "{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")"""


@dataclass(frozen=True)
class Base:
    """The base model of weights."""

    name: str  # a name of weights; empty if unknown
    sha256: str = ""
    license: str = ""


def model_card(repo: str, base: Base, weights: Weights, tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the model card for the repository of an adapter, without secrets or local folders.

    `tables` are rows of tables.jsonl. Only those with a column "measure" are shown: others, such as
    answers side by side, may quote the data.
    """
    record = weights.record or {}
    settings = record.get("order", {}).get("settings", {})
    parts = [
        _front_matter(base, record),
        f"# {repo.rpartition('/')[2]}",
        _overview(base, weights),
        *_evaluation(tables),
        *_section("Data", ("split", "SHA-256"), _data_digests(record)),
        *_section("Settings", ("setting", "value"), _flat_settings(settings)),
        "## How to load it",
        _loading(repo, base),
    ]
    return mask("\n\n".join(parts)) + "\n"


def public_name(model: str) -> str:
    """Return the name of a model without the folders of this machine."""
    is_path = parse_weights_name(model).kind == "path"
    return f"path:{_without_folders(model)}" if is_path else model


def _front_matter(base: Base, record: Mapping[str, Any]) -> str:
    """Return the metadata that a hub reads, in YAML."""
    lines = ["library_name: peft", "pipeline_tag: text-generation"]
    if _is_of_hub(base.name):
        lines += [
            f"base_model: {yaml_value(parse_weights_name(base.name).name)}",
            "base_model_relation: adapter",
        ]
    if base.license:
        lines.append(f"license: {yaml_value(base.license)}")
    order = record.get("order", {})
    if order and order["adapters"].get("datasets") == _HUB_ADAPTER:
        repositories = [re.split("[:@]", name)[0] for name in _dataset_names(record)]
        names = dict.fromkeys(name for name in repositories if _REPOSITORY.fullmatch(name))
        if names:
            lines += ["datasets:", *(f"- {yaml_value(name)}" for name in names)]
    return "\n".join(["---", *lines, "tags:", "- lora", "- crucible-kitchen", "---"])


def _overview(base: Base, weights: Weights) -> str:
    facts = (weights.record or {}).get("facts", {})
    checkpoint = weights.source if isinstance(weights.source, Checkpoint) else None
    recipe = f" with the recipe `{weights.record['recipe']}`" if weights.record else ""
    rows = [
        ("base model", f"`{public_name(base.name)}`" if base.name else ""),
        ("its SHA-256", base.sha256),
        ("LoRA", facts.get("lora", "")),
        ("trained from", public_name(facts["weights"]) if "weights" in facts else ""),
        ("optimiser steps", str(checkpoint.step) if checkpoint else ""),
        ("SHA-256 of the checkpoint", checkpoint.sha256 if checkpoint else ""),
        ("dtype of the base", facts.get("model.dtype", "")),
        ("run", weights.run),
        ("device", facts.get("machine.device", "")),
    ]
    release = version("crucible-kitchen")
    sentence = f"LoRA weights, trained{recipe} by crucible-kitchen {release}."
    known = [row for row in rows if row[1]]
    return f"{sentence}\n\n{_markdown_table(('property', 'value'), known)}"


def _evaluation(tables: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    parts = []
    for table in tables:
        if "measure" in table["columns"]:
            parts.append(f"**{_without_folders(table['title'])}**")
            rows = [_public_cells(row) for row in table["rows"]]
            parts.append(_markdown_table(_public_value(table["columns"]), rows))
    return ["## Evaluation", *parts] if parts else []


def _dataset_names(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the data sets that a run has read."""
    for key, value in record.get("facts", {}).items():
        if key.startswith("data.") and key.endswith(".dataset"):
            yield value


def _data_digests(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and SHA-256 of each split that was trained on."""
    for key, value in record.get("facts", {}).items():
        if key.startswith("data.") and key.endswith(".sha256"):
            yield _without_folders(key.removeprefix("data.").removesuffix(".sha256")), value


def _flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values."""
    for key, value in settings.items():
        name = f"{prefix}{_without_folders(key)}"
        if isinstance(value, Mapping) and value:
            yield from _flat_settings(value, f"{name}.")
        else:
            yield name, f"`{yaml_value(_public_value(value))}`"


def _public_value(value: Any) -> Any:
    """Return a value without folders in its strings, at any depth."""
    if isinstance(value, str):
        return _without_folders(value)
    if isinstance(value, Mapping):
        return {_without_folders(key): _public_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_public_value(inner) for inner in value]
    return value


def _public_cells(row: Sequence[Any]) -> Sequence[str]:
    return [_without_folders(str(cell)) for cell in row]


def _loading(repo: str, base: Base) -> str:
    """Return instructions to load the weights with transformers and peft, or with the kitchen."""
    template = _HUB_CODE if _is_of_hub(base.name) else _LOCAL_CODE
    code = template.format(repo=repo)
    shell = f"pip install 'crucible-kitchen[local,hf]'\nkitchen chat {repo}"
    if base.name.startswith("path:"):
        folder = public_name(base.name).removeprefix("path:")
        shell += f"  # in the directory that holds the folder {folder}"
    return (
        f"With transformers and peft:\n\n```python\n{code}\n```\n\n"
        f"Or with the kitchen:\n\n```bash\n{shell}\n```"
    )


def _section(title: str, columns: Sequence[str], rows: Iterator[tuple[str, str]]) -> Sequence[str]:
    """Return a titled table, or nothing if there are no rows."""
    cells = list(rows)
    return [f"## {title}", _markdown_table(columns, cells)] if cells else []


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _without_folders(text: str) -> str:
    """Reduce a path to its last part, or remove the folders of paths within a text."""
    if _PATH.match(text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1].removeprefix("path:")
    return _FOLDERS.sub("", text)


def _is_of_hub(name: str) -> bool:
    return bool(name) and parse_weights_name(name).kind == "hub"
