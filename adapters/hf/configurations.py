"""Configurations and splits of a data set, which `datasets` derives from its files and card."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from kitchen.backend.temporary import temporary_folder
from kitchen.config.yaml import check_aliases, check_brackets
from kitchen.errors import DataError, did_you_mean
from kitchen.safe_text import read_json

# files that describe how the others are to be read
CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
# builder options by format: smaller chunks need less memory while data sets are prepared
FORMATS: Mapping[str, Mapping[str, int]] = {
    "json": {"chunksize": 1 << 20},
    "csv": {},
    "parquet": {"batch_size": 1000},
    "arrow": {},
    "text": {"chunksize": 1 << 20},
}
_RETRY_CHUNK = 10 << 20  # bytes of JSON, the default of `datasets`
_STREAM_CHUNK = 4 << 20  # bytes of JSON; it takes six times as much memory
# `datasets` would open archives, and rejects a loading script beside data
_SKIPPED = (".py", ".zip")
# how pandas, Excel and MySQL write a missing value in CSV
_MISSING = ("", "NaN", "nan", "<NA>", "#N/A", "\\N")
_LOCATION_KEYS = ("config_name", "data_files", "data_dir", "default")


@dataclass(frozen=True)
class Configuration:
    """One configuration of a data set: the files of its splits, and the builder that reads them."""

    builder: Any
    files: Mapping[str, Sequence[str]]  # split to paths in the repository, "train" first
    card: Mapping[str, Any]

    def read_options(self) -> Any:
        """Return the options in the card that change how files are read, but not which files."""
        name = self.builder.config.name
        infos = self.card.get("dataset_info") or []
        infos = infos if isinstance(infos, list) else [infos]
        configs = self.card.get("configs") or []
        return {
            "features": [
                info.get("features") for info in infos if info.get("config_name", "default") == name
            ],
            "options": [
                _without_locations(config)
                for config in configs
                if config.get("config_name") == name
            ],
        }

    def num_rows(self, split: str) -> int | None:
        """Return the number of rows that the card gives, if it does."""
        info = (self.builder.info.splits or {}).get(split)
        return info.num_examples or None if info else None

    def prepare(self, split: str, paths: Sequence[Path], folder: Path) -> None:
        """Convert files on this disk to one Arrow file; the folder appears whole or not at all."""
        import pyarrow
        from datasets.exceptions import DatasetGenerationError

        self._read_from(split, [str(path) for path in paths])
        declared = self.builder.info.features
        try:
            self._write(folder)
        except DatasetGenerationError:
            if self.builder.name != "json" or declared is not None:
                raise
            # types were guessed from the first chunk, where a field may have been null throughout
            self.builder.info.features = None
            self.builder.config.chunksize = _RETRY_CHUNK
            self._write(folder)
        finally:
            pyarrow.default_memory_pool().release_unused()

    def stream(self, split: str, repository: str) -> Iterator[Mapping[str, Any]]:
        """Yield the rows over the network; `repository` is "hf://datasets/NAME@COMMIT"."""
        from datasets import config

        # the client of huggingface_hub already retries; twenty times that would take half an hour
        config.STREAMING_OPEN_MAX_RETRIES = 1
        config.STREAMING_READ_MAX_RETRIES = 1
        config.STREAMING_OPEN_RETRY_INTERVAL = 0
        config.STREAMING_READ_RETRY_INTERVAL = 0
        config.STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL = 0
        config.STREAMING_READ_RATE_LIMIT_RETRY_INTERVAL = 0
        if self.builder.name == "json":
            # large from the start, because a stream cannot be read a second time as in `prepare`
            self.builder.config.chunksize = _STREAM_CHUNK
        self._read_from(split, [f"{repository}/{path}" for path in self.files[split]])
        return iter(self.builder.as_streaming_dataset(split=split))

    def _write(self, folder: Path) -> None:
        self.builder.download_and_prepare(
            str(folder), verification_mode="no_checks", max_shard_size="1000PB"
        )

    def _read_from(self, split: str, locations: Sequence[str]) -> None:
        from datasets.data_files import DataFilesDict, DataFilesList

        self.builder.config.data_files = DataFilesDict(
            {split: DataFilesList(list(locations), [()] * len(locations))}
        )


def _without_locations(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {option: value for option, value in config.items() if option not in _LOCATION_KEYS}


@contextmanager
def open_configuration(
    name: str, configuration: str, files: Iterable[str], cards: Mapping[str, Path], endpoint: str
) -> Iterator[Configuration]:
    """Yield the configuration of this name, or the default one if the name is empty.

    `datasets` is given a folder of empty files with the same names, so that nothing is downloaded
    to find the configuration.
    """
    import datasets

    datasets.disable_progress_bars()
    # it also raises what it logs as an error
    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    with temporary_folder("datasets") as temporary:
        root = temporary / PurePosixPath(name).name
        _lay_out(root, files, cards)
        card = _read_card(name, root)
        _check_data_files(name, card)
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
        _configure(builder)
        yield Configuration(builder, _split_files(builder, root), card)


def _configure(builder: Any) -> None:
    for option, value in FORMATS[builder.name].items():
        setattr(builder.config, option, value)
    if builder.name == "csv" and builder.info.features is None:
        _read_as_text(builder)


def _split_files(builder: Any, root: Path) -> Mapping[str, Sequence[str]]:
    """Return each split's paths relative to the root, "train" first."""
    resolved = root.resolve()
    splits: dict[str, list[str]] = {}
    for split, paths in builder.config.data_files.items():
        splits[str(split)] = [Path(path).relative_to(resolved).as_posix() for path in paths]
    return dict(sorted(splits.items(), key=lambda item: item[0] != "train"))


