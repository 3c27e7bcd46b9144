"""The model card of weights in Markdown: base model, training, data, settings and evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal

from kitchen.artifacts.weights import Weights, parse_weights_name
from kitchen.backend.edited_files import sign_card
from kitchen.config.yaml import yaml_value
from kitchen.secrets import mask, printable
from kitchen.types import Checkpoint

# a value that is a path on this or another machine
_PATH = re.compile(r"^(path:|file:|~|\.{0,2}/|[A-Za-z]:[\\/]|\\\\)")
# the folders of a path within a text, up to its last part
_FOLDERS = re.compile(
    r"(?<![\w.:/])(?:path:|file://)?~?/(?:[^\s/\"'`,;|]+/)+(?=[^\s/])"
    r"|\b[A-Za-z]:\\(?:[^\s\\\"'`,;|]+\\)+"
)
# what Markdown, or an extension of it such as formulas, would read as more than text
_SYNTAX = re.compile(r"[\\`|*~$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|!(?=\[)")
_BREAKS_CODE = re.compile(r"[`|\\<>&]|\](?=[(\[:])")
_NO_WORD = re.compile(r"[^\w\s.,:;/=(){}'\"-]|_")
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

_MERGED_CODE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{repo}")
tokenizer = AutoTokenizer.from_pretrained("{repo}")"""
_GGUF_CODE = """ollama create NAME -f Modelfile
ollama run NAME"""
Form = Literal["adapter", "merged", "gguf"]


@dataclass(frozen=True)
class _FormText:
    """The words of a card that depend on the form of the weights."""

    library: str
    relation: str  # to the base model, in the terms of the Hugging Face Hub
    noun: str


_FORMS: Mapping[Form, _FormText] = MappingProxyType(
    {
        "adapter": _FormText("peft", "adapter", "LoRA weights"),
        "merged": _FormText("transformers", "finetune", "A model with merged LoRA weights"),
        "gguf": _FormText("gguf", "quantized", "A GGUF file of a model with merged LoRA weights"),
    }
)


@dataclass(frozen=True)
class Base:
    """The base model of weights."""

    name: str  # a name of weights; empty if unknown
    sha256: str = ""
    license: str = ""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of weights, as their run recorded it."""

    tables: Sequence[Mapping[str, Any]] = ()  # rows of tables.jsonl
    of_other_step: int | None = None  # step of the weights that were evaluated, if not of these


def model_card(
    repo: str,
    base: Base,
    weights: Weights,
    evaluation: Evaluation,
    form: Form = "adapter",
) -> str:
    """Return the model card for a repository, or a folder `path:NAME`, without secrets or folders.

    Of the tables, only evaluations are shown, which have a column "measure" or intervals: others,
    such as answers side by side, may quote the data.
    """
    record = weights.record or {}
    settings = record.get("order", {}).get("settings", {})
    parts = [
        _front_matter(base, record, _FORMS[form]),
        f"# {_text(repo.removeprefix('path:').rpartition('/')[2])}",
        _overview(base, weights, _FORMS[form]),
        *_evaluation(evaluation),
        *_section("Data", ("split", "data set", "SHA-256"), _data_digests(record)),
        *_section("Settings", ("setting", "value"), _flat_settings(settings)),
        "## How to load it",
        _loading(repo, base, form),
    ]
    return sign_card(mask("\n\n".join(parts)))


def public_name(model: str) -> str:
    """Return the name of a model without the folders of this machine."""
    is_path = parse_weights_name(model).kind == "path"
    return f"path:{_without_folders(model)}" if is_path else model


def _front_matter(base: Base, record: Mapping[str, Any], form: _FormText) -> str:
    """Return the metadata that a hub reads, in YAML."""
    lines = [f"library_name: {form.library}", "pipeline_tag: text-generation"]
    if _is_of_hub(base.name):
        lines += [
            f"base_model: {yaml_value(parse_weights_name(base.name).name)}",
            f"base_model_relation: {form.relation}",
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


def _overview(base: Base, weights: Weights, form: _FormText) -> str:
    facts = (weights.record or {}).get("facts", {})
    checkpoint = weights.source if isinstance(weights.source, Checkpoint) else None
    recipe = f" with the recipe {_code(str(weights.record['recipe']))}" if weights.record else ""
    rows = [
        ("base model", _code(public_name(base.name)) if base.name else ""),
        ("its weights", _text(facts.get("model.weights", ""))),
        ("its SHA-256", _text(base.sha256)),
        ("LoRA", _text(facts.get("lora", ""))),
        ("trained from", _text(public_name(facts["weights"])) if "weights" in facts else ""),
        ("optimiser steps", _steps(checkpoint.step) if checkpoint else ""),
        ("SHA-256 of the checkpoint", checkpoint.sha256 if checkpoint else ""),
        ("dtype of the base", _text(facts.get("model.dtype", ""))),
        ("run", _text(weights.run)),
        ("device", _text(facts.get("machine.device", ""))),
    ]
    release = version("crucible-kitchen")
    sentence = f"{form.noun}, trained{recipe} by crucible-kitchen {release}."
    known = [row for row in rows if row[1]]
    return f"{sentence}\n\n{_markdown_table(('property', 'value'), known)}"


def _evaluation(evaluation: Evaluation) -> Sequence[str]:
    parts = []
    for table in evaluation.tables:
        if "measure" in table["columns"] or "95 % interval" in table["title"]:
            parts.append(f"**{_text(_without_folders(table['title']))}**")
            rows = map(_public_cells, table["rows"])
            parts.append(_markdown_table(_public_cells(table["columns"]), rows))
    if parts and evaluation.of_other_step is not None:
        parts = [
            f"The run evaluated its final weights, those of step {evaluation.of_other_step}, and "
            "not these."
        ]
    return ["## Evaluation", *parts] if parts else []


def _dataset_names(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the data sets that a run has read."""
    for key, value in record.get("facts", {}).items():
        if key.startswith("data.") and key.endswith(".dataset"):
            yield value


