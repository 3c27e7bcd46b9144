"""The unchanged tinker-cookbook from PyPI against `kitchen serve`.

python -m tests.acceptance.cookbook [CHECK...]

It has a virtual environment in build/cookbook, a hub on loopback, and the packaged model under the
names of models that it knows. Prints a table; exits with 1 if a recipe failed. The output of each
recipe is in build/cookbook/logs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from adapters.local.hub import LocalHub
from tests.acceptance.cookbook.checks import CHECKS, Book
from tests.acceptance.cookbook.hub import STUDENT, TEACHER, fill
from tests.acceptance.environments import BUILD, TORCH, environment, install, needed
from tests.acceptance.server import KEY, served
from tests.support.hub_server import HubServer

PLACE = BUILD / "cookbook"
SDK, COOKBOOK = "tinker==0.38.0", "tinker-cookbook==0.6.1"
# needed only for Inkling models; the required version is not on PyPI
EXCLUDED = "tml-renderers"
MODEL = "packaged:smollm2-135m-instruct"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.cookbook", description=__doc__
    )
    parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help=f"default: all of {'; '.join(CHECKS)}"
    )
    chosen = parser.parse_args().checks or list(CHECKS)
    if unknown := [name for name in chosen if name not in CHECKS]:
        parser.error(f"no check is called {unknown[0]!r}; there are: {'; '.join(CHECKS)}")
    python, logs = environment("cookbook", f"{SDK} {COOKBOOK}", fill_up), PLACE / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    hub = HubServer()
    fill(hub, LocalHub().fetch(MODEL))
    table, failed = Table("tinker-cookbook 0.6.1", "", "seconds", "seen"), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        served(
            Path(folder),
            "--model",
            MODEL,
            *(f"--alias={name}={MODEL}" for name in (STUDENT, TEACHER)),
        ) as (url, _),
    ):
        book = Book(python, logs, surroundings(hub.url, url))
        for name in chosen:
            started = time.perf_counter()
            try:
                seen, mark = CHECKS[name](book), "works"
            except Exception as problem:  # noqa: BLE001 the other checks still run
                seen, mark, failed = f"{type(problem).__name__}: {problem}", "FAILS", failed + 1
            table.add_row(name, mark, f"{time.perf_counter() - started:.0f}", seen)
    Console(width=150).print(table)
    hub.unplug()
    return int(failed > 0)


def fill_up(python: Path) -> None:
    install(python, "--no-deps", COOKBOOK)
    install(
        python, TORCH, SDK, *needed(python, "tinker-cookbook", ["math-rl"], excluded=[EXCLUDED])
    )


def surroundings(hub: str, server: str) -> dict[str, str]:
    """Return environment variables under which no other machine is used."""
    home = str(PLACE / "logs/huggingface")
    return {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_HOME": home,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TINKER_BASE_URL": server,
        "TINKER_API_KEY": KEY,
        "PYTHONPATH": "",
        "TOKENIZERS_PARALLELISM": "false",
        "TINKER_TELEMETRY": "0",
    }


if __name__ == "__main__":
    sys.exit(main())