def _read_as_text(builder: Any) -> None:
    """Read every value of a CSV as text, and empty cells as null, as the local data sets do.

    `datasets` would read 007 as 7 and NA as null.
    """
    from datasets import Features, Value

    config = builder.config
    generate = builder._generate_tables

    def generate_text(base_files: Any, files_iterables: Any) -> Iterator[Any]:
        for files in files_iterables:
            config.features = None
            for _, table in islice(generate(base_files, [files]), 1):
                config.features = Features(dict.fromkeys(table.column_names, Value("string")))
            for key, table in generate(base_files, [files]):
                yield key, _without_empty_cells(table)

    config.na_filter = False
    builder._generate_tables = generate_text


def _without_empty_cells(table: Any) -> Any:
    """Return a table of text in which missing values are null, as the local data sets have them."""
    import pyarrow
    import pyarrow.compute

    compute: Any = pyarrow.compute
    missing = pyarrow.array(_MISSING)
    columns = []
    for column in table.columns:
        is_missing = compute.is_in(compute.utf8_trim_whitespace(column), value_set=missing)
        columns.append(compute.if_else(is_missing, None, column))
    return pyarrow.table(columns, schema=table.schema)


def find_broken_line(names: Sequence[str], paths: Sequence[Path]) -> str | None:
    """Return the first line of JSON Lines files that is not JSON; `datasets` does not name it."""
    for name, path in zip(names, paths, strict=True):
        if name.endswith((".jsonl", ".ndjson")):
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    try:
                        read_json(line if line.strip() else b"{}")
                    except ValueError as error:
                        return f"{name}:{number}: is not JSON: {error}"
    return None


def _read_card(name: str, root: Path) -> Mapping[str, Any]:
    """Return the metadata of a card; raises DataError for metadata that cannot be read safely."""
    import yaml
    from huggingface_hub import metadata_load
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    texts: list[str] = []
    readme, infos = root / "README.md", root / "dataset_infos.json"
    yaml_file = root / ".huggingface.yaml"
    try:
        if readme.exists():
            block = REGEX_YAML_BLOCK.search(readme.read_text("utf-8-sig", "replace"))
            texts = [block[2]] if block else []
        if yaml_file.exists():
            texts.append(yaml_file.read_text("utf-8"))
        for text in texts:
            check_brackets(text)
            check_aliases(yaml.compose(text, yaml.SafeLoader))
        if infos.exists():
            read_json(infos.read_bytes())
        card = metadata_load(readme) if readme.exists() else None
        more = yaml.safe_load(yaml_file.read_text("utf-8")) if yaml_file.exists() else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DataError(
            f"the card of {name} cannot be read: {' '.join(reason.split())}; tell its authors, or "
            "fetch its files yourself and read them as local files"
        ) from error
    if card is None:
        readme.unlink(missing_ok=True)  # only prose, which would be read as data
    return {**(card or {}), **(more or {})}


def _check_data_files(name: str, card: Mapping[str, Any]) -> None:
    """Raise DataError if the card names files outside the repository."""
    configs = card.get("configs") or []
    locations = [(config.get("data_files"), config.get("data_dir")) for config in configs]
    for place in _strings(locations):
        if "://" in place or place.startswith("/") or ".." in PurePosixPath(place).parts:
            raise DataError(
                f"the card of {name} names files outside its repository ({place}); fetch them "
                "yourself, and read them as local files"
            )


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _lay_out(root: Path, files: Iterable[str], cards: Mapping[str, Path]) -> None:
    """Create an empty file for each path, except for cards, which get their content."""
    root.mkdir()
    for path in files:
        parts = PurePosixPath(path)
        if parts.suffix.lower() in _SKIPPED or parts.is_absolute() or ".." in parts.parts:
            continue
        (root / parts).parent.mkdir(parents=True, exist_ok=True)
        text = cards[path].read_bytes().decode("utf-8", "replace") if path in cards else ""
        (root / parts).write_bytes(text.encode())


def _unreadable(name: str, files: Iterable[str]) -> DataError:
    shown = [path for path in files if not path.startswith(".")]
    if any(path.endswith(".py") for path in shown):
        remedy = (
            "loading scripts are not run: many such data sets have their rows at "
            f"{name}@refs/convert/parquet"
        )
    elif any(path.lower().endswith(".zip") for path in shown):
        remedy = "archives are not unpacked: unpack them yourself, and read the files as local ones"
    else:
        remedy = "look for another data set that has the rows in such files"
    return DataError(
        f"data set {name!r} has no files in a supported format ({', '.join(FORMATS)}) but "
        f"{', '.join(shown[:5]) or 'none'}; {remedy}"
    )


def _check_configuration(name: str, configuration: str, known: Sequence[str]) -> None:
    if configuration and configuration not in known:
        raise DataError(
            f"data set {name!r} has no configuration {configuration!r}; "
            f"{did_you_mean(configuration, known)}"
        )
    if not configuration and len(known) > 1:
        raise DataError(
            f"data set {name!r} has several configurations ({', '.join(known)}); choose one: "
            f"'{name}:{known[0]}'"
        )
