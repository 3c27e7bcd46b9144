"""A user's recipe, stage and adapter, in a folder outside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import kitchen, shell

RECIPE = '''
from kitchen import Recipe, Step, sequence
from stages.mine import Write


class Mine(Recipe):
    """Write a text."""

    text: str = "hello"  # the text to write

    def workflow(self) -> Step:
        return sequence(Write(self.text))
'''
STAGE = """
from kitchen import Metrics, Stage
from kitchen.ports import BlobStore


class Write(Stage):
    text: str

    def run(self, blobs: BlobStore) -> Metrics:
        blobs.write("text", self.text.encode())
        return Metrics(length=float(len(self.text)))
"""
ADAPTER = '''
from kitchen.ports import blob_name


class Upper:
    """Blobs in a dictionary; `prefix` is where a person finds them."""

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
FILES = {
    "recipes/mine.py": RECIPE,
    "stages/mine.py": STAGE,
    "upper.py": ADAPTER,
    "test_upper.py": LAWS,
    "upper-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: upper\nVersion: 1.0\n",
    "upper-1.0.dist-info/entry_points.txt": "[kitchen.blobs]\nupper = upper:Upper\n",
}
OPTIONS = ("recipes.mine", "--training", "fake", "--blobs", "upper")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a recipe, a stage, and an installed adapter with its laws."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_custom_recipe_stage_and_adapter_run(home: Path) -> None:
    arguments = ("run", *OPTIONS, "text=howdy", "--set", "blobs.prefix=there")
    done = kitchen(home, *arguments, PYTHONPATH=str(home))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there:" in done.stdout + done.stderr, "the adapter names the place of the run"


def test_an_unknown_setting_of_it_is_refused(home: Path) -> None:
    arguments = ("check", *OPTIONS, "--set", "blobs.prefx=a")
    done = kitchen(home, *arguments, PYTHONPATH=str(home))
    assert done.returncode == 2
    assert "'prefix'" in done.stdout + done.stderr


@pytest.mark.slow
def test_the_laws_are_run_by_subclassing_one_class(home: Path) -> None:
    done = shell(home, "python -m pytest -q -p no:cacheprovider test_upper.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
