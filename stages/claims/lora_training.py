"""Training of a claim extractor from Python: a configuration, and one call that trains by it.

config = LoraConfig(name="extractor", base_model="packaged:smollm2-135m-instruct")
result = run(config, rows)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from kitchen.api import submit as submit_recipe
from kitchen.backend.atomic_folder import write_atomically
from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER, check_run_name
from kitchen.errors import ConfigError, DataError
from kitchen.runs.handle import Run
from kitchen.runs.status import Listener
from kitchen.types import Checkpoint, LoraRank, ModelName, Seed
from stages.claims.loading import check_claim_columns

RECIPE = "recipes.claim_extraction"
_ROWS_FOLDER = "datasets"  # in the folder of runs
_COMPLETIONS = ("completion", "expected_output")


def _run_name(name: str) -> str:
    """Return a name that a run can have; raises ValueError with the reason."""
    try:
        return check_run_name(name)
    except ConfigError as error:
        raise ValueError(str(error)) from error


RunName = Annotated[str, AfterValidator(_run_name)]
_PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _problem(value: Any, kind: Any) -> str:
    """Return why a value is not of a kind, as the end of a sentence; "" if it is."""
    if value == "":
        return "is required"
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        return f"is {value!r}: {message[:1].lower()}{message[1:]}"
    return ""


@dataclass(frozen=True)
class LoraConfig:
    """Configuration of a training of LoRA weights; raises ConfigError for every wrong value."""

    name: RunName
    base_model: ModelName  # packaged:NAME, path:DIR, or a name on the hub
    lora_rank: LoraRank = 16
    lora_alpha: _PositiveNumber = 32.0
    learning_rate: _PositiveNumber = 2e-4
    epochs: PositiveInt = 3
    batch_size: PositiveInt = 8  # rows per optimiser step
    warmup_steps: NonNegativeInt = 100
    citation_validity_weight: _Weight = 5.0  # weight of the citation penalty
    seed: Seed = 0

    def __post_init__(self) -> None:
        problems = []
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            problem = _problem(getattr(self, name), kind)
            if problem:
                problems.append(f"{name} {problem}")
        if problems:
            raise ConfigError("LoraConfig: " + "; ".join(problems))

    def settings(self, dataset: str) -> dict[str, Any]:
        """Return the settings of recipes.claim_extraction."""
        values = asdict(self)
        weight = values.pop("citation_validity_weight")
        return {
            "model": values.pop("base_model"),
            "dataset": dataset,
            "penalty.weight": weight,
            "output.evaluate": False,
            **{name: value for name, value in values.items() if name != "name"},
        }


@dataclass(frozen=True)
class LoraResult:
    """The result of a training."""

    run: str  # its name; `run:NAME@final` names the weights
    final_loss: float | None  # of the last batch
    duration: float  # seconds
    metrics: Mapping[str, float]  # the last value of each
    checkpoint: Checkpoint | None  # the weights


def submit(
    config: LoraConfig,
    dataset: str | Path | Sequence[Mapping[str, Any]],
    *,
    on_progress: Listener | None = None,
    runs: str | Path = DEFAULT_RUNS_FOLDER,
    training: Any = None,
) -> Run:
    """Start a training and return at once; the run has its status, and can be awaited.

    `dataset` is a name, file or folder, or rows with `prompt` and `expected_output` (or
    `completion`). `on_progress` gets events with epoch, step and loss. Raises Problems: everything
    that is wrong with the settings.
    """
    name = str(dataset) if isinstance(dataset, str | Path) else _write_rows(dataset, Path(runs))
    return submit_recipe(
        RECIPE,
        settings=config.settings(name),
        training=training,
        runs=runs,
        name=config.name,
        on_progress=on_progress,
    )


def run(
    config: LoraConfig,
    dataset: str | Path | Sequence[Mapping[str, Any]],
    *,
    on_progress: Listener | None = None,
    runs: str | Path = DEFAULT_RUNS_FOLDER,
    training: Any = None,
) -> LoraResult:
    """Train, wait for the end, and return the result: the arguments of `submit`.

    Raises the error of a run that fails: BackendError or ApiError (status and body) of a server,
    SessionLost if it does not answer any more, RunFailed, DataError.
    """
    started = submit(config, dataset, on_progress=on_progress, runs=runs, training=training)
    outcome = started.finish()
    return LoraResult(
        outcome.run, outcome.loss, outcome.seconds, outcome.metrics, outcome.checkpoint
    )


def _write_rows(rows: Sequence[Mapping[str, Any]], runs: Path) -> str:
    """Write rows to a file that is named after its content, and return its path.

    A run must find its data again when it is resumed.
    """
    if "://" in str(runs):
        raise ConfigError(
            f"rows are stored beside the runs, and {runs} is no folder; give a data set's name"
        )
    lines = [json.dumps(_row(at, row), ensure_ascii=False) for at, row in enumerate(rows)]
    if not lines:
        raise DataError("the data set has no rows")
    text = "".join(f"{line}\n" for line in lines)
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = runs.expanduser().absolute() / _ROWS_FOLDER / f"{digest[:16]}.jsonl"
    _write_once(path, text.encode())
    return str(path)


def _write_once(path: Path, content: bytes) -> None:
    """Write a file atomically, unless it has this content: another run may be reading it."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)


def _row(at: int, row: Any) -> dict[str, str]:
    """Return a row with a prompt and a completion; raises DataError."""
    if not isinstance(row, Mapping):
        raise DataError(f"row {at}: must be a mapping with a prompt, and is {type(row).__name__}")
    completions = [name for name in _COMPLETIONS if name in row]
    if "prompt" not in row or len(completions) != 1:
        raise DataError(
            f"row {at}: there must be a prompt, and a completion or an expected_output; the row "
            f"has {', '.join(map(str, row))}"
        )
    check_claim_columns(row, f"row {at}")
    names = {"prompt": "prompt", "completion": completions[0]}
    return {name: _text(row[given], f"row {at}: {given}") for name, given in names.items()}


def _text(value: Any, where: str) -> str:
    """Return a text that a file can hold; raises DataError."""
    if not isinstance(value, str):
        raise DataError(f"{where} must be a text, and is {type(value).__name__}")
    if not value.strip():
        raise DataError(f"{where} must be a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} has the character {value[error.start]!r} at {error.start}, which is no text "
            "(half of a surrogate pair); remove it"
        ) from error
    return value
