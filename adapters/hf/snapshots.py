"""Models of the Hugging Face Hub as folders in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar

from adapters.hf.cache import Cache, whole
from adapters.hf.faults import Question, ask
from kitchen.errors import BackendError, did_you_mean

T = TypeVar("T")

_WANTED = [
    "*.safetensors",
    "*.json",
    "*.txt",
    "*.model",
    "*.jinja",
    "*.tiktoken",
    "README.md",
    "LICENSE*",
]
# the same weights once more, for other programs
_UNWANTED = ["*/*.safetensors", "consolidated*.safetensors"]


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
class Snapshots(Cache):
    """Models, and the files of them that are wanted."""

    kind = "model"

    offline: str  # what works without a network, for the texts of errors
    # by repo and commit
    _trees: dict[tuple[str, str], Mapping[str, int]] = field(default_factory=dict, init=False)

    def ask(self, name: Name, do: Callable[[], T], unknown: type[BackendError] = BackendError) -> T:
        return ask(
            Question(
                f"model {str(name)!r}",
                self.shown,
                f"{self.shown}/{name.repo}",
                self.offline,
                unknown,
                self.timeout,
            ),
            do,
        )

    def commit(self, name: Name) -> str:
        """The commit that a name means."""
        return self.meaning(
            name.repo, name.revision, lambda: self._newest(name), lambda each: self._has(name, each)
        )

    def forget(self, repo: str) -> None:
        """Ask again what its names mean."""
        self._meant = {meant: commit for meant, commit in self._meant.items() if meant[0] != repo}

    def tree(self, name: Name) -> Mapping[str, int]:
        """All its files, path to bytes."""
        commit = self.commit(name)
        if (name.repo, commit) not in self._trees:
            kept = self._kept(name.repo, commit)
            if kept is None:
                self._look(name, commit)
            else:
                self._trees[name.repo, commit] = kept
        return self._trees[name.repo, commit]

    def fetch(self, name: Name) -> Path:
        """The folder of its commit with all that is wanted; what is damaged is fetched again."""
        from huggingface_hub import snapshot_download

        commit, tree = self.commit(name), self.tree(name)
        folder = self._folder(name, commit)
        if _lacks(folder, tree):
            self.ask(
                name,
                lambda: snapshot_download(
                    name.repo,
                    revision=commit,
                    cache_dir=self.root,
                    endpoint=self.host,
                    allow_patterns=_WANTED,
                    ignore_patterns=_UNWANTED,
                ),
            )
            if lacking := _lacks(folder, tree):
                raise BackendError(
                    f"model {str(name)!r}: {self.shown} did not give {lacking[0]} whole; try again"
                )
        self.fetched(name.repo, name.revision, commit)
        return folder

    def file(self, name: Name, path: str) -> Path:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        commit = self.commit(name)
        kept = try_to_load_from_cache(name.repo, path, cache_dir=self.root, revision=commit)
        if isinstance(kept, str):
            return Path(kept)
        if path not in (known := self.tree(name)):
            raise BackendError(
                f"model {str(name)!r} has no file {path!r}; {did_you_mean(path, known)}"
            )
        return Path(
            self.ask(
                name,
                lambda: hf_hub_download(
                    name.repo, path, revision=commit, cache_dir=self.root, endpoint=self.host
                ),
            )
        )

    def _newest(self, name: Name) -> str:
        try:
            return self._look(name, name.revision or None)
        except _Unknown:
            refs = self.ask(name, lambda: self.api.list_repo_refs(name.repo))
        known = [ref.name for ref in [*refs.branches, *refs.tags]]
        raise BackendError(
            f"model {name.repo!r} has no revision {name.revision or 'main'!r}; "
            f"{did_you_mean(name.revision, known)}"
        )

    def _look(self, name: Name, revision: str | None) -> str:
        """Ask the hub which commit a revision is, and note the files of that."""
        info = self.ask(
            name,
            lambda: self.api.model_info(name.repo, revision=revision, files_metadata=True),
            _Unknown,
        )
        self._trees[name.repo, str(info.sha)] = {
            each.rfilename: each.size or 0 for each in info.siblings or ()
        }
        return str(info.sha)

    def _has(self, name: Name, commit: str) -> bool:
        kept = self._kept(name.repo, commit)
        return kept is not None and not _lacks(self._folder(name, commit), kept)

    def _kept(self, repo: str, commit: str) -> Mapping[str, int] | None:
        """All files of a commit as the cache knows them, path to bytes."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            return {
                each.path: each.size
                for each in get_cached_repo_tree(repo, revision=commit, cache_dir=self.root)
            }
        except CachedRepoTreeNotFoundError:
            return None

    def _folder(self, name: Name, commit: str) -> Path:
        return self.storage(name.repo) / "snapshots" / commit


def wanted(paths: Mapping[str, int]) -> Sequence[str]:
    """The files of a model that are fetched: configuration, weights as safetensors, tokenizer and
    card; no pickles.
    """
    return sorted(path for path in paths if _fits(path, _WANTED) and not _fits(path, _UNWANTED))


def _fits(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _lacks(folder: Path, tree: Mapping[str, int]) -> Sequence[str]:
    return [path for path in wanted(tree) if not whole(folder / path, tree[path])]
