"""`kitchen serve` as a separate process."""

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
def served(place: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start a server, with its records and log in a folder; yield its URL and its process id.

    Clients send KEY.
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
            *options,
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
        if (match := re.search(r"at (http://\S+);", line)) is not None:
            return match[1]
    raise SystemExit("the server did not start")
