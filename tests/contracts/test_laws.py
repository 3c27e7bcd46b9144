"""The laws test third-party adapters: a subclass runs them, and pytest reports broken ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ADAPTER = """
from kitchen.ports.blobs import blob_name
from kitchen.testing.blobs import BlobLaws

class MyBlobs:
    def __init__(self):
        self._blobs = {}
    def read(self, name):
        return self._blobs.get(blob_name(name))
    def write(self, name, data):
        self._blobs[blob_name(name)] = data
    def list(self, prefix=""):
        return sorted(name for name in self._blobs if name.startswith(prefix))
    def delete(self, name):
        self._blobs.pop(blob_name(name), None)
    def locate(self, name):
        return "mine:" + name

class TestMyBlobs(BlobLaws):
    def store(self, tmp_path):
        return MyBlobs()
"""


def run_pytest(folder: Path, text: str, *options: str) -> str:
    (folder / "test_mine.py").write_text(text)
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *options, "test_mine.py"]
    root = str(Path(__file__).parents[2])
    code = (
        f"import sys; sys.path.insert(0, {root!r})\n"
        f"import pytest; sys.exit(pytest.main({arguments!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    ).stdout


def test_a_third_party_adapter_passes_the_laws(tmp_path: Path) -> None:
    last = run_pytest(tmp_path, ADAPTER).strip().splitlines()[-1]
    assert "passed" in last
    assert "failed" not in last


@pytest.mark.slow
def test_broken_laws_are_named(tmp_path: Path) -> None:
    output = run_pytest(
        tmp_path,
        ADAPTER.replace("sorted(", "list(").replace("blob_name(name)] = data", "name] = data"),
    )
    assert "FAILED test_mine.py::TestMyBlobs::test_invalid_names_are_refused" in output
    assert "FAILED test_mine.py::TestMyBlobs::test_names_are_listed_sorted_and_by_prefix" in output
    assert "test_the_last_write_wins" not in output


@pytest.mark.slow
def test_a_missing_hook_is_named_with_its_signature(tmp_path: Path) -> None:
    hooks = {
        "blobs": "BlobLaws",
        "datasets": "DatasetLaws",
        "hub": "HubLaws",
        "training": "TrainingLaws",
    }
    lines = [
        f"from kitchen.testing.{module} import {laws}\nclass Test{laws}({laws}): pass\n"
        for module, laws in hooks.items()
    ]
    output = run_pytest(
        tmp_path, "".join(lines), "-k", "twice or order or unknown_name or fetching"
    )
    assert "passed" not in output.splitlines()[-1]
    for laws in hooks.values():
        assert f"Test{laws} must say which adapter the laws are for" in output
    assert "def client(self, tmp_path: Path) -> TrainingClient:" in output
