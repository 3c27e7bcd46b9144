"""Kill runs with SIGKILL and resume them, each in its own process.

python tests/soak/victims.py FOLDER RECIPE BACKEND AHEAD KILLS SEED

Prints one JSON line per kill. Imports once and forks, so that a killed run does not pay for imports.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
from pathlib import Path

from tests.support import letters
from tests.support.killed_runs import (
    MODELS,
    KillAfterStage,
    KillDuringWrite,
    RunToKill,
    in_child,
    outcome,
)


def main(victim: RunToKill, kills: int, seed: int) -> int:
    folder = victim.folder
    letters.use()
    if victim.backend == "peft":
        import torch  # noqa: F401 once, before any fork

        import adapters.peft.session  # noqa: F401
        from tests.support.tiny_model import tiny_model

        for at, name in enumerate(MODELS):
            if not (folder / name).exists():
                in_child(lambda name=name, at=at: tiny_model(folder / name, seed=at))
    whole, counts = folder / "whole", folder / "counts.json"

    def count() -> None:
        killer, blobs = KillAfterStage(), KillDuringWrite(str(whole))
        victim.execute(killer, blobs)
        counts.write_text(json.dumps([killer.count, blobs.count]))

    if in_child(count):
        return 1
    (calls, writes), wanted, dice = (
        json.loads(counts.read_text()),
        outcome(whole),
        random.Random(seed),
    )
    for number in range(kills):
        root, inside = folder / "killed", number % 3 == 0
        shutil.rmtree(root, ignore_errors=True)
        at = dice.randint(1, writes if inside else calls)
        blobs = KillDuringWrite(str(root), at if inside else -1, dice.random() * 2e-3)
        killer = KillAfterStage(-1 if inside else at)
        status = in_child(lambda k=killer, b=blobs: victim.execute(k, b))
        again = in_child(lambda r=root: victim.execute(KillAfterStage(), KillDuringWrite(str(r))))
        same = again == 0 and outcome(root) == wanted
        row = {"kill": number, "at": at, "inside_write": inside, "status": status, "same": same}
        print(json.dumps(row), flush=True)
        if not same or status != -signal.SIGKILL:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(
        main(
            RunToKill(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])),
            *map(int, sys.argv[5:7]),
        )
    )
