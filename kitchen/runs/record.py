"""The record of a run in the BlobStore: run.json, and journals of metrics, tables, samples,
checkpoints and the log.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

import structlog

from kitchen.config.order import Order, order_json
from kitchen.engine.observers import Observer, StageDone
from kitchen.errors import ResumeError
from kitchen.ports.blobs import BlobStore
from kitchen.progress import Progress
from kitchen.runs.jsonl import Journal
from kitchen.runs.store import read_run
from kitchen.secrets import masked
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Facts, Metrics, Samples, Table
from kitchen.workflow import Step

_PACKAGES = ("crucible-kitchen", "numpy", "torch", "transformers", "peft", "safetensors", "tinker")
_JOURNALS = ("metrics", "tables", "samples", "checkpoints", "log")
_FREE = "machine."  # facts that may differ if the user says so


class OtherMachine(ResumeError):
    """The run began on a machine that computes other last bits."""

    option = "other_machine"  # goes on all the same


class RunRecord(Observer):
    """Writes down what a run is and what it did; what is there of an earlier attempt is gone on
    with.
    """

    def __init__(
        self, blobs: BlobStore, run: str, order: Order, *, other_machine: bool = False
    ) -> None:
        self._blobs, self._run, self._other_machine = blobs, run, other_machine
        self._clock = time.perf_counter()
        # once: it takes as long as to write an entry
        self._log = structlog.get_logger("kitchen.runs.record").bind()
        self._at: tuple[Stage, Progress] | None = None
        self._journals = {name: Journal(blobs, f"{run}/{name}.jsonl") for name in _JOURNALS}
        ordered = order_json(order)
        fresh: dict[str, Any] = {
            "run": run,
            "recipe": order.recipe,
            "order": ordered,
            "attempts": [],
            "facts": {},
        }
        self._json: dict[str, Any] = (
            read_run(blobs, run) if blobs.read(f"{run}/run.json") else fresh
        )
        self._known = dict(self._json["facts"])  # what earlier attempts found
        self._json["configuration_sha256"] = _digest(_configuration(self._json["order"]))
        self._json["attempts"].append({"started": _now(), "seconds": 0.0, **_surroundings()})
        self._set("running")

    def log(self, event: MutableMapping[str, Any]) -> None:
        self._journals["log"].append(event)

    def began(self, run: str, step: Step) -> None:
        self._log.debug("began", run=run)
        self.entered_facts(_versions())

    def entered(self, stage: Stage, progress: Progress) -> None:
        self._at = stage, progress

    def done(self, event: StageDone) -> None:
        self._log.debug(
            "stage",
            stage=event.stage.title(),
            step=event.progress.step,
            seconds=round(event.seconds, 6),
        )
        for number, value in enumerate(event.published, event.number):
            if isinstance(value, Facts):
                self.entered_facts(value)
            if event.replayed:
                continue
            where = {"n": number, "stage": event.stage.title(), "step": event.progress.step}
            if isinstance(value, Metrics) and value:
                seconds = round(time.perf_counter() - self._clock, 3)
                self._journals["metrics"].put(number, [{**where, **value, "seconds": seconds}])
            elif isinstance(value, Table):
                self._journals["tables"].put(number, [{**where, **vars(value)}])
            elif isinstance(value, Samples):
                self._journals["samples"].put(number, [{**where, **row} for row in value.rows])
        if any(isinstance(value, Facts | Table) for value in event.published):
            self.phase_over()  # a later stage may read them, for a model card

    def saved(self, checkpoint: Checkpoint, progress: Progress) -> None:
        role, at = type(checkpoint).__name__, self._blobs.locate(checkpoint.path)
        row = {
            **vars(checkpoint),
            "role": role,
            "policy": checkpoint.policy,
            "at": at,
            "iteration": progress.step,
        }
        self._journals["checkpoints"].replace("path", row)

    def keeping(self, progress: Progress) -> None:
        self._flush()
        self._set("running")

    def phase_over(self) -> None:
        self._flush()
        self._set("running")

    def ended(self, error: BaseException | None) -> None:
        status = (
            "completed" if error is None else "interrupted" if _interrupted(error) else "failed"
        )
        reason = "" if error is None else f"{type(error).__name__}: {error}"
        if error is not None:
            self._log.debug(
                "ended", status=status, reason=reason, where=getattr(error, "__notes__", [])
            )
            self._json["where"] = getattr(error, "__notes__", [])
        code = {"completed": 0, "interrupted": 130}.get(status, 1)
        self._json["exit_code"] = getattr(error, "exit_code", code)
        self._json["reason"] = reason
        self._flush()
        self._set(status)

    def entered_facts(self, facts: Mapping[str, str]) -> None:
        """Take facts down; raises ResumeError if an earlier attempt found others."""
        for key, value in facts.items():
            was = self._known.get(key, value)
            if was != value and not (self._other_machine and key.startswith(_FREE)):
                what = f"run {self._run!r} began with {key} = {was!r}, and now it is {value!r}"
                if key.startswith(_FREE):
                    raise OtherMachine(
                        f"{what}; go on all the same if you accept numbers that differ in the last "
                        "bits"
                    )
                raise ResumeError(f"{what}; start a new run")
            self._json["facts"][key] = value

    def _flush(self) -> None:
        for journal in self._journals.values():
            journal.flush()

    def _set(self, status: str) -> None:
        self._json["status"] = status
        if self._at is not None:
            stage, progress = self._at
            self._json["at"] = {
                "stage": stage.title(),
                "step": progress.step,
                "done": progress.done,
            }
        self._json["attempts"][-1]["seconds"] = round(time.perf_counter() - self._clock, 3)
        self._blobs.write(
            f"{self._run}/run.json", json.dumps(masked(self._json), indent=2, default=str).encode()
        )


def _interrupted(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", 0) == 130


def _configuration(order: Mapping[str, Any]) -> Any:
    """What can change the numbers: all of an order but where the settings came from and where the
    record goes.
    """
    adapters = {
        port: settings for port, settings in order["adapter_settings"].items() if port != "blobs"
    }
    return [order["recipe"], order["settings"], order["adapters"], adapters]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _versions() -> Facts:
    return Facts(
        {f"{_FREE}{name}": version for name in _PACKAGES if (version := _installed(name))}
        | {f"{_FREE}python": platform.python_version()}
    )


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _surroundings() -> dict[str, Any]:
    return {
        "git_commit": _git(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "pid": os.getpid(),
    }


def _git() -> str | None:
    """The commit of the folder that the run was started in; None outside of a repository or without
    git.
    """
    run: Callable[..., Any] = subprocess.run
    try:
        found = run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
