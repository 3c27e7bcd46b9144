"""The runs in a BlobStore: what was ordered, how it went, and who is at it now."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports.blobs import BlobStore


@dataclass(frozen=True)
class Order:
    """Everything that is needed to cook a recipe, or to go on with a run."""

    recipe: str  # "recipes.sl_basic:SlBasic"
    settings: Mapping[str, Any]  # every field, as JSON
    sources: Mapping[str, str] = field(default_factory=dict)  # field -> "default", "command line", "config.yaml:3"
    adapters: Mapping[str, str] = field(default_factory=dict)  # port -> name
    adapter_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # port -> settings


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


def run_names(blobs: BlobStore) -> Sequence[str]:
    return sorted(name.removesuffix("/run.json") for name in blobs.list() if name.endswith("/run.json")
                  and name.count("/") == 1)


def read_run(blobs: BlobStore, run: str) -> dict[str, Any]:
    """run.json; raises ConfigError for a run that does not exist or cannot be read."""
    written = blobs.read(f"{run}/run.json")
    if written is None:
        raise ConfigError(f"there is no run {run!r}; {did_you_mean(run, run_names(blobs))}")
    try:
        found: dict[str, Any] = json.loads(written)
    except ValueError as error:
        raise ConfigError(f"{blobs.locate(f'{run}/run.json')} is not JSON ({error}); the run cannot be read") from error
    return found


def read_order(blobs: BlobStore, run: str) -> Order:
    return Order(**read_run(blobs, run)["order"])


def run_summary(blobs: BlobStore, run: str) -> RunSummary:
    found = read_run(blobs, run)
    status = "running" if found["status"] == "running" and _alive(_lease(blobs, run)) else found["status"]
    status = "killed" if status == "running" and not _alive(_lease(blobs, run)) else status
    seconds = sum(attempt.get("seconds", 0.0) for attempt in found["attempts"])
    lines = (blobs.read(f"{run}/metrics.jsonl") or b"").decode().splitlines()
    last: dict[str, float] = {}
    for line in lines:
        last |= {key: value for key, value in json.loads(line).items() if key not in ("n", "stage", "step", "seconds")}
    started, reason = found["attempts"][0]["started"], found.get("reason", "")
    return RunSummary(run, found["recipe"], status, started, seconds, last, reason)


def list_runs(blobs: BlobStore) -> Sequence[RunSummary]:
    return [run_summary(blobs, run) for run in run_names(blobs)]


@contextmanager
def lease(blobs: BlobStore, run: str) -> Iterator[None]:
    """Hold a run; raises ConfigError if a process that is alive holds it already."""
    held = _lease(blobs, run)
    if _alive(held):
        raise ConfigError(f"run {run!r} is in use by process {held['pid']} on {held['host']}; wait for it, or stop it")
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid()), "token": secrets.token_hex(8)}
    blobs.write(f"{run}/lease.json", json.dumps(mine).encode())
    if _lease(blobs, run).get("token") != mine["token"]:
        raise ConfigError(f"run {run!r} was taken by another process at the same moment")
    try:
        yield
    finally:
        blobs.delete(f"{run}/lease.json")


def _lease(blobs: BlobStore, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(blobs.read(f"{run}/lease.json") or b"{}")
    return found


def _alive(held: Mapping[str, Any]) -> bool:
    """Whether the holder still runs; of another host nothing is known, so it counts as alive."""
    if not held:
        return False
    return bool(held["host"] != socket.gethostname() or _born(held["pid"]) == held["born"] != "")


def _born(pid: int) -> str:
    """When a process started, in the kernel's clock ticks, so that a number used again is not mistaken; "" if dead."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.exists() and Path("/proc/self/stat").exists():
        return stat.read_text().rsplit(")", 1)[1].split()[19] if stat.exists() else ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    return "alive"


def order_json(order: Order) -> dict[str, Any]:
    return asdict(order)
