"""The runs in a BlobStore: what was ordered, how it went, and who is at it now."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.config.order import Order
from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports.blobs import BlobStore
from kitchen.runs.lock import in_use

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS = ("run", "recipe", "order", "attempts", "facts", "status")  # of run.json


@dataclass(frozen=True)
class RunSummary:
    """A run in one line."""

    id: str
    recipe: str
    status: str  # running, completed, failed or interrupted
    started: str  # ISO 8601, UTC
    seconds: float  # over all attempts
    metrics: Mapping[str, float]  # the last that were published
    reason: str = ""  # why it failed


def new_run_id(recipe: str) -> str:
    """`recipes.sl_basic:SlBasic` to `sl_basic-20261121-055301-3f2a`."""
    stem = recipe.split(":")[0].rsplit(".", 1)[-1]
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def check_new_run_name(blobs: BlobStore, run: str) -> None:
    """Raise ConfigError for what cannot be the name of a new run: weights are named by it, as
    run:NAME@STEP.
    """
    if not _NAME.fullmatch(run):
        raise ConfigError(
            f"{run!r} cannot be the name of a run: letters, digits, '.', '_' and '-' can, and the "
            "first "
            "is a letter or digit"
        )
    if blobs.read(f"{run}/run.json") is not None and not _came_to_nothing(blobs, run):
        raise ConfigError(
            f"there is a run {run!r} already; go on with that one, or choose another name"
        )


def discard_failed_run(blobs: BlobStore, run: str) -> None:
    """Make room for a run under the name of one that came to nothing, which `check_free` lets
    through.
    """
    for name in blobs.list(f"{run}/"):
        blobs.delete(name)


def _came_to_nothing(blobs: BlobStore, run: str) -> bool:
    """Whether a run failed before there was anything to go on from, over a file that cannot be
    read, say.
    """
    reached = any(
        name.startswith((f"{run}/kept/", f"{run}/weights/"))
        or (name.startswith(f"{run}/save/") and name.endswith(".json"))
        for name in blobs.list(f"{run}/")
    )
    return not reached and not in_use(blobs, run) and read_run(blobs, run)["status"] == "failed"


def run_names(blobs: BlobStore) -> Sequence[str]:
    return sorted(
        name.removesuffix("/run.json")
        for name in blobs.list()
        if name.endswith("/run.json") and name.count("/") == 1
    )


def read_run(blobs: BlobStore, run: str) -> dict[str, Any]:
    """run.json; raises ConfigError for a run that does not exist or cannot be read."""
    written = blobs.read(f"{run}/run.json")
    if written is None:
        raise ConfigError(f"there is no run {run!r}; {did_you_mean(run, run_names(blobs))}")
    try:
        found = json.loads(written)
    except ValueError as error:
        raise ConfigError(
            f"{blobs.locate(f'{run}/run.json')} is not JSON ({error}); the run cannot be read"
        ) from error
    missing = [key for key in _KEYS if not isinstance(found, dict) or key not in found]
    if missing:
        raise ConfigError(
            f"{blobs.locate(f'{run}/run.json')} has no {missing[0]!r}; it is no record of a run"
        )
    return dict(found)


def read_order(blobs: BlobStore, run: str) -> Order:
    return Order(**read_run(blobs, run)["order"])


def read_journal(blobs: BlobStore, run: str, name: str) -> Sequence[dict[str, Any]]:
    """The lines of `metrics`, `tables`, `samples`, `checkpoints` or `log`; raises ConfigError for
    what is not JSON.
    """
    file = f"{run}/{name}.jsonl"
    try:
        return [json.loads(line) for line in (blobs.read(file) or b"").splitlines()]
    except ValueError as error:
        raise ConfigError(
            f"{blobs.locate(file)} is not JSON ({error}); the run cannot be read"
        ) from error


def run_summary(blobs: BlobStore, run: str) -> RunSummary:
    found = read_run(blobs, run)
    status = (
        "killed" if found["status"] == "running" and not in_use(blobs, run) else found["status"]
    )
    seconds = sum(attempt.get("seconds", 0.0) for attempt in found["attempts"])
    last: dict[str, float] = {}
    for row in read_journal(blobs, run, "metrics"):
        last |= {
            key: value for key, value in row.items() if key not in ("n", "stage", "step", "seconds")
        }
    started = found["attempts"][0]["started"] if found["attempts"] else ""
    return RunSummary(run, found["recipe"], status, started, seconds, last, found.get("reason", ""))


def list_runs(blobs: BlobStore) -> Sequence[RunSummary]:
    """All runs; one that cannot be read has the status "unreadable", and the reason."""
    return [_summary(blobs, run) for run in run_names(blobs)]


def _summary(blobs: BlobStore, run: str) -> RunSummary:
    try:
        return run_summary(blobs, run)
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        return RunSummary(run, "", "unreadable", "", 0.0, {}, str(error))
