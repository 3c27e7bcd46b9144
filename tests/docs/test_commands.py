"""Every command in the docs is run, or listed in one file with the reason why not."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/commands-not-run.md").read_text(), re.MULTILINE))


def commands() -> list[str]:
    blocks = [block for page in PAGES for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


def code_after(mark: str) -> str:
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, mark
    return found[1]


@pytest.fixture(scope="module")
def kitchen_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "recipes").mkdir()
    (folder / "recipes/mine.py").write_text(code_after("recipes/mine.py"))
    return folder


@pytest.mark.parametrize("command", [c for c in commands() if c not in NOT_RUN])
def test_the_command_works(command: str, kitchen_of_ones_own: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(shlex.split(command), cwd=kitchen_of_ones_own, env={**os.environ, "PATH": path},
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_run_is_in_the_docs() -> None:
    assert set(commands()) >= NOT_RUN


def test_the_recipe_in_the_readme_is_the_recipe() -> None:
    assert code_after("recipes/sl_basic.py") == (ROOT / "recipes/sl_basic.py").read_text()
