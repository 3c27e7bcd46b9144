"""The commit that results are recorded with."""

from __future__ import annotations

import subprocess
from pathlib import Path

RESULTS = (":!/docs/results.*", ":!/docs/appendix/gpu.jsonl")


def commit() -> str:
    """Return the short commit, with a plus for uncommitted changes other than results.

    "none" outside a git repository.
    """
    head = _git("rev-parse", "--short", "HEAD")
    if head is None:
        return "none"
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", *RESULTS)
    return f"{head}+" if changes else head


def _git(*words: str) -> str | None:
    """Return the output of git in this repository, or None where it fails."""
    done = subprocess.run(
        ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return None if done.returncode else done.stdout.strip()
