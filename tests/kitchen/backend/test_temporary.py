"""Temporary folders: deleted with their process, or by the next one of the same purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kitchen.backend.temporary import temporary_folder
from tests.support.commands import python_process

HOLDER = """
import signal, sys, tempfile
from kitchen.backend.temporary import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder(sys.argv[2]) as folder:
    (folder / "weights").write_text("1")
    print(folder.name, flush=True)
    signal.pause()
"""

WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None
import adapters.hf.cache, adapters.local.hub, adapters.server.rest, kitchen
settings = {"dataset": "greetings", "batch_size": 4, "evaluation": {"max_tokens": 4}}
outcome = kitchen.run("recipes.sl_basic", settings=settings, training="fake", datasets="fake")
print(outcome.checkpoint.step)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def process_with_folder(root: Path, purpose: str) -> Iterator[Path]:
    """Yield the temporary folder of another process, which is killed at the end of the block."""
    with python_process(root, "-c", HOLDER, str(root), purpose) as process:
        assert process.stdout is not None
        yield root / process.stdout.readline().strip()


def test_a_folder_is_deleted_after_its_block(root: Path) -> None:
    def interrupted() -> None:
        with temporary_folder("push") as folder:
            (folder / "weights").write_text("1")
            assert list(root.iterdir()) == [folder]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(root.iterdir()) == []


def test_folders_of_killed_processes_are_deleted(root: Path) -> None:
    with process_with_folder(root, "push") as killed:
        pass
    with process_with_folder(root, "datasets") as other:
        pass
    assert killed.is_dir()
    with temporary_folder("push") as folder:
        assert {folder, other} == set(root.iterdir())


def test_folders_of_living_processes_are_kept(root: Path) -> None:
    link, ours = root / "kitchen-push-link", root / "my-files"
    ours.mkdir()
    link.symlink_to(ours)
    with process_with_folder(root, "push") as living:
        with temporary_folder("push"), temporary_folder("push"):
            assert (living / "weights").read_text() == "1"
        assert set(root.iterdir()) == {living, link, ours}


def test_folders_that_others_made_are_kept(root: Path) -> None:
    names = ("results", "abcd_123", "Results1", "abcd_1234", "a.b")
    for name in names:
        folder = root / f"kitchen-push-{name}"
        folder.mkdir()
        (folder / "mine.txt").write_text("1")
    (root / "kitchen-push-archived").write_text("a file")
    before = sorted(root.rglob("*"))
    with temporary_folder("push"):
        pass
    assert sorted(root.rglob("*")) == before


def test_a_renamed_folder_of_a_killed_process_is_kept(root: Path) -> None:
    with process_with_folder(root, "push") as killed:
        pass
    kept = killed.rename(root / "kitchen-push-keep-these")
    with temporary_folder("push"):
        pass
    assert (kept / "weights").read_text() == "1"


def test_a_run_needs_no_locks_of_unix(tmp_path: Path) -> None:
    with python_process(tmp_path, "-c", WITHOUT_FCNTL) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "15\n"
