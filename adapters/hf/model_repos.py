"""Models of the Hugging Face Hub as folders in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar

from adapters.hf.cache import RepoCache, is_complete
from adapters.hf.errors import HubRequest
from adapters.hf.retry import call_hub
from kitchen.backend.work import reporting
from kitchen.errors import BackendError, did_you_mean

T = TypeVar("T")

_INCLUDED = [
    "*.safetensors",
    "*.json",
    "*.txt",
    "*.model",
    "tokenizer.model*",
    "bpe.codes",
    "*.jinja",
    "*.tiktoken",
    "README.md",
    "LICENSE*",
]
# copies of the same weights for other programs
_EXPORT_HINT = "without a network, `kitchen export` writes the weights to a folder"
_EXCLUDED = ["*/*.safetensors", "consolidated*.safetensors"]


class _NotFound(BackendError):
    """A model or a revision that the hub does not have."""


@dataclass(frozen=True)
class ModelName:
    """A model of the hub: `repo[@revision]`."""

    repo: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


@dataclass
class ModelRepos(RepoCache):
    """Model repositories, and the files needed from them."""

    kind = "model"

    offline_hint: str  # what works without a network, for error messages
    # path to bytes, by repository and commit
    _trees: dict[tuple[str, str], Mapping[str, int]] = field(default_factory=dict, init=False)

    def call(
        self,
        name: ModelName,
        call: Callable[[], T],
        not_found: type[BackendError] = BackendError,
        *,
        publishes: bool = False,
    ) -> T:
        """Run a call to the hub about a model, with retries and our errors."""
        request = HubRequest(
            f"model {str(name)!r}",
            self.shown_host,
            f"{self.shown_host}/{name.repo}",
            _EXPORT_HINT if publishes else self.offline_hint,
            not_found,
            self.timeout,
            publishes,
        )
        return call_hub(request, call)

    def commit(self, name: ModelName) -> str:
        """Return the commit that a name resolves to."""
        return self.resolve(
            name.repo,
            name.revision,
            lambda: self._ask_commit(name),
            lambda commit: self._has_files(name, commit),
        )

    def forget(self, repo: str) -> None:
        """Forget the commits of a repository, so that the hub is asked again."""
        self._resolved = {key: commit for key, commit in self._resolved.items() if key[0] != repo}

    def tree(self, name: ModelName) -> Mapping[str, int]:
        """Return the size in bytes of each file of a model."""
        commit = self.commit(name)
        if (name.repo, commit) not in self._trees:
            cached = self._cached_tree(name.repo, commit)
            if cached is None:
                self._ask_tree(name, commit)
            else:
                self._trees[name.repo, commit] = cached
        return self._trees[name.repo, commit]

    def fetch(self, name: ModelName) -> Path:
        """Return the folder of the commit with all needed files; damaged ones are fetched again."""
        from huggingface_hub import snapshot_download

        commit = self.commit(name)
        tree = self.tree(name)
        folder = self._folder(name, commit)
        if absent := _missing(folder, tree):
            megabytes = sum(tree[path] for path in absent) / 1e6
            with reporting(f"Downloading {name} ({megabytes:,.0f} MB)"):
                self.call(
                    name,
                    lambda: snapshot_download(
                        name.repo,
                        revision=commit,
                        cache_dir=self.root,
                        endpoint=self.host,
                        allow_patterns=_INCLUDED,
                        ignore_patterns=_EXCLUDED,
                    ),
                )
            if missing := _missing(folder, tree):
                raise BackendError(
                    f"model {str(name)!r}: {self.shown_host} sent only a part of {missing[0]}; try "
                    "again"
                )
        self.note_fetched(name.repo, name.revision, commit)
        return folder

    def file(self, name: ModelName, path: str) -> Path:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache

        commit = self.commit(name)
        cached = try_to_load_from_cache(name.repo, path, cache_dir=self.root, revision=commit)
        if isinstance(cached, str):
            return Path(cached)
        if path not in (tree := self.tree(name)):
            raise BackendError(
                f"model {str(name)!r} has no file {path!r}; {did_you_mean(path, tree)}"
            )
        return Path(
            self.call(
                name,
                lambda: hf_hub_download(
                    name.repo, path, revision=commit, cache_dir=self.root, endpoint=self.host
                ),
            )
        )

    def _ask_commit(self, name: ModelName) -> str:
        try:
            return self._ask_tree(name, name.revision or None)
        except _NotFound:
            refs = self.call(name, lambda: self.api.list_repo_refs(name.repo))
        known = [ref.name for ref in [*refs.branches, *refs.tags]]
        raise BackendError(
            f"model {name.repo!r} has no revision {name.revision or 'main'!r}; "
            f"{did_you_mean(name.revision, known)}"
        )

    def _ask_tree(self, name: ModelName, revision: str | None) -> str:
        """Ask the hub for the commit of a revision, and note the commit's files."""
        info = self.call(
            name,
            lambda: self.api.model_info(name.repo, revision=revision, files_metadata=True),
            _NotFound,
        )
        self._trees[name.repo, str(info.sha)] = {
            file.rfilename: file.size or 0 for file in info.siblings or ()
        }
        return str(info.sha)

    def _has_files(self, name: ModelName, commit: str) -> bool:
        tree = self._cached_tree(name.repo, commit)
        return tree is not None and not _missing(self._folder(name, commit), tree)

    def _cached_tree(self, repo: str, commit: str) -> Mapping[str, int] | None:
        """Return the size in bytes of each file of a commit, as the cache lists them."""
        from huggingface_hub import get_cached_repo_tree
        from huggingface_hub.errors import CachedRepoTreeNotFoundError

        try:
            files = get_cached_repo_tree(repo, revision=commit, cache_dir=self.root)
            return {file.path: file.size for file in files}
        except CachedRepoTreeNotFoundError:
            return None

    def _folder(self, name: ModelName, commit: str) -> Path:
        return self.storage(name.repo) / "snapshots" / commit


def needed_files(paths: Mapping[str, int]) -> Sequence[str]:
    """Return the files to fetch: configuration, safetensors, tokenizer and card, but no pickles."""
    return sorted(
        path for path in paths if _matches(path, _INCLUDED) and not _matches(path, _EXCLUDED)
    )


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _missing(folder: Path, tree: Mapping[str, int]) -> Sequence[str]:
    return [path for path in needed_files(tree) if not is_complete(folder / path, tree[path])]
