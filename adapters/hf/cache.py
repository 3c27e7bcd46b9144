"""Repositories in the cache of `huggingface_hub`, which other programs share."""

from __future__ import annotations

import glob
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from adapters.hf.errors import Unreachable, clean
from kitchen.backend.temporary import delete_if_unused, hold
from kitchen.safe_text import read_json

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PART = r"\.kitchen-[0-9a-f]{16}\.part"  # end of the name of a note that is being written


@dataclass
class RepoCache:
    """Repositories of one kind, and the commits that their revisions resolve to.

    A revision that is a commit resolves to itself. Any other resolves to one commit for as long as
    the object lives. Without a network it resolves, with a warning, to the newest commit that it
    has resolved to here and whose files are in the cache.
    """

    kind: ClassVar[str]  # "model" or "dataset"

    endpoint: str
    cache: str
    timeout: float  # seconds
    # commits by repository and revision
    _resolved: dict[tuple[str, str], str] = field(default_factory=dict, init=False)

    @property
    def host(self) -> str:
        from huggingface_hub import constants

        return self.endpoint or constants.ENDPOINT

    @property
    def shown_host(self) -> str:
        """The host without secrets, for messages."""
        return clean(self.host)

    @property
    def api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.host, library_name="crucible-kitchen")

    @property
    def root(self) -> Path:
        from huggingface_hub import constants

        return Path(self.cache or constants.HF_HUB_CACHE).expanduser().absolute()

    def storage(self, repo: str) -> Path:
        """The folder of a repository; our files in it are deleted along with it."""
        from huggingface_hub.file_download import repo_folder_name

        return self.root / repo_folder_name(repo_id=repo, repo_type=self.kind)

    def resolve(
        self,
        repo: str,
        revision: str,
        ask_hub: Callable[[], str],
        has_files: Callable[[str], bool],
    ) -> str:
        """Return the commit of a revision.

        `ask_hub` asks the hub for it; `has_files` returns whether a commit's files are cached.
        """
        if _COMMIT.fullmatch(revision):
            return revision
        if (repo, revision) not in self._resolved:
            note = self.storage(repo) / "kitchen" / "refs" / (revision or "main")
            earlier = _lines(note)  # commits that it resolved to before, newest first
            try:
                commit = ask_hub()
                if earlier[:1] != [commit]:
                    older = [other for other in earlier if other != commit]
                    write(note, "\n".join([commit, *older]))
            except Unreachable as error:
                known = [*_lines(self._ref(repo, revision)), *earlier]
                if not known:
                    raise
                commit = next(filter(has_files, known), known[0])
                structlog.get_logger().warning(
                    "the hub cannot be reached; the cached files are used",
                    **{self.kind: repo},
                    commit=commit,
                    why=str(error),
                )
            self._resolved[repo, revision] = commit
        return self._resolved[repo, revision]

    def note_fetched(self, repo: str, revision: str, commit: str) -> None:
        """Record, for other programs, the commit of a revision whose files are now in the cache."""
        if revision != commit and _lines(self._ref(repo, revision)) != [commit]:
            write(self._ref(repo, revision), commit)

    def _ref(self, repo: str, revision: str) -> Path:
        return self.storage(repo) / "refs" / (revision or "main")


def is_complete(file: Path, size: int) -> bool:
    """Return whether a file is in the cache; one whose size differs from the hub's is deleted."""
    if file.is_file() and file.stat().st_size != size:
        file.resolve().unlink()
        file.unlink(missing_ok=True)
    return file.is_file()


def write(path: Path, text: str) -> None:
    """Write a note in the cache, whole or not at all, and delete parts that killed writers left.

    If the cache is not writable, only warn: the hub can be asked again.
    """
    part = path.with_name(f".{path.name}.kitchen-{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.kitchen-*.part"):
            if re.fullmatch(re.escape(f".{path.name}") + _PART, left.name):
                delete_if_unused(left)
        with part.open("x") as file:
            hold(file.fileno())
            file.write(text)
            file.flush()
            os.replace(part, path)
    except OSError as error:
        structlog.get_logger().warning(
            "the cache cannot be written", file=str(path), why=error.strerror
        )


def read_note(path: Path) -> Any:
    """Return a note's JSON; None if it is missing or damaged."""
    try:
        return read_json(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.is_file() else []
