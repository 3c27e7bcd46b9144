"""Pipelines: a recipe's settings and adapters read from files of another form, for `thinker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from kitchen.config.discovery import find_recipe
from kitchen.config.sources import Setting
from kitchen.types import Table

PipelineCommand = Literal["validate", "train", "eval", "run", "antagonist", "info"]
RECIPE = "recipes.claim_validation"  # has the pipeline of `thinker` as an attribute


@dataclass(frozen=True)
class PipelineOptions:
    """The options of a pipeline's command line."""

    backend: str | None = None  # null for the one that the file names
    skip_validation: bool = False


@dataclass(frozen=True)
class PipelineRun:
    """The run that a command of a pipeline is."""

    recipe: str
    settings: Sequence[Setting]  # with their places in the files
    adapters: Mapping[str, str]  # port to adapter
    adapter_settings: Sequence[str] = ()  # "training.device=cpu"
    backend: str = ""  # its name in the file
    features: Sequence[str] = ()  # settings of the files that not every backend honours
    float16: str = ""  # the place of a setting that needs float16 and so a GPU; "" without one
    files: Mapping[str, Path] = field(default_factory=dict)  # the files that were read, by name
    paths: Mapping[str, Path] = field(default_factory=dict)  # the paths in them, by key


class Pipeline(Protocol):
    """A kind of pipeline file, and the runs that it describes."""

    def prepare(
        self, command: PipelineCommand, path: Path, options: PipelineOptions
    ) -> PipelineRun:
        """Read the files of a pipeline; raises ConfigError with file, line and key.

        For "info", the paths in the files need not exist.
        """
        ...

    def schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of the files."""
        ...

    def set_up(self, source: Path, out: Path) -> Table:
        """Convert a folder of source data to rows to train on, in a new folder."""
        ...


def find_pipeline() -> Pipeline:
    """Return the pipeline of `thinker`; raises ConfigError or BackendError."""
    pipeline: Pipeline = find_recipe(RECIPE).pipeline  # type: ignore[attr-defined]
    return pipeline
