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
from typing import Any

from kitchen.api import submit as submit_recipe
from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER
from kitchen.errors import ConfigError, DataError
from kitchen.runs.handle import Run
from kitchen.runs.status import Listener
from kitchen.types import Checkpoint

RECIPE = "recipes.claim_extraction"
_ROWS_FOLDER = "datasets"  # in the folder of runs
_COMPLETIONS = ("completion", "expected_output")


@dataclass(frozen=True)
class LoraConfig:
    """Configuration of a training of LoRA weights; raises ConfigError for every wrong value."""

    name: str  # of the run
    base_model: str  # packaged:NAME, path:DIR, or a name on the hub
    lora_rank: int = 16
    lora_alpha: float = 32.0
    learning_rate: float = 2e-4
    epochs: int = 3
    batch_size: int = 8  # rows per optimiser step
    warmup_steps: int = 100
    citation_validity_weight: float = 5.0  # weight of the citation penalty
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{name} is required" for name in ("name", "base_model") if not getattr(self, name)
        ]
        for name in ("lora_rank", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                problems.append(f"{name} is {getattr(self, name)}, and must be at least 1")
        for name in ("lora_alpha", "learning_rate"):
            if not getattr(self, name) > 0:
                problems.append(f"{name} is {getattr(self, name)}, and must be above 0")
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def _row(at: int, row: Mapping[str, Any]) -> dict[str, Any]:
    completions = [name for name in _COMPLETIONS if name in row]
    if "prompt" not in row or len(completions) != 1:
        raise DataError(
            f"row {at}: there must be a prompt, and a completion or an expected_output; the row "
            f"has {', '.join(map(str, row))}"
        )
    return {"prompt": row["prompt"], "completion": row[completions[0]]}
