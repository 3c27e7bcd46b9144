"""Blobs in a folder and behind fsspec, apart from the laws of their port."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adapters.local.blobs import LocalBlobs
from adapters.local.fsspec import FsspecBlobs
from kitchen.errors import BackendError, ConfigError, RunFailed
from kitchen.ports import BlobStore
from tests.support.commands import python_process
from tests.support.polling import LineReader


@pytest.fixture(params=["folder", "file://", "memory://"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    match request.param:
        case "folder":
            return LocalBlobs(str(tmp_path / "runs"))
        case "file://":
            return FsspecBlobs(f"file://{tmp_path}/runs")
        case _:
            return FsspecBlobs(f"memory://{tmp_path.name}")


def test_similar_names_are_distinct(blobs: BlobStore) -> None:
    for name in ("a/b", "a/bc/d", "ab", "a-b/x", ".hidden", "a/.part", "é🍲/ü"):
        blobs.write(name, name.encode())
    assert blobs.list("a/b") == ["a/b", "a/bc/d"]
    assert blobs.list("a/b/") == []
    assert blobs.list() == sorted(["a/b", "a/bc/d", "ab", "a-b/x", ".hidden", "a/.part", "é🍲/ü"])
    assert blobs.read("a/bc") is None
    assert blobs.read("ab/c") is None
    assert blobs.read("é🍲/ü") == "é🍲/ü".encode()
    blobs.delete("a/bc")
    blobs.delete("ab/c")
    assert blobs.read("a/bc/d") == b"a/bc/d"


@pytest.mark.parametrize("prefix", ["../", "/", "a//", "./", "a/../"])
def test_prefix_stays_inside_the_root(blobs: BlobStore, prefix: str) -> None:
    blobs.write("a/b", b"")
    assert blobs.list(prefix) == []


def test_reader_never_sees_a_partial_blob(blobs: BlobStore) -> None:
    texts = [bytes([letter]) * 300_000 for letter in b"ab"]
    blobs.write("x/y", texts[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(30):
            blobs.write("x/y", texts[turn % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = [(blobs.read("x/y"), tuple(blobs.list()))]
    while not done.is_set():
        seen.append((blobs.read("x/y"), tuple(blobs.list())))
    thread.join()
    assert {data for data, _ in seen} <= set(texts)
    assert {names for _, names in seen} == {("x/y",)}


def test_concurrent_writes_and_deletes_succeed(tmp_path: Path) -> None:
    blobs = LocalBlobs(str(tmp_path))  # a delete removes the folder that it leaves empty
    errors: list[Exception] = []

    def work(own: str) -> None:
        try:
            for _ in range(60):
                blobs.write(f"deep/er/{own}", b"1")
                blobs.delete(f"deep/er/{own}")
        except RunFailed as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_are_hidden(tmp_path: Path) -> None:
    blobs = LocalBlobs(str(tmp_path))
    blobs.write("run/state", b"whole")
    (tmp_path / "run" / ".kitchen-0123456789abcdef.part").write_bytes(b"hal")
    assert blobs.list() == ["run/state"]
    with pytest.raises(ValueError, match="temporary"):
        blobs.read("run/.kitchen-0123456789abcdef.part")


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b", "a\0b"]
)
def test_no_name_escapes_the_root(blobs: BlobStore, name: str) -> None:
    for call in (blobs.read, blobs.delete, blobs.locate, lambda name: blobs.write(name, b"")):
        with pytest.raises(ValueError, match="blob name"):
            call(name)


def test_no_link_escapes_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"s")
    root = tmp_path / "runs"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    blobs = LocalBlobs(str(root))
    for name in ("folder/secret", "file"):
        for call in (blobs.read, blobs.delete, lambda name: blobs.write(name, b"x")):
            with pytest.raises(RunFailed, match="symbolic link"):
                call(name)
    assert blobs.list() == []
    assert (outside / "secret").read_bytes() == b"s"


def test_a_pipe_is_refused_instead_of_read(tmp_path: Path) -> None:
    (tmp_path / "runs/run/save").mkdir(parents=True)
    os.mkfifo(tmp_path / "runs/run/save/000001.json")
    blobs = LocalBlobs(str(tmp_path / "runs"))
    for act in (blobs.read, blobs.locate, blobs.delete):
        with pytest.raises(RunFailed, match=r"000001.json is a pipe, socket or device"):
            act("run/save/000001.json")


def test_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    blobs = LocalBlobs(str(tmp_path / "link"))
    blobs.write("a/b", b"1")
    assert blobs.list() == ["a/b"]
    assert (tmp_path / "real/a/b").read_bytes() == b"1"


def test_full_disk_keeps_the_old_blob(tmp_path: Path) -> None:
    LocalBlobs(str(tmp_path)).write("state", b"old")
    code = f"""
