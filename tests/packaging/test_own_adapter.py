"""Someone's own recipe, stage and adapter, outside the clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = '''
from kitchen import Recipe, Step, sequence
from stages.mine import Say


class Mine(Recipe):
    """Say something."""

    text: str = "hello"  # what to say

    def workflow(self) -> Step:
        return sequence(Say(self.text))
'''
STAGE = """
from kitchen import Metrics, Stage
from kitchen.ports import BlobStore


class Say(Stage):
    text: str

    def run(self, blobs: BlobStore) -> Metrics:
        blobs.write("said", self.text.encode())
        return Metrics(length=float(len(self.text)))
"""
ADAPTER = '''
import os
from kitchen.ports import blob_name


class Upper:
    """Blobs of one's own: bytes in a dictionary; PREFIX is where a person finds them."""

    def __init__(self, root: str = "runs", prefix: str = "mine"):
        self.prefix, self.blobs = prefix, {}

    def read(self, name):
        return self.blobs.get(blob_name(name))

    def write(self, name, data):
        self.blobs[blob_name(name)] = bytes(data)

    def list(self, prefix=""):
        return sorted(name for name in list(self.blobs) if name.startswith(prefix))

    def delete(self, name):
        self.blobs.pop(blob_name(name), None)

    def locate(self, name):
        return f"{self.prefix}:{name}"
'''
LAWS = """
from kitchen.testing.blobs import BlobLaws
from upper import Upper


class TestUpper(BlobLaws):
    def store(self, tmp_path):
        return Upper()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder, text in (("recipes", RECIPE), ("stages", STAGE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(text)
    (tmp_path / "upper.py").write_text(ADAPTER)
    (tmp_path / "test_upper.py").write_text(LAWS)
    info = tmp_path / "upper-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: upper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kitchen.blobs]\nupper = upper:Upper\n")
    return tmp_path


def call(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(home)},
        timeout=120,
    )


def test_a_recipe_with_a_stage_and_an_adapter_of_ones_own(home: Path) -> None:
    done = call(
        home,
        "kitchen.cli",
        "run",
        "recipes.mine",
        "text=howdy",
        "--training",
        "fake",
        "--blobs",
        "upper",
        "--set",
        "blobs.prefix=there",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there:" in done.stdout + done.stderr, "it says where the run is, as the adapter does"


def test_an_unknown_setting_of_it_is_refused(home: Path) -> None:
    done = call(
        home,
        "kitchen.cli",
        "check",
        "recipes.mine",
        "--training",
        "fake",
        "--blobs",
        "upper",
        "--set",
        "blobs.prefx=a",
    )
    assert done.returncode == 2
    assert "did you mean 'prefix'?" in done.stdout + done.stderr


def test_it_passes_the_laws_by_subclassing_one_class(home: Path) -> None:
    done = call(home, "pytest", "-q", "-p", "no:cacheprovider", "test_upper.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
