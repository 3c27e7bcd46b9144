"""Twenty steps on a million rows take hardly more memory than on ten thousand, from files and from
the hub.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hub_server import HubServer

ROOM = 50.0  # MB
PROGRAM = """
import re, sys
from pathlib import Path
from kitchen.cli import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    # ru_maxrss would not do: a process inherits that of the one that started it
    status = Path("/proc/self/status").read_text()
    print("peak", int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 1024, "code", end.code)
"""

pytestmark = pytest.mark.slow


def lines(count: int) -> str:
    return "".join(
        json.dumps(
            {
                "prompt": f"What is {number} plus {number % 1000}? Think of it.",
                "completion": f"The answer is {number + number % 1000}, of course.",
            }
        )
        + "\n"
        for number in range(count)
    )


def peak(folder: Path, *arguments: str, **environment: str) -> float:
    """Return the peak memory, in MB, of a run of 20 steps in a separate process."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            "run",
            "recipes.sl_basic",
            "--training",
            "fake",
            "max_steps=20",
            "evaluation.metric=loss",
            "--json",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    word, megabytes, _, code = done.stdout.splitlines()[-1].split()
    assert (word, code) == ("peak", "0"), done.stdout + done.stderr
    return float(megabytes)


def test_from_files(tmp_path: Path) -> None:
    peaks = {}
    for count in (10_000, 1_000_000):
        (tmp_path / "rows.jsonl").write_text(lines(count))
        peaks[count] = peak(tmp_path, "dataset=rows.jsonl")
    print("peak by rows, MB:", peaks)
    assert peaks[1_000_000] - peaks[10_000] < ROOM


def test_from_the_hub(tmp_path: Path) -> None:
    server = HubServer()
    try:
        peaks = {}
        for count in (10_000, 1_000_000):
            server.repository(f"soup/rows-{count}", kind="dataset").commit(
                {"train.jsonl": lines(count)}
            )
            home = {
                "HF_ENDPOINT": server.url,
                "HF_HOME": str(tmp_path / "hf"),
                "HF_HUB_DISABLE_XET": "1",
            }
            peaks[count] = peak(tmp_path, "--datasets", "hf", f"dataset=soup/rows-{count}", **home)
        print("peak by rows, MB:", peaks)
        assert peaks[1_000_000] - peaks[10_000] < ROOM
    finally:
        server.unplug()
