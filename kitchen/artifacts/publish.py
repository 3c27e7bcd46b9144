"""Publishing of weights: exported, described by a model card, and uploaded to a hub."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import structlog

from kitchen.artifacts.model_card import Base, Evaluation, Form, model_card
from kitchen.artifacts.public_texts import public_name
from kitchen.artifacts.weights import Weights, parse_weights_name
from kitchen.backend.edited_files import CARD
from kitchen.backend.temporary import temporary_folder
from kitchen.errors import BackendError, ConfigError, KitchenError
from kitchen.ports import BlobStore, CheckpointStore, HubClient, TrainingClient
from kitchen.ports.training import require_checkpoints
from kitchen.runs.reports.records import read_run_record
from kitchen.runs.store import run_exists
from kitchen.types import Checkpoint

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_CONFIG = "adapter_config.json"  # of PEFT
_CHAT_TEMPLATE = "chat_template.jinja"  # which transformers prefers to that in the configuration
log = structlog.get_logger("kitchen.artifacts.publish")


class NotPublished(KitchenError):
    """Publishing failed, and nothing was lost; the exit code is that of the cause."""

    def __init__(self, cause: KitchenError, repo: str, retry_hint: str) -> None:
        super().__init__(f"{cause}; nothing is lost{retry_hint}")
        self.exit_code = cause.exit_code
        self.repo = repo


def publish(
    weights: Weights,
    repo: str,
    store: CheckpointStore,
    hub: HubClient,
    blobs: BlobStore,
    *,
    retry_hint: str = "",
    message: str = "",
    replace_card: bool = False,
) -> str:
    """Publish weights with their model card, and return the address. Idempotent.

    Raises NotPublished if the hub fails. `retry_hint` ends that error and tells how to try again,
    which only the caller knows.
    """
    check_repository_name(repo)
    with temporary_folder("push") as temporary:
        folder = temporary / "adapter"
        store.export(weights.source, folder)
        write_chat_template(weights, folder)
        base = name_base_portably(weights, folder)
        base = with_license(base, hub)
        form = exported_form(weights, folder, "adapter")
        card = model_card(repo, base, weights, evaluation(weights, blobs), form)
        (folder / CARD).write_text(card, encoding="utf-8")
        message = message or f"Weights of {public_name(weights.name)}"
        try:
            return hub.publish(repo, folder, message=message, replace_card=replace_card)
        except KitchenError as error:
            raise NotPublished(error, repo, retry_hint) from error


def exported_form(weights: Weights, folder: Path, form: str) -> Form:
    """Return the form of exported weights: whole if all weights of the model were trained."""
    facts = weights.record["facts"] if weights.record else {}
    is_whole = "trained" in facts and not (folder / _CONFIG).is_file()
    return "whole" if is_whole and form != "gguf" else cast(Form, form)


def write_chat_template(weights: Weights, folder: Path) -> None:
    """Write the chat template that a run was given, if any, into the folder of its weights."""
    rendering = weights.record.get("rendering") if weights.record else None
    template = (rendering or {}).get("template")
    if template:
        (folder / _CHAT_TEMPLATE).write_text(template, encoding="utf-8")


def require_export(training: TrainingClient) -> CheckpointStore:
    """Return the store that exports weights; raises BackendError if the adapter exports none."""
    if "export" not in training.capabilities:
        raise BackendError(
            f"the training adapter {training.__class__.__name__} cannot export weights; "
            "`kitchen list` shows the other adapters"
        )
    return require_checkpoints(training)


def check_repository_name(repo: str) -> None:
    """Raise ConfigError for a name that a repository cannot have."""
    if not _REPOSITORY.fullmatch(repo):
        raise ConfigError(f"{repo!r} cannot be the name of a repository; give OWNER/NAME")


def evaluation(weights: Weights, blobs: BlobStore) -> Evaluation:
    """Return the run of these weights with its evaluation; none for other weights.

    A run evaluates its final weights. Those of an earlier step are other weights.
    """
    if not run_exists(blobs, weights.run):
        return Evaluation()
    run = read_run_record(blobs, weights.run)
    final = [row for row in run.checkpoints if row["final"] and row.get("policy", True)]
    sha256 = weights.source.sha256 if isinstance(weights.source, Checkpoint) else ""
    if not final or final[-1]["sha256"] == sha256:
        return Evaluation(run)
    return Evaluation(run, of_other_step=final[-1]["step"])


def name_base_portably(weights: Weights, folder: Path) -> Base:
    """Return the base model, and in the exported configuration name it without its folder here."""
    base = name_base(weights, folder)
    config = _read_config(folder)
    if Path(config.get("base_model_name_or_path") or "").is_absolute():
        config["base_model_name_or_path"] = public_name(base.name)
        (folder / _CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return base


def name_base(weights: Weights, folder: Path) -> Base:
    """Return the base model, as the run recorded it or else as an adapter's folder names it."""
    model = str(_read_config(folder).get("base_model_name_or_path") or "")
    if Path(model).is_absolute():
        model = f"path:{model}"
    if weights.run and not _is_adapter_folder(weights.model):
        model = weights.model
    sha256 = str(weights.record["facts"].get("model.sha256", "")) if weights.record else ""
    return Base(model, sha256)


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of PEFT in a folder; empty if there is none."""
    file = folder / _CONFIG
    config: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return config


def _is_adapter_folder(model: str) -> bool:
    """Return whether a run started from an adapter's folder; then the export names the base."""
    name = parse_weights_name(model)
    return name.kind == "path" and (Path(name.name).expanduser() / _CONFIG).is_file()


def with_license(base: Base, hub: HubClient) -> Base:
    """Return a base model with its licence, which a card omits if the hub does not know it."""
    if not base.name:
        return base
    try:
        return replace(base, license=hub.info(base.name).license)
    except BackendError as error:
        name = public_name(base.name)
        log.warning("the card names no licence of the base model", model=name, why=str(error))
        return base
