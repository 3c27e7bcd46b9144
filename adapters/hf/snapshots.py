"""Repositories of the Hugging Face Hub, in the cache that `huggingface_hub` shares with other programs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from adapters.hf.faults import Question, Unreachable, ask
from kitchen.errors import BackendError, did_you_mean

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")

_WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "README.md", "LICENSE*"]
_UNWANTED = ["*/*.safetensors", "consolidated*.safetensors"]  # the same weights once more, for other programs
_COMMIT = re.compile(r"[0-9a-f]{40}")


class _Unknown(BackendError):
    """A model, or a revision of it, that the hub does not have."""


@dataclass(frozen=True)
class Name:
    """A model of the hub: `repo[@revision]`."""

    repo: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


@dataclass
class Snapshots:
    """What names mean, and the files that belong to them.

    A revision that is a commit is not asked for again once it is there. Any other name means one commit for as long as
    the object lives; without a network the one that it meant when last asked for, with a warning.
    """

    endpoint: str
    cache: str
    timeout: float  # seconds
    offline: str  # what works without a network, for the texts of errors
    _commits: dict[Name, str] = field(default_factory=dict)
    _trees: dict[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)  # by repository and commit

    def ask(self, name: Name, do: Callable[[], T], unknown: type[BackendError] = BackendError) -> T:
        return ask(Question(f"model {str(name)!r}", self.host, f"{self.host}/{name.repo}", self.offline, unknown,
                            self.timeout), do)

    @property
    def host(self) -> str:
        from huggingface_hub import constants

        return self.endpoint or constants.ENDPOINT

    @property
    def api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.host, library_name="crucible-kitchen")

    def commit(self, name: Name) -> str:
        """The commit that a name means."""
        if _COMMIT.fullmatch(name.revision):
            return name.revision
        if name not in self._commits:
            note = self._storage(name) / "refs" / (name.revision or "main")
            try:
                self._commits[name] = self._newest(name)
                write(note, self._commits[name])
            except Unreachable as error:
                if not note.is_file():
                    raise
                self._commits[name] = note.read_text()
                structlog.get_logger().warning("the hub cannot be reached; a model is taken as it was when last asked",
                                               model=str(name), commit=self._commits[name], why=str(error))
        return self._commits[name]

    def forget(self, repo: str) -> None:
        """Ask again what its names mean."""
        self._commits = {name: commit for name, commit in self._commits.items() if name.repo != repo}

    def tree(self, name: Name) -> Mapping[str, int]:
        """All its files, path to bytes."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        commit = self.commit(name)
        if (name.repo, commit) not in self._trees:
            try:
                kept = get_cached_repo_tree(name.repo, revision=commit, cache_dir=self._folder)
                self._trees[name.repo, commit] = {each.path: each.size for each in kept}
            except CachedRepoTreeNotFoundError:
                self._look(name, commit)
        return self._trees[name.repo, commit]

    def fetch(self, name: Name) -> Path:
        """The folder of its commit with all that is wanted; what is damaged is fetched again."""
        from huggingface_hub import snapshot_download

        commit, tree = self.commit(name), self.tree(name)
        folder = self._storage(name) / "snapshots" / commit
        if _lacks(folder, tree):
            self.ask(name, lambda: snapshot_download(
                name.repo, revision=commit, cache_dir=self._folder, endpoint=self.host,
                allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
            if lacking := _lacks(folder, tree):
                raise BackendError(f"model {str(name)!r}: {self.host} did not give {lacking[0]} whole; try again")
        return folder

    def file(self, name: Name, path: str) -> Path:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        commit = self.commit(name)
        kept = try_to_load_from_cache(name.repo, path, cache_dir=self._folder, revision=commit)
        if isinstance(kept, str):
            return Path(kept)
        if path not in (known := self.tree(name)):
            raise BackendError(f"model {str(name)!r} has no file {path!r}; {did_you_mean(path, known)}")
        return Path(self.ask(name, lambda: hf_hub_download(
            name.repo, path, revision=commit, cache_dir=self._folder, endpoint=self.host)))

    def _newest(self, name: Name) -> str:
        try:
            return self._look(name, name.revision or None)
        except _Unknown:
            refs = self.ask(name, lambda: self.api.list_repo_refs(name.repo))
        known = [ref.name for ref in [*refs.branches, *refs.tags]]
        raise BackendError(f"model {name.repo!r} has no revision {name.revision or 'main'!r}; "
                           f"{did_you_mean(name.revision, known)}")

    def _look(self, name: Name, revision: str | None) -> str:
        """Ask the hub which commit a revision is, and note the files of that."""
        info = self.ask(name, lambda: self.api.model_info(name.repo, revision=revision, files_metadata=True),
                        _Unknown)
        self._trees[name.repo, str(info.sha)] = {each.rfilename: each.size or 0 for each in info.siblings or ()}
        return str(info.sha)

    @property
    def _folder(self) -> Path:
        from huggingface_hub import constants

        return Path(self.cache or constants.HF_HUB_CACHE).expanduser().absolute()

    def _storage(self, name: Name) -> Path:
        from huggingface_hub.file_download import repo_folder_name

        return self._folder / repo_folder_name(repo_id=name.repo, repo_type="model")


def wanted(paths: Mapping[str, int]) -> Sequence[str]:
    """The files of a model that are fetched: configuration, weights as safetensors, tokenizer and card; no pickles."""
    return sorted(path for path in paths if _fits(path, _WANTED) and not _fits(path, _UNWANTED))


def _fits(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def write(path: Path, text: str) -> None:
    """A note in the cache, whole or not at all; it is found out again where the cache cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        structlog.get_logger().warning("the cache cannot be written", file=str(path), why=error.strerror)


def _lacks(folder: Path, tree: Mapping[str, int]) -> Sequence[str]:
    """The wanted files that are not there; one of another size than the hub says is taken out."""
    for path in wanted(tree):
        file = folder / path
        if file.is_file() and file.stat().st_size != tree[path]:
            file.resolve().unlink()
            file.unlink(missing_ok=True)
    return [path for path in wanted(tree) if not (folder / path).is_file()]
