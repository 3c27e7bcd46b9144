"""A folder is there whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from kitchen.backend.atomic_folder import atomic_folder
from kitchen.backend.temporary import MARKER, held
from kitchen.errors import ConfigError, RunFailed


def test_a_folder_appears_when_complete(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "new" / "out") as part:
        assert (part / MARKER).exists()
        (part / "one").write_text("1")
        assert not (tmp_path / "new" / "out").exists()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "new" / "out").iterdir()] == ["one"]
    assert (tmp_path / "new" / "out" / "one").read_text() == "1"


def test_a_replaced_folder_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    def replace(*, fails: bool) -> None:
        with atomic_folder(tmp_path / "out", replace=True) as part:
            (part / "new").write_text("new")
            assert (tmp_path / "out" / "old").read_text() == "old"
            if fails:
                raise ValueError("no space")

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    with pytest.raises(ValueError, match="no space"):
        replace(fails=True)
    assert (tmp_path / "out" / "old").read_text() == "old"
    replace(fails=False)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_failed_block_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "out") as part:
            (part / "one").write_text("1")
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_error_says_how_to_fix_it(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFailed, match="No space left on device; free some space"),
        atomic_folder(tmp_path / "out"),
    ):
        raise OSError(28, "No space left on device", "out")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunFailed, match="give another folder"),
        atomic_folder(tmp_path / "file" / "out"),
    ):
        pass


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    for name in ("full", "full/mine", "link"):
        with pytest.raises(ConfigError, match="give another"), atomic_folder(tmp_path / name):
            pass
    with (
        contextlib.chdir(tmp_path / "empty"),
        pytest.raises(ConfigError, match="working directory"),
    ):
        with atomic_folder(Path(".")):
            pass
    assert (tmp_path / "full" / "mine").read_text() == "mine"


def test_folders_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    left = tmp_path / ".out.0a1b2c3d.part"
    foreign = [tmp_path / ".out.notes.part", tmp_path / ".other.0a1b2c3d.part"]
    renamed = tmp_path / ".out.deadbeef.part"  # by a user, to keep it
    for folder in (left, renamed, *foreign):
        folder.mkdir()
        (folder / "half.bin").write_bytes(b"x")
    for folder in (left, *foreign):
        (folder / MARKER).touch()
    with held(left):
        with atomic_folder(tmp_path / "out"):
            assert left.exists(), "its writer lives"
    (tmp_path / "out").rmdir()
    with atomic_folder(tmp_path / "out"):
        assert not left.exists()
    assert all(folder.exists() for folder in (renamed, *foreign))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_files_get_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with atomic_folder(tmp_path / "out") as part:
            (part / "inner").mkdir()
            (part / "inner/weights").touch(mode=0o600)
            (part / "program").touch(mode=0o700)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*")}
    assert modes == {"inner": 0o755, "weights": 0o644, "program": 0o744}
