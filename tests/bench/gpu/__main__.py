"""GPU benchmarks within a time limit: `python -m tests.bench.gpu [ROW...]`.

Each row runs in a separate process with its own time limit, and appends a JSON line to the
result file. Rows that were measured at the same commit on the same device are skipped.

Environment variables: KITCHEN_GPU_SECONDS, the time of all rows; KITCHEN_GPU_DRY=1, tiny models on
the CPU; KITCHEN_GPU_COMMIT, the commit of a copy without its git repository; KITCHEN_GPU_RESULTS,
the result file; OUT, a folder that also gets the results, with profiles and logs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import disk_usage
from time import monotonic
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from tests.bench import machine
from tests.bench.gpu.packages import ROOT
from tests.bench.gpu.row import MODELS
from tests.bench.gpu.rows import ROWS
from tests.bench.random_model import SIZES

Process: TypeAlias = "subprocess.Popen[bytes]"
RESULTS = "docs/appendix/gpu.jsonl"
SHARED_MEMORY = Path("/dev/shm")  # fast, and large enough for 8B where there is a GPU
NEEDED = 24 * 2**30  # bytes for both models and their start weights
DRY_SLOWER = 8  # the limits of a dry run, on CPU cores that may be busy
WITHOUT_MODELS = {"checks", "probes"}
LOG_LINES = 40  # of a row that was stopped: its steps so far
SOUND = {True: "yes", False: "NO", None: ""}  # whether the sides computed the same
MODELS_LIMIT = 120  # seconds after the tests
PACKAGES = ("triton", "datasets", "liger-kernel", "bitsandbytes")


def main() -> int:
    """Return 0, or 1 if a row failed."""
    names = _parse_arguments()
    deadline = monotonic() + float(os.environ.get("KITCHEN_GPU_SECONDS", "510"))
    dry = os.environ.get("KITCHEN_GPU_DRY") == "1"
    results = Path(os.environ.get("KITCHEN_GPU_RESULTS", "" if dry else ROOT / RESULTS))
    facts = _facts("cpu" if dry else "cuda")
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="kitchen-gpu-", dir=_models_folder())
        folder = stack.enter_context(temporary)
        out = Path(os.environ.get("OUT") or folder)
        out.mkdir(parents=True, exist_ok=True)
        files = [path for path in (results, out / "gpu.jsonl") if path.name]
        records = finished_rows(files, facts)
        due = [name for name in names if name not in records]
        models = _start_models(due, Path(folder), out)
        stack.callback(_end_if_running, models)
        for name in due:
            if models and name != "checks":
                print(f"models: {wait(models, _limit(MODELS_LIMIT, deadline))}", flush=True)
                _keep_log(models_of(due), Path(folder), out)
                models = None
            records[name] = {
                "row": name,
                **facts,
                **run_row(name, Path(folder), out, deadline),
            }
            _append(files, records[name])
    _print(Console(width=150), [records[name] for name in names])
    return int(any("error" in records[name] for name in names))


def _start_models(rows: Sequence[str], folder: Path, out: Path) -> Process | None:
    """Start to write the models of the rows, so that the tests run meanwhile."""
    return start(models_of(rows), folder, out) if set(rows) - WITHOUT_MODELS else None


def _end_if_running(process: Process | None) -> None:
    if process and process.poll() is None:
        end(process)


def _parse_arguments() -> Sequence[str]:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: {', '.join(ROWS)}")
    names: list[str] = parser.parse_args().rows
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"unknown row {unknown[0]!r}; choose from {', '.join(ROWS)}")
    return names or list(ROWS)


def _facts(device: str) -> dict[str, str]:
    facts = machine.facts(device)
    versions = [f"{package} {machine.version_of(package)}" for package in PACKAGES]
    kept = {key: facts[key] for key in ("date", "commit", "processor", "system")}
    kept["commit"] = os.environ.get("KITCHEN_GPU_COMMIT") or kept["commit"]
    kept["device"] = facts.get("device", "cpu")
    return {**kept, "versions": ", ".join([facts["versions"], *versions])}


def _models_folder() -> Path | None:
    """Return shared memory if the models fit there, else None for the temporary folder."""
    if SHARED_MEMORY.is_dir() and disk_usage(SHARED_MEMORY).free > NEEDED:
        return SHARED_MEMORY
    return None


def finished_rows(files: Sequence[Path], facts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the rows that were measured at this commit on this device; not those that failed."""
    if facts["commit"] == "none" or facts["commit"].endswith("+"):
        return {}
    lines = [line for path in files if path.is_file() for line in path.read_text().splitlines()]
    finished = dict[str, dict[str, Any]]()
    for record in map(json.loads, lines):
        same = all(record[key] == facts[key] for key in ("commit", "device"))
        if same and "error" not in record:
            finished[record["row"]] = record
    return finished


