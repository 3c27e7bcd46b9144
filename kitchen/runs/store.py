"""Runs in a blob store: their names, orders, summaries and journals."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.config.order import Order
from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports.blobs import BlobStore, BrowsableBlobs, sha256
from kitchen.runs.jsonl import read_lines, with_nan, without_nan
from kitchen.runs.lock import in_use
from kitchen.safe_text import read_json

# the beginning of run.json: the digest of what follows, and the summary for lists of runs
_DIGEST = re.compile(rb'\{\n  "sha256": "([^"\n]*)",')
_SUMMARY = re.compile(rb'\n  "summary": (\{[^\n]*\}),\n')
# names of runs, and of whatever else is named like them
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# types of the values in run.json
_RECORD_TYPES: Mapping[str, Any] = {
    "run": str,
    "recipe": str,
    "order": dict,
    "attempts": list,
    "facts": dict,
    "status": str,
    "rendering": dict,
    "metrics": dict,
}
_OPTIONAL_TYPES: Mapping[str, Any] = {
    "journals": dict,
    "code": dict,
    "reason": str,
    "where": list,
    "loops": dict,
    "at": dict,
    "trackers": dict,
}
_ORDER_TYPES: Mapping[str, Any] = {
    "recipe": str,
    "settings": dict,
    "sources": dict,
    "adapters": dict,
    "adapter_settings": dict,
    "adapter_sources": dict,
    "objects": list,
    "observers": dict,
}
_ATTEMPT_TYPES: Mapping[str, Any] = {"started": str, "seconds": (int, float)}
_CHECKPOINT_TYPES = {"path": str, "step": int, "kind": str, "sha256": str, "role": str, "at": str}
# keys of rows of journals, which commands read
_ROW_TYPES: Mapping[str, Mapping[str, Any]] = {
    "checkpoints": {**_CHECKPOINT_TYPES, "final": bool},
    "tables": {"title": str, "columns": list, "rows": list},
}


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run, as `kitchen runs` lists it."""

    id: str
    recipe: str
    status: str  # running, completed, failed, interrupted, killed or unreadable
    started: str  # ISO 8601, UTC
    seconds: float  # over all attempts
    metrics: Mapping[str, float]  # the last value of each
    reason: str = ""  # why it failed


def new_run_id(recipe: str) -> str:
    """Return a new name such as `sl_basic-20261121-055301-3f2a` for `recipes.sl_basic:SlBasic`."""
    stem = recipe.split(":")[0].rsplit(".", 1)[-1]
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def check_new_run_name(blobs: BlobStore, run: str, *, held: bool = False) -> None:
    """Raise ConfigError for a name that a new run cannot have or that another run has.

    The name of a run that failed before its first save point is free. `held`: this process has the
    lease on the run.
    """
    # weights are named by their run, as run:NAME@STEP
    if not NAME_PATTERN.fullmatch(run):
        raise ConfigError(
            f"{run!r} cannot be the name of a run: it may have letters, digits, '.', '_' and '-', "
            "and starts with a letter or digit"
        )
    if blobs.read(f"{run}/run.json") is None:
        _check_folder_unused(blobs, run)
        return
    if not _failed_before_first_save(blobs, run) or (not held and in_use(blobs, run)):
        raise ConfigError(f"there is a run {run!r} already; resume it, or choose another name")


def _check_folder_unused(blobs: BlobStore, run: str) -> None:
    """Raise ConfigError if there are blobs where a run would be, which it could overwrite."""
    others = [name for name in blobs.list(f"{run}/") if not name.startswith(f"{run}/lease/")]
    if others:
        raise ConfigError(
            f"{run!r} cannot be the name of a new run: {blobs.locate(others[0])} is there, but no "
            "record of a run (run.json); choose another name, or move the folder away"
        )


def discard_failed_run(blobs: BlobStore, run: str) -> None:
    """Delete the run that failed under a name that `check_new_run_name` found free."""
    record = f"{run}/run.json"
    names = [name for name in blobs.list(f"{run}/") if not name.startswith(f"{run}/lease/")]
    # the record last, because the rest is only deleted where a record is
    for name in sorted(names, key=lambda name: name == record):
        blobs.delete(name)


def _failed_before_first_save(blobs: BlobStore, run: str) -> bool:
    """Return whether a run failed before it saved anything to resume from, such as in its data."""
    has_progress = any(
        name.startswith((f"{run}/memo/", f"{run}/weights/"))
        or (name.startswith(f"{run}/save/") and name.endswith(".json"))
        for name in blobs.list(f"{run}/")
    )
    return not has_progress and read_run(blobs, run)["status"] == "failed"


