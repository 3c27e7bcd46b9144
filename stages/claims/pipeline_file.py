"""The YAML files of `thinker`: the pipeline, and the LoRA training that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)

from kitchen.config.yaml import read_yaml
from kitchen.errors import ConfigError, did_you_mean
from kitchen.types import Seed
from stages.claims.validation import SchemaField

# fake stands in for a model, without a GPU or a server: to try a pipeline
Backend = Literal["hf_peft", "tinker", "fake"]
M = TypeVar("M", bound=BaseModel)


def _no_scalar(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError('must be a list, such as ["-v"]')
    return value


Texts = Annotated[tuple[str, ...], BeforeValidator(_no_scalar)]


class _Section(BaseModel):
    """A section of a file: immutable, and with known keys only."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False
    )


class TestsSection(_Section):
    """The test suite that must pass before anything is trained or evaluated."""

    path: Path  # file or folder of tests
    markers: str = ""  # pytest's -m
    args: Texts = ()  # more arguments for pytest
    enabled: bool = True  # false to run no tests


class DataValidationSection(_Section):
    """The data that must follow a schema before anything is trained or evaluated."""

    path: Path  # JSONL file
    fields: tuple[SchemaField, ...] = Field(alias="schema")  # what each field must be
    max_examples: PositiveInt | None = None  # rows to validate; null for all


class TrainingSection(_Section):
    """The backend to train on, and the LoRA file to train with."""

    backend: Backend = "hf_peft"
    config_path: Path  # the LoRA file


class EvaluationSection(_Section):
    """Which weights to evaluate on which claims."""

    base_model: str
    checkpoint_dir: Path  # folder of the trained adapter
    claims_file: Path
    corpus_file: Path
    max_samples: PositiveInt | None = None  # claims to evaluate; null for all
    max_new_tokens: PositiveInt = 512  # of an answer; a truncated one breaks the schema
    temperature: NonNegativeFloat = 0.0  # of sampling; 0 for greedy decoding
    metrics: Texts = ()  # further metrics, such as ["bleu"], or MODULE:FUNCTION for your own
    output_path: Path | None = None  # JSONL file for prompts and answers


class AntagonistSection(_Section):
    """Thresholds of the search for contradictions and weak evidence in answers."""

    # chirality from which evidence is contradictory; 1 where as many documents support as refute
    chirality: Annotated[float, Field(gt=0, le=1)] = 0.55
    # probability of entailment below which evidence is weak
    entailment: Annotated[float, Field(ge=0, le=1)] = 0.5
    scorer: str = "none"  # of entailment: lexical, judge:WEIGHTS, hub:MODEL, path:DIR or none


class PipelineFile(_Section):
    """A pipeline: tests, data validation, training and evaluation."""

    tests: TestsSection | None = None
    data_validation: DataValidationSection | None = None
    training: TrainingSection | None = None
    evaluation: EvaluationSection | None = None
    antagonist: AntagonistSection | None = None


class ModelSection(_Section):
    """The model to train."""

    name: str
    quantization: Literal["4bit", "8bit"] | None = None
    device_map: str | None = None
    hf_token: None = None  # a token is read from the environment only

    @field_validator("hf_token", mode="before")
    @classmethod
    def _no_token(cls, value: Any) -> None:
        if value is not None:
            raise ValueError("a token must not be in the file; set HF_TOKEN in the environment")


class LoraSection(_Section):
    """The LoRA weights."""

    r: PositiveInt = 16  # rank
    lora_alpha: PositiveFloat | None = None  # null for twice the rank
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Texts | None = None  # null for all linear layers
    bias: Literal["none"] = "none"


class HyperparameterSection(_Section):
    """Batch size, learning rate and loss weights of the training."""

    per_device_batch_size: PositiveInt = 8
    gradient_accumulation_steps: PositiveInt = 1
    learning_rate: PositiveFloat = 2e-4
    num_epochs: PositiveInt = 3
    warmup_steps: NonNegativeInt = 0
    max_seq_length: PositiveInt = 2048  # tokens
    claim_c1_weight: NonNegativeFloat = 5.0  # loss weight of the tokens of CLAIM[c1]
    evidence_weight: NonNegativeFloat = 2.0  # loss weight of the tokens of other claims
    citation_penalty: NonNegativeFloat = 5.0  # weight of the probability of a wrong document id
    optim: Literal["adamw_torch"] = "adamw_torch"
    weight_decay: NonNegativeFloat = 0.0
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "linear"
    fp16: bool = False
    gradient_checkpointing: bool = False

    @property
    def batch_size(self) -> int:
        """Rows per optimiser step: the batch of a device times the accumulation."""
        return self.per_device_batch_size * self.gradient_accumulation_steps


class DataSection(_Section):
    """The rows to train on."""

    train_file: Path
    validation_split: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of rows held out
    shuffle: bool = True
    seed: Seed = 0


