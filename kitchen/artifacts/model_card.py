"""The model card of weights: the sections of a report on their run, for a hub and its readers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal

from kitchen.artifacts.card_metadata import front_matter, is_of_hub
from kitchen.artifacts.public_texts import public_name, public_value, without_folders
from kitchen.artifacts.weights import Weights, parse_weights_name
from kitchen.backend.edited_files import sign_card
from kitchen.config.yaml import yaml_value
from kitchen.runs.reports.content import Block, DataTable, Paragraph, Section, with_texts
from kitchen.runs.reports.markdown import block_text, escaped, sections_text, summary_table
from kitchen.runs.reports.records import RunRecord
from kitchen.runs.reports.sections import curves, facts, is_evaluation, last_tables, sections
from kitchen.secrets import mask, printable
from kitchen.types import Checkpoint, Table

_HUB_CODE = """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained({repo})
tokenizer = AutoTokenizer.from_pretrained({repo})"""
_LOCAL_CODE = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("FOLDER")  # of the base model named above
model = PeftModel.from_pretrained(base, {repo})
tokenizer = AutoTokenizer.from_pretrained({repo})"""

_MERGED_CODE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({repo})
tokenizer = AutoTokenizer.from_pretrained({repo})"""
_GGUF_CODE = """ollama create NAME -f Modelfile
ollama run NAME"""
Form = Literal["adapter", "merged", "whole", "gguf"]


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
        "whole": _FormText("transformers", "finetune", "A fully fine-tuned model"),
        "gguf": _FormText("gguf", "quantized", "A GGUF file of a trained model"),
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
    """The run of weights, with its evaluation."""

    run: RunRecord | None = None
    of_other_step: int | None = None  # step of the weights that were evaluated, if not of these

    def tables(self) -> Sequence[Table]:
        """Return the evaluations of these weights.

        Other tables, such as answers side by side, may quote the data.
        """
        if self.run is None or self.of_other_step is not None:
            return []
        last = {table.title: table for table in self.run.tables if is_evaluation(table)}
        return list(last.values())


def model_card(
    repo: str,
    base: Base,
    weights: Weights,
    evaluation: Evaluation,
    form: Form = "adapter",
) -> str:
    """Return the model card for a repository, or a folder `path:NAME`, without secrets or folders.

    It has the sections of `kitchen report`, without answers, which may quote the data.
    """
    record = weights.record or {}
    name = repo.removeprefix("path:").rpartition("/")[2]
    overview = with_texts(_overview(base, weights, _FORMS[form]), printable)
    parts = [
        front_matter(name, _FORMS[form].library, _base(base, form), record, evaluation.tables()),
        f"# {escaped(printable(name))}",
        *map(block_text, overview),
        sections_text(with_texts(_sections(record, evaluation), printable)),
        "## How to load it",
        _loading(repo, base, form),
    ]
    return sign_card(mask("\n\n".join(filter(None, parts))))


def _base(base: Base, form: Form) -> Mapping[str, str]:
    """Return the keys of the front matter on the base model."""
    keys = {"license": base.license}
    if is_of_hub(base.name):
        name = parse_weights_name(base.name).name
        keys = {"base_model": name, "base_model_relation": _FORMS[form].relation, **keys}
    return keys


def _overview(base: Base, weights: Weights, form: _FormText) -> Sequence[Block]:
    known = (weights.record or {}).get("facts", {})
    checkpoint = weights.source if isinstance(weights.source, Checkpoint) else None
    recipe = f" with the recipe {weights.record['recipe']}" if weights.record else ""
    rows = [
        ("base model", public_name(base.name) if base.name else ""),
        ("its weights", known.get("model.weights", "")),
        ("its SHA-256", base.sha256),
        ("its licence", base.license),
        ("LoRA", known.get("lora", "")),
        ("trained", known.get("trained", "")),
        ("trained from", public_name(known["weights"]) if "weights" in known else ""),
        ("optimiser steps", _steps(checkpoint.step) if checkpoint else ""),
        ("SHA-256 of the checkpoint", checkpoint.sha256 if checkpoint else ""),
        ("dtype of the base", known.get("model.dtype", "")),
        ("run", weights.run),
        ("device", known.get("machine.device", "")),
    ]
    release = version("crucible-kitchen")
    sentence = f"{form.noun}, trained{recipe} by crucible-kitchen {release}."
    shown = [row for row in rows if row[1]]
    return [Paragraph(sentence), DataTable("", ("property", "value"), shown)]


def _sections(record: Mapping[str, Any], evaluation: Evaluation) -> Sequence[Section]:
    run = evaluation.run
    settings = record.get("order", {}).get("settings", {})
    training = summary_table(curves([run], {})) if run else []
    data = _table(("split", "data set", "SHA-256"), _data_digests(record))
    return [
        *sections("Evaluation", _evaluation(evaluation)),
        *sections("Training", training),
        *sections("Data", data),
        *sections("Settings", _table(("setting", "value"), _flat_settings(settings))),
        *sections("Provenance", _provenance(run) if run else []),
    ]


def _evaluation(evaluation: Evaluation) -> Sequence[Block]:
    if evaluation.run is None or not any(map(is_evaluation, evaluation.run.tables)):
        return []
    if evaluation.of_other_step is not None:
        return [
            Paragraph(
                f"The run evaluated its final weights, those of step {evaluation.of_other_step}, "
                "and not these."
            )
        ]
    tables: Sequence[Block] = with_texts(
        last_tables(evaluation.run, is_evaluation), without_folders
    )
    return tables


def _provenance(run: RunRecord) -> Sequence[Block]:
    """Return the facts of a run, without those on its data, which have a section, and servers."""
    known = run.record["facts"].items()
    others = {
        key: value
        for key, value in known
        if not key.startswith("data.") and not key.endswith(".server")
    }
    if not others:
        return []
    blocks = facts([replace(run, record={"facts": others})])
    public: Sequence[Block] = with_texts(blocks, without_folders)
    return public


def _steps(count: int) -> str:
    return str(count) if count else "0: the weights are the initial ones"


def _data_digests(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the name, data set and SHA-256 of each split that was trained on."""
    known = record.get("facts", {})
    # generated problems come from no data set
    generated = record.get("order", {}).get("settings", {}).get("dataset", "")
    for key, value in known.items():
        if key.startswith("data.") and key.endswith(".sha256"):
            split = key.removeprefix("data.").removesuffix(".sha256")
            name = known.get(f"data.{split}.dataset", generated)
            yield without_folders(split), without_folders(str(name)), value


