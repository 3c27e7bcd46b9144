"""The unchanged tinker-cookbook from PyPI against `kitchen serve`.

python -m tests.acceptance.cookbook [CHECK...]

The cookbook runs in a virtual environment in build/cookbook, with a hub on loopback, and the server
offers the packaged model under names that the cookbook knows. Prints each row when it is known, and
the table at the end; exits with 1 if a recipe failed. The output of each recipe is in
build/cookbook/logs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from adapters.local.hub import LocalHub
from tests.acceptance.cookbook.checks import CHECKS, Cookbook
from tests.acceptance.cookbook.hub import STUDENT, TEACHER, add_repositories
from tests.acceptance.environments import BUILD, TORCH, environment, install, requirements_of
from tests.acceptance.report import Report
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
    report = Report("tinker-cookbook 0.6.1", "", "seconds", "result")
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
            report.check(name, partial(CHECKS[name], cookbook))
    hub.unplug()
    return report.finish()


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
