"""What is in a repository of data: configurations and splits, told by `datasets` from names of
files and the card.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from kitchen.errors import DataError, did_you_mean

# what says how the other files are to be read
CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
# what is read at once bounds the memory that preparing takes
FORMATS: Mapping[str, Mapping[str, int]] = {
    "json": {"chunksize": 1 << 20},
    "csv": {},
    "parquet": {"batch_size": 1000},
    "arrow": {},
    "text": {"chunksize": 1 << 20},
}
_WIDER = 10 << 20  # bytes of JSON, as `datasets` itself reads at once
_STREAMED = 4 << 20  # bytes of JSON; it takes six times as much memory
# `datasets` opens archives, and refuses a program of the data set's name beside data
_CLOSED = (".py", ".zip")
_WHICH = ("config_name", "data_files", "data_dir", "default")


@dataclass(frozen=True)
class Contents:
    """One configuration: which files its splits are made of, and what of `datasets` reads them."""

    builder: Any
    files: Mapping[str, Sequence[str]]  # split to paths in the repository, "train" first
    card: Mapping[str, Any]

    def reading(self) -> Any:
        """What the card says of how it is read, but for which files it has."""
        name, told = self.builder.config.name, self.card.get("dataset_info") or []
        return {
            "features": [
                each.get("features")
                for each in (told if isinstance(told, list) else [told])
                if each.get("config_name", "default") == name
            ],
            "options": [
                {option: value for option, value in each.items() if option not in _WHICH}
                for each in self.card.get("configs") or []
                if each.get("config_name") == name
            ],
        }

    def rows(self, split: str) -> int | None:
        """How many the card says there are."""
        told = (self.builder.info.splits or {}).get(split)
        return told.num_examples or None if told else None

    def prepare(self, split: str, paths: Sequence[Path], folder: Path) -> None:
        """Files on this disk become one Arrow file in a folder that appears whole or not at all."""
        import pyarrow
        from datasets.exceptions import DatasetGenerationError

        self._read_from(split, [str(path) for path in paths])
        declared = self.builder.info.features
        try:
            self._write(folder)
        except DatasetGenerationError:
            if self.builder.name != "json" or declared is not None:
                raise
            # types were guessed from what was read first, where a field may have been null
            # throughout
            self.builder.info.features, self.builder.config.chunksize = None, _WIDER
            self._write(folder)
        finally:
            pyarrow.default_memory_pool().release_unused()

    def stream(self, split: str, repository: str) -> Iterator[Mapping[str, Any]]:
        """The rows, over the network: `repository` is "hf://datasets/NAME@COMMIT"."""
        from datasets import config

        # the client of huggingface_hub tries again by itself; twenty times that would be half an
        # hour
        config.STREAMING_OPEN_MAX_RETRIES = config.STREAMING_READ_MAX_RETRIES = 1
        config.STREAMING_OPEN_RETRY_INTERVAL = config.STREAMING_READ_RETRY_INTERVAL = 0
        config.STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL = (
            config.STREAMING_READ_RATE_LIMIT_RETRY_INTERVAL
        ) = 0
        if self.builder.name == "json":
            # wide at once: there is no second reading, as `prepare` has
            self.builder.config.chunksize = _STREAMED
        self._read_from(split, [f"{repository}/{path}" for path in self.files[split]])
        return iter(self.builder.as_streaming_dataset(split=split))

    def _write(self, folder: Path) -> None:
        self.builder.download_and_prepare(
            str(folder), verification_mode="no_checks", max_shard_size="1000PB"
        )

    def _read_from(self, split: str, places: Sequence[str]) -> None:
        from datasets.data_files import DataFilesDict, DataFilesList

        self.builder.config.data_files = DataFilesDict(
            {split: DataFilesList(list(places), [()] * len(places))}
        )


@contextmanager
def contents(
    name: str, configuration: str, files: Iterable[str], cards: Mapping[str, Path], endpoint: str
) -> Iterator[Contents]:
    """The configuration of this name, or the one that counts without a name.

    `datasets` is shown a folder of empty files of the same names, so that nothing need be fetched
    to know.
    """
    import datasets

    datasets.disable_progress_bars()
    # what it logs as an error it raises, too
    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="kitchen-") as temporary:
        root = Path(temporary) / PurePosixPath(name).name
        _lay_out(root, files, cards)
        card = _card(root)
        _check_places(name, card)
        try:
            builder = datasets.load_dataset_builder(
                str(root),
                configuration or None,
                cache_dir=f"{temporary}/cache",
                storage_options={"hf": {"endpoint": endpoint}},
            )
        except FileNotFoundError as error:
            raise _unreadable(name, files) from error
        except ValueError:
            _check_configuration(name, configuration, datasets.get_dataset_config_names(str(root)))
            raise
        if builder.name not in FORMATS:
            raise _unreadable(name, files)
        for option, value in FORMATS[builder.name].items():
            setattr(builder.config, option, value)
        if builder.name == "csv" and builder.info.features is None:
            _as_text(builder)
        found = {
            str(split): [Path(path).relative_to(root.resolve()).as_posix() for path in paths]
            for split, paths in builder.config.data_files.items()
        }
        yield Contents(
            builder, dict(sorted(found.items(), key=lambda item: item[0] != "train")), card
        )


def _as_text(builder: Any) -> None:
    """Every value of a CSV is text, as in a file on this disk; `datasets` would take 007 for 7 and
    NA for nothing.
    """
    from datasets import Features, Value

    config, read = builder.config, builder._generate_tables

    def tables(base_files: Any, files_iterables: Any) -> Iterator[Any]:
        for files in files_iterables:
            config.features = None
            for _, table in islice(read(base_files, [files]), 1):
                config.features = Features(dict.fromkeys(table.column_names, Value("string")))
            yield from read(base_files, [files])

    config.na_filter, builder._generate_tables = False, tables


def broken_line(names: Sequence[str], paths: Sequence[Path]) -> str | None:
    """The first line that is not JSON in files that should be JSON lines: `datasets` does not say
    which it is.
    """
    for name, path in zip(names, paths, strict=True):
        if name.endswith((".jsonl", ".ndjson")):
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    try:
                        json.loads(line if line.strip() else "{}")
                    except ValueError as error:
                        return f"{name}:{number}: is not JSON: {error}"
    return None


def _card(root: Path) -> Mapping[str, Any]:
    from huggingface_hub import metadata_load
    from ruamel.yaml import YAML

    readme, beside = root / "README.md", root / ".huggingface.yaml"
    card = metadata_load(readme) if readme.exists() else None
    if card is None:
        readme.unlink(missing_ok=True)  # prose alone, which would be taken for data
    return {**(card or {}), **((YAML(typ="safe").load(beside) if beside.exists() else None) or {})}


def _check_places(name: str, card: Mapping[str, Any]) -> None:
    told = card.get("configs") or []
    for place in _places([(each.get("data_files"), each.get("data_dir")) for each in told]):
        if "://" in place or place.startswith("/") or ".." in PurePosixPath(place).parts:
            raise DataError(
                f"the card of {name} names files outside of it ({place}); fetch them yourself, and "
                "read "
                "them as local files"
            )


def _places(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _places(each)


def _lay_out(root: Path, files: Iterable[str], cards: Mapping[str, Path]) -> None:
    root.mkdir()
    for path in files:
        parts = PurePosixPath(path)
        if parts.suffix.lower() in _CLOSED or parts.is_absolute() or ".." in parts.parts:
            continue
        (root / parts).parent.mkdir(parents=True, exist_ok=True)
        text = cards[path].read_bytes().decode("utf-8", "replace") if path in cards else ""
        (root / parts).write_bytes(text.encode())


def _unreadable(name: str, files: Iterable[str]) -> DataError:
    shown = [path for path in files if not path.startswith(".")]
    if any(path.endswith(".py") for path in shown):
        mend = f"programs are not run: many such data sets have their rows at {name}@refs/convert/parquet"
    elif any(path.lower().endswith(".zip") for path in shown):
        mend = "archives are not unpacked: do so yourself, and read what is in them as local files"
    else:
        mend = "see whether another data set has them so"
    return DataError(
        f"data set {name!r} has no files that are read here ({', '.join(FORMATS)}) but "
        f"{', '.join(shown[:5]) or 'none'}; {mend}"
    )


def _check_configuration(name: str, wanted: str, known: Sequence[str]) -> None:
    if wanted and wanted not in known:
        raise DataError(
            f"data set {name!r} has no configuration {wanted!r}; {did_you_mean(wanted, known)}"
        )
    if not wanted and len(known) > 1:
        raise DataError(
            f"data set {name!r} has several configurations ({', '.join(known)}); say which: "
            f"'{name}:{known[0]}'"
        )
