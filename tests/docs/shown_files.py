"""Copies files of the repository into pages that show them: `python -m tests.docs.shown_files`.

A page shows a file verbatim in a code block after a comment that names it, as README.md shows
recipes/sl_basic.py. A file that does not exist in the repository is the reader's, and left alone.
`make docs` runs this script; tests/docs/test_commands.py fails if a page is out of date.
"""

from __future__ import annotations

import re

from tests.support.pages import BLOCK, PAGES, ROOT, page_name


def with_current_files(page: str) -> str:
    """Return the text of a page with every shown file as it is in the repository."""

    def current_block(block: re.Match[str]) -> str:
        path, written_before, language, _ = block.groups()
        if not path or written_before or not (ROOT / path).is_file():
            return block[0]
        text = (ROOT / path).read_text(encoding="utf-8")
        return f"<!-- {path} -->\n```{language}\n{text}```"

    return BLOCK.sub(current_block, page)


def main() -> None:
    """Rewrite the pages that are out of date."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        current = with_current_files(text)
        if current != text:
            page.write_text(current, encoding="utf-8")
            print(f"updated {page_name(page)}")


if __name__ == "__main__":
    main()
