"""Copies files of the repository into pages that show them: `python -m tests.docs.shown_files`.

A page shows a file verbatim in a code block after a comment that names it, as README.md shows
recipes/sl_basic.py. "as it is" after the name marks a file that a `kitchen new` command of the page
wrote. Every other file is the reader's, and left alone. `make docs` runs this script;
tests/docs/test_commands.py fails if a page is out of date.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path

from kitchen.cli.commands.new import new
from tests.support.pages import BLOCK, PAGES, ROOT, commands, page_name


def with_current_files(page: str) -> str:
    """Return the text of a page with every shown file as it is now."""
    with tempfile.TemporaryDirectory() as folder:
        _write_new_files(page, Path(folder))

        def current_block(block: re.Match[str]) -> str:
            path, new_file, language, _ = block.groups()
            file = Path(folder if new_file else ROOT, path or "")
            if not path or not file.is_file():
                return block[0]
            text = file.read_text(encoding="utf-8")
            return f"<!-- {path}{new_file or ''} -->\n```{language}\n{text}```"

        return BLOCK.sub(current_block, page)


def _write_new_files(page: str, folder: Path) -> None:
    """Write what the `kitchen new` commands of a page write."""
    for *_, language, text in BLOCK.findall(page):
        for command in commands(text) if language == "bash" else ():
            words = shlex.split(command)
            if words[:2] == ["kitchen", "new"]:
                kind, name, *options = words[2:]
                default = "training" if kind == "adapter" else ""
                with contextlib.redirect_stdout(io.StringIO()):
                    new(kind, name, folder, options[1] if options else default)


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
