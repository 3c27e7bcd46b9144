"""`kitchen serve`, as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY = "tml-of-the-acceptance"


@contextmanager
def served(place: Path, *words: str) -> Iterator[tuple[str, int]]:
    """Its URL and its process id; clients bring KEY. What is kept lies in the folder, and so does
    what it says.
    """
    log = (place / "served.log").open("w")
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kitchen.cli",
            "serve",
            "--port",
            "0",
            "--set",
            "training.dtype=float32",
            *words,
        ],
        cwd=place,
        env={**os.environ, "KITCHEN_SERVE_KEY": KEY, "PYTHONUNBUFFERED": "1", "COLUMNS": "300"},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        yield _where(server), server.pid
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def _where(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    while line := server.stdout.readline():
        if (found := re.search(r"at (http://\S+);", line)) is not None:
            return found[1]
    raise SystemExit("the server did not start")
