"""Data sets in files, and those packaged with the kitchen."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from adapters.local.document_formats import (
    JsonRows,
    ParquetRows,
    parquet_length,
    stream_json,
    stream_parquet,
)
from adapters.local.line_formats import open_csv, open_jsonl, reading, stream_csv, stream_jsonl
from kitchen.errors import DataError, did_you_mean
from kitchen.ports.datasets import Dataset, DatasetInfo, StreamedRow

PACKAGED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "ingredients": ("train", "new_names", "new_grammars", "hand_typed"),
        "arithmetic": ("train", "held_out"),
    }
)
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "ingredients": "A recipe line, and the JSON object of its parts.",
        "arithmetic": "A sum, difference or product of two digits, and its value.",
    }
)
SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")


class LocalDatasets:
    """Data sets by path or by packaged name.

    A name is a packaged data set (`ingredients`, `arithmetic`), a file (its one split is "train"),
    or a folder with one file per split (train.jsonl, test.jsonl, ...). Relative paths begin at
    `root`. Files are

    * .jsonl: one JSON object per line; blank lines are skipped;
    * .json: an array of objects, or an object whose field "data" is one;
    * .csv: the first line names the columns; every value is a string;
    * .parquet: needs the extra `local`.

    Text is UTF-8. `load` checks the syntax of every row of text, so that no run fails midway over a
    missing brace. Rows are not held in memory but read again on demand (those of .json from the
    text in memory, those of .parquet from a temporary file); a file that has changed since is an
    error. `stream` checks each row only when it is read. All errors are DataError and name file,
    line and remedy, except for a missing pyarrow, which is a BackendError.
    """

    def __init__(self, root: str = ".", max_line_mb: int = 10) -> None:
        self._root = Path(root).expanduser()
        self._max_line_mb = max_line_mb  # per line of JSONL or CSV

    def splits(self, name: str, *, revision: str | None = None) -> Sequence[str]:
        return tuple(self._files(name, revision))

    def info(self, name: str, *, revision: str | None = None) -> DatasetInfo:
        files = self._files(name, revision)
        rows = {
            split: parquet_length(path, label) if path.suffix.lower() == ".parquet" else None
            for split, (label, path) in files.items()
        }
        with reading(name):
            size = sum(path.stat().st_size for _, path in files.values())
        return DatasetInfo(
            name,
            rows,
            size=size,
            license="Apache-2.0" if name in PACKAGED else "",
            about=ABOUT.get(name, ""),
        )

    def load(self, name: str, *, split: str = "train", revision: str | None = None) -> Dataset:
        label, path = self._file(name, split, revision)
        match path.suffix.lower():
            case ".jsonl":
                return open_jsonl(path, label, self._max_line_mb)
            case ".csv":
                return open_csv(path, label, self._max_line_mb)
            case ".json":
                return JsonRows(path, label)
            case _:
                return ParquetRows(path, label)

    def stream(
        self, name: str, *, split: str = "train", revision: str | None = None
    ) -> Iterator[StreamedRow]:
        label, path = self._file(name, split, revision)
        match path.suffix.lower():
            case ".jsonl":
                return stream_jsonl(path, label, self._max_line_mb)
            case ".csv":
                return stream_csv(path, label, self._max_line_mb)
            case ".json":
                return stream_json(path, label)
            case _:
                return stream_parquet(path, label)

    def _file(self, name: str, split: str, revision: str | None) -> tuple[str, Path]:
        files = self._files(name, revision)
        if split not in files:
            raise DataError(
                f"{name!r} has no split {split!r}; {did_you_mean(split, files)}{_one_file(files)}"
            )
        return files[split]

    def _files(self, name: str, revision: str | None) -> Mapping[str, tuple[str, Path]]:
        """Return each split's file, with its label for messages."""
        if revision is not None:
            raise DataError(
                f"{name!r} has no revision {revision!r}: files on this disk have one version only; "
                "leave revision out (the SHA-256 of the file is in the run's record)"
            )
        if name in PACKAGED:
            folder = Path(str(importlib.resources.files("adapters.local"))) / name
            return {
                split: (f"{name}/{split}.jsonl", folder / f"{split}.jsonl")
                for split in PACKAGED[name]
            }
        path = self._root / Path(name).expanduser()
        try:
            if name and path.is_dir():
                return _folder(name, path)
            if not name or not path.exists():
                raise self._unknown(name, path)
        except OSError as error:
            raise DataError(f"{name!r}: {error.strerror}; check that it may be read") from error
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{name}: files that end with {path.suffix!r} cannot be read; convert them to one "
                f"of {', '.join(SUFFIXES)}"
            )
        return {"train": (name, path)}

    def _unknown(self, name: str, path: Path) -> DataError:
        if "/" not in name and path.suffix.lower() not in SUFFIXES:
            others = _loadable(self._root)
            return DataError(
                f"no data set is called {name!r}; {did_you_mean(name, [*PACKAGED, *others])} "
                f"(packaged: {', '.join(PACKAGED)}; or give a path to a file: "
                f"{', '.join(SUFFIXES)})"
            )
        folder = name.rpartition("/")[0]
        others = [f"{folder}/{file}" if folder else file for file in _loadable(path.parent)]
        if not path.parent.is_dir():
            return DataError(
                f"{name}: there is no such file, nor the folder {path.parent}; check the path"
            )
        return DataError(
            f"{name}: there is no such file or folder; {did_you_mean(name, [*PACKAGED, *others])}"
        )


def _folder(name: str, path: Path) -> Mapping[str, tuple[str, Path]]:
    splits: dict[str, tuple[str, Path]] = {}
    for file in _known_files(path):
        split = Path(file).stem
        if split in splits:
            raise DataError(
                f"{name}: {splits[split][1].name} and {file} are both the split {split!r}; remove "
                "one"
            )
        splits[split] = (f"{name.rstrip('/')}/{file}", path / file)
    if not splits:
        raise DataError(
            f"{name}: the folder has no splits; put in one file per split, such as train.jsonl and "
            f"test.jsonl (or {', '.join(SUFFIXES)})"
        )
    return dict(sorted(splits.items(), key=lambda item: (item[0] != "train", item[0])))


def _known_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())


def _loadable(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return [
        *_known_files(folder),
        *sorted(p.name for p in folder.iterdir() if p.is_dir() and _known_files(p)),
    ]


def _one_file(files: Mapping[str, tuple[str, Path]]) -> str:
    """Return a hint on how to have more splits, if the data set is a single file."""
    if list(files) != ["train"]:
        return ""
    label, _ = files["train"]
    return f" ({label} is one file; for more splits give a folder of train.jsonl, test.jsonl, ...)"