def models_of(rows: Sequence[str]) -> str:
    """Return the name of the process that writes the models of some rows, in their order."""
    sizes = (name.split("_")[-1] for name in rows if name not in WITHOUT_MODELS)
    found = (size if size in SIZES else "8b" for size in sizes)  # sft_8b_4bit
    return "-".join([MODELS, *dict.fromkeys(found)])


def run_row(name: str, folder: Path, out: Path, deadline: float) -> dict[str, Any]:
    """Run a row's process until its limit or the deadline; return its record."""
    limit = _limit(ROWS[name].limit, deadline)
    if limit < ROWS[name].needed:
        return {"error": f"not started: {max(0.0, limit):.0f} s of all rows' time are left"}
    print(f"{name} (at most {limit:.0f} s)", flush=True)
    started = monotonic()
    problem = wait(start(name, folder, out), limit)
    seconds = round(monotonic() - started, 1)
    log = _keep_log(name, folder, out)
    record = folder / f"{name}.json"
    if record.is_file():
        return {"seconds": seconds, **json.loads(record.read_text())}
    tail = "\n".join(log[-LOG_LINES:])
    return {"seconds": seconds, "error": f"{problem}; the end of its log:\n{tail}"}


def _limit(seconds: float, deadline: float) -> float:
    """Return the seconds of a row: its limit or, if less, what is left until the deadline."""
    slower = DRY_SLOWER if os.environ.get("KITCHEN_GPU_DRY") == "1" else 1
    return min(slower * seconds, deadline - monotonic())


def start(name: str, folder: Path, out: Path) -> Process:
    with (folder / f"{name}.log").open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.bench.gpu.row", name, str(folder), str(out)],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait(process: Process, limit: float) -> str:
    """Wait for a row's process, and end what is left of it; return how it ended."""
    try:
        outcome = f"its process ended with exit code {process.wait(max(0.0, limit))}"
    except subprocess.TimeoutExpired:
        outcome = f"stopped after {limit:.0f} s"
    finally:
        end(process)
    return outcome


def end(process: Process) -> None:
    """End a row's process and those that it started, such as a side that hangs."""
    with suppress(ProcessLookupError):  # none is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _keep_log(name: str, folder: Path, out: Path) -> list[str]:
    """Append the log of a process to rows.log; return its lines."""
    log = (folder / f"{name}.log").read_text(errors="replace")
    with (out / "rows.log").open("a") as file:
        print(f"== {name}\n{log}", file=file)
    return log.splitlines()


def _append(files: Sequence[Path], record: Mapping[str, Any]) -> None:
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            print(json.dumps(record), file=file, flush=True)


def _print(console: Console, records: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="GPU benchmarks", title_justify="left")
    for column in ("row", "s", "kitchen tokens/s", "figures", "sound"):
        table.add_column(column, overflow="fold")
    for record in records:
        kitchen = record.get("sides", {}).get("kitchen", {})
        rate = kitchen.get("tokens_per_second", {}).get("median")
        table.add_row(
            record["row"],
            str(record.get("seconds", "")),
            "" if rate is None else f"{rate:,.0f}",
            _outcome(record),
            SOUND[record.get("sound")],
        )
    console.print(table, markup=False)


def _outcome(record: Mapping[str, Any]) -> str:
    """Return the figures of a row, or why there are none."""
    if "error" in record:
        return f"FAILED: {record['error'].strip().splitlines()[-1][-300:]}"
    if "not_measured" in record:
        return f"not measured: {record['not_measured']}"
    figures = record.get("figures") or record.get("counts") or {}
    return "\n".join(f"{name}: {_number(value)}" for name, value in figures.items())


def _number(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_number(part)}" for name, part in value.items())
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
