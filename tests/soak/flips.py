"""Flip bits in the files of interrupted runs, and resume the runs, each in its own process.

python tests/soak/flips.py FOLDER RECIPE BACKEND AHEAD FLIPS SEED

Prints one JSON line per flip. Its `outcome` is "same" if the resumed run equals a run that was
never interrupted, "refused" if it was not resumed, with our own error as the reason, "detected" if
the damaged file is one that a resume does not read, and whose weights are refused afterwards.
Anything else is "wrong".
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchen.errors import CorruptCheckpoint, KitchenError
from kitchen.types import Checkpoint
from tests.soak.victims import WHOLE, run_once
from tests.support import letters
from tests.support.killed_runs import KillAfterStage, KillDuringWrite, RunToKill, in_child, outcome

_REFUSED = 3  # exit status of a child whose run was refused
_FLIPS_PER_KILL = 20


@dataclass(frozen=True)
class Flip:
    """One bit of a file of a run, by its path below the folder of runs."""

    file: Path
    bit: int
    before: bytes

    @property
    def after(self) -> bytes:
        data = bytearray(self.before)
        data[self.bit // 8] ^= 1 << self.bit % 8
        return bytes(data)


def main(run: RunToKill, flips: int, seed: int) -> int:
    """Flip `flips` bits, each in a fresh copy of an interrupted run; return the exit code."""
    counts = run_once(run)
    if counts is None:
        return 1
    expected = results(run.folder / WHOLE)
    rng = random.Random(seed)
    killed = run.folder / "killed"
    wrong = 0
    for number in range(flips):
        if number % _FLIPS_PER_KILL == 0:
            kill(run, killed, rng.randint(1, counts[0]))
        flip = random_flip(killed, rng)
        row = {"flip": number, "file": str(flip.file), "bit": flip.bit}
        row |= resume_with(flip, run, killed, expected)
        wrong += row["outcome"] == "wrong"
        print(json.dumps(row), flush=True)
    return int(wrong > 0)


def kill(run: RunToKill, root: Path, at: int) -> None:
    """Run from the start in an empty folder, and kill the process after this many stage calls."""
    shutil.rmtree(root, ignore_errors=True)
    in_child(lambda: run.execute(KillAfterStage(at), KillDuringWrite(str(root))))


def random_flip(root: Path, rng: random.Random) -> Flip:
    """Choose a file first, so that the small ones are damaged as often as the weights."""
    files = sorted(file for file in root.rglob("*") if file.is_file() and file.stat().st_size)
    file = rng.choice(files)
    before = file.read_bytes()
    return Flip(file.relative_to(root), rng.randrange(8 * len(before)), before)


def resume_with(flip: Flip, run: RunToKill, killed: Path, expected: Any) -> dict[str, str]:
    """Resume a copy of an interrupted run with one bit flipped; return what became of it."""
    root = run.folder / "flipped"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(killed, root)
    file = root / flip.file
    file.write_bytes(flip.after)
    reason = run.folder / "reason"
    reason.write_text("")
    status = in_child(lambda: resume(run, root, reason))
    if status == _REFUSED:
        return {"outcome": "refused", "reason": reason.read_text()}
    if status != 0:
        return {"outcome": "wrong", "reason": f"exit status {status}"}
    if results(root) == expected:
        return {"outcome": "same"}
    if is_refused_later(run, root):
        file.write_bytes(flip.before)
        if results(root) == expected:
            return {"outcome": "detected"}
    return {"outcome": "wrong", "reason": "completed with other results"}


def resume(run: RunToKill, root: Path, reason: Path) -> None:
    """Resume a run in this process, which ends here if our own error refuses it."""
    try:
        run.execute(KillAfterStage(), KillDuringWrite(str(root)))
    except KitchenError as error:
        reason.write_text(f"{type(error).__name__}: {error}")
        os._exit(_REFUSED)


def is_refused_later(run: RunToKill, root: Path) -> bool:
    """Return whether a checkpoint of a completed run is refused as damaged."""
    load = _read_fake if run.backend == "fake" else _read_peft
    journal = (root / "run/checkpoints.jsonl").read_text().splitlines()
    for row in map(json.loads, journal):
        checkpoint = Checkpoint(row["path"], row["step"], row["kind"], row["sha256"])
        try:
            load(root, checkpoint)
        except CorruptCheckpoint:
            if (root / row["path"]).is_dir():  # it was not deleted by the run itself
                return True
    return False


def _read_fake(root: Path, checkpoint: Checkpoint) -> None:
    from adapters.fake.checkpoints import load_arrays

    load_arrays(KillDuringWrite(str(root)), checkpoint, "weights.npz")


def _read_peft(root: Path, checkpoint: Checkpoint) -> None:
    from adapters.peft.checkpoints import read_checkpoint

    read_checkpoint(KillDuringWrite(str(root)), checkpoint)


def results(root: Path) -> dict[str, Any]:
    """Return the outcome of a run, with its tables.

    A resume does not read the save point before the newest one that is intact, so it stays damaged
    if the run ends before it would be deleted.
    """
    tables = root / "run/tables.jsonl"
    rows = tables.read_text().splitlines() if tables.exists() else []
    return {**outcome(root, newest_save_point=True), "tables": list(map(json.loads, rows))}


if __name__ == "__main__":
    folder, recipe, backend, ahead, flips, seed = sys.argv[1:]
    with letters.registered():
        code = main(RunToKill(Path(folder), recipe, backend, int(ahead)), int(flips), int(seed))
    sys.exit(code)