import resource
from adapters.local.blobs import LocalBlobs
from kitchen.errors import RunFailed
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    LocalBlobs({str(tmp_path)!r}).write("state", b"n" * 5000)
except RunFailed as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert str(tmp_path / "state") in done.stdout
    assert "--runs DIR" in done.stdout
    assert LocalBlobs(str(tmp_path)).read("state") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_uncreatable_folder_error_names_path_and_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blobs = LocalBlobs(str(tmp_path / "file" / "runs"))
    assert blobs.list() == []
    assert blobs.read("a") is None
    with pytest.raises(RunFailed, match=r"file/runs/a: .*--runs DIR"):
        blobs.write("a", b"")
    with pytest.raises(RunFailed, match="/sys"):
        LocalBlobs("/sys").write("nope/a", b"")


@pytest.mark.parametrize(
    "root, shown",
    [
        ("memory://", "memory://a/b"),
        ("memory://runs", "memory://runs/a/b"),
        ("memory://runs/", "memory://runs/a/b"),
        ("file:///tmp/runs", "file:///tmp/runs/a/b"),
        ("memory://ann:pass/word@runs?token=tick", "memory://runs/a/b"),
    ],
)
def test_url_is_shown_without_secrets(root: str, shown: str) -> None:
    assert FsspecBlobs(root).locate("a/b") == shown


def test_errors_of_the_store_keep_secrets() -> None:
    with pytest.raises(RunFailed) as caught:
        FsspecBlobs("ftp://annabel:geheim@localhost:1/runs")
    assert "ftp://localhost:1/runs" in str(caught.value)
    assert "annabel" not in str(caught.value) + str(caught.value.__cause__)
    assert "geheim" not in str(caught.value) + str(caught.value.__cause__)


def test_bad_urls_are_errors_with_a_remedy() -> None:
    with pytest.raises(BackendError, match=r"dropbox://x .*pip install dropboxdrivefs"):
        FsspecBlobs("dropbox://x")
    with pytest.raises(BackendError, match="did you mean 'memory'"):
        FsspecBlobs("memori://x")
    with pytest.raises(BackendError, match="chained"):
        FsspecBlobs("simplecache::memory://x")


def test_memory_is_shared_by_url() -> None:
    FsspecBlobs("memory://shared-by-url/inner").write("a", b"1")
    assert FsspecBlobs("memory://shared-by-url").read("inner/a") == b"1"


KILLED_WRITER = """
import os, signal, sys
from adapters.local.blobs import LocalBlobs
os.replace = lambda *_: (print("writing", flush=True), signal.pause())
LocalBlobs(sys.argv[1]).write("mine/save/1.json", b"half")
"""


def test_files_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    with python_process(tmp_path, "-c", KILLED_WRITER, str(tmp_path)) as process:
        LineReader(process.stdout).wait_for("writing")
        [part] = tmp_path.glob("mine/save/.kitchen-*.part")
        LocalBlobs(str(tmp_path)).write("mine/run.json", b"{}")
        assert part.exists(), "its writer lives"
        process.kill()
        process.wait()
    other = tmp_path / "other/.kitchen-0123456789abcdef.part"
    kept = tmp_path / "mine/.kitchen-notes.part"
    other.parent.mkdir()
    for path in (other, kept):
        path.write_bytes(b"")
    LocalBlobs(str(tmp_path)).write("mine/run.json", b"{}")
    assert not part.exists()
    assert kept.exists(), "of another program"
    assert other.exists(), "of another run, which may have a writer on another machine"


def test_a_folder_with_a_null_character_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a\\x00b' cannot be a folder"):
        LocalBlobs("a\0b")
