"""The unchanged tinker-cookbook from PyPI against `kitchen serve`.

python -m tests.acceptance.cookbook [CHECK...]

The cookbook runs in a virtual environment in build/cookbook, with a hub on loopback, and the server
offers the packaged model under names that the cookbook knows. Prints a table; exits with 1 if a
recipe failed. The output of each recipe is in build/cookbook/logs.
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
from tests.acceptance.cookbook.checks import CHECKS, Cookbook
from tests.acceptance.cookbook.hub import STUDENT, TEACHER, add_repositories
from tests.acceptance.environments import BUILD, TORCH, environment, install, requirements_of
from tests.acceptance.server import KEY, serving
from tests.support.hub_server import HubServer

FOLDER = BUILD / "cookbook"
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
        parser.error(f"unknown check {unknown[0]!r}; choose from {'; '.join(CHECKS)}")
    python, logs = environment("cookbook", f"{SDK} {COOKBOOK}", install_cookbook), FOLDER / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    hub = HubServer()
    add_repositories(hub, LocalHub().fetch(MODEL))
    table, failed = Table("tinker-cookbook 0.6.1", "", "seconds", "result"), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(
            Path(folder),
            "--model",
            MODEL,
            *(f"--alias={name}={MODEL}" for name in (STUDENT, TEACHER)),
        ) as (url, _),
    ):
        cookbook = Cookbook(python, logs, offline_environment(hub.url, url))
        for name in chosen:
            started = time.perf_counter()
            try:
                details, status = CHECKS[name](cookbook), "works"
            except Exception as error:  # noqa: BLE001 continue with the other checks
                details, status, failed = f"{type(error).__name__}: {error}", "FAILS", failed + 1
            table.add_row(name, status, f"{time.perf_counter() - started:.0f}", details)
    Console(width=150).print(table)
    hub.unplug()
    return int(failed > 0)


def install_cookbook(python: Path) -> None:
    install(python, "--no-deps", COOKBOOK)
    install(
        python,
        TORCH,
        SDK,
        *requirements_of(python, "tinker-cookbook", ["math-rl"], excluded=[EXCLUDED]),
    )


def offline_environment(hub: str, server: str) -> dict[str, str]:
    """Return environment variables that keep all requests on this machine."""
    home = str(FOLDER / "logs/huggingface")
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
