"""The laws of blob stores: subclass `BlobLaws`, define `store`, and run pytest."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kitchen.ports.blobs import AppendableBlobs, BlobStore, BrowsableBlobs

INVALID_NAMES = [
    "",
    "/etc/passwd",
    "../up",
    "a/../../up",
    "a//b",
    "a/",
    ".",
    "a/./b",
    "..",
    "a\\b",
    "a\0b",
]
VALID_NAMES = [
    "a",
    "run/metrics.jsonl",
    "run/save/3",
    "jalapeño/½ cup.json",
    "with space",
    "trailing.tmp",
    "CON",
    "a.b.c",
    "%2e%2e",
]


class BlobLaws:
    """A write is visible whole or not at all, the last one wins, and names stay in the store."""

    big = 8_000_000  # bytes

    def store(self, tmp_path: Path) -> BlobStore:
        """Return an empty store of the adapter under test."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which adapter the laws are for:\n"
            "    def store(self, tmp_path: Path) -> BlobStore:\n"
            "        return MyBlobs(...)  # an empty store of its own for each test"
        )

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return self.store(tmp_path)

    def test_an_empty_store_has_nothing(self, blobs: BlobStore) -> None:
        assert list(blobs.list()) == []
        assert blobs.read("a") is None

    @pytest.mark.parametrize("name", VALID_NAMES)
    def test_a_written_blob_can_be_read(self, blobs: BlobStore, name: str) -> None:
        blobs.write(name, b"one")
        assert blobs.read(name) == b"one"
        assert list(blobs.list()) == [name]

    @pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)), b"\r\n"], ids=repr)
    def test_bytes_come_back_as_they_are(self, blobs: BlobStore, data: bytes) -> None:
        blobs.write("a", data)
        assert blobs.read("a") == data
        assert list(blobs.list()) == ["a"]

    def test_big_values(self, blobs: BlobStore) -> None:
        data = bytes(range(256)) * (self.big // 256)
        blobs.write("big", data)
        assert blobs.read("big") == data

    def test_the_last_write_wins(self, blobs: BlobStore) -> None:
        for data in (b"a long first value", b"two", b""):
            blobs.write("a/b", data)
            assert blobs.read("a/b") == data
        assert list(blobs.list()) == ["a/b"]

    def test_names_are_listed_sorted_and_by_prefix(self, blobs: BlobStore) -> None:
        for name in ("b/2", "a/10", "a/9", "ab", "b/1/x"):
            blobs.write(name, b"")
        assert list(blobs.list()) == ["a/10", "a/9", "ab", "b/1/x", "b/2"]
        assert list(blobs.list("a")) == ["a/10", "a/9", "ab"]
        assert list(blobs.list("a/")) == ["a/10", "a/9"]
        assert list(blobs.list("a/1")) == ["a/10"]
        assert list(blobs.list("b/1/x")) == ["b/1/x"]
        assert list(blobs.list("c")) == []

    def test_deleting_twice_is_no_error(self, blobs: BlobStore) -> None:
        blobs.write("a/b", b"one")
        blobs.write("a/c", b"two")
        blobs.delete("a/b")
        blobs.delete("a/b")
        blobs.delete("never/there")
        assert blobs.read("a/b") is None
        assert list(blobs.list()) == ["a/c"]
        blobs.write("a/b", b"again")
        assert blobs.read("a/b") == b"again"

    @pytest.mark.parametrize("name", INVALID_NAMES, ids=repr)
    def test_invalid_names_are_refused(self, blobs: BlobStore, name: str, tmp_path: Path) -> None:
        before = sorted(tmp_path.parent.iterdir())
        with pytest.raises(ValueError, match="blob name"):
            blobs.write(name, b"out")
        with pytest.raises(ValueError, match="blob name"):
            blobs.read(name)
        with pytest.raises(ValueError, match="blob name"):
            blobs.delete(name)
        assert list(blobs.list()) == []
        assert sorted(tmp_path.parent.iterdir()) == before

    def test_a_prefix_of_a_name_is_a_separate_name(self, blobs: BlobStore) -> None:
        blobs.write("run", b"one")
        blobs.write("running", b"two")
        blobs.delete("run")
        assert blobs.read("running") == b"two"

    def test_many_writers_and_readers_see_whole_values(self, blobs: BlobStore) -> None:
        values = [bytes([index]) * 50_000 for index in range(4)]
        blobs.write("shared", values[0])
        partial: list[bytes | None] = []
        errors: list[BaseException] = []

        def write(value: bytes) -> None:
            with _collecting(errors):
                for _ in range(10):
                    blobs.write("shared", value)

        def read() -> None:
            with _collecting(errors):
                for _ in range(20):
                    value = blobs.read("shared")
                    if value not in values:
                        partial.append(value)

        threads = [threading.Thread(target=write, args=(value,)) for value in values]
        threads += [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not errors
        assert not partial
        assert blobs.read("shared") in values
        assert list(blobs.list()) == ["shared"]

    def test_topmost_folders_are_listed(self, blobs: BlobStore) -> None:
        if not isinstance(blobs, BrowsableBlobs):
            pytest.skip("the store does not list folders")
        assert list(blobs.folders()) == []
        for name in ("b/2", "a/10/x", "a/9", "file"):
            blobs.write(name, b"")
        assert list(blobs.folders()) == ["a", "b"]

    def test_appended_bytes_follow_each_other(self, blobs: BlobStore) -> None:
        if not isinstance(blobs, AppendableBlobs):
            pytest.skip("this store does not append")
        whole = b""
        for data in (b"one\n", b"", b"\0\xff", b"two" * 100_000):
            blobs.append("run/rows.jsonl", data)
            whole += data
            assert blobs.read("run/rows.jsonl") == whole
        blobs.write("run/rows.jsonl", b"new")
        blobs.append("run/rows.jsonl", b"er")
        assert blobs.read("run/rows.jsonl") == b"newer"
        for name in INVALID_NAMES:
            with pytest.raises(ValueError, match="blob name"):
                blobs.append(name, b"out")

    def test_it_locates_a_blob_for_people(self, blobs: BlobStore) -> None:
        blobs.write("run/one", b"")
        assert "run/one" in blobs.locate("run/one").replace("\\", "/")


class _collecting:
    """Collects an error of the block, which would go unnoticed on a thread."""

    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self._errors.append(error)
        return True
