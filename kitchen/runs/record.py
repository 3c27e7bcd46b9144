"""The record of a run: run.json, and journals of metrics, tables, samples, checkpoints and log."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from kitchen.config.order import Order, order_json
from kitchen.engine.observers import (
    Observer,
    SavePointDue,
    StageDone,
    StageStarted,
    WeightsSaved,
)
from kitchen.errors import KitchenError, ResumeError, describe_error
from kitchen.ports.blobs import BlobStore
from kitchen.progress import LoopStep
from kitchen.runs.code import OtherCode, changed_modules, code_digests
from kitchen.runs.jsonl import Journal
from kitchen.runs.store import read_run, write_run
from kitchen.secrets import masked
from kitchen.types import Facts, Metrics, Samples, Table
from kitchen.workflow import Step

_PACKAGES = ("crucible-kitchen", "numpy", "torch", "transformers", "peft", "safetensors", "tinker")
_JOURNALS = ("metrics", "tables", "samples", "checkpoints", "log")
_MACHINE = "machine."  # prefix of facts that may differ on resume if the user allows it
_WRITE_SECONDS = 1.0  # between two writes of where a run is, at least


class OtherMachine(ResumeError):
    """The run was started on a machine or with versions whose results differ in the last bits."""

    option = "other_machine"  # to resume the run nevertheless


class LostRows(ResumeError):
    """Rows of a journal that were recorded are gone or changed."""

    option = "accept_lost_metrics"  # to resume the run nevertheless


class RunRecord(Observer):
    """Writes the record of a run, or continues the record of an earlier attempt."""

    def __init__(
        self,
        blobs: BlobStore,
        run: str,
        order: Order,
        *,
        rendering: Mapping[str, Any] | None = None,
        other_machine: bool = False,
        accept_lost_metrics: bool = False,
        other_code: bool = False,
    ) -> None:
        self._blobs = blobs
        self._run = run
        self._other_machine = other_machine
        self._other_code = other_code
        self._started = time.perf_counter()
        # binding takes as long as writing an entry
        self._log = structlog.get_logger("kitchen.runs.record").bind()
        self._position: StageStarted | None = None
        self._written = ("", 0.0)  # loop or stage that run.json names, and when it was written
        self._journals = {name: self._journal(name) for name in _JOURNALS}
        self._json: dict[str, Any] = {
            "run": run,
            "recipe": order.recipe,
            "order": order_json(order),
            "attempts": [],
            "facts": {},
            "metrics": {},
        }
        if blobs.read(f"{run}/run.json"):
            self._json = read_run(blobs, run)
            if not accept_lost_metrics:
                self._check_journals()
        self._earlier_facts = dict(self._json["facts"])
        self._json["configuration_sha256"] = _digest(_configuration(self._json["order"]))
        self._json["rendering"] = rendering or {}
        self._json["order"]["observers"] = order.observers  # a resumed run may have further ones
        self._json["attempts"].append({"started": _now(), "seconds": 0.0, **_environment()})
        self._write("running")

    def _journal(self, name: str) -> Journal:
        return Journal(self._blobs, f"{self._run}/{name}.jsonl", self._write_state)

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1, and one more each time the run is resumed."""
        return len(self._json["attempts"])

    def log(self, event: MutableMapping[str, Any]) -> None:
        self._journals["log"].append(event)

    def trackers_ended(self, outcomes: Mapping[str, Any]) -> None:
        """Record what each tracker has received."""
        self._json["trackers"] = outcomes

    def run_started(self, run: str, step: Step) -> None:
        self._note("run started", run=run)
        self._check_code(code_digests(self._json["recipe"], step))
        self._add_facts(_versions())

    def stage_started(self, event: StageStarted) -> None:
        self._position = event
        loops = event.location.loops
        place = loops[-1].loop if loops else event.stage.title()
        if place != self._written[0]:  # for whoever watches the run
            self._note_place(loops)

    def stage_done(self, event: StageDone) -> None:
        self._log.debug(
            "stage",
            stage=event.stage.title(),
            step=event.progress.step,
            seconds=round(event.seconds, 6),
        )
        for number, value in enumerate(event.published, event.number):
            if isinstance(value, Facts):
                self._add_facts(value)
            if isinstance(value, Metrics) and value.selects_by:
                self._json["selects_by"] = value.selects_by
                self._json["greater_is_better"] = value.greater_is_better
            if not event.replayed:
                self._record_value(number, value, event)
        if any(isinstance(value, Facts | Table) for value in event.published):
            self.phase_done()  # a later stage may read them, for a model card

    def _record_value(self, number: int, value: Any, event: StageDone) -> None:
        """Add what a stage published to its journal."""
        position = {"n": number, "stage": event.stage.title(), "step": event.progress.step}
        if isinstance(value, Metrics) and value:
            seconds = round(time.perf_counter() - self._started, 3)
            self._journals["metrics"].put(number, [{**position, **value, "seconds": seconds}])
            self._json["metrics"].update(value)
        elif isinstance(value, Table):
            self._journals["tables"].put(number, [{**position, **vars(value)}])
        elif isinstance(value, Samples):
            self._journals["samples"].put(number, [{**position, **row} for row in value.rows])

    def weights_saved(self, event: WeightsSaved) -> None:
        checkpoint = event.checkpoint
        row = {
            **vars(checkpoint),
            "role": type(checkpoint).__name__,
            "policy": checkpoint.policy,
            "final": checkpoint.final,
            "at": self._blobs.locate(checkpoint.path),
            "iteration": event.progress.step,
        }
        self._journals["checkpoints"].append(row)

    def save_point_due(self, event: SavePointDue) -> None:
        self._flush()
        self._write("running")

    def phase_done(self) -> None:
        self._flush()
        self._write("running")

    def run_ended(self, error: BaseException | None) -> None:
        status, reason = final_status(error), ""
        exit_code = {"completed": 0, "interrupted": 130}.get(status, 1)
        if error is not None:
            reason = describe_error(error)
            if isinstance(error, KitchenError):
                reason = f"{type(error).__name__}: {reason}"
            notes = getattr(error, "__notes__", [])
            values = {} if status == "interrupted" else {"exception": _traceback(error)}
            self._note("run ended", status=status, reason=reason, where=notes, **values)
            self._json["where"] = notes
        self._json["exit_code"] = getattr(error, "exit_code", exit_code)
        self._json["reason"] = reason
        self._flush()
        self._write(status)

    def _add_facts(self, facts: Mapping[str, str]) -> None:
        """Record facts; raises ResumeError if they differ from those of an earlier attempt."""
        for key, value in facts.items():
            earlier = self._earlier_facts.get(key, value)
            may_differ = self._other_machine and key.startswith(_MACHINE)
            if earlier != value and not may_differ:
                if key.startswith(_MACHINE):
                    raise OtherMachine(
                        f"run {self._run!r} last had {key} = {earlier!r}, and now it is {value!r}; "
                        f"{_consent(key)}"
                    )
                raise ResumeError(
                    f"run {self._run!r} began with {key} = {earlier!r}, and now it is {value!r}; "
                    "start a new run"
                )
            self._json["facts"][key] = value

    def _check_journals(self) -> None:
        """Raise LostRows if rows that were written before are gone or changed."""
        for name, state in self._json.get("journals", {}).items():
            if not self._journals[name].begins_with(state):
                path = self._blobs.locate(f"{self._run}/{name}.jsonl")
                raise LostRows(
                    f"{path} no longer holds the rows that were written to it "
                    f"({state['rows']}): restore it from a copy, or resume with the rows that are "
                    "left (--accept-lost-metrics)"
                )

    def _check_code(self, digests: Mapping[str, str]) -> None:
        """Record the user's code; raises OtherCode if it is not that of an earlier attempt."""
        changed = changed_modules(self._json.get("code", {}), digests)
        if changed and not self._other_code:
            raise OtherCode(
                f"the code of {' and '.join(changed)} has changed since run {self._run!r} started; "
                "start a new run, or resume it nevertheless, with results that mix both versions "
                "(--other-code)"
            )
        self._json["code"] = digests

    def _note(self, event: str, **values: Any) -> None:
        """Add an entry to the log of the run, without showing it on the console."""
        self.log({**values, "event": event, "level": "info", "timestamp": _now()})

    def _note_place(self, loops: Sequence[LoopStep]) -> None:
        """Write run.json at a loop's first iteration, and elsewhere once per second at most."""
        lengths = self._json.setdefault("loops", {})
        new = {at.loop: at.total for at in loops if at.loop not in lengths}
        lengths |= new
        if new or time.perf_counter() - self._written[1] >= _WRITE_SECONDS:
            self._write_state()

    def _flush(self) -> None:
        for journal in self._journals.values():
            journal.flush()

    def _write_state(self) -> None:
        """Write run.json as it is, with how many rows the journals will still have."""
        self._write(self._json.get("status", "running"))

    def _write(self, status: str) -> None:
        """Write run.json with this status, the current position and the seconds so far."""
        self._json["status"] = status
        self._json["journals"] = {
            name: journal.state() for name, journal in self._journals.items() if name != "log"
        }
        if self._position is not None:
            stage, progress = self._position.stage, self._position.progress
            loops = self._position.location.loops
            loop = loops[-1].loop if loops else ""
            self._json["at"] = {
                "stage": stage.title(),
                "loop": loop,
                "step": progress.step,
                "done": progress.done,
            }
            self._written = (loop or stage.title(), time.perf_counter())
        self._json["attempts"][-1]["seconds"] = round(time.perf_counter() - self._started, 3)
        write_run(self._blobs, self._run, masked(self._json))


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def final_status(error: BaseException | None) -> Literal["completed", "failed", "interrupted"]:
    """Return the status of a run that ended with this error, or completed without one."""
    if error is None:
        return "completed"
    is_interrupt = isinstance(error, KeyboardInterrupt) or getattr(error, "exit_code", 0) == 130
    return "interrupted" if is_interrupt else "failed"


