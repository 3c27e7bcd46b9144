"""A program whose tracked runs a test kills or compares: `tracked_victim.py TRACKER ACTION`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import kitchen
from adapters.local.blobs import LocalBlobs
from kitchen.runs.tracking import read_memory
from tests.support.polling import wait_until
from tests.support.tracked_points import stored_points, tracker_settings

STEPS, SAVED, KILLED = 50, 30, 37
SETTINGS = {
    "max_steps": STEPS,
    "save_every": 10,
    "eval_every": 10,
    "reading.held_out_rows": 8,
    "evaluation.max_tokens": 4,
}


class Killer(kitchen.Observer):
    """Kills the process after the save point, once the tracker has rows from beyond it."""

    def __init__(self, tracker: str, folder: Path) -> None:
        self._tracker = tracker
        self._folder = folder

    def stage_done(self, event: kitchen.StageDone) -> None:
        if event.progress.step == KILLED:
            wait_until(lambda: len(self._stored()) > SAVED + 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def _stored(self) -> list[tuple[int, float]]:
        key = read_memory(LocalBlobs("runs"), "r", self._tracker)["key"]
        return stored_points(self._tracker, self._folder, "r", key, "loss")


def start(tracker: str, run: str, *observers: kitchen.Observer) -> kitchen.Run:
    settings = tracker_settings(Path.cwd())[tracker]
    text = ",".join(f"{name}={value}" for name, value in settings.items())
    return kitchen.submit(
        "recipes.sl_basic",
        settings=SETTINGS,
        training="fake",
        name=run,
        observe=[f"{tracker}:{text}"],
        observers=observers,
    )


def main(tracker: str, action: str) -> None:
    if action == "kill":
        start(tracker, "r", Killer(tracker, Path.cwd())).finish()
    else:
        for run in [start(tracker, name) for name in ("a", "b")]:
            run.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
