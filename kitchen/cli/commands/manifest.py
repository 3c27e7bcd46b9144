"""The metadata of a run of `thinker`: what ran on which data, and how it ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kitchen.cli.commands.json_output import as_json
from kitchen.config.pipeline import PipelineOptions, PipelineRun
from kitchen.engine.observers import Observer
from kitchen.errors import ConfigError, DataError, SuiteFailed
from kitchen.ports import BlobStore
from kitchen.runs.store import list_runs, read_run
from kitchen.safe_text import read_json

MANIFEST = "manifest.json"  # in the run's folder
_PROBLEMS = "validation.jsonl"
_REQUEST = ("arguments", "arguments_sha256", "backend", "files", "checkpoint_dir", "output")
_OF_MONITOR = "monitor/"  # metrics of weights in training
_OF_VALIDATION = ("tests_passed", "tests_skipped", "rows_validated")


class ManifestWriter(Observer):
    """Writes the manifest after every step of the recipe, and when the run ends or fails."""

    def __init__(self, blobs: BlobStore, request: Mapping[str, Any]) -> None:
        self._blobs = blobs
        self._run = ""
        self._request = request

    def run_started(self, run: str, step: object) -> None:
        self._run = run

    def phase_done(self) -> None:
        self._write()

    def run_ended(self, error: BaseException | None) -> None:
        self._write()

    def _write(self) -> None:
        if self._run:
            content = as_json(build_manifest(self._blobs, self._run, self._request))
            self._blobs.write(f"{self._run}/{MANIFEST}", f"{content}\n".encode())


def request_of(command: str, prepared: PipelineRun, options: PipelineOptions) -> dict[str, Any]:
    """Return how a run is requested, as its manifest shows it."""
    arguments = {"command": command, **asdict(options)}
    return {
        "arguments": arguments,
        "arguments_sha256": _digest(arguments),
        "backend": prepared.backend,
        "files": {name: _file(path) for name, path in prepared.files.items()},
        "checkpoint_dir": _text(prepared.paths.get("output.checkpoint_dir")),
        "output": _text(prepared.paths.get("evaluation.output_path")),
    }


def manifest_of_resumed(blobs: BlobStore, run: str) -> Sequence[Observer]:
    """Return the writer of the manifest of a run to resume; none for one without a manifest.

    Raises DataError if the manifest is damaged.
    """
    request = _recorded_request(blobs, run)
    return [] if request is None else [ManifestWriter(blobs, request)]


def _recorded_request(blobs: BlobStore, run: str) -> dict[str, Any] | None:
    """Return how a run was requested, from its manifest; None without one."""
    name = f"{run}/{MANIFEST}"
    data = blobs.read(name)
    if data is None:
        return None
    try:
        manifest = read_json(data)
        _ = manifest["files"]["pipeline"]["path"]
        return {key: manifest[key] for key in _REQUEST}
    except (ValueError, KeyError, TypeError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{blobs.locate(name)} is damaged ({why}); restore it from a copy, or delete it to "
            "resume the run without a manifest"
        ) from error


def build_manifest(blobs: BlobStore, run: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a run from its record and from how it was requested."""
    record = read_run(blobs, run)
    attempts, metrics, facts = record["attempts"], record["metrics"], record["facts"]
    ended = record["status"] != "running"
    trained = {name: value for name, value in metrics.items() if _is_of_training(name)}
    evaluated = {name: value for name, value in metrics.items() if _is_of_evaluation(name)}
    return {
        "run": run,
        "timestamp": attempts[0]["started"],
        "seconds": sum(attempt["seconds"] for attempt in attempts),
        "status": record["status"],
        "exit_status": record.get("exit_code") if ended else None,
        "reason": record.get("reason", ""),
        "config": request["files"]["pipeline"]["path"],
        **request,
        "git_commit": attempts[-1].get("git_commit"),
        "configuration_sha256": record.get("configuration_sha256"),
        "settings_sha256": _digest(record["order"]["settings"]),
        "data": {name: value for name, value in facts.items() if name.endswith(".sha256")},
        "validation": _validation(blobs, run, record),
        "training": {
            "backend": request["backend"],
            "config": request["files"].get("lora", {}).get("path"),
            "checkpoint_dir": request["checkpoint_dir"],
            "metrics": trained,
        },
        "evaluation": {"metrics": evaluated, "output": request["output"]},
    }


def _is_of_training(metric: str) -> bool:
    if metric.startswith(_OF_MONITOR):
        return True
    return "/" not in metric and metric not in _OF_VALIDATION


def _is_of_evaluation(metric: str) -> bool:
    return "/" in metric and not metric.startswith(("data/", _OF_MONITOR))


def _validation(blobs: BlobStore, run: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the tests ended, and how many problems the data has."""
    metrics = record["metrics"]
    if record["facts"].get("validation") == "skipped":
        return {"pytest": "skipped", "dataset_errors": None}
    return {
        "pytest": _suite_status(record),
        "tests_passed": metrics.get("tests_passed"),
        "dataset_errors": _dataset_errors(blobs, run, record),
        "rows": metrics.get("rows_validated"),
    }


def _suite_status(record: Mapping[str, Any]) -> str:
    """Return none, not run, passed, failed, interrupted, or error if pytest could not run."""
    if record["order"]["settings"].get("gate", {}).get("tests") is None:
        return "none"
    if "tests_passed" in record["metrics"]:
        return "passed"
    if not _ended_in(record, "RunTestSuite"):
        return "not run"
    if record["status"] == "interrupted":
        return "interrupted"
    return "failed" if record["exit_code"] == SuiteFailed.exit_code else "error"


def _dataset_errors(blobs: BlobStore, run: str, record: Mapping[str, Any]) -> int | None:
    """Return the number of problems of the data; None if it was not validated to the end.

    The file of problems may be large, and is read only after a validation that found some.
    """
    if "rows_validated" in record["metrics"]:
        return 0
    if record["status"] == "interrupted" or not _ended_in(record, "ValidateData"):
        return None
    problems = blobs.read(f"{run}/{_PROBLEMS}")
    return None if problems is None else problems.count(b"\n")


def _ended_in(record: Mapping[str, Any], stage: str) -> bool:
    """Return whether a run has ended in this stage without completing it."""
    return record["status"] != "running" and stage in " ".join(record.get("where", ()))


def read_manifest(blobs: BlobStore, run: str) -> dict[str, Any]:
    """Return the manifest of a run as its record is now, such as after `kitchen resume`.

    Raises ConfigError for a run that `thinker` did not start, and DataError for a damaged manifest.
    """
    record = read_run(blobs, run)
    request = _recorded_request(blobs, run)
    if request is None:
        raise ConfigError(
            f"the run {run!r} of {record['recipe']} has no {MANIFEST}: `thinker` did not start it"
        )
    return build_manifest(blobs, run, request)


def newest_manifest(blobs: BlobStore) -> str:
    """Return the newest run of `thinker`; raises ConfigError if there is none."""
    for run in sorted(list_runs(blobs), key=lambda run: run.started, reverse=True):
        if blobs.read(f"{run.id}/{MANIFEST}") is not None:
            return run.id
    where = blobs.locate("x").removesuffix("/x")
    raise ConfigError(f"there is no run of `thinker` in {where}; run `thinker run` first")


def _file(path: Path) -> dict[str, str]:
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
