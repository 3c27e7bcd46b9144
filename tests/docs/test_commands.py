"""Every page works: its files are written and its commands run, in order, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIRST = [ROOT / "README.md", ROOT / "docs/index.md"]  # that a new user reads
BLOCK = re.compile(
    r"^(?:<!-- (\S+?)(, as it is)? -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
NEVER, SLOW = (
    set(re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE))
    for part in (ROOT / "docs/commands-not-run.md").read_text().split("\n## ")[1:]
)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def files(page: Path) -> Mapping[str, str]:
    """The files that a page has one write, each named by a comment before it."""
    return {
        path: text for path, shown, _, text in BLOCK.findall(page.read_text()) if path and not shown
    }


def commands(text: str) -> list[str]:
    """The commands of a bash block, without the comments behind them."""
    lines = text.replace("\\\n", "").splitlines()
    return [line for line in (line.split("  #")[0].strip() for line in lines) if line]


def all_commands(page: Path) -> set[str]:
    return {
        command
        for *_, language, text in BLOCK.findall(page.read_text())
        if language == "bash"
        for command in commands(text)
    }


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "HF_TOKEN"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**outside, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def work_through(page: Path, folder: Path, but: set[str]) -> None:
    for path, shown, language, text in BLOCK.findall(page.read_text()):
        if shown:
            assert (folder / path).read_text() == text, (
                f"{path} is not what the commands before it wrote"
            )
        elif path:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for command in commands(text) if language == "bash" else ():
            if command not in but:
                done = shell(command, folder)
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", FIRST, ids=named)
def test_the_commands_of_the_first_pages_work(page: Path, tmp_path: Path) -> None:
    work_through(page, tmp_path, NEVER | SLOW)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if (all_commands(page) & SLOW if page in FIRST else all_commands(page))
    ],
    ids=named,
)
def test_all_commands_work(page: Path, tmp_path: Path) -> None:
    work_through(page, tmp_path, NEVER)


def test_what_is_not_run_is_in_the_docs() -> None:
    assert {command for page in PAGES for command in all_commands(page)} >= NEVER | SLOW


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_file_of_the_kitchen_is_shown_as_it_is(page: Path) -> None:
    for path, text in files(page).items():
        assert not (ROOT / path).exists() or text == (ROOT / path).read_text(), path


def test_the_readme_shows_the_recipe() -> None:
    assert "recipes/sl_basic.py" in files(ROOT / "README.md")
