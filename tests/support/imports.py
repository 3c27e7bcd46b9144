"""The modules that a program imports, and the heavy packages that light commands do without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# packages that take long to import, or that only an optional dependency installs
HEAVY = frozenset(
    {
        "datasets",
        "fsspec",
        "httpx2",
        "huggingface_hub",
        "math_verify",
        "networkx",
        "pandas",
        "peft",
        "pyarrow",
        "pytest",
        "reasoning_gym",
        "safetensors",
        "scipy",
        "tinker",
        "torch",
        "transformers",
    }
)
PRINT_MODULES = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(list(sys.modules))))
"""


def imported_by(
    program: str, folder: Path | None = None, *, code: int = 0, **environment: str
) -> tuple[str, set[str]]:
    """Run a Python program in a new process, which must end with an exit code.

    Returns its standard output, and the modules that it has imported at its end.
    """
    done = subprocess.run(
        [sys.executable, "-c", PRINT_MODULES + program],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    output, _, modules = done.stdout.removesuffix("\n").rpartition("\n")
    return output, set(json.loads(modules))
