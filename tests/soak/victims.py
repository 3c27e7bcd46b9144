"""Kill runs with SIGKILL and resume them, each in its own process.

python tests/soak/victims.py FOLDER RECIPE BACKEND AHEAD KILLS SEED

Prints one JSON line per kill. Imports once and forks: a killed run does not pay for imports.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import letters
from tests.support.killed_runs import (
    MODELS,
    KillAfterStage,
    KillDuringWrite,
    RunToKill,
    in_child,
    outcome,
)

WHOLE = "whole"  # folder of the run that is never killed


def main(run: RunToKill, kills: int, seed: int) -> int:
    """Kill and resume a run `kills` times; return the exit code."""
    counts = run_once(run)
    if counts is None:
        return 1
    expected = outcome(run.folder / WHOLE)
    rng = random.Random(seed)
    for number in range(kills):
        row = kill_and_resume(run, number, counts, expected, rng)
        print(json.dumps(row), flush=True)
        if not row["same"] or row["status"] != -signal.SIGKILL:
            return 1
    return 0


def run_once(run: RunToKill) -> tuple[int, int] | None:
    """Run once without kills, in the folder WHOLE, after creating the models that it needs.

    Returns the number of stage calls and of writes, None if the run fails.
    """
    if run.backend == "peft":
        create_models(run.folder)
    return count_kill_points(run, run.folder / WHOLE)


def create_models(folder: Path) -> None:
    """Write the tiny models that are missing, and import torch once, before any fork."""
    import torch  # noqa: F401

    import adapters.peft.session  # noqa: F401
    from tests.support.tiny_model import tiny_model

    for seed, name in enumerate(MODELS):
        if not (folder / name).exists():
            in_child(partial(tiny_model, folder / name, seed=seed))


def count_kill_points(run: RunToKill, whole: Path) -> tuple[int, int] | None:
    """Run once without kills; return the number of stage calls and of writes, None if it fails."""
    counts = run.folder / "counts.json"

    def count() -> None:
        killer = KillAfterStage()
        blobs = KillDuringWrite(str(whole))
        run.execute(killer, blobs)
        counts.write_text(json.dumps([killer.count, blobs.count]))

    if in_child(count):
        return None
    calls, writes = json.loads(counts.read_text())
    return calls, writes


def kill_and_resume(
    run: RunToKill, number: int, counts: tuple[int, int], expected: Any, rng: random.Random
) -> dict[str, Any]:
    """Kill a run at a random point and resume it; every third kill is inside a write."""
    calls, writes = counts
    root = run.folder / "killed"
    shutil.rmtree(root, ignore_errors=True)
    inside_write = number % 3 == 0
    at = rng.randint(1, writes if inside_write else calls)
    seconds = rng.random() * 2e-3  # from the start of the write to the kill
    blobs = KillDuringWrite(str(root), at if inside_write else -1, seconds)
    killer = KillAfterStage(-1 if inside_write else at)
    status = in_child(lambda: run.execute(killer, blobs))
    resumed = in_child(lambda: run.execute(KillAfterStage(), KillDuringWrite(str(root))))
    return {
        "kill": number,
        "at": at,
        "inside_write": inside_write,
        "status": status,
        "same": resumed == 0 and outcome(root) == expected,
    }


if __name__ == "__main__":
    folder, recipe, backend, ahead, kills, seed = sys.argv[1:]
    with letters.registered():
        code = main(RunToKill(Path(folder), recipe, backend, int(ahead)), int(kills), int(seed))
    sys.exit(code)
