"""Peak memory of runs of recipes.sl_basic in processes of their own, and data sets of any size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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


def jsonl_rows(count: int) -> str:
    """Return the text of a JSONL file with `count` rows of one prompt and one completion."""
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


def peak_memory(folder: Path, *arguments: str, **environment: str) -> float:
    """Return the peak memory, in MB, of a run of 20 steps in a separate process."""
    process = subprocess.run(
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
    word, megabytes, _, code = process.stdout.splitlines()[-1].split()
    assert (word, code) == ("peak", "0"), process.stdout + process.stderr
    return float(megabytes)
