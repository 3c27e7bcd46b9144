"""Data sets of the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from adapters.hf.arrow import ArrowRows, Damaged
from adapters.hf.contents import CARDS, Contents, broken_line, contents
from adapters.hf.faults import Question, clean, translated
from adapters.hf.patience import Silent, patience
from adapters.hf.repositories import Repositories, Repository
from kitchen.errors import BackendError, DataError, KitchenError, did_you_mean
from kitchen.ports.datasets import Dataset, DatasetInfo, StreamedRow

_NAME = re.compile(
    r"(?P<repo>(\w[\w.-]*/)?\w[\w.-]*)(:(?P<configuration>[^@:]+))?(@(?P<revision>\w[\w./+-]*))?",
    re.ASCII,
)
_ROW = re.compile(r" in row \d+$")  # of a piece that Arrow read, not of the data
_FILES = (".csv", ".json", ".jsonl", ".parquet")


class HfDatasets:
    """Data sets of the Hugging Face Hub as `NAME[:CONFIGURATION][@REVISION]`, read by `datasets`.

    The files lie in the cache of `huggingface_hub`, where other programs find them too, and beside
    them, once loaded, the rows as Arrow. The token is that of HF_TOKEN, or of `hf auth login`. Data
    sets that are programs are not run, and archives (.zip) are not unpacked. Values of CSV are text
    unless the card says their types; all others are as `datasets` gives them, which reads a field
    of JSON that holds nothing but ISO 8601 dates as datetime.

    Raises DataError for what is unknown or cannot be read, ApiError for what the hub refuses,
    BackendError where it cannot be reached.
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
        self._hub, self._timeout = Repositories(endpoint.rstrip("/"), cache, timeout), timeout

    def splits(self, name: str, *, revision: str | None = None) -> Sequence[str]:
        with self._opened(_named(name, revision)) as found:
            return tuple(found.contents.files)

    def info(self, name: str, *, revision: str | None = None) -> DatasetInfo:
        with self._opened(_named(name, revision)) as found:
            splits, repository = found.contents.files, found.repository
            size = sum(
                repository.files[path][1]
                for path in {path for paths in splits.values() for path in paths}
            )
            return DatasetInfo(
                name,
                {split: found.contents.rows(split) for split in splits},
                repository.commit,
                size,
                repository.license,
                repository.about,
            )

    def load(self, name: str, *, split: str = "train", revision: str | None = None) -> Dataset:
        with self._opened(_named(name, revision)) as found:
            files, shown, repository = found.files(split), found.shown(split), found.repository
            folder = (
                self._hub.storage(repository.name)
                / "kitchen"
                / repository.commit
                / found.configuration
                / split
            )
            if folder.is_dir():
                try:
                    return ArrowRows(folder, shown, found.fingerprint(split))
                except Damaged:
                    with self._faults(repository.name, shown):
                        shutil.rmtree(folder)
            paths = [self._hub.fetch(repository, path) for path in files]
            self._hub.fetched(repository.name, found.name.revision, repository.commit)
            try:
                with self._faults(repository.name, f"{shown} ({', '.join(files[:3])})"):
                    found.contents.prepare(split, paths, folder)
            except DataError as error:
                if line := broken_line(files, paths):
                    raise DataError(f"{shown}: {line}") from error
                raise
            return ArrowRows(folder, shown, found.fingerprint(split))

    def stream(
        self, name: str, *, split: str = "train", revision: str | None = None
    ) -> Iterator[StreamedRow]:
        named = _named(name, revision)
        with self._opened(named) as found:
            found.files(split)
        return self._streamed(named, split)

    def _streamed(self, name: _Name, split: str) -> Iterator[StreamedRow]:
        number = 0
        with self._opened(name) as found:
            repository, shown, files = found.repository, found.shown(split), found.files(split)
            self._hub.reach(repository, files[0])
            with self._faults(repository.name, f"{shown} ({', '.join(files[:3])})"):
                rows = found.contents.stream(
                    split, f"hf://datasets/{repository.name}@{repository.commit}"
                )
        while True:
            # many are read at once
            with self._faults(repository.name, f"{shown} from row {number + 1} on"):
                row = next(rows, None)
            if row is None:
                break
            number += 1
            yield StreamedRow(f"{shown} row {number}", row)
        if not number:
            raise _no_rows(shown)

    @contextmanager
    def _opened(self, name: _Name) -> Iterator[_Found]:
        repository = self._hub.at(name.repo, name.revision)
        cards = {
            path: self._hub.fetch(repository, path) for path in CARDS if path in repository.files
        }
        with ExitStack() as stack:
            with self._faults(name.repo, f"data set {str(name)!r}"):
                found = contents(
                    name.repo, name.configuration, repository.files, cards, self._hub.host
                )
                opened = stack.enter_context(found)
            yield _Found(name, repository, opened)

    @contextmanager
    def _faults(self, repo: str, shown: str) -> Iterator[None]:
        try:
            with patience(self._timeout):
                yield
        except KitchenError:
            raise
        except Exception as error:
            raise _explained(error, self._hub.question(repo), shown) from error


