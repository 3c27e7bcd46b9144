"""What a shell is told when somebody presses the tabulator, as the shells ask it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kitchen.config.adapters import PORTS, available

KITCHEN = Path(sys.executable).parent / "kitchen"
HEAVY = ("torch", "transformers", "peft", "datasets", "huggingface_hub", "tinker")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A recipe and two runs of one's own, and a folder that is no run."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/soup.py").write_text('"""Soup."""\nclass Soup: ...\n')
    for run in ("runs/soup-1", "runs/soup-2", "menus/stew-1"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").write_text("{}")
    (tmp_path / "runs/soups").mkdir()
    return tmp_path


def ask(home: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "HOME": str(home), **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def completed(home: Path, line: str) -> list[str]:
    """As bash asks: the words so far, of which the last is not finished."""
    return ask(
        home,
        str(KITCHEN),
        _KITCHEN_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(line.split(" ")) - 1),
    ).split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kitchen desc", ["describe"]),
        ("kitchen new ", ["recipe", "stage", "adapter"]),
        ("kitchen run recipes.so", ["recipes.soup"]),
        ("kitchen schema recipes.sl", ["recipes.sl_basic"]),
        ("kitchen resume s", ["soup-1", "soup-2"]),
        ("kitchen runs show soup-2", ["soup-2"]),
        ("kitchen resume --runs menus ", ["stew-1"]),
        ("kitchen resume --runs s3://menus ", []),
        ("kitchen check recipes.soup --training pe", ["peft"]),
        ("kitchen new adapter x --port bl", ["blobs"]),
    ],
)
def test_names_are_completed(home: Path, line: str, offered: list[str]) -> None:
    assert completed(home, line) == offered


@pytest.mark.parametrize("port", PORTS)
def test_the_adapters_of_each_port_are_offered(home: Path, port: str) -> None:
    assert completed(home, f"kitchen run recipes.soup --{port} ") == sorted(available(port))


def test_zsh_asks_in_its_own_way(home: Path) -> None:
    offered = ask(
        home,
        str(KITCHEN),
        _KITCHEN_COMPLETE="complete_zsh",
        _TYPER_COMPLETE_ARGS="kitchen run recipes.s",
    )
    assert offered == '_arguments \'*: :(("recipes.sl_basic"\n"recipes.soup"))\'\n'


def test_bash_itself_completes_with_what_it_is_given(home: Path) -> None:
    script = """
        eval "$(kitchen --show-completion)"; true
        COMP_WORDS=(kitchen resume soup-) COMP_CWORD=2
        _kitchen_completion kitchen
        echo "${COMPREPLY[@]}"
    """
    path = f"{KITCHEN.parent}{os.pathsep}{os.environ['PATH']}"
    assert ask(home, "bash", "--norc", "-c", script, PATH=path) == "soup-1 soup-2\n"


def test_it_is_installed_where_bash_finds_it(home: Path) -> None:
    path = f"{KITCHEN.parent}{os.pathsep}{os.environ['PATH']}"
    assert "completion installed" in ask(
        home, "bash", "-c", "kitchen --install-completion; true", PATH=path
    )
    assert "_kitchen_completion" in "".join(
        file.read_text() for file in (home / ".bash_completions").iterdir()
    )


def test_nothing_heavy_is_imported_for_it(home: Path) -> None:
    program = (
        "import atexit, json, sys; atexit.register(lambda: print('\\n' + "
        "json.dumps(list(sys.modules))));"
        "sys.argv = ['kitchen']; from kitchen.cli import main; main()"
    )
    told = ask(
        home,
        sys.executable,
        "-c",
        program,
        _KITCHEN_COMPLETE="complete_bash",
        COMP_WORDS="kitchen run recipes.so",
        COMP_CWORD="2",
    ).splitlines()
    assert told[0] == "recipes.soup"
    assert set(json.loads(told[-1])).isdisjoint({*HEAVY, "recipes.soup", "recipes.sl_basic"})
