"""Data sets of the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from adapters.hf.arrow import ArrowRows, DamagedArrow
from adapters.hf.configurations import CARDS, Configuration, find_broken_line, open_configuration
from adapters.hf.dataset_repos import DatasetRepo, DatasetRepos
from adapters.hf.errors import HubRequest, NoResponse, clean, translate_error
from adapters.hf.retry import limited_waiting
from kitchen.errors import BackendError, DataError, KitchenError, did_you_mean
from kitchen.ports.datasets import Dataset, DatasetInfo, OnBadRow, StreamedRow

_NAME = re.compile(
    r"(?P<repo>(\w[\w.-]*/)?\w[\w.-]*)(:(?P<configuration>[^@:]+))?(@(?P<revision>\w[\w./+-]*))?",
    re.ASCII,
)
_ROW = re.compile(r" in row \d+$")  # a number within a batch that Arrow read, not within the data
_FILE_SUFFIXES = (".csv", ".json", ".jsonl", ".parquet", ".txt")


class HfDatasets:
    """Data sets of the Hugging Face Hub as `NAME[:CONFIGURATION][@REVISION]`, read by `datasets`.

    Files are stored in the cache of `huggingface_hub`, which other programs share; once a split is
    loaded, its rows are stored beside them as Arrow. The token is that of HF_TOKEN, or of `hf auth
    login`. Loading scripts of data sets are not run, and archives (.zip) are not unpacked. Values
    of CSV are text unless the card gives their types; all others are as `datasets` reads them,
    which turns a JSON field with nothing but ISO 8601 dates into datetime.

    Raises DataError for unknown or unreadable data, ApiError for a request that the hub rejects,
    and BackendError if the hub cannot be reached.
    """

    packages = ("datasets", "huggingface_hub")

    def __init__(
        self,
        *,
        endpoint: str = "",  # of the hub; else HF_ENDPOINT, else https://huggingface.co
        cache: str = "",  # folder; else HF_HUB_CACHE, else HF_HOME/hub
        # seconds without an answer, and seconds of answers that the hub is busy or broken
        timeout: float = 10.0,
    ) -> None:
        self._repos = DatasetRepos(endpoint.rstrip("/"), cache, timeout)
        self._timeout = timeout

    def splits(self, name: str, *, revision: str | None = None) -> Sequence[str]:
        with self._open(_parse_name(name, revision)) as opened:
            return tuple(opened.configuration.files)

    def info(self, name: str, *, revision: str | None = None) -> DatasetInfo:
        with self._open(_parse_name(name, revision)) as opened:
            splits = opened.configuration.files
            repo = opened.repo
            files = set(chain.from_iterable(splits.values()))
            return DatasetInfo(
                name,
                {split: opened.configuration.num_rows(split) for split in splits},
                repo.commit,
                sum(repo.files[path][1] for path in files),
                repo.license,
                repo.about,
                files=splits,
                not_read=[path for path in repo.files if path not in files],
            )

    def load(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Dataset:
        with self._open(_parse_name(name, revision)) as opened:
            opened.files(split)  # raises for an unknown split
            repo = opened.repo
            label = opened.label(split)
            folder = (
                self._repos.storage(repo.name)
                / "kitchen"
                / repo.commit
                / opened.configuration_name
                / split
            )
            if folder.is_dir():
                try:
                    return ArrowRows(folder, label, opened.fingerprint(split))
                except DamagedArrow:
                    with self._translated_errors(repo.name, label):
                        shutil.rmtree(folder)
            self._prepare(opened, split, folder)
            return ArrowRows(folder, label, opened.fingerprint(split))

    def _prepare(self, opened: _Opened, split: str, folder: Path) -> None:
        """Fetch the files of a split, and convert them to Arrow."""
        repo, files, label = opened.repo, opened.files(split), opened.label(split)
        paths = [self._repos.fetch(repo, path) for path in files]
        self._repos.note_fetched(repo.name, opened.name.revision, repo.commit)
        try:
            with self._translated_errors(repo.name, f"{label} ({', '.join(files[:3])})"):
                opened.configuration.prepare(split, paths, folder)
        except DataError as error:
            if line := find_broken_line(files, paths):
                raise DataError(f"{label}: {line}") from error
            raise

    def stream(
        self,
        name: str,
        *,
        split: str = "train",
        revision: str | None = None,
        on_bad_row: OnBadRow | None = None,
    ) -> Iterator[StreamedRow]:
        parsed = _parse_name(name, revision)
        with self._open(parsed) as opened:
            opened.files(split)  # raises for an unknown split now rather than at the first row
        return self._stream(parsed, split)

    def _stream(self, name: _Name, split: str) -> Iterator[StreamedRow]:
        number = 0
        with self._open(name) as opened:
            repo, label, files = opened.repo, opened.label(split), opened.files(split)
            self._repos.check_readable(repo, files[0])
            with self._translated_errors(repo.name, f"{label} ({', '.join(files[:3])})"):
                rows = opened.configuration.stream(
                    split, f"hf://datasets/{repo.name}@{repo.commit}"
                )
        while True:
            # rows are read in chunks, so an error may lie in a later one
            with self._translated_errors(repo.name, f"{label} from row {number + 1} on"):
                row = next(rows, None)
            if row is None:
                break
            number += 1
            yield StreamedRow(f"{label} row {number}", row)
        if not number:
            raise _no_rows(label)

    @contextmanager
    def _open(self, name: _Name) -> Iterator[_Opened]:
        repo = self._repos.at(name.repo, name.revision)
        cards = {path: self._repos.fetch(repo, path) for path in CARDS if path in repo.files}
        with ExitStack() as stack:
            with self._translated_errors(name.repo, f"data set {str(name)!r}"):
                configuration = stack.enter_context(
                    open_configuration(
                        name.repo, name.configuration, repo.files, cards, self._repos.host
                    )
                )
            yield _Opened(name, repo, configuration)

    @contextmanager
    def _translated_errors(self, repo: str, label: str) -> Iterator[None]:
        try:
            with limited_waiting(self._timeout):
                yield
        except KitchenError:
            raise
        except Exception as error:
            raise _translate(error, self._repos.request(repo), label) from error


@dataclass(frozen=True)
class _Name:
    """The name of a data set: `repo[:configuration][@revision]`."""

    repo: str
    configuration: str = ""
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repo}:{self.configuration}" if self.configuration else self.repo


@dataclass(frozen=True)
class _Opened:
    """A configuration of a repository at one commit."""

    name: _Name
    repo: DatasetRepo
    configuration: Configuration

    @property
    def configuration_name(self) -> str:
        return str(self.configuration.builder.config.name)

    def label(self, split: str) -> str:
        return f"{self.name} {split}"

    def files(self, split: str) -> Sequence[str]:
        splits = self.configuration.files
        if split not in splits:
            raise DataError(
                f"data set {str(self.name)!r} has no split {split!r}; {did_you_mean(split, splits)}"
            )
        if not sum(self.repo.files[path][1] for path in splits[split]):
            raise _no_rows(self.label(split))
        return splits[split]

    def fingerprint(self, split: str) -> str:
        """Return a digest of the files' digests on the hub and of the options to read them.

        It is computed without reading a file.
        """
        content = [
            self.configuration_name,
            self.configuration.read_options(),
            self.repo.files.get("dataset_infos.json"),
            [self.repo.files[path][0] for path in self.files(split)],
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _parse_name(name: str, revision: str | None) -> _Name:
    match = _NAME.fullmatch(name)
    if match is None or name.lower().endswith(_FILE_SUFFIXES):
        raise DataError(
            f"{name!r} is not a name at the Hugging Face Hub, NAME[:CONFIGURATION][@REVISION]; "
            "files on this disk are read by the local data sets: --datasets local"
        )
    pinned = match["revision"]
    if pinned and revision and pinned != revision:
        raise DataError(
            f"{name!r} names one revision, and revision={revision!r} another; give only one of them"
        )
    return _Name(match["repo"], match["configuration"] or "", pinned or revision or "")


def _translate(error: Exception, request: HubRequest, label: str) -> KitchenError:
    """Translate an error of the libraries: one of the hub, of the disk, or else of the data."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    chain: list[BaseException] = [error]
    while link := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(link)
    for link in chain:
        is_hub_error = isinstance(link, httpx2.HTTPError | OfflineModeIsEnabled | NoResponse)
        if is_hub_error or getattr(link, "errno", None) is not None:
            return translate_error(link, request)
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, StopIteration):
        return _no_rows(label)
    [message, *_] = _ROW.sub("", clean(str(cause)).strip()).splitlines() or [type(cause).__name__]
    if isinstance(cause, ImportError):
        return BackendError(f"{label}: {message}")
    remedy = ""
    if "cast" in message:
        remedy = (
            "; types are guessed from the first rows: give them in the card (dataset_info: "
            "features), or use Parquet"
        )
    return DataError(f"{label}: cannot be read: {message}{remedy}")


def _no_rows(label: str) -> DataError:
    return DataError(f"{label}: has no rows; use another split")
