"""Our recipes through SkyRL, a third-party server of the Tinker API.

python -m tests.acceptance.others [FOLDER]

SkyRL 0.3.0 from PyPI runs in a virtual environment in build/skyrl, with JAX on the CPU, behind the
bridge of `training.server=skyrl`. With a folder of SkyRL's source, that version runs too, in
build/skyrl-git. Each recipe runs on the local engine too: both start from the same weights, so the
first losses must be equal. Later ones are not, as each backend initialises its LoRA weights
differently. Then weights are saved, loaded, sampled and exported, and compared with training.
Prints a table; exits with 1 if something failed.
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
import numpy as np
from rich.console import Console
from rich.table import Table

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.tinker.client import TinkerTraining
from kitchen.ports.sampling import Sampler
from kitchen.ports.training import TrainingSession
from kitchen.types import Adam, Array, Datum, Lora
from tests.acceptance.environments import BUILD, TORCH, environment, install, run
from tests.support import letters
from tests.support.fake_runs import run_recipe
from tests.support.tiny_model import tiny_model

SKYRL, PORT = "skyrl[tinker,jax]==0.3.0", 8123
START_TIMEOUT = 180  # seconds
UV = """#!/bin/sh
# SkyRL is started by `uv run ... -m MODULE`, and starts its engine in the same way:
# this runs them with the Python of this environment
while [ "$1" != "-m" ]; do shift; done
"$(dirname "$0")/python" "$@"
"""
PRINT_SITE_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"
SITECUSTOMIZE = """# SkyRL uses typing.TypedDict, but before Python 3.12 pydantic requires this one
import typing, typing_extensions
typing.TypedDict = typing_extensions.TypedDict
"""
TOLERANCE = 1e-4
RECIPES = ("sl_basic", "rl", "distillation", "dpo")
Rows = Sequence[Mapping[str, Any]]


def main() -> int:
    os.environ["TINKER_API_KEY"] = "tml-any"  # SkyRL does not check it
    with letters.registered():
        return run_all()


def run_all() -> int:
    """Run the recipes, print a table, and return the exit code."""
    table = Table(
        "SkyRL",
        "recipe",
        "",
        "first loss, local",
        "SkyRL",
        "last loss, local",
        "SkyRL",
        "sampling against training",
    )
    versions = {"skyrl": SKYRL}
    if len(sys.argv) > 1:
        versions["skyrl-git"] = f"{Path(sys.argv[1]).resolve()}[tinker,jax]"
    passed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = tiny_model(Path(temporary) / "tiny")
        for name, requirement in versions.items():
            (Path(temporary) / name).mkdir()
            with skyrl(name, requirement, Path(temporary) / name, folder) as url:
                passed += [compare(table, name, recipe, folder, url) for recipe in RECIPES]
                passed += [check_weights(table, name, folder, url, Path(temporary) / name)]
    Console(width=150).print(table)
    return 0 if all(passed) else 1


def compare(table: Table, version: str, name: str, model: Path, url: str) -> bool:
    """Run a recipe on both engines and add a row; return whether it works."""
    local, remote = run_both(name, model, url)
    failure = find_failure(local, remote)
    losses = [row["loss"] for row in (local[0], remote[0], local[-1], remote[-1])]
    formatted = [f"{loss:.4f}" for loss in losses]
    table.add_row(version, name, failure or "works", *formatted, format_kl(remote))
    return not failure


def check_weights(table: Table, version: str, model: Path, url: str, folder: Path) -> bool:
    """Compare weights that were saved, loaded and exported with those under training."""
    differences = weight_differences(model, url, folder)
    for name, difference in differences.items():
        works = "works" if difference < TOLERANCE else "FAILS"
        table.add_row(version, name, f"{works}: {difference:.0e} nats")
    return max(differences.values()) < TOLERANCE


def weight_differences(model: Path, url: str, folder: Path) -> Mapping[str, float]:
    """Return the largest difference in nats of each way to use weights, after two steps."""
    client, hub = skyrl_client(url, model, FakeBlobs()), LocalHub()
    tokens = np.array([5, 9, 17, 33, 65, 12, 7, 81])
    inputs = {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1)}
    batch, adam = [Datum(tokens[:-1], inputs)], Adam(learning_rate=1e-2)

    def step(session: TrainingSession) -> Array:
        session.forward_backward(batch).result()
        session.optim_step(adam).result()
        return session.forward(batch).result().logprobs[0]

    def difference(sampler: Sampler, expected: Array) -> float:
        return float(np.abs(sampler.logprobs(tokens).result()[1:] - expected).max())

    session, resumed = (client.open(str(model), Lora(rank=8)) for _ in range(2))
    first = step(session)
    state, weights = session.save("state").result(), session.save_weights("weights").result()
    second = step(session)
    differences = {"samples of an earlier checkpoint": difference(client.sampler(weights), first)}
    undisturbed = session.forward(batch).result().logprobs[0]
    differences["training after these samples"] = float(np.abs(undisturbed - second).max())
    resumed.load(state).result()
    differences["resume"] = float(np.abs(step(resumed) - second).max())
    resumed.load_weights(weights).result()
    loaded = resumed.forward(batch).result().logprobs[0]
    differences["model=run:"] = float(np.abs(loaded - first).max())
    client.export(weights, folder / "export")
    exported = PeftTraining(hub, FakeBlobs(), device="cpu", dtype="float32")
    sampler = exported.sampler(f"path:{folder}/export")
    differences["export, read by the local engine"] = difference(sampler, first)
    return differences


@contextmanager
def skyrl(name: str, requirement: str, folder: Path, model: Path) -> Iterator[str]:
    python = environment(name, requirement, lambda python: install_skyrl(python, requirement))
    command = (
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
        str(folder / "checkpoints"),
        "--database-url",
        f"sqlite:///{folder}/db",
    )
    variables = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PATH": f"{python.parent}:{os.environ['PATH']}",
    }
    url = f"http://127.0.0.1:{PORT}"
    with (BUILD / name / "log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_for(url, server, BUILD / name / "log")
            yield url
        finally:
            if server.poll() is None:
                os.killpg(server.pid, 15)
                server.wait(60)


def install_skyrl(python: Path, requirement: str) -> None:
    install(python, TORCH, requirement)
    (python.parent / "uv").write_text(UV)
    (python.parent / "uv").chmod(0o755)
    (Path(run(python, "-c", PRINT_SITE_PACKAGES).strip()) / "sitecustomize.py").write_text(
        SITECUSTOMIZE
    )


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.time() + START_TIMEOUT
    while server.poll() is None and time.time() < deadline:
        try:
            httpx.get(f"{url}/api/v1/healthz")
            return
        except httpx.TransportError:
            time.sleep(1)
    raise SystemExit(f"SkyRL did not start: see {log}")


def run_both(name: str, model: Path, url: str) -> tuple[Rows, Rows]:
    """Return the metrics of the training steps on the local engine and on the server."""
    hub, local_blobs, remote_blobs = LocalHub(), FakeBlobs(), FakeBlobs()
    engine = PeftTraining(hub, local_blobs, device="cpu", dtype="float32")
    path = f"path:{model}"
    local = run_recipe(name, engine, local_blobs, model=path, teacher=path, lora_rank=16)
    client = skyrl_client(url, model, remote_blobs)
    path = str(model)
    remote = run_recipe(name, client, remote_blobs, model=path, teacher=path, lora_rank=16)
    return _training_steps(local), _training_steps(remote)


def skyrl_client(url: str, model: Path, blobs: FakeBlobs) -> TinkerTraining:
    return TinkerTraining(
        LocalHub(), blobs, base_url=url, server="skyrl", tokenizer=f"path:{model}"
    )


def _training_steps(rows: Rows) -> Rows:
    return [row for row in rows if "learning_rate" in row]


def find_failure(local: Rows, remote: Rows) -> str:
    if len(local) != len(remote):
        return f"FAILS: {len(remote)} steps, not {len(local)}"
    # samples and losses differ, but sampling and training must agree on each sample
    if "entropy" in remote[0]:
        on_policy = [row["kl_sampler_v2"] for row in remote if row["step"] % 2 == 0]
        if max(on_policy) < TOLERANCE**2:
            return ""
        return f"FAILS: sampling and training differ by {max(on_policy):.1e}"
    if abs(local[0]["loss"] - remote[0]["loss"]) > TOLERANCE:
        return "FAILS: the first losses differ"
    return "" if remote[-1]["loss"] < remote[0]["loss"] else "FAILS: the loss did not fall"


def format_kl(rows: Rows) -> str:
    if "kl_sampler_v2" not in rows[0]:
        return ""
    return f"KL {max(row['kl_sampler_v2'] for row in rows[::2]):.0e}"


if __name__ == "__main__":
    sys.exit(main())
