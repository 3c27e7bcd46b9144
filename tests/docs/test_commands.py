"""The pages work: their files are written and their commands run, in order, in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.shown_files import with_current_files
from tests.support.commands import shell
from tests.support.pages import BLOCK, PAGES, ROOT, commands, page_files, page_name

FIRST = [ROOT / "README.md", ROOT / "docs/index.md"]  # that a new user reads
LISTS = (ROOT / "docs/commands-not-run.md").read_text().split("\n## ")[1:]


def listed_commands(text: str) -> set[str]:
    """Return the commands in the first column of a table."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {row.split("`")[1] for row in rows}


NEVER, SLOW = map(listed_commands, LISTS)


def all_commands(page: Path) -> set[str]:
    found: set[str] = set()
    for *_, language, text in BLOCK.findall(page.read_text()):
        if language == "bash":
            found |= set(commands(text))
    return found


def work_through(page: Path, folder: Path, skipped: set[str]) -> None:
    """Write the files of a page and run its commands, in the order of the page."""
    for path, shown, language, text in BLOCK.findall(page.read_text()):
        if shown:
            assert (folder / path).read_text() == text, f"the commands wrote another {path}"
        elif path:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for command in commands(text) if language == "bash" else ():
            if command not in skipped:
                done = shell(folder, command, timeout=600, without=("PYTEST_", "HF_TOKEN"))
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def slow_commands(page: Path) -> set[str]:
    """Return the commands of a page that only the slow test runs."""
    return all_commands(page) & SLOW if page in FIRST else all_commands(page)


@pytest.mark.parametrize("page", FIRST, ids=page_name)
def test_the_commands_of_the_first_pages_work(page: Path, tmp_path: Path) -> None:
    work_through(page, tmp_path, NEVER | SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if slow_commands(page)], ids=page_name)
def test_all_commands_work(page: Path, tmp_path: Path) -> None:
    work_through(page, tmp_path, NEVER)


def test_commands_that_are_not_run_are_in_the_docs() -> None:
    in_docs = set[str]().union(*map(all_commands, PAGES))
    assert in_docs >= NEVER | SLOW


def test_shown_files_are_up_to_date() -> None:
    for page in PAGES:
        text = page.read_text()
        hint = f"{page_name(page)} is out of date: run `python -m tests.docs.shown_files`"
        assert with_current_files(text) == text, hint


def test_the_readme_shows_the_main_recipe() -> None:
    assert "recipes/sl_basic.py" in page_files(ROOT / "README.md")
