"""Models named by a relative path, used from another folder than the one a run started in."""

from __future__ import annotations

from pathlib import Path

import pytest

import kitchen
from adapters.local.blobs import LocalBlobs
from kitchen.errors import RunFailed
from kitchen.runs.store import read_run
from tests.support.commands import in_folder, output
from tests.support.killing import KillAt

SMALL = {
    "dataset": "ingredients",
    "save_every": 1,
    "warmup_steps": 0,
    "reading.limit": 24,
    "evaluation.max_tokens": 4,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a folder of runs that were started in another one, on a model with a relative path.

    Run `done` is completed, `killed` is not.
    """
    here = tmp_path / "here"
    here.mkdir()
    runs = str(tmp_path / "runs")
    with in_folder(here):
        kitchen.run("recipes.sl_basic", settings=SMALL, training="fake", name="base", runs=runs)
        output(0, "export", "base", "../model", "--runs", runs)
        settings = {**SMALL, "model": "path:../model"}
        options = {"settings": settings, "training": "fake", "runs": runs}
        kitchen.run("recipes.sl_basic", name="done", **options)
        with pytest.raises(RunFailed, match="Killed"):
            kitchen.run("recipes.sl_basic", name="killed", observers=[KillAt(22)], **options)
    elsewhere = tmp_path / "elsewhere" / "deeper"
    elsewhere.mkdir(parents=True)
    return tmp_path / "runs"


@pytest.mark.slow
@pytest.mark.parametrize("run", ["done", "killed"])
def test_weights_open_from_another_folder(store: Path, run: str) -> None:
    with in_folder(store.parent / "elsewhere/deeper"):
        output(0, "sample", run, "salt", "--max-tokens", "2", "--runs", str(store))
        output(0, "chat", run, "--max-tokens", "2", "--runs", str(store), typed="salt\n")
        output(0, "export", run, "out", "--runs", str(store))
        Path("rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 3)
        settings = ("--dataset", "rows.jsonl", "evaluation.max_tokens=2")
        output(0, "eval", run, *settings, "--runs", str(store))


@pytest.mark.slow
def test_a_run_resumes_from_another_folder(store: Path) -> None:
    with in_folder(store.parent / "elsewhere/deeper"):
        output(0, "resume", "killed", "--runs", str(store))
    blobs = LocalBlobs(str(store))
    assert read_run(blobs, "killed")["metrics"] == read_run(blobs, "done")["metrics"]
