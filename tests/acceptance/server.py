"""`kitchen serve` as a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY = "tml-acceptance-test"


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[str, int]]:
    """Start a server with its records and log in a folder; yield its URL and process id.

    Clients must send KEY.
    """
    log = (folder / "served.log").open("w")
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
        cwd=folder,
        env={**os.environ, "KITCHEN_SERVE_KEY": KEY, "PYTHONUNBUFFERED": "1", "COLUMNS": "300"},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        yield _read_url(server), server.pid
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def _read_url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    while line := server.stdout.readline():
        if (match := re.search(r"at (http://\S+);", line)) is not None:
            return match[1]
    raise SystemExit("the server did not start")
