"""Folders as data sets: which file is which split, and which is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.local.datasets import LocalDatasets
from kitchen.errors import DataError


def folder(root: Path, *files: str) -> LocalDatasets:
    """Make files of one row each, which says its file, and open their folder."""
    for file in files:
        path = root / "set" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"prompt": file, "completion": "x"}
        match path.suffix:
            case ".json":
                path.write_text(json.dumps([row]))
            case ".csv":
                path.write_text(f"prompt,completion\n{file},x\n")
            case _:
                path.write_text(json.dumps(row) + "\n")
    return LocalDatasets(str(root))


def prompts(store: LocalDatasets, split: str) -> list[str]:
    data = store.load("set", split=split)
    streamed = [entry.row["prompt"] for entry in store.stream("set", split=split)]
    assert [data[at]["prompt"] for at in range(len(data))] == streamed
    assert [data.where(at) for at in range(len(data))] == [f"set/{name}:1" for name in streamed]
    return streamed


@pytest.mark.parametrize(
    ("split", "files"),
    [
        (
            "train",
            [
                "train-00000-of-00003.jsonl",
                "train-00001-of-00003.jsonl",
                "train-00002-of-00003.jsonl",
            ],
        ),
        ("train", ["train_1_of_2.jsonl", "train_2_of_2.jsonl"]),
        (
            "train",
            [
                "train-00000-of-00002-9b1a2c3d4e5f6789.jsonl",
                "train-00001-of-00002-0b1a2c3d4e5f6789.jsonl",
            ],
        ),
        ("train", ["0000.jsonl", "0001.jsonl"]),
        ("train", [f"train.{number}.jsonl" for number in range(12)]),
        ("data", ["data_01.jsonl", "data_02.jsonl"]),
        ("part", ["part-9.jsonl", "part-10.jsonl"]),
        (
            "part",
            [
                "part-00000-6d1f3a2b-aaaa-bbbb-cccc-0123456789ab-c000.snappy.jsonl",
                "part-00001-6d1f3a2b-aaaa-bbbb-cccc-0123456789ab-c000.snappy.jsonl",
            ],
        ),
        ("train", ["train/b.jsonl", "train/c.jsonl"]),
    ],
)
def test_numbered_files_are_one_split(tmp_path: Path, split: str, files: list[str]) -> None:
    store = folder(tmp_path, *reversed(files))
    assert list(store.splits("set")) == [split]
    assert prompts(store, split) == files
    assert list(store.info("set").files[split]) == files


@pytest.mark.parametrize(
    "files",
    [
        ["level1.jsonl", "level2.jsonl"],
        ["test1.jsonl", "test2.jsonl"],
        ["gsm8k.jsonl", "v-2.jsonl"],
    ],
)
def test_other_numbers_are_part_of_a_name(tmp_path: Path, files: list[str]) -> None:
    assert list(folder(tmp_path, *files).splits("set")) == [file[:-6] for file in files]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            ["train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl"],
            "2 of 3 files; missing: number 1",
        ),
        (["train-1-of-2.jsonl"], "1 of 2 files; missing: number"),
        (["train-0.jsonl", "train-1.csv"], "both the split 'train'"),
        (["train.jsonl", "train-1.jsonl", "train-2.jsonl"], "both the split 'train'"),
        (["train/test.jsonl"], "a held-out split in the folder"),
        (["main/train.jsonl", "socratic/train.jsonl"], "choose one: set/main"),
    ],
)
def test_incomplete_or_ambiguous_files_are_errors(
    tmp_path: Path, files: list[str], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        folder(tmp_path, *files).splits("set")


@pytest.mark.parametrize(
    ("layout", "splits"),
    [
        (["data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"], ["train", "test"]),
        (["default/train/0000.jsonl", "default/validation/0000.jsonl"], ["train", "validation"]),
        (["train.jsonl", "held_out/0.jsonl", "held_out/1.jsonl"], ["train", "held_out"]),
        (["train.jsonl", "old/train.jsonl"], ["train"]),
    ],
)
def test_folders_in_a_folder(tmp_path: Path, layout: list[str], splits: list[str]) -> None:
    store = folder(tmp_path, *layout)
    assert list(store.splits("set")) == splits
    assert len(store.load("set", split=splits[-1])) >= 1


@pytest.mark.parametrize(
    ("name", "content", "listed"),
    [
        ("._train.jsonl", b"\0\5\x16\7", True),
        (".train.jsonl.swp", b"b0VIM", False),
        ("__MACOSX/train.jsonl", b"\0", False),
        (".git/index.json", b"{}", False),
        ("_SUCCESS", b"", False),
        ("~$train.csv", b"lock", True),
        ("dataset_info.json", b'{"herbs": {"file_name": "train.jsonl"}}', True),
        ("trainer_state.json", b'{"global_step": 7}', True),
        ("README.md", b"# Herbs", True),
        ("checksums.csv", b"file,sha256\ntrain.jsonl,00\n", True),
        ("metadata.jsonl", b'{"file_name": "a.png"}\n', True),
        ("LICENSE", b"free", True),
        ("notes.txt", b"Dry the herbs.", True),
        ("train.jsonl.gz", b"\x1f\x8b", True),
    ],
)
def test_side_files_are_no_splits(tmp_path: Path, name: str, content: bytes, listed: bool) -> None:
    store = folder(tmp_path, "train.jsonl", "test.jsonl")
    path = tmp_path / "set" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    info = store.info("set")
    assert list(info.splits) == ["train", "test"]
    assert list(info.not_read) == ([name] if listed else [])


def test_texts_are_data_if_there_is_nothing_else(tmp_path: Path) -> None:
    store = folder(tmp_path, "train.txt", "test.txt", "README.txt")
    assert list(store.splits("set")) == ["train", "test"]
    assert "test.txt" in store.load("set", split="test")[0]["text"]


def test_documents_without_names_of_splits_are_one_split(tmp_path: Path) -> None:
    store = folder(tmp_path, "herbs.txt", "spices.txt", "a-1.txt")
    assert list(store.splits("set")) == ["train"]
    data = store.load("set")
    assert [data.where(at) for at in range(3)] == [
        *("set/a-1.txt:1", "set/herbs.txt:1", "set/spices.txt:1"),
    ]


def test_json_that_may_be_data_is_read(tmp_path: Path) -> None:
    store = folder(tmp_path, "train.json", "more.json")
    (tmp_path / "set" / "lines.json").write_text('{"prompt": 1}\n{"prompt": 2}\n')
    (tmp_path / "set" / "wrapped.json").write_text('{"data": [{"prompt": "a"}]}')
    assert list(store.splits("set")) == ["train", "lines", "more", "wrapped"]
    with pytest.raises(DataError, match=r"is it JSONL\? call it \.jsonl"):
        store.load("set", split="lines")


def test_an_empty_shard_is_passed_over(tmp_path: Path) -> None:
    store = folder(tmp_path, "train-0.jsonl", "train-1.jsonl", "train-2.jsonl")
    (tmp_path / "set" / "train-1.jsonl").write_text("\n")
    assert prompts(store, "train") == ["train-0.jsonl", "train-2.jsonl"]
    for number in (0, 2):
        (tmp_path / "set" / f"train-{number}.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"set/train-0\.jsonl: has no rows"):
        store.load("set")


def test_shards_have_a_digest_of_their_own(tmp_path: Path) -> None:
    store = folder(tmp_path, "train-0.jsonl", "train-1.jsonl", "test.jsonl")
    whole = store.load("set")
    assert whole.fingerprint != store.load("set", split="test").fingerprint
    (tmp_path / "set" / "train-1.jsonl").write_text('{"prompt": "other"}\n')
    assert store.load("set").fingerprint != whole.fingerprint
    with pytest.raises(IndexError):
        whole[2]


@pytest.mark.parametrize(
    "name",
    [
        "HuggingFaceH4/no_robots",
        "openai/gsm8k:main",
        "owner/set@v1.0",
        "https://huggingface.co/datasets/owner/set",
        "hf://datasets/owner/set",
    ],
)
def test_a_name_of_the_hub_needs_the_hub(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="--datasets hf"):
        LocalDatasets(str(tmp_path)).load(name)
