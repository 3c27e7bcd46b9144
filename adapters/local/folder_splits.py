"""Splits of a folder, from the names of its files: shards are joined, side files left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kitchen.config.splits import HELD_OUT_WORDS, TRAIN_WORDS, is_held_out, shortened, words_of
from kitchen.errors import DataError

_ROW_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")
SUFFIXES = (*_ROW_SUFFIXES, ".txt")
# names of files that describe the data
_SIDE_FILES = """
    readme license licence notice citation changelog dataset_info dataset_infos dataset_dict
    state metadata manifest checksum checksums md5 md5sum md5sums sha256 sha256sum sha256sums
    schema statistics stats config
"""
# names of numbered files that are parts of one split
_SHARDS = "part shard chunk data file batch split rows output"
SIDE_FILES = frozenset(_SIDE_FILES.split())
_SHARD_WORDS = frozenset(_SHARDS.split())
_SPLIT_WORDS = TRAIN_WORDS | HELD_OUT_WORDS | {"held", "hold", "out"}
# train-00000-of-00002, also with the digest that older libraries append
_SHARD_OF = re.compile(
    r"(?P<split>.*?)[-_. ]*(?P<number>\d+)[-_ ]?of[-_ ]?(?P<count>\d+)([-_.][0-9a-f]{8,})?", re.I
)
_SPARK_PART = re.compile(r"(?P<split>part)-(?P<number>\d+)-[0-9a-f]{8}-[0-9a-f-]{27}.*", re.I)
# train-1, train1 and test-1, but not test1: two held-out sets are not joined so easily
_NUMBERED = re.compile(
    r"(?P<split>.*?)([-_. ]+(?P<number>\d+)|(?<!\d)(?P<digits>\d+))",
)
_MAX_SIDE_FILE = 1_000_000  # bytes of a JSON file that is read to see whether it holds rows
_MAX_DEPTH = 3  # folders within folders
SplitFiles = Sequence[tuple[str, Path]]  # label for messages, and file


@dataclass(frozen=True)
class FolderSplits:
    """The files of each split, and the names of those that are not read."""

    files: Mapping[str, SplitFiles]
    not_read: Sequence[str] = ()


@dataclass(frozen=True)
class _Shard:
    """One file of a split."""

    path: Path
    split: str
    number: int | None = None
    count: int | None = None  # of all files of the split, if the name says so


def folder_splits(name: str, path: Path, depth: int = 0) -> FolderSplits:
    """Return the splits of a folder; raises DataError if there are none, or if it is ambiguous."""
    name = name.rstrip("/")
    shards: list[_Shard] = []
    not_read: list[str] = []
    folders: list[Path] = []
    suffixes = _suffixes_in(path)
    for entry in sorted(path.iterdir(), key=_natural):
        is_data = not is_hidden(entry) and entry.suffix.lower() in suffixes and entry.is_file()
        if entry.is_dir():
            if not is_hidden(entry) and _has_data(entry):
                folders.append(entry)
        elif is_data and not is_side_file(entry):
            shards.append(_shard(entry))
        elif is_data or entry.suffix.lower() in _ROW_SUFFIXES or not is_hidden(entry):
            not_read.append(entry.name)
    for folder in list(folders):
        if _SPLIT_WORDS.issuperset(words_of(folder.name)):
            folders.remove(folder)
            shards += _parts(name, folder)
    if not shards and len(folders) == 1 and depth < _MAX_DEPTH:
        return folder_splits(f"{name}/{folders[0].name}", folders[0], depth + 1)
    not_read += [f"{folder.name}/" for folder in folders]
    if _are_documents(shards):
        shards = [_Shard(shard.path, "train", at) for at, shard in enumerate(shards)]
    if not shards:
        raise _no_splits(name, folders, not_read)
    return FolderSplits(_grouped(name, path, shards), tuple(not_read))


def data_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are taken for data; texts only if there are no others."""
    if not folder.is_dir():
        return []
    return _data_files(folder, _ROW_SUFFIXES) or _data_files(folder, SUFFIXES)


def _data_files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in suffixes
        and path.is_file()
        and not is_hidden(path)
        and not is_side_file(path)
    )


def _suffixes_in(folder: Path) -> Sequence[str]:
    """Return the suffixes of data in a folder: texts are notes beside files with rows."""
    folders = [entry for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry)]
    has_rows = any(_data_files(entry, _ROW_SUFFIXES) for entry in (folder, *folders))
    return _ROW_SUFFIXES if has_rows else SUFFIXES


def is_hidden(path: Path) -> bool:
    """Return whether a file or folder is a hidden or temporary one."""
    return path.name.startswith((".", "_", "~", "#")) or path.name.endswith("~")


