"""Files that describe an ensemble, which ensemble:FILE.yaml names as weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from kitchen.artifacts.weights import parse_weights_name
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import from_file
from kitchen.errors import ConfigError
from kitchen.types import Tries
from stages.ensemble.config import ENOUGH, EnsembleConfig, Mode
from stages.tasks.grading import GradingConfig

PREFIX = "ensemble:"


class EnsembleFile(BaseModel):
    """The settings of an ensemble in a file; they mean what they mean in recipes.ensemble."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    members: tuple[str, ...] = ()  # names of weights; path:FOLDER is relative to the file's folder
    draws: Tries = 1
    # functions are not allowed here: a name of weights must not name code
    vote: Literal["majority", "weighted", "confidence", "unanimous"] = "majority"
    weights: tuple[NonNegativeFloat, ...] = ()  # with vote=weighted: one for each member
    mode: Mode = "parallel"
    enough: Annotated[float, Field(ge=0, le=1)] = ENOUGH
    seconds: PositiveFloat = 30.0
    concurrency: PositiveInt = 16
    temperature: NonNegativeFloat | None = None  # None for that of the request
    metric: Literal["text", "json", "math"] = "text"  # by which answers are equal
    grading: GradingConfig = GradingConfig()

    @classmethod
    def title(cls) -> str:
        """Return the name of the file's contents in messages."""
        return "an ensemble"

    def config(self, temperature: float) -> EnsembleConfig:
        """Return the configuration, for a request at this temperature."""
        return EnsembleConfig(
            self.members,
            self.draws,
            self.vote,
            self.mode,
            self.enough,
            self.seconds,
            temperature if self.temperature is None else self.temperature,
            self.concurrency,
        )

    def check(self) -> None:
        """Raise ConfigError for settings that do not belong together."""
        self.config(1.0 if self.temperature is None else self.temperature)
        for name in self.members:
            if parse_weights_name(name).kind == "ensemble":
                raise ConfigError(
                    f"members: {name} is an ensemble: name its members here, not the ensemble"
                )
        if self.vote == "weighted" and len(self.weights) != len(self.members):
            raise ConfigError(
                f"weights: vote: weighted needs a weight for each of the {len(self.members)} "
                f"members, such as those that recipes.ensemble reports, and there are "
                f"{len(self.weights)}"
            )
        if self.weights and not any(self.weights):
            raise ConfigError("weights: all of them are 0: raise one, or set vote: majority")
        if self.weights and self.vote != "weighted":
            raise ConfigError(
                f"weights have no effect with vote: {self.vote}: set vote: weighted, or leave them "
                "out"
            )
        if options := {} if self.metric == "text" else self.grading.text_options():
            raise ConfigError(
                f"grading.{next(iter(options))} has no effect with metric: {self.metric}: set "
                "metric: text, or leave it out"
            )


def read_ensemble(name: str) -> EnsembleFile:
    """Read the file of ensemble:FILE.yaml; raises ConfigError with file, line and setting."""
    path = Path(name.removeprefix(PREFIX)).expanduser()
    resolved = resolve_settings(cast(Any, EnsembleFile), from_file(path))
    if resolved.problems:
        raise ConfigError("\n".join(map(str, resolved.problems)))
    found = cast(EnsembleFile, resolved.recipe)
    try:
        found.check()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    members = tuple(_from_folder(member, path.parent) for member in found.members)
    return found.model_copy(update={"members": members})


def _from_folder(member: str, folder: Path) -> str:
    """Return path:FOLDER with an absolute path; other names stay as they are."""
    kind, _, path = member.partition(":")
    if kind != "path":
        return member
    return f"path:{(folder / Path(path).expanduser()).resolve()}"
