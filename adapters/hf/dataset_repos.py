"""Data set repositories of the Hugging Face Hub, their commits and files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from adapters.hf.cache import RepoCache, is_complete, read_note, write
from adapters.hf.configurations import CARDS
from adapters.hf.errors import HubRequest
from adapters.hf.retry import call_hub
from kitchen.errors import ApiError, BackendError, DataError, KitchenError, did_you_mean

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo

T = TypeVar("T")

_CHUNK = 1 << 20  # bytes of a download; with the default of 10 MB the client would hold 40 MB
_ABOUT = 200  # characters
_LISTED = 200  # data sets of an owner that a misspelled name is compared with


class _NotFound(DataError):
    """A repository or revision that does not exist, or is not visible."""


@dataclass(frozen=True)
class DatasetRepo:
    """A repository at one commit, as the hub describes it."""

    name: str  # the hub's current name: names without an owner have been given one
    commit: str
    files: Mapping[str, tuple[str, int]]  # path to digest and bytes
    license: str = ""
    about: str = ""


@dataclass
class DatasetRepos(RepoCache):
    """Data set repositories: descriptions of their commits, fetched once, and their files."""

    kind = "dataset"

    # by name and commit
    _repos: dict[tuple[str, str], DatasetRepo] = field(default_factory=dict, init=False)

    def at(self, name: str, revision: str) -> DatasetRepo:
        """Return the repository at a revision."""
        commit = self.resolve(
            name,
            revision,
            lambda: self._ask(name, revision),
            lambda cached: self._has_data(name, cached),
        )
        if (name, commit) not in self._repos:
            cached = self._read(name, commit)
            if cached is None:
                commit = self._ask(name, commit)
            else:
                self._repos[name, commit] = cached
        return self._repos[name, commit]

    def fetch(self, repo: DatasetRepo, path: str) -> Path:
        """Return a file of a repository; a damaged one is fetched again."""
        from huggingface_hub import constants, hf_hub_download

        file = self._file(repo, path)
        size = repo.files[path][1]
        if is_complete(file, size):
            return file
        constants.DOWNLOAD_CHUNK_SIZE = min(constants.DOWNLOAD_CHUNK_SIZE, _CHUNK)
        call_hub(
            self.request(repo.name),
            lambda: hf_hub_download(
                repo.name,
                path,
                repo_type="dataset",
                revision=repo.commit,
                cache_dir=self.root,
                endpoint=self.host,
            ),
        )
        if not is_complete(file, size):
            raise BackendError(
                f"data set {repo.name!r}: {self.shown_host} sent only a part of {path}; try again"
            )
        return file

    def check_readable(self, repo: DatasetRepo, path: str) -> None:
        """Raise an error if a file cannot be read; it is clearer than the error of a stream."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(
            repo.name, path, repo_type="dataset", revision=repo.commit, endpoint=self.host
        )
        call_hub(self.request(repo.name), lambda: self.api.get_hf_file_metadata(url=url))

    def request(self, name: str) -> HubRequest:
        return HubRequest(
            f"data set {name!r}",
            self.shown_host,
            f"{self.shown_host}/datasets/{name}",
            "without a network, local files and cached data sets work",
            _NotFound,
            self.timeout,
        )

    def _has_data(self, name: str, commit: str) -> bool:
        """Return whether files of a commit are cached; the card alone does not count."""
        repo = self._read(name, commit)
        return repo is not None and any(
            self._file(repo, path).is_file() for path in repo.files.keys() - set(CARDS)
        )

    def _file(self, repo: DatasetRepo, path: str) -> Path:
        return self.storage(repo.name) / "snapshots" / repo.commit / path

    def _ask(self, name: str, revision: str) -> str:
        """Ask the hub for the commit of a revision, and note the commit's description."""
        from huggingface_hub import get_token

        try:
            info = call_hub(
                self.request(name),
                lambda: self.api.dataset_info(name, revision=revision or None, files_metadata=True),
            )
        except _NotFound as error:
            raise self._unknown(name, revision) from error
        except ApiError as error:
            # without a token the answer is the same for private data sets
            if error.status == 401 and get_token() is None:
                raise self._unknown(name, revision) from error
            raise
        repo = _from_info(info)
        self._repos[name, repo.commit] = repo
        write(self._note(name, repo.commit), json.dumps(asdict(repo)))
        return repo.commit

    def _unknown(self, name: str, revision: str) -> DataError:
        refs = None
        if revision:
            refs = self._try(name, lambda: self.api.list_repo_refs(name, repo_type="dataset"))
        if refs:
            known = [ref.name for ref in [*refs.branches, *refs.tags]]
            return DataError(
                f"data set {name!r} has no revision {revision!r}; {did_you_mean(revision, known)}"
            )
        near = difflib.get_close_matches(name, self._similar_names(name))
        remedy = did_you_mean(name, near) if near else "check the spelling"
        if Path(name).exists():
            remedy = f"{name} on this disk is read by the local data sets: --datasets local"
        return DataError(
            f"there is no data set {name!r} at {self.shown_host}, or it is private and HF_TOKEN "
            f"does not belong to an account that may read it; {remedy}"
        )

    def _similar_names(self, name: str) -> list[str]:
        """Return names of data sets of the same owner, or with a similar name."""
        owner, _, short_name = name.rpartition("/")

        def search() -> list[str]:
            matches = self.api.list_datasets(
                author=owner or None, search=None if owner else short_name, limit=_LISTED
            )
            return [match.id for match in matches]

        return self._try(name, search) or []

    def _try(self, name: str, call: Callable[[], T]) -> T | None:
        """Run a call for suggestions; None if it fails, so that the misspelling is reported."""
        try:
            return call_hub(self.request(name), call)
        except KitchenError:
            return None

    def _note(self, name: str, commit: str) -> Path:
        return self.storage(name) / "kitchen" / f"{commit}.json"

    def _read(self, name: str, commit: str) -> DatasetRepo | None:
        note = read_note(self._note(name, commit))
        if not note:
            return None
        files = {path: tuple(digest_and_size) for path, digest_and_size in note["files"].items()}
        return DatasetRepo(**{**note, "files": files})


def _from_info(info: DatasetInfo) -> DatasetRepo:
    files = {
        file.rfilename: (str(file.lfs.sha256 if file.lfs else file.blob_id), int(file.size or 0))
        for file in info.siblings or ()
    }
    licence = getattr(info.card_data, "license", None) or ""
    return DatasetRepo(
        info.id,
        str(info.sha),
        files,
        licence if isinstance(licence, str) else ", ".join(licence),
        " ".join((info.description or "").split())[:_ABOUT],
    )
