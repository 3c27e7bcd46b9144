"""Copies files of this repository into the pages that show them: `python tests/docs/shown_files.py`.

A page shows a file verbatim in a code block after a comment that names it, as README.md shows
recipes/sl_basic.py. Files that do not exist in the repository belong to the reader and are left
alone. `make docs` runs this script; tests/docs/test_commands.py fails if a page is out of date.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = "python tests/docs/shown_files.py"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_SHOWN = re.compile(r"^<!-- (\S+) -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def with_current_files(page: str) -> str:
    """Return the text of a page with every shown file as it is in the repository."""

    def replace(block: re.Match[str]) -> str:
        path, language, _ = block.groups()
        file = ROOT / path
        if not file.is_file():
            return block[0]
        return f"<!-- {path} -->\n```{language}\n{file.read_text(encoding='utf-8')}```"

    return _SHOWN.sub(replace, page)


def main() -> None:
    """Rewrite the pages that are out of date."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        current = with_current_files(text)
        if current != text:
            page.write_text(current, encoding="utf-8")
            print(f"updated {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