def _steps(count: int) -> str:
    return str(count) if count else "0: the weights are the initial ones"


def _data_digests(record: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, data set and SHA-256 of each split that was trained on."""
    facts = record.get("facts", {})
    # generated problems come from no data set
    generated = record.get("order", {}).get("settings", {}).get("dataset", "")
    for key, value in facts.items():
        if key.startswith("data.") and key.endswith(".sha256"):
            split = key.removeprefix("data.").removesuffix(".sha256")
            name = facts.get(f"data.{split}.dataset", generated)
            yield _text(_without_folders(split)), _text(_without_folders(str(name))), _text(value)


def _flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values."""
    for key, value in settings.items():
        name = f"{prefix}{_without_folders(key)}"
        if isinstance(value, Mapping) and value:
            yield from _flat_settings(value, f"{name}.")
        else:
            yield _text(name), _code(yaml_value(_public_value(value)))


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
    return [_text(_without_folders(str(cell))) for cell in row]


def _loading(repo: str, base: Base, form: Form) -> str:
    """Return instructions to load the weights with other programs, and with the kitchen."""
    if form == "gguf":
        return f"With Ollama, in this folder:\n\n```bash\n{_GGUF_CODE}\n```"
    if form == "merged":
        code, libraries = _MERGED_CODE, "transformers"
    else:
        code = _HUB_CODE if _is_of_hub(base.name) else _LOCAL_CODE
        libraries = "transformers and peft"
    shell = f"pip install 'crucible-kitchen[local,hf]'\nkitchen chat {repo}"
    if base.name.startswith("path:") and form == "adapter":
        folder = public_name(base.name).removeprefix("path:")
        shell += f"  # in the directory that holds the folder {' '.join(folder.split())}"
    return (
        f"With {libraries}:\n\n```python\n{code.format(repo=repo.removeprefix('path:'))}\n```\n\n"
        f"Or with the kitchen:\n\n```bash\n{shell}\n```"
    )


def _section(title: str, columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Sequence[str]:
    """Return a titled table, or nothing if there are no rows."""
    cells = list(rows)
    return [f"## {title}", _markdown_table(columns, cells)] if cells else []


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(value: Any) -> str:
    """Return a value as Markdown in which it is plain text on one line."""
    line = " ".join(printable(str(value)).split())
    return _SYNTAX.sub(r"\\\g<0>", line.replace("&", "&amp;")).replace("<", "&lt;")


def _code(text: str) -> str:
    """Return a text as code in Markdown, which a cell of a table may hold."""
    line = " ".join(printable(text).split())
    if _BREAKS_CODE.search(line) is None:
        return f"`{line}`"
    return f"<code>{_NO_WORD.sub(_entity, line)}</code>"


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def _without_folders(text: str) -> str:
    """Reduce a path to its last part, or remove the folders of paths within a text."""
    if _PATH.match(text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1].removeprefix("path:")
    return _FOLDERS.sub("", text)


def _is_of_hub(name: str) -> bool:
    return bool(name) and parse_weights_name(name).kind == "hub"