def run_exists(blobs: BlobStore, name: str) -> bool:
    """Return whether there is a run of this name, which need not be a valid name."""
    return bool(NAME_PATTERN.fullmatch(name)) and blobs.read(f"{name}/run.json") is not None


def run_names(blobs: BlobStore) -> Sequence[str]:
    """Return the names of all runs in the store, sorted."""
    return [name for name in top_folders(blobs) if blobs.read(f"{name}/run.json") is not None]


def read_run(blobs: BlobStore, run: str) -> dict[str, Any]:
    """Read run.json; raises ConfigError for a run that does not exist or cannot be read."""
    name = f"{run}/run.json"
    data = blobs.read(name)
    if data is None:
        near = did_you_mean(run, run_names(blobs))
        if blobs.read(f"{run}/sweep.json") is not None:
            near = f"it is a sweep, whose runs `kitchen sweep show {run}` lists"
        raise ConfigError(f"there is no run {run!r}; {near}")
    return _parse_record(blobs, run, data)


def write_run(blobs: BlobStore, run: str, record: Mapping[str, Any]) -> None:
    """Write run.json, with the SHA-256 of what follows in its first line, and then its summary."""
    record = without_nan(record)
    summary = json.dumps({"run": run, **_summarised(record)}, default=str, allow_nan=False)
    rest = json.dumps(record, indent=2, default=str, allow_nan=False)[1:]
    body = f'\n  "summary": {summary},{rest}'
    blobs.write(f"{run}/run.json", f'{{\n  "sha256": "{sha256(body)}",{body}'.encode())


def _parse_record(blobs: BlobStore, run: str, data: bytes) -> dict[str, Any]:
    name = f"{run}/run.json"
    digest = _DIGEST.match(data)
    if digest and hashlib.sha256(data[digest.end() :]).hexdigest().encode() != digest[1]:
        raise ConfigError(
            f"{blobs.locate(name)} is damaged: its SHA-256 differs; restore it from a copy, or, if "
            "you edited it, delete the line of its 'sha256'"
        )
    try:
        record = read_json(data)
    except ValueError as error:
        raise ConfigError(
            f"{blobs.locate(name)} is not JSON ({error}); restore it from a copy"
        ) from error
    if wrong := _wrong_key(record):
        raise ConfigError(
            f"{blobs.locate(name)} has no {wrong!r} of the right type: it is not the record of a "
            "run, or it was edited, or an earlier version of crucible-kitchen wrote it"
        )
    if record["run"] != run:
        raise ConfigError(
            f"{blobs.locate(name)} is the record of run {record['run']!r}, whose folder was copied "
            "or renamed: its weights and save points are named by the run, so give the folder that "
            "name again"
        )
    for key in ("sha256", "summary"):
        record.pop(key, None)
    return dict(record)


def _wrong_key(record: Any) -> str:
    """Return the first key of a record that is missing or whose value has a wrong type; or ""."""
    if not isinstance(record, dict):
        return "run"
    optional = {key: kind for key, kind in _OPTIONAL_TYPES.items() if key in record}
    if wrong := _first_mismatch(record, {**_RECORD_TYPES, **optional}):
        return wrong
    # records of older versions have neither
    order = {"adapter_sources": {}, "observers": {}, **record["order"]}
    if wrong := _first_mismatch(order, _ORDER_TYPES):
        return f"order.{wrong}"
    kinds = {"sources": str, "adapters": str, "adapter_settings": dict, "adapter_sources": str}
    kinds |= {"observers": dict}
    for key, kind in kinds.items():
        values = order[key]
        if wrong := _first_mismatch(values, dict.fromkeys(values, kind)):
            return f"order.{key}.{wrong}"
    for port in (*order["adapter_settings"], *map(str, order["objects"])):
        if port not in order["adapters"]:
            return f"order.adapters.{port}"
    for attempt in record["attempts"]:
        if not isinstance(attempt, dict) or _first_mismatch(attempt, _ATTEMPT_TYPES):
            return "attempts"
    return ""


def _first_mismatch(values: Mapping[str, Any], types: Mapping[str, Any]) -> str:
    return next((key for key, kind in types.items() if not isinstance(values.get(key), kind)), "")


def read_order(blobs: BlobStore, run: str) -> Order:
    """Read what is needed to run a run again; raises ConfigError if that cannot be read."""
    try:
        return Order(**read_run(blobs, run)["order"])
    except TypeError as error:
        path = blobs.locate(f"{run}/run.json")
        raise ConfigError(
            f"{path}: its 'order' cannot be read ({error}); another version of crucible-kitchen "
            "wrote it, or it was edited"
        ) from error