def _configuration(order: Mapping[str, Any]) -> Any:
    """Return the part of an order that can change results: not its sources, nor the blob store."""
    adapter_settings = {
        port: settings for port, settings in order["adapter_settings"].items() if port != "blobs"
    }
    return [order["recipe"], order["settings"], order["adapters"], adapter_settings]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _consent(fact: str) -> str:
    """Return the end of an error: when a run can be resumed although this fact differs."""
    if fact.endswith(".server"):
        return "resume it nevertheless if the server there has the same model"
    return "resume it nevertheless if you accept numbers that differ in the last bits"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _versions() -> Facts:
    """Return the versions of Python and of the installed packages that compute results."""
    versions = {name: _installed_version(name) for name in _PACKAGES}
    facts = {f"{_MACHINE}{name}": version for name, version in versions.items() if version}
    return Facts(facts | {f"{_MACHINE}python": platform.python_version()})


@functools.cache
def _installed_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _environment() -> dict[str, Any]:
    """Return the platform of an attempt, which is recorded but not compared on resume."""
    return {
        "git_commit": _git_commit(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "pid": os.getpid(),
    }


def _git_commit() -> str | None:
    """Return the commit of the current folder; None outside of a repository or without git."""
    run: Callable[..., Any] = subprocess.run
    command = ["git", "rev-parse", "HEAD"]
    try:
        completed = run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout.strip() or None
