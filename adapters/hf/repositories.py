"""Repositories of data at the Hugging Face Hub, and what it said of each of their commits."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from adapters.hf.faults import Question, Unreachable, ask
from adapters.hf.snapshots import write
from kitchen.errors import ApiError, DataError, KitchenError, did_you_mean

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import DatasetInfo

T = TypeVar("T")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 20  # bytes of a download at once: of the client's 10 MB it holds four
_ABOUT = 200  # characters
_LISTED = 200  # data sets of an owner that a misspelled name is compared with


class _Missing(DataError):
    """A repository or revision that is not there, or not shown."""


@dataclass(frozen=True)
class Repository:
    """A repository at one commit, as the hub told of it."""

    name: str  # as the hub calls it now: names without an owner have got one
    commit: str
    files: Mapping[str, tuple[str, int]]  # path to digest and bytes
    license: str = ""
    about: str = ""


@dataclass
class Repositories:
    """What names mean, and the files that belong to them, in the cache that `huggingface_hub` shares with others.

    A commit is not asked for again once it was told of. Any other revision means one commit for as long as the object
    lives; without a network the one that it meant when last asked for, with a warning.
    """

    endpoint: str
    cache: str
    timeout: float  # seconds
    _seen: dict[tuple[str, str], Repository] = field(default_factory=dict)

    @property
    def host(self) -> str:
        from huggingface_hub import constants

        return self.endpoint or constants.ENDPOINT

    def at(self, name: str, revision: str) -> Repository:
        if (name, revision) not in self._seen:
            self._seen[name, revision] = self._told(name, revision)
        return self._seen[name, revision]

    def fetch(self, repository: Repository, path: str) -> Path:
        from huggingface_hub import constants, hf_hub_download

        constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _CHUNK)
        return Path(ask(self.question(repository.name), lambda: hf_hub_download(
            repository.name, path, repo_type="dataset", revision=repository.commit, cache_dir=self._folder,
            endpoint=self.host)))

    def reach(self, repository: Repository, path: str) -> None:
        """Raise what keeps a file from being read: those who stream it are told of less."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(repository.name, path, repo_type="dataset", revision=repository.commit, endpoint=self.host)
        ask(self.question(repository.name), lambda: self._api.get_hf_file_metadata(url=url))

    def storage(self, name: str) -> Path:
        """The folder of a repository in the cache; what is ours there goes when the data set is deleted from it."""
        from huggingface_hub.file_download import repo_folder_name

        return self._folder / repo_folder_name(repo_id=name, repo_type="dataset")

    def question(self, name: str) -> Question:
        return Question(f"data set {name!r}", self.host, f"{self.host}/datasets/{name}",
                        "without a network there are local files, and what was fetched before", _Missing, self.timeout)

    @property
    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.host, library_name="crucible-kitchen")

    @property
    def _folder(self) -> Path:
        from huggingface_hub import constants

        return Path(self.cache or constants.HF_HUB_CACHE).expanduser().absolute()

    def _told(self, name: str, revision: str) -> Repository:
        ref = self.storage(name) / "refs" / (revision or "main")
        if _COMMIT.fullmatch(revision) and (known := self._noted(name, revision)):
            return known
        try:
            told = self._asked(name, revision)
        except Unreachable as error:
            last = self._noted(name, ref.read_text()) if ref.is_file() else None
            if last is None:
                raise
            structlog.get_logger().warning("the hub cannot be reached; a data set is taken as it was when last asked",
                                           dataset=name, commit=last.commit, why=str(error))
            return last
        write(self._note(name, told.commit), json.dumps(asdict(told)))
        if told.commit != revision:
            write(ref, told.commit)
        return told

    def _asked(self, name: str, revision: str) -> Repository:
        from huggingface_hub import get_token

        try:
            info = ask(self.question(name), lambda: self._api.dataset_info(
                name, revision=revision or None, files_metadata=True))
        except _Missing as error:
            raise self._unknown(name, revision) from error
        except ApiError as error:
            if error.status == 401 and get_token() is None:  # strangers are told the same of what is private
                raise self._unknown(name, revision) from error
            raise
        return _repository(info)

    def _unknown(self, name: str, revision: str) -> DataError:
        refs = self._offered(name, lambda: self._api.list_repo_refs(name, repo_type="dataset")) if revision else None
        if refs:
            known = [ref.name for ref in [*refs.branches, *refs.tags]]
            return DataError(f"data set {name!r} has no revision {revision!r}; {did_you_mean(revision, known)}")
        owner, _, own = name.rpartition("/")
        beside = self._offered(name, lambda: [each.id for each in self._api.list_datasets(
            author=owner or None, search=None if owner else own, limit=_LISTED)])
        near = difflib.get_close_matches(name, beside or [])
        mend = did_you_mean(name, near) if near else "see how it is spelled"
        if Path(name).exists():
            mend = f"{name} on this disk is read by the local data sets: --datasets local"
        return DataError(f"there is no data set {name!r} at {self.host}, or it is private and HF_TOKEN is not of an "
                         f"account that may read it; {mend}")

    def _offered(self, name: str, ask_for: Callable[[], T]) -> T | None:
        """What a misspelled name is compared with; None where it is not told: that must not hide the misspelling."""
        try:
            return ask(self.question(name), ask_for)
        except KitchenError:
            return None

    def _note(self, name: str, commit: str) -> Path:
        return self.storage(name) / "kitchen" / f"{commit}.json"

    def _noted(self, name: str, commit: str) -> Repository | None:
        note = self._note(name, commit)
        if not note.is_file():
            return None
        told = json.loads(note.read_text())
        return Repository(**{**told, "files": {path: tuple(each) for path, each in told["files"].items()}})


def _repository(info: DatasetInfo) -> Repository:
    files = {each.rfilename: (str(each.lfs.sha256 if each.lfs else each.blob_id), int(each.size or 0))
             for each in info.siblings or ()}
    licensed = getattr(info.card_data, "license", None) or ""
    return Repository(info.id, str(info.sha), files, licensed if isinstance(licensed, str) else ", ".join(licensed),
                      " ".join((info.description or "").split())[:_ABOUT])
