"""Our recipes through SkyRL, a third-party server of the Tinker API.

python -m tests.acceptance.others

SkyRL 0.3.0 from PyPI, in a virtual environment in build/skyrl, computes in JAX on the CPU. It
implements an earlier version of the API, so a bridge translates. Each recipe runs on the local
engine too: both start from the same weights, so the first losses must be equal. Later ones are not,
as each backend initialises its LoRA weights differently. Prints a table; exits with 1 if a recipe
failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.tinker.client import TinkerTraining
from kitchen.errors import ConfigError
from tests.acceptance.environments import BUILD, TORCH, environment, install, run
from tests.acceptance.others.bridge import Bridge
from tests.support import letters
from tests.support.fake_runs import run_recipe
from tests.support.tinker_server import RunningServer
from tests.support.tiny_model import tiny_model

SKYRL, PORT, STARTS = "skyrl[tinker,jax]==0.3.0", 8123, 180  # seconds
UV = """#!/bin/sh
# SkyRL is started by `uv run ... -m MODULE`, and starts its engine in the same way:
# this runs them with the Python of this environment
while [ "$1" != "-m" ]; do shift; done
"$(dirname "$0")/python" "$@"
"""
WHERE = "import sysconfig; print(sysconfig.get_path('purelib'))"
TYPED = """# before Python 3.12, pydantic accepts only this TypedDict, and SkyRL uses that of typing
import typing, typing_extensions
typing.TypedDict = typing_extensions.TypedDict
"""
NEAR = 1e-4
RECIPES = ("sl_basic", "rl", "dpo")
# refused by `check`: SkyRL divides a cross-entropy by the sum of its weights, so that it cannot
# carry the gradients of a custom loss
REFUSED = ("dpo",)
Rows = Sequence[Mapping[str, Any]]


def main() -> int:
    os.environ["TINKER_API_KEY"] = "tml-any"  # SkyRL needs none
    with letters.registered():
        return run_all()


def run_all() -> int:
    """Run the recipes, print a table, and return the exit code."""
    table = Table(
        "recipe", "", "first loss here", "there", "last here", "there", "sampling to training"
    )
    with tempfile.TemporaryDirectory() as place:
        folder = tiny_model(Path(place) / "tiny")
        with skyrl(Path(place), folder) as url:
            bridge = Bridge(url)
            through = RunningServer(bridge.app)
            works = [compare(table, name, folder, through.url) for name in RECIPES]
            through.stop()
    console = Console(width=150)
    console.print(table)
    changes = [f"{change}, {times}" for change, times in bridge.needed.items()]
    console.print("the bridge changed: " + "; ".join(changes))
    return 0 if all(works) else 1


def compare(table: Table, name: str, model: Path, url: str) -> bool:
    """Run a recipe on both engines and add a row; return whether it works as expected."""
    try:
        here, there = both(name, model, url)
    except ConfigError as refused:
        table.add_row(name, f"refused: {refused}")
        return name in REFUSED
    failure = problem(here, there)
    losses = [row["loss"] for row in (here[0], there[0], here[-1], there[-1])]
    shown = [f"{loss:.4f}" for loss in losses]
    table.add_row(name, failure or "works", *shown, apart(there))
    return not failure


@contextmanager
def skyrl(place: Path, model: Path) -> Iterator[str]:
    python = environment("skyrl", SKYRL, fill_up)
    words = (
        str(python.parent / "uv"),
        "run",
        "-m",
        "skyrl.tinker.api",
        "--base-model",
        str(model),
        "--backend",
        "jax",
        "--host",
        "127.0.0.1",
        "--port",
        str(PORT),
        "--checkpoints-base",
        str(place / "kept"),
        "--database-url",
        f"sqlite:///{place}/db",
    )
    surroundings = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{python.parent}:{os.environ['PATH']}",
    }
    url = f"http://127.0.0.1:{PORT}"
    with (BUILD / "skyrl/log").open("w") as log:
        server = subprocess.Popen(
            words, cwd=place, env=surroundings, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_for(url, server)
            yield url
        finally:
            if server.poll() is None:
                os.killpg(server.pid, 15)
                server.wait(60)


def fill_up(python: Path) -> None:
    install(python, TORCH, SKYRL)
    (python.parent / "uv").write_text(UV)
    (python.parent / "uv").chmod(0o755)
    (Path(run(python, "-c", WHERE).strip()) / "sitecustomize.py").write_text(TYPED)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.time() + STARTS
    while server.poll() is None and time.time() < until:
        try:
            httpx.get(f"{url}/api/v1/healthz")
            return
        except httpx.TransportError:
            time.sleep(1)
    raise SystemExit(f"SkyRL did not start: see {BUILD}/skyrl/log")


def both(name: str, model: Path, url: str) -> tuple[Rows, Rows]:
    """Return the metrics of the steps on the local engine, and through the server."""
    hub, ours, theirs = LocalHub(), FakeBlobs(), FakeBlobs()
    engine = PeftTraining(hub, ours, device="cpu", dtype="float32")
    here = run_recipe(name, engine, ours, model=f"path:{model}", lora_rank=16)
    client = TinkerTraining(hub, theirs, base_url=url, server="skyrl", tokenizer=f"path:{model}")
    there = run_recipe(name, client, theirs, model=str(model), lora_rank=16)
    return [row for row in here if "learning_rate" in row], [
        row for row in there if "learning_rate" in row
    ]


def problem(here: Rows, there: Rows) -> str:
    if len(here) != len(there):
        return f"FAILS: {len(there)} steps, not {len(here)}"
    # the samples differ, and so do the losses; sampling and training must agree on each sample
    if "entropy" in there[0]:
        on_policy = [row["kl_sampler_v2"] for row in there if row["step"] % 2 == 0]
        if max(on_policy) < NEAR**2:
            return ""
        return f"FAILS: sampling and training differ by {max(on_policy):.1e}"
    if abs(here[0]["loss"] - there[0]["loss"]) > NEAR:
        return "FAILS: the first losses differ"
    return "" if there[-1]["loss"] < there[0]["loss"] else "FAILS: the loss did not fall"


def apart(rows: Rows) -> str:
    if "kl_sampler_v2" not in rows[0]:
        return ""
    return f"KL {max(row['kl_sampler_v2'] for row in rows[::2]):.0e}"


if __name__ == "__main__":
    sys.exit(main())