def is_side_file(path: Path) -> bool:
    """Return whether a file describes the data: by its name, or as one JSON object without rows."""
    stem = path.stem.lower()
    if stem.replace("-", "_") in SIDE_FILES:
        return True
    if path.suffix.lower() != ".json" or _SPLIT_WORDS.issuperset(words_of(stem)):
        return False
    if path.stat().st_size > _MAX_SIDE_FILE:
        return False
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and not isinstance(content.get("data"), list)


def _are_documents(shards: Sequence[_Shard]) -> bool:
    """Return whether all files are texts none of whose names is that of a split."""
    texts = [shard for shard in shards if shard.path.suffix.lower() not in _ROW_SUFFIXES]
    is_split = any(not _SPLIT_WORDS.isdisjoint(words_of(shard.path.stem)) for shard in shards)
    return len(texts) == len(shards) > 0 and not is_split


def _shard(path: Path) -> _Shard:
    for pattern in (_SHARD_OF, _SPARK_PART, _NUMBERED):
        if not (match := pattern.fullmatch(path.stem)):
            continue
        parts = match.groupdict()
        number, count, split = parts["number"], parts.get("count"), parts["split"]
        words = words_of(split)
        if number is None:
            number = parts["digits"]
            is_part = not words or not (TRAIN_WORDS | _SHARD_WORDS).isdisjoint(words)
        else:
            is_part = not words or not (_SPLIT_WORDS | _SHARD_WORDS).isdisjoint(words)
        if count or is_part:
            return _Shard(path, split or "train", int(number), int(count) if count else None)
    return _Shard(path, path.stem)


def _parts(name: str, folder: Path) -> Iterable[_Shard]:
    """Yield the files of a folder that is one split, such as test/0000.parquet."""
    for number, path in enumerate(sorted(data_files(folder), key=_natural)):
        if is_held_out(path.stem) and not is_held_out(folder.name):
            raise DataError(
                f"{name}/{folder.name}/{path.name}: a held-out split in the folder of a split to "
                "train on; move it out, or give the one file as the data set"
            )
        yield _Shard(path, folder.name, number, _shard(path).count)


def _grouped(name: str, root: Path, shards: Sequence[_Shard]) -> Mapping[str, SplitFiles]:
    groups: dict[str, list[_Shard]] = {}
    for shard in shards:
        groups.setdefault(shard.split, []).append(shard)
    splits: dict[str, SplitFiles] = {}
    for split, group in groups.items():
        if len(group) == 1 and group[0].path.parent == root and group[0].count is None:
            split = group[0].path.stem  # a number alone makes no shard
        _check_group(name, split, group)
        group.sort(key=lambda shard: (shard.number or 0, shard.path.name))
        splits[split] = [
            (f"{name}/{shard.path.relative_to(root).as_posix()}", shard.path) for shard in group
        ]
    return dict(sorted(splits.items(), key=lambda item: (item[0] != "train", item[0])))


def _check_group(name: str, split: str, group: Sequence[_Shard]) -> None:
    numbers = [shard.number for shard in group]
    kinds = {(shard.path.parent, shard.path.suffix.lower(), shard.count) for shard in group}
    if len(group) > 1 and (None in numbers or len(set(numbers)) < len(group) or len(kinds) > 1):
        raise DataError(
            f"{name}: {group[0].path.name} and {group[1].path.name} are both the split {split!r}; "
            "remove one"
        )
    count = group[0].count
    if count is not None and len(group) != count:
        first = 1 if count in numbers else 0
        missing = [n for n in range(first, count + first) if n not in numbers]
        raise DataError(
            f"{name}: the split {split!r} has {len(group)} of {count} files; missing: number "
            f"{shortened([str(number) for number in missing])}; add them, or rename the others"
        )


def _no_splits(name: str, folders: Sequence[Path], not_read: Sequence[str]) -> DataError:
    if folders:
        names = [folder.name for folder in folders]
        return DataError(
            f"{name}: the folder has no splits itself, but folders with data ({shortened(names)}); "
            f"choose one: {name}/{names[0]}"
        )
    seen = f" (not read as data: {shortened(not_read)})" if not_read else ""
    return DataError(
        f"{name}: the folder has no splits{seen}; put in one file per split, such as train.jsonl "
        f"and test.jsonl (or {', '.join(SUFFIXES)})"
    )


def _has_data(folder: Path) -> bool:
    """Return whether a folder has data files, itself or in a subfolder."""
    inner = [entry for entry in folder.iterdir() if entry.is_dir() and not is_hidden(entry)]
    return bool(data_files(folder)) or any(data_files(entry) for entry in inner)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key by which part-10 follows part-9."""
    pieces = re.split(r"(\d+)", path.name)
    return [(int(piece) if piece.isdecimal() else 0, piece) for piece in pieces]