class OutputSection(_Section):
    """The folder of the weights, and the steps between measurements and save points."""

    checkpoint_dir: Path
    logging_steps: PositiveInt = 1
    eval_steps: NonNegativeInt = 0  # optimiser steps between measurements; 0 for none
    save_steps: NonNegativeInt = 0  # optimiser steps between save points; 0 for none
    save_total_limit: PositiveInt | None = None  # exports to keep
    report_to: Literal["none"] = "none"


class LoraFile(_Section):
    """A LoRA training, on either backend."""

    model: ModelSection
    lora: LoraSection = LoraSection()
    training: HyperparameterSection = HyperparameterSection()
    data: DataSection
    output: OutputSection


@dataclass(frozen=True)
class _Document:
    """A YAML document with the line of every value."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[tuple[str, ...], int]

    def line(self, key: Sequence[str]) -> int:
        """Return the line of a key, or of the innermost key around it that has one."""
        keys = tuple(key)
        for length in range(len(keys), 0, -1):
            inside = [line for known, line in self.lines.items() if known[:length] == keys[:length]]
            if inside:
                return min(inside)
        return 1


@dataclass(frozen=True)
class WithLines(Generic[M]):
    """A file of sections, and the line of every key."""

    content: M
    document: _Document

    def place(self, key: str) -> str:
        """Return file and line of a dotted key, or of the innermost section around it."""
        return f"{self.document.path}:{self.document.line(key.split('.'))}"


def read_with_lines(path: Path, model: type[M]) -> WithLines[M]:
    """Read a file with the lines of its keys; paths in it are relative to its folder.

    Raises ConfigError that names file, line and key: unknown keys, wrong values, missing files.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason})") from error
    document = _parse(path, text)
    try:
        parsed = model.model_validate(document.values)
    except ValidationError as error:
        problems = [_problem(document, model, dict(found)) for found in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from error
    return WithLines(_with_absolute_paths(parsed, path.parent), document)


def _parse(path: Path, text: str) -> _Document:
    values: dict[str, Any] = {}
    lines: dict[tuple[str, ...], int] = {}
    for item in read_yaml(text, str(path)):
        lines[item.keys] = item.line
        if not item.keys:
            if item.value is None:
                continue
            raise ConfigError(f"{path}:{item.line}: the file must be a mapping of sections")
        inner = values
        for key in item.keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[item.keys[-1]] = item.value
    return _Document(path, values, lines)


def _problem(document: _Document, model: type[BaseModel], found: Mapping[str, Any]) -> str:
    """Return one problem that pydantic found, with file, line and key."""
    keys = tuple(key for key in found["loc"] if isinstance(key, str))
    name = ".".join(map(str, found["loc"]))
    where = f"{document.path}:{document.line(keys)}"
    if found["type"] == "extra_forbidden":
        known = _known_keys(model, keys[:-1])
        return f"{where}: unknown key {name!r}; {did_you_mean(keys[-1], known)}"
    if found["type"] == "missing":
        kind = "section" if len(keys) == 1 else "key"
        return f"{where}: the {kind} {name!r} is missing"
    if found["type"] == "literal_error" and isinstance(found["input"], str):
        known = re.findall(r"'([^']+)'", found["ctx"]["expected"])
        return (
            f"{where}: {name}={found['input']!r} is unknown; {did_you_mean(found['input'], known)}"
        )
    message = found["msg"].removeprefix("Value error, ")
    return f"{where}: {name}: {message[:1].lower()}{message[1:]}"


def _known_keys(model: type[BaseModel], keys: Sequence[str]) -> list[str]:
    """Return the keys of the section that is found under `keys`."""
    section: Any = model
    for key in keys:
        section = _section_type(section.model_fields[key].annotation)
    return [field.alias or name for name, field in section.model_fields.items()]


def _section_type(annotation: Any) -> Any:
    """Return the section in `Section` or `Section | None`."""
    options = getattr(annotation, "__args__", (annotation,))
    return next(option for option in options if option is not type(None))


def _with_absolute_paths(model: M, folder: Path) -> M:
    """Return a model whose relative paths are relative to a folder, in nested models too."""
    changed: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Path):
            changed[name] = (folder / str(value).replace("\\", "/")).resolve()
        elif isinstance(value, BaseModel):
            changed[name] = _with_absolute_paths(value, folder)
    return model.model_copy(update=changed)


def pipeline_schema() -> dict[str, Any]:
    """Return the JSON schema of a pipeline or a LoRA file, with the comments of their keys."""
    names = ("Pipeline", "Lora")
    definitions: dict[str, Any] = {}
    models: tuple[type[BaseModel], ...] = (PipelineFile, LoraFile)
    for name, model in zip(names, models, strict=True):
        schema = model.model_json_schema(by_alias=True, ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        definitions[name] = schema
    return {"$defs": definitions, "anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
