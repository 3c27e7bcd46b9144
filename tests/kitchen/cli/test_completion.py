"""Shell completion, as bash and zsh ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kitchen.config.adapters import PORTS, available
from tests.support.commands import in_folder, invoke
from tests.support.imports import HEAVY, imported_by

KITCHEN = Path(sys.executable).parent / "kitchen"
PATH = f"{KITCHEN.parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, runs in two folders, and a folder that is not a run."""
    home = tmp_path_factory.mktemp("home")
    (home / "recipes").mkdir()
    (home / "recipes/soup.py").write_text('"""Soup."""\nclass Soup: ...\n')
    for run in ("runs/soup-1", "runs/soup-2", "menus/stew-1"):
        (home / run).mkdir(parents=True)
        (home / run / "run.json").write_text("{}")
    (home / "runs/soups").mkdir()
    for file in ("stew.yaml", "stew.txt"):
        (home / "menus" / file).touch()
    return home


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


def bash_request(line: str) -> dict[str, str]:
    """Return the environment by which bash asks: the words so far, the last one incomplete."""
    position = len(line.split(" ")) - 1
    return {
        "_KITCHEN_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(position),
    }


def completions(home: Path, line: str) -> list[str]:
    """Return what bash is offered, in this process."""
    with in_folder(home):
        return invoke(HOME=str(home), **bash_request(line)).stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kitchen desc", ["describe"]),
        ("kitchen new ", ["recipe", "stage", "adapter"]),
        ("kitchen run recipes.so", ["recipes.soup"]),
        ("kitchen run menus/st", ["menus/stew.yaml"]),
        ("kitchen resume s", ["soup-1", "soup-2"]),
        ("kitchen runs show soup-2", ["soup-2"]),
        ("kitchen resume --runs menus ", ["stew-1"]),
        ("kitchen resume --runs s3://menus ", []),
        ("kitchen check recipes.soup --training pe", ["peft"]),
        ("kitchen new adapter x --port bl", ["blobs"]),
        ("kitchen run recipes.rl learning_r", ["learning_rate=", "learning_rate=0.0001"]),
        ("kitchen run recipes.rl steps=3 loss = ci", ["cispo"]),
        ("kitchen run recipes.rl mask_truncated =", ["true", "false"]),
        ("kitchen run recipes.rl model = run : soup-", ["soup-1", "soup-2"]),
        ("kitchen run recipes.rl dataset = menus/stew.t", ["menus/stew.txt"]),
        ("kitchen eval soup-1 evaluation.metr", ["evaluation.metric=", "evaluation.metric=auto"]),
        ("kitchen run recipes.nothing le", []),
    ],
)
def test_names_are_completed(home: Path, line: str, offered: list[str]) -> None:
    assert completions(home, line) == offered


@pytest.mark.parametrize("port", PORTS)
def test_the_adapters_of_each_port_are_offered(home: Path, port: str) -> None:
    assert completions(home, f"kitchen run recipes.soup --{port} ") == sorted(available(port))


def test_zsh_completes_in_its_own_format(home: Path) -> None:
    offered = ask(
        home,
        str(KITCHEN),
        _KITCHEN_COMPLETE="complete_zsh",
        _TYPER_COMPLETE_ARGS="kitchen run recipes.s",
    )
    assert offered == '_arguments \'*: :(("recipes.sl_basic"\n"recipes.soup"))\'\n'


def test_zsh_completes_whole_settings(home: Path) -> None:
    offered = ask(
        home,
        str(KITCHEN),
        _KITCHEN_COMPLETE="complete_zsh",
        _TYPER_COMPLETE_ARGS="kitchen run recipes.rl loss=c",
    )
    assert offered == "_arguments '*: :((\"loss=cispo\"))'\n"


def test_bash_completes_with_the_shown_script(home: Path) -> None:
    script = """
        eval "$(kitchen --show-completion)"; true
        COMP_WORDS=(kitchen resume soup-) COMP_CWORD=2
        _kitchen_completion kitchen
        echo "${COMPREPLY[@]}"
    """
    assert ask(home, "bash", "--norc", "-c", script, PATH=PATH) == "soup-1 soup-2\n"


def test_completion_is_installed_for_bash(home: Path) -> None:
    shown = ask(home, "bash", "-c", "kitchen --install-completion; true", PATH=PATH)
    assert "completion installed" in shown
    scripts = [file.read_text() for file in (home / ".bash_completions").iterdir()]
    assert any("_kitchen_completion" in script for script in scripts)


def test_completion_imports_nothing_heavy(home: Path) -> None:
    program = "sys.argv = ['kitchen']; from kitchen.cli import main; main()"
    request = bash_request("kitchen run recipes.so")
    output, modules = imported_by(program, home, HOME=str(home), **request)
    assert output.split() == ["recipes.soup"]
    assert modules.isdisjoint({*HEAVY, "recipes.soup", "recipes.sl_basic"})
