"""Weights into the world: exported, described and published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from kitchen.artifacts.model_card import Base, model_card, public_name
from kitchen.artifacts.weights import Weights
from kitchen.errors import BackendError, ConfigError, KitchenError
from kitchen.ports import BlobStore, CheckpointStore, HubClient, TrainingClient
from kitchen.ports.training import require_checkpoints
from kitchen.runs.store import read_journal

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_CONFIG = "adapter_config.json"  # of PEFT
log = structlog.get_logger("kitchen.artifacts.publish")


class NotPublished(KitchenError):
    """Publishing failed, and lost nothing; it ends with the exit code of what went wrong."""

    def __init__(self, why: KitchenError, repo: str, again: str) -> None:
        super().__init__(f"{why}; nothing is lost{again}")
        self.exit_code, self.repo = why.exit_code, repo


def publish(
    weights: Weights,
    repo: str,
    store: CheckpointStore,
    hub: HubClient,
    blobs: BlobStore,
    *,
    retry_hint: str = "",
    message: str = "",
) -> str:
    """An adapter's folder with its model card; returns where a person finds it. Done twice, it is
    the same.

    Raises NotPublished where the hub fails, with how to do it `again`, which whoever set the run
    going may know alone.
    """
    check_repository_name(repo)
    with TemporaryDirectory(prefix="kitchen-") as place:
        folder = Path(place, "adapter")
        store.export(weights.source, folder)
        base = _base(weights, folder, hub)
        tables = read_journal(blobs, weights.run, "tables") if weights.run else ()
        (folder / "README.md").write_text(model_card(repo, base, weights, tables))
        try:
            return hub.publish(
                repo, folder, message=message or f"Weights of {public_name(weights.name)}"
            )
        except KitchenError as error:
            raise NotPublished(error, repo, retry_hint) from error


def require_export(training: TrainingClient) -> CheckpointStore:
    """Return the store that exports weights; raises BackendError for an adapter that exports none."""
    if "export" not in training.capabilities:
        raise BackendError(
            f"the training adapter {type(training).__name__} cannot export weights; "
            "`kitchen list` shows the others"
        )
    return require_checkpoints(training)


def check_repository_name(repo: str) -> None:
    """Raise ConfigError for what cannot be a repository."""
    if not _REPOSITORY.fullmatch(repo):
        raise ConfigError(f"{repo!r} is no place to publish at; give OWNER/NAME")


def _base(weights: Weights, folder: Path, hub: HubClient) -> Base:
    """Of a run as it recorded it, else as the exported folder says; there, no folder of this
    machine stays.
    """
    config = json.loads((folder / _CONFIG).read_text()) if (folder / _CONFIG).is_file() else {}
    said = str(config.get("base_model_name_or_path") or "")
    place = f"path:{said}" if Path(said).is_absolute() else said
    model = weights.model if weights.run else place
    if place != said:
        config["base_model_name_or_path"] = public_name(model)
        (folder / _CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    digest = str(weights.record["facts"].get("model.sha256", "")) if weights.record else ""
    return Base(model, digest, _license(model, hub))


def _license(model: str, hub: HubClient) -> str:
    """Empty where the hub does not know it, for the card is true without it."""
    if not model:
        return ""
    try:
        return hub.info(model).license
    except BackendError as error:
        log.warning(
            "the card names no licence of the base model", model=public_name(model), why=str(error)
        )
        return ""