def _flat_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, ...]]:
    """Yield dotted names and values."""
    for key, value in settings.items():
        name = f"{prefix}{without_folders(key)}"
        if isinstance(value, Mapping) and value:
            yield from _flat_settings(value, f"{name}.")
        else:
            yield name, yaml_value(public_value(value))


def _table(columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Sequence[Block]:
    """Return a table, or nothing if there are no rows."""
    cells = list(rows)
    return [DataTable("", columns, cells)] if cells else []


def _loading(repo: str, base: Base, form: Form) -> str:
    """Return instructions to load the weights with other programs, and with the kitchen."""
    if form == "gguf":
        return f"With Ollama, in this folder:\n\n```bash\n{_GGUF_CODE}\n```"
    if form in ("merged", "whole"):
        code, libraries = _MERGED_CODE, "transformers"
    else:
        code = _HUB_CODE if is_of_hub(base.name) else _LOCAL_CODE
        libraries = "transformers and peft"
    shell = f"pip install 'crucible-kitchen[local,hf]'\nkitchen chat {shlex.quote(repo)}"
    if base.name.startswith("path:") and form == "adapter":
        folder = public_name(base.name).removeprefix("path:")
        shell += f"  # in the directory that holds the folder {' '.join(folder.split())}"
    quoted = json.dumps(repo.removeprefix("path:"))
    return (
        f"With {libraries}:\n\n```python\n{code.format(repo=quoted)}\n```\n\n"
        f"Or with the kitchen:\n\n```bash\n{shell}\n```"
    )