def read_journal(blobs: BlobStore, run: str, name: str) -> Sequence[dict[str, Any]]:
    """Read the rows of `metrics`, `tables`, `samples`, `checkpoints` or `log`.

    Raises ConfigError for a file that is not JSON lines.
    """
    return parse_journal(blobs, run, name, read_lines(blobs, f"{run}/{name}.jsonl"))


def parse_journal(
    blobs: BlobStore, run: str, name: str, lines: Sequence[bytes]
) -> Sequence[dict[str, Any]]:
    """Return the rows of a journal whose lines were read already, as `read_journal` does."""
    file = f"{run}/{name}.jsonl"
    try:
        rows = [_parse_row(name, line) for line in lines]
    except ValueError as error:
        raise ConfigError(
            f"{blobs.locate(file)} has a damaged line ({error}); restore it from a copy, or delete "
            "that line"
        ) from error
    if name == "metrics":
        rows = list(map(with_nan, rows))
    # of checkpoints that were saved again under the same path, the last row counts
    return list({row["path"]: row for row in rows}.values()) if name == "checkpoints" else rows


def _parse_row(journal: str, line: bytes) -> dict[str, Any]:
    """Return a row of a journal; raises ValueError if it is damaged."""
    row = read_json(line)
    if not isinstance(row, dict):
        raise ValueError(f"{line[:50]!r} is not a JSON object")
    for key, kind in _ROW_TYPES.get(journal, {}).items():
        if not isinstance(row.get(key), kind):
            raise ValueError(f"{key!r} is missing or of a wrong type in {line[:50]!r}")
    return row


def run_summary(blobs: BlobStore, run: str) -> RunSummary:
    """Summarise a run; one that is recorded as running, but that no process uses, was killed."""
    return _summary(blobs, run, read_run(blobs, run))


def _summary(blobs: BlobStore, run: str, record: Mapping[str, Any]) -> RunSummary:
    return _completed_summary(blobs, run, _summarised(record))


def _summarised(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a record that lists of runs show."""
    attempts = record["attempts"]
    return {
        "recipe": record["recipe"],
        "status": record["status"],
        "started": attempts[0]["started"] if attempts else "",
        "seconds": sum(attempt.get("seconds", 0.0) for attempt in attempts),
        "metrics": record["metrics"],
        "reason": record.get("reason", ""),
    }


def _completed_summary(blobs: BlobStore, run: str, stored: Mapping[str, Any]) -> RunSummary:
    """Return a stored summary with what is only known now: whether a process uses the run."""
    is_killed = stored["status"] == "running" and not in_use(blobs, run)
    changed = {"status": "killed"} if is_killed else {}
    return RunSummary(run, **{**stored, **changed, "metrics": with_nan(stored["metrics"])})


def list_runs(blobs: BlobStore) -> Sequence[RunSummary]:
    """Summarise all runs; one that cannot be read has the status "unreadable" and the reason."""
    records = ((run, blobs.read(f"{run}/run.json")) for run in top_folders(blobs))
    return [_summary_or_reason(blobs, run, data) for run, data in records if data is not None]


def _summary_or_reason(blobs: BlobStore, run: str, data: bytes) -> RunSummary:
    try:
        stored = _stored_summary(run, data)
        if stored is not None:
            return _completed_summary(blobs, run, stored)
        return _summary(blobs, run, _parse_record(blobs, run, data))
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        return RunSummary(run, "", "unreadable", "", 0.0, {}, str(error))


def _stored_summary(run: str, data: bytes) -> dict[str, Any] | None:
    """Return the summary that a record begins with; None if it has none, or it is not intact.

    Reading the whole record of each of many runs would take several times as long.
    """
    digest = _DIGEST.match(data)
    summary = digest and _SUMMARY.match(data, digest.end())
    if not digest or not summary:
        return None
    if hashlib.sha256(data[digest.end() :]).hexdigest().encode() != digest[1]:
        return None
    stored = read_json(summary[1])
    return stored if stored.pop("run") == run else None


def top_folders(blobs: BlobStore) -> Sequence[str]:
    """Return the topmost folders of any store; one that cannot browse lists all of its names."""
    if isinstance(blobs, BrowsableBlobs):
        return blobs.folders()
    return sorted({name.partition("/")[0] for name in blobs.list() if "/" in name})
