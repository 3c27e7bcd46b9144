"""Repositories in the cache that `huggingface_hub` shares with other programs, and what their names
mean.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from adapters.hf.faults import Unreachable, clean

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class Cache:
    """Repositories of one kind.

    A revision that is a commit means itself. Any other means one commit for as long as the object
    lives; without a network the newest one that it has meant here and of which the files are there,
    with a warning.
    """

    kind: ClassVar[str]  # "model" or "dataset"

    endpoint: str
    cache: str
    timeout: float  # seconds
    # commits by repository and revision
    _meant: dict[tuple[str, str], str] = field(default_factory=dict, init=False)

    @property
    def host(self) -> str:
        from huggingface_hub import constants

        return self.endpoint or constants.ENDPOINT

    @property
    def shown(self) -> str:
        """The host as it may be told."""
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
        """The folder of a repository; what is ours there goes when it is deleted from the cache."""
        from huggingface_hub.file_download import repo_folder_name

        return self.root / repo_folder_name(repo_id=repo, repo_type=self.kind)

    def meaning(
        self, repo: str, revision: str, ask: Callable[[], str], has: Callable[[str], bool]
    ) -> str:
        """The commit that a revision is; `ask` asks the hub, `has` tells whether the files of a
        commit are there.
        """
        if _COMMIT.fullmatch(revision):
            return revision
        if (repo, revision) not in self._meant:
            # its commits, the newest first
            note = self.storage(repo) / "kitchen" / "refs" / (revision or "main")
            before = _lines(note)
            try:
                commit = ask()
                if before[:1] != [commit]:
                    write(note, "\n".join([commit, *(each for each in before if each != commit)]))
            except Unreachable as error:
                known = [*_lines(self._ref(repo, revision)), *before]
                if not known:
                    raise
                commit = next(filter(has, known), known[0])
                structlog.get_logger().warning(
                    "the hub cannot be reached; what was fetched before is taken",
                    **{self.kind: repo},
                    commit=commit,
                    why=str(error),
                )
            self._meant[repo, revision] = commit
        return self._meant[repo, revision]

    def fetched(self, repo: str, revision: str, commit: str) -> None:
        """Tell other programs what a revision is, now that its files are there."""
        if revision != commit and _lines(self._ref(repo, revision)) != [commit]:
            write(self._ref(repo, revision), commit)

    def _ref(self, repo: str, revision: str) -> Path:
        return self.storage(repo) / "refs" / (revision or "main")


def whole(file: Path, size: int) -> bool:
    """Whether a file is there; one of another size than the hub says is taken out."""
    if file.is_file() and file.stat().st_size != size:
        file.resolve().unlink()
        file.unlink(missing_ok=True)
    return file.is_file()


def write(path: Path, text: str) -> None:
    """A note in the cache, whole or not at all; it is found out again where the cache cannot be
    written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        structlog.get_logger().warning(
            "the cache cannot be written", file=str(path), why=error.strerror
        )


def noted(path: Path) -> Any:
    """What was written as JSON; None where there is nothing, or it is damaged."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.is_file() else []
