"""The registry of models: names and versions for weights that runs have made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports.blobs import BlobStore
from kitchen.runs.lock import lease
from kitchen.runs.sealed import read_sealed, write_sealed
from kitchen.runs.store import NAME_PATTERN

FOLDER = "_models"  # in the store of runs, whose names do not begin with "_"


@dataclass(frozen=True)
class ModelVersion:
    """A version of a model: weights of a run, which do not change."""

    name: str
    version: int  # from 1
    run: str
    at: str  # the weights of the run: a step, or "final"
    step: int  # optimiser steps
    sha256: str  # of the checkpoint
    recipe: str
    base_model: str
    added: str  # ISO 8601, UTC

    @property
    def weights(self) -> str:
        """The name of the weights of the run."""
        return f"run:{self.run}@{self.at}"

    def __str__(self) -> str:
        return f"model:{self.name}@{self.version}"


def model_names(blobs: BlobStore) -> Sequence[str]:
    """Return the names of all models, sorted."""
    names = {blob.split("/")[1] for blob in blobs.list(f"{FOLDER}/") if "/versions/" in blob}
    return sorted(names)


def model_versions(blobs: BlobStore, name: str) -> Sequence[ModelVersion]:
    """Return the versions of a model, the oldest first; raises ConfigError if there are none."""
    blob_names = blobs.list(f"{FOLDER}/{name}/versions/") if NAME_PATTERN.fullmatch(name) else ()
    if not blob_names:
        names = model_names(blobs)
        near = did_you_mean(name, names) if names else "`kitchen models add` adds one"
        raise ConfigError(f"there is no model {name!r}; {near}")
    return [ModelVersion(**read_sealed(blobs, blob)) for blob in blob_names]


def model_aliases(blobs: BlobStore, name: str) -> Mapping[str, int]:
    """Return the version of a model that each alias stands for."""
    blob = f"{FOLDER}/{name}/aliases.json"
    return {} if blobs.read(blob) is None else read_sealed(blobs, blob)


def find_version(blobs: BlobStore, name: str, at: str = "") -> ModelVersion:
    """Return a version by its number or alias, or the newest; raises ConfigError if unknown."""
    versions = {version.version: version for version in model_versions(blobs, name)}
    aliases = model_aliases(blobs, name)
    number = int(at) if at.isdecimal() else aliases.get(at)
    if not at:
        number = max(versions)
    if number not in versions:
        known = [*map(str, versions), *aliases]
        raise ConfigError(f"model:{name}@{at}: no such version; {did_you_mean(at, known)}")
    return versions[number]


def add_version(
    blobs: BlobStore, name: str, alias: str = "", **content: Any
) -> tuple[ModelVersion, bool]:
    """Add weights as the next version of a model; return it, and whether it is new.

    Weights that are a version of this model already are not added again. `content` are the fields
    of the version. Raises ConfigError for a name that no model can have, and InUse.
    """
    _check_name(name, "a model")
    if alias:
        check_alias(alias)
    with lease(blobs, f"{FOLDER}/{name}"):
        has_versions = bool(blobs.list(f"{FOLDER}/{name}/versions/"))
        versions = model_versions(blobs, name) if has_versions else ()
        same = [version for version in versions if version.sha256 == content["sha256"]]
        if same:
            added = same[0]
        else:
            number = versions[-1].version + 1 if versions else 1
            now = datetime.now(UTC).isoformat(timespec="seconds")
            added = ModelVersion(name, number, added=now, **content)
            write_sealed(blobs, f"{FOLDER}/{name}/versions/{number:06d}.json", asdict(added))
        if alias:
            _set_alias(blobs, added, alias)
    return added, not same


def set_alias(blobs: BlobStore, version: ModelVersion, alias: str) -> None:
    """Let an alias stand for a version, also if it stood for another; raises ConfigError, InUse."""
    check_alias(alias)
    with lease(blobs, f"{FOLDER}/{version.name}"):
        _set_alias(blobs, version, alias)


def check_alias(alias: str) -> None:
    """Raise ConfigError for a text that no alias can be."""
    _check_name(alias, "an alias")
    if alias.isdecimal():
        raise ConfigError(f"{alias!r} cannot be an alias: numbers name versions")


def _set_alias(blobs: BlobStore, version: ModelVersion, alias: str) -> None:
    aliases = {**model_aliases(blobs, version.name), alias: version.version}
    write_sealed(blobs, f"{FOLDER}/{version.name}/aliases.json", aliases)


def _check_name(name: str, what: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of {what}: it may have letters, digits, '.', '_' and "
            "'-', and starts with a letter or digit"
        )