@dataclass(frozen=True)
class _Name:
    """A data set as it is asked for."""

    repo: str
    configuration: str = ""
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repo}:{self.configuration}" if self.configuration else self.repo


@dataclass(frozen=True)
class _Found:
    """A configuration of a repository at one commit."""

    name: _Name
    repository: Repository
    contents: Contents

    @property
    def configuration(self) -> str:
        return str(self.contents.builder.config.name)

    def shown(self, split: str) -> str:
        return f"{self.name} {split}"

    def files(self, split: str) -> Sequence[str]:
        if split not in self.contents.files:
            raise DataError(
                f"data set {str(self.name)!r} has no split {split!r}; "
                f"{did_you_mean(split, self.contents.files)}"
            )
        if not sum(self.repository.files[path][1] for path in self.contents.files[split]):
            raise _no_rows(self.shown(split))
        return self.contents.files[split]

    def fingerprint(self, split: str) -> str:
        """Of the digests of its files as the hub tells them, and of how they are read: nothing need
        be read for it.
        """
        told = [
            self.configuration,
            self.contents.reading(),
            self.repository.files.get("dataset_infos.json"),
            [self.repository.files[path][0] for path in self.files(split)],
        ]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _named(name: str, revision: str | None) -> _Name:
    found = _NAME.fullmatch(name)
    if found is None or name.lower().endswith(_FILES):
        raise DataError(
            f"{name!r} is no name at the Hugging Face Hub, NAME[:CONFIGURATION][@REVISION]; files "
            "on this "
            "disk are read by the local data sets: --datasets local"
        )
    pinned = found["revision"]
    if pinned and revision and pinned != revision:
        raise DataError(f"{name!r} is asked for at revision {revision!r}, too; give one of the two")
    return _Name(found["repo"], found["configuration"] or "", pinned or revision or "")


def _explained(error: Exception, question: Question, shown: str) -> KitchenError:
    """What the libraries raise in our words: of the hub, of the disk, or else of the data."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    behind: list[BaseException] = [error]
    while link := behind[-1].__cause__ or behind[-1].__context__:
        behind.append(link)
    for link in behind:
        of_hub = isinstance(link, httpx2.HTTPError | OfflineModeIsEnabled | Silent)
        if of_hub or getattr(link, "errno", None) is not None:
            return translated(link, question)
    told: BaseException = error
    while told.__cause__ is not None:
        told = told.__cause__
    if isinstance(told, StopIteration):
        return _no_rows(shown)
    said = _ROW.sub("", clean(str(told)).strip()).splitlines() or [type(told).__name__]
    if isinstance(told, ImportError):
        return BackendError(f"{shown}: {said[0]}")
    mend = "; types are guessed from the first rows: let the card say them (dataset_info: features), or take Parquet"
    return DataError(f"{shown}: cannot be read: {said[0]}{mend if 'cast' in said[0] else ''}")


def _no_rows(shown: str) -> DataError:
    return DataError(f"{shown}: has no rows; take another split")
