"""Repositories of data at the Hugging Face Hub, and what it said of each of their commits."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from adapters.hf.cache import Cache, noted, whole, write
from adapters.hf.contents import CARDS
from adapters.hf.faults import Question, ask
from kitchen.errors import ApiError, BackendError, DataError, KitchenError, did_you_mean

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo

T = TypeVar("T")

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
class Repositories(Cache):
    """Data sets: what the hub said of their commits, which is not asked for again, and their files."""

    kind = "dataset"

    # by name and commit
    _told: dict[tuple[str, str], Repository] = field(default_factory=dict, init=False)

    def at(self, name: str, revision: str) -> Repository:
        commit = self.meaning(
            name, revision, lambda: self._asked(name, revision), lambda each: self._has(name, each)
        )
        if (name, commit) not in self._told:
            known = self._noted(name, commit)
            if known is None:
                commit = self._asked(name, commit)
            else:
                self._told[name, commit] = known
        return self._told[name, commit]

    def fetch(self, repository: Repository, path: str) -> Path:
        """A file of it; one that is damaged is fetched again."""
        from huggingface_hub import constants, hf_hub_download

        kept, size = self._file(repository, path), repository.files[path][1]
        if whole(kept, size):
            return kept
        constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _CHUNK)
        ask(
            self.question(repository.name),
            lambda: hf_hub_download(
                repository.name,
                path,
                repo_type="dataset",
                revision=repository.commit,
                cache_dir=self.root,
                endpoint=self.host,
            ),
        )
        if not whole(kept, size):
            raise BackendError(
                f"data set {repository.name!r}: {self.shown} did not give {path} whole; try again"
            )
        return kept

    def reach(self, repository: Repository, path: str) -> None:
        """Raise what keeps a file from being read: those who stream it are told of less."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(
            repository.name,
            path,
            repo_type="dataset",
            revision=repository.commit,
            endpoint=self.host,
        )
        ask(self.question(repository.name), lambda: self.api.get_hf_file_metadata(url=url))

    def question(self, name: str) -> Question:
        return Question(
            f"data set {name!r}",
            self.shown,
            f"{self.shown}/datasets/{name}",
            "without a network there are local files, and what was fetched before",
            _Missing,
            self.timeout,
        )

    def _has(self, name: str, commit: str) -> bool:
        """Whether there is data of a commit: the card alone, by which it is looked at, does not
        count.
        """
        told = self._noted(name, commit)
        return told is not None and any(
            self._file(told, path).is_file() for path in told.files.keys() - set(CARDS)
        )

    def _file(self, repository: Repository, path: str) -> Path:
        return self.storage(repository.name) / "snapshots" / repository.commit / path

    def _asked(self, name: str, revision: str) -> str:
        """Ask the hub which commit a revision is, and note what it says of that."""
        from huggingface_hub import get_token

        try:
            info = ask(
                self.question(name),
                lambda: self.api.dataset_info(name, revision=revision or None, files_metadata=True),
            )
        except _Missing as error:
            raise self._unknown(name, revision) from error
        except ApiError as error:
            # strangers are told the same of what is private
            if error.status == 401 and get_token() is None:
                raise self._unknown(name, revision) from error
            raise
        told = _repository(info)
        self._told[name, told.commit] = told
        write(self._note(name, told.commit), json.dumps(asdict(told)))
        return told.commit

    def _unknown(self, name: str, revision: str) -> DataError:
        refs = (
            self._offered(name, lambda: self.api.list_repo_refs(name, repo_type="dataset"))
            if revision
            else None
        )
        if refs:
            known = [ref.name for ref in [*refs.branches, *refs.tags]]
            return DataError(
                f"data set {name!r} has no revision {revision!r}; {did_you_mean(revision, known)}"
            )
        owner, _, own = name.rpartition("/")
        beside = self._offered(
            name,
            lambda: [
                each.id
                for each in self.api.list_datasets(
                    author=owner or None, search=None if owner else own, limit=_LISTED
                )
            ],
        )
        near = difflib.get_close_matches(name, beside or [])
        mend = did_you_mean(name, near) if near else "see how it is spelled"
        if Path(name).exists():
            mend = f"{name} on this disk is read by the local data sets: --datasets local"
        return DataError(
            f"there is no data set {name!r} at {self.shown}, or it is private and HF_TOKEN is not "
            "of an "
            f"account that may read it; {mend}"
        )

    def _offered(self, name: str, ask_for: Callable[[], T]) -> T | None:
        """What a misspelled name is compared with; None where it is not told: that must not hide
        the misspelling.
        """
        try:
            return ask(self.question(name), ask_for)
        except KitchenError:
            return None

    def _note(self, name: str, commit: str) -> Path:
        return self.storage(name) / "kitchen" / f"{commit}.json"

    def _noted(self, name: str, commit: str) -> Repository | None:
        told = noted(self._note(name, commit))
        return told and Repository(
            **{**told, "files": {path: tuple(each) for path, each in told["files"].items()}}
        )


def _repository(info: DatasetInfo) -> Repository:
    files = {
        each.rfilename: (str(each.lfs.sha256 if each.lfs else each.blob_id), int(each.size or 0))
        for each in info.siblings or ()
    }
    licensed = getattr(info.card_data, "license", None) or ""
    return Repository(
        info.id,
        str(info.sha),
        files,
        licensed if isinstance(licensed, str) else ", ".join(licensed),
        " ".join((info.description or "").split())[:_ABOUT],
    )
