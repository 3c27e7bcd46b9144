"""The command line checks a server's key and models before a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.tinker.client import TinkerTraining
from kitchen.engine.plan import Plan
from kitchen.engine.plan import check as plan
from kitchen.ports import TrainingClient
from stages.rl.dro import Dro
from stages.train.optim import ForwardBackward
from tests.support.tinker_server import KEY, MODELS, serving

ADAPTERS = ("--training", "tinker", "--hub", "fake", "--datasets", "fake", "--blobs", "fake")
MODEL = "fake/bigram"  # of the fake hub
NOBODY = "http://127.0.0.1:1"


def kitchen(
    folder: Path, *words: str, url: str = NOBODY, key: str | None = KEY
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TINKER_BASE_URL": url, "COLUMNS": "200"}
    environment.pop("TINKER_API_KEY", None)
    if key is not None:
        environment["TINKER_API_KEY"] = key
    return subprocess.run(
        [sys.executable, "-m", "kitchen.cli", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def check(
    folder: Path, *more: str, url: str = NOBODY, key: str | None = KEY
) -> subprocess.CompletedProcess[str]:
    words = ("check", "recipes.sl_basic", *ADAPTERS, f"model={MODEL}", "dataset=greetings", *more)
    return kitchen(folder, *words, url=url, key=key)


@pytest.mark.parametrize(
    "key, message",
    [
        (None, "TINKER_API_KEY is missing"),
        ("hf_of-another-hub", "begin with tml-"),
        ("tml-of-another-hub\r", "no spaces or line ends"),
    ],
)
def test_check_finds_missing_and_malformed_keys(
    tmp_path: Path, key: str | None, message: str
) -> None:
    done = check(tmp_path, key=key)
    assert done.returncode == 4, done.stdout + done.stderr
    assert message in done.stdout + done.stderr
    assert "of-another-hub" not in done.stdout + done.stderr


def test_check_sends_nothing_and_imports_no_sdk(tmp_path: Path) -> None:
    script = (
        "import sys, runpy\nsys.argv = ['kitchen', 'check', 'recipes.sl_basic', *%r, 'model=%s', "
        "'dataset=greetings']\ntry:\n    runpy.run_module('kitchen.cli', "
        "run_name='__main__')\nfinally:\n"
        "    print('imported', [name for name in ('tinker', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script % (ADAPTERS, MODEL)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "TINKER_API_KEY": KEY, "TINKER_BASE_URL": NOBODY},
    )
    assert "imported []" in done.stdout, done.stdout + done.stderr


def test_check_online_asks_the_server_for_the_model(tmp_path: Path) -> None:
    kept = FakeBlobs()
    with serving(FakeTraining(kept), kept, models=["tiny"]) as served:
        unknown = check(tmp_path, "--online", url=served.url)
        rejected = check(tmp_path, "--online", url=served.url, key="tml-another")
    assert unknown.returncode == 4
    assert f"does not serve '{MODEL}'; there are: tiny" in unknown.stdout + unknown.stderr
    assert "401" in rejected.stdout + rejected.stderr
    nobody = check(tmp_path, "--online")
    assert nobody.returncode == 4
    assert "does not answer as a server of the Tinker API" in nobody.stdout + nobody.stderr


def test_unlisted_losses_depend_on_the_kind_of_server() -> None:
    def plan_with(server: str, loss: Any) -> Plan:
        training = TinkerTraining(FakeHub(MODELS), FakeBlobs(), server=server)
        return plan(ForwardBackward(loss), {TrainingClient: training})

    newest = plan_with("tinker", "next_year")
    custom = plan_with("skyrl", Dro())
    assert newest.not_honoured == ["loss next_year"]
    assert not [problem for problem in newest.problems if "lacks" in problem]
    assert "needs 'loss next_year', which TinkerTraining lacks" in " ".join(
        plan_with("kitchen", "next_year").problems
    )
    assert "needs 'custom loss'" in " ".join(custom.problems)


def test_check_lists_what_is_not_honoured(tmp_path: Path) -> None:
    done = check(tmp_path)  # recipes want twice the rank
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not honoured: lora_alpha" in done.stdout
    assert check(tmp_path, "--strict").returncode == 2
