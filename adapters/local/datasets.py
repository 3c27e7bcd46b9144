"""Data sets in files, and those packaged with the kitchen."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from adapters.local.csv_format import open_csv, stream_csv
from adapters.local.document_formats import (
    JsonRows,
    ParquetRows,
    parquet_length,
    stream_json,
    stream_parquet,
)
from adapters.local.folder_splits import (
    SUFFIXES,
    FolderSplits,
    SplitFiles,
    data_files,
    folder_splits,
)
from adapters.local.line_formats import open_jsonl, reading, stream_jsonl
from adapters.local.shards import open_shards, stream_shards
from adapters.local.text_format import TextRows, open_text, stream_text
from kitchen.errors import DataError, check_name, did_you_mean
from kitchen.ports.datasets import Dataset, DatasetInfo, OnBadRow, StreamedRow

PACKAGED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "ingredients": ("train", "new_names", "new_grammars", "hand_typed"),
        "arithmetic": ("train", "held_out"),
        "claims": ("claims_train", "claims_held_out", "claims_other_wording", "corpus"),
    }
)
ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "ingredients": "A recipe line, and the JSON object of its parts.",
        "arithmetic": "A sum, difference or product of two digits, and its value.",
        "claims": "Claims on invented studies, and the evidence for and against them.",
    }
)
# OWNER/NAME[:CONFIGURATION][@REVISION], also as an address
_HUB_NAME = re.compile(
    r"(?:(?:https?://)?huggingface\.co/datasets/|hf://(?:datasets/)?|hf:)?"
    r"(?P<name>(?:\w[\w.-]*/)?\w[\w.-]*(?::[^@:/]+)?(?:@[\w./+-]+)?)/?",
    re.ASCII,
)


class LocalDatasets:
    """Data sets by path or by packaged name.

    A name is a packaged data set (`ingredients`, `arithmetic`, `claims`), a file (its one split is
    "train"), or a folder with one file per split (train.jsonl, test.jsonl, ...), or several
    numbered ones (train-00000-of-00002.parquet), or a folder for each. Hidden files and those that
    describe the data, such as dataset_info.json, are not read. Relative paths begin at `root`.
    Files are

    * .jsonl: one JSON object per line; blank lines are skipped;
    * .json: an array of objects, or an object whose field "data" is one;
    * .csv: the first line names the columns; every value is a string, or None in an empty cell;
    * .parquet: needs the extra `local`;
    * .txt: a row {"text": ...} per line, without blank lines, or with text_rows="file" per file; in
      a folder only if it has no other data.

    Text is UTF-8. `load` checks the syntax of every row of text, so that no run fails midway over a
    missing brace. Rows are not held in memory but read again on demand (those of .json from the
    text in memory, those of .parquet from a temporary file); a file that has changed since is an
    error. `stream` checks each row only when it is read. All errors are DataError and name file,
    line and remedy, except for a missing pyarrow, which is a BackendError.
    """

    def __init__(
        self, root: str = ".", max_line_mb: int = 10, text_rows: TextRows = "line"
    ) -> None:
        check_name("text_rows", text_rows, get_args(TextRows))
        self._root = Path(root).expanduser()
        self._max_line_mb = max_line_mb  # per line of JSONL, CSV or text
        self._text_rows = text_rows

    def splits(self, name: str, *, revision: str | None = None) -> Sequence[str]:
        return tuple(self._find(name, revision).files)

    def info(self, name: str, *, revision: str | None = None) -> DatasetInfo:
        found = self._find(name, revision)
        with reading(name):
            size = sum(map(_size, found.files.values()))
        return DatasetInfo(
            name,
            {split: _length(files) for split, files in found.files.items()},
            size=size,
            license="Apache-2.0" if name in PACKAGED else "",
            about=ABOUT.get(name, ""),
            files={split: _names(name, files) for split, files in found.files.items()},
            not_read=found.not_read,
        )

    def load(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Dataset:
        files = self._files(name, split, revision)
        return open_shards([partial(self._load, path, label, on_bad_row) for label, path in files])

    def _load(self, path: Path, label: str, on_bad_row: OnBadRow | None) -> Dataset:
        match path.suffix.lower():
            case ".jsonl":
                return open_jsonl(path, label, self._max_line_mb, on_bad_row)
            case ".csv":
                return open_csv(path, label, self._max_line_mb, on_bad_row)
            case ".json":
                return JsonRows(path, label, on_bad_row)
            case ".txt":
                return open_text(path, label, self._max_line_mb, self._text_rows, on_bad_row)
            case _:
                return ParquetRows(path, label)

    def stream(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Iterator[StreamedRow]:
        files = self._files(name, split, revision)
        return stream_shards([self._stream(path, label, on_bad_row) for label, path in files])

    def _stream(self, path: Path, label: str, on_bad_row: OnBadRow | None) -> Iterator[StreamedRow]:
        match path.suffix.lower():
            case ".jsonl":
                return stream_jsonl(path, label, self._max_line_mb, on_bad_row)
            case ".csv":
                return stream_csv(path, label, self._max_line_mb, on_bad_row)
            case ".json":
                return stream_json(path, label, on_bad_row)
            case ".txt":
                return stream_text(path, label, self._max_line_mb, self._text_rows, on_bad_row)
            case _:
                return stream_parquet(path, label)

    def _files(self, name: str, split: str, revision: str | None) -> SplitFiles:
        splits = self._find(name, revision).files
        if split not in splits:
            raise DataError(
                f"{name!r} has no split {split!r}; {did_you_mean(split, splits)}{_one_file(splits)}"
            )
        return splits[split]

    def _find(self, name: str, revision: str | None) -> FolderSplits:
        """Return the files of each split, with their labels for messages."""
        if revision is not None:
            raise DataError(
                f"{name!r} has no revision {revision!r}: files on this disk have one version only; "
                "leave revision out (the SHA-256 of the file is in the run's record)"
            )
        if name in PACKAGED:
            folder = Path(str(importlib.resources.files("adapters.local"))) / name
            return FolderSplits(
                {
                    split: [(f"{name}/{split}.jsonl", folder / f"{split}.jsonl")]
                    for split in PACKAGED[name]
                }
            )
        path = self._root / Path(name).expanduser()
        try:
            if name and path.is_dir():
                return folder_splits(name, path)
            if not name or not path.exists():
                raise self._unknown(name, path)
        except OSError as error:
            raise DataError(f"{name!r}: {error.strerror}; check that it may be read") from error
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{name}: files that end with {path.suffix!r} cannot be read; convert them to one "
                f"of {', '.join(SUFFIXES)}"
            )
        return FolderSplits({"train": [(name, path)]})

    def _unknown(self, name: str, path: Path) -> DataError:
        if hub_name := _hub_name(name):
            return DataError(
                f"{name}: there is no such file or folder; a data set of the Hugging Face Hub "
                f"needs --datasets hf (dataset={hub_name} --datasets hf)"
            )
        if "/" not in name and path.suffix.lower() not in SUFFIXES:
            others = _loadable(self._root)
            return DataError(
                f"no data set is called {name!r}; {did_you_mean(name, [*PACKAGED, *others])} "
                f"(packaged: {', '.join(PACKAGED)}; or give a path to a file: "
                f"{', '.join(SUFFIXES)}; a data set of the Hugging Face Hub needs --datasets hf)"
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


def _names(name: str, files: SplitFiles) -> Sequence[str]:
    """Return the names of files within their folder; none for a data set that is one file."""
    folder = name.rstrip("/") + "/"
    return tuple(label.removeprefix(folder) for label, _ in files if label != name)


def _size(files: SplitFiles) -> int:
    """Return the size of all files of a split in bytes."""
    return sum(path.stat().st_size for _, path in files)


def _length(files: SplitFiles) -> int | None:
    """Return the number of rows, if the files are Parquet, which need not be read for it."""
    if any(path.suffix.lower() != ".parquet" for _, path in files):
        return None
    return sum(parquet_length(path, label) for label, path in files)


def _hub_name(name: str) -> str | None:
    """Return OWNER/NAME if this is how data sets of the Hugging Face Hub are named."""
    match = _HUB_NAME.fullmatch(name)
    if match is None or Path(match["name"].partition("@")[0]).suffix.lower() in SUFFIXES:
        return None
    is_address = name != match["name"]
    if not is_address and "/" not in name:
        return None
    if not is_address and Path(name.partition("/")[0]).is_dir():
        return None  # a folder of this name is on this disk: more likely a misspelt path
    return match["name"]


def _loadable(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    files = [path.name for path in data_files(folder)]
    return [*files, *sorted(p.name for p in folder.iterdir() if p.is_dir() and data_files(p))]


def _one_file(splits: Mapping[str, SplitFiles]) -> str:
    """Return a hint on how to have more splits, if the data set is a single file."""
    if list(splits) != ["train"] or len(splits["train"]) > 1:
        return ""
    [(label, _)] = splits["train"]
    return f" ({label} is one file; for more splits give a folder of train.jsonl, test.jsonl, ...)"
