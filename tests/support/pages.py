"""The pages of the docs: the files that they show and the commands that they run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# a code block, and before it perhaps a comment with the path of its file: the reader writes that
# file, or, with "as it is", the commands before it wrote it
BLOCK = re.compile(
    r"^(?:<!-- (\S+?)(, as it is)? -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def page_files(page: Path) -> Mapping[str, str]:
    """Return path to text of the files that a page has its reader write."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return {path: text for path, shown, _, text in blocks if path and not shown}


def commands(text: str) -> list[str]:
    """Return the commands of a bash block, without the comments behind them."""
    lines = text.replace("\\\n", "").splitlines()
    stripped = [line.split("  #")[0].strip() for line in lines]
    return [line for line in stripped if line]
