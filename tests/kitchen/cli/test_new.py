"""What `kitchen new` writes works as it is, from an empty folder, in a shell; and nothing is ever
lost to it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kitchen.cli import app
from kitchen.config.adapters import PORTS

LAST = {"training": 32, "datasets": 9, "hub": 7, "blobs": 5}  # what is to be written of an adapter
BYTES = {
    "list": "return sorted(name for name in list(self.memoize) if name.startswith(prefix))",
    "read": "return self.memoize.get(blob_name(name))",
    "write": "self.memoize[blob_name(name)] = bytes(data)",
    "delete": "self.memoize.pop(blob_name(name), None)",
    "locate": 'return "dict:" + blob_name(name)',
}


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def done(folder: Path, line: str) -> str:
    """What it printed; it went well."""
    found = shell(folder, line)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def new(folder: Path, line: str) -> Result:
    """`kitchen new` in this process, from that folder."""
    with contextlib.chdir(folder):
        return CliRunner().invoke(app, ["new", *shlex.split(line)])


def written(folder: Path, line: str) -> str:
    result = new(folder, line)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(folder: Path, line: str) -> str:
    """Why; and nothing was written."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = new(folder, line)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return result.stderr


def test_a_new_recipe_runs_and_its_test_passes_in_an_empty_folder(tmp_path: Path) -> None:
    told = done(
        tmp_path, "kitchen new recipe soup && kitchen run recipes.soup --training fake && pytest"
    )
    assert "held out loss" in told
    assert "2 passed" in told
    assert len((tmp_path / "recipes/soup.py").read_text().splitlines()) < 50
    assert {path.name for path in tmp_path.iterdir()} >= {"recipes", "tests", "conftest.py", "runs"}


@pytest.mark.slow
def test_it_can_be_looked_at_before_it_runs(tmp_path: Path) -> None:
    told = done(
        tmp_path, "kitchen new recipe soup && kitchen check recipes.soup --preview --training fake"
    )
    assert "The first datum" in told
    assert "no problems" in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_what_is_told_to_do_next_is_true(tmp_path: Path) -> None:
    told = done(tmp_path, "kitchen new recipe soup 'a menu'")
    commands = [line.split("#")[0].strip() for line in told.splitlines() if line.startswith("  ")]
    assert commands[0] == "cd 'a menu'"
    [own] = [command for command in commands if "dataset=FILE" in command]
    (tmp_path / "a menu" / "rows.jsonl").write_text(
        '{"prompt": "eggs?", "completion": "two"}\n' * 20
    )
    commands[commands.index(own)] = own.replace("FILE", "rows.jsonl") + " --training fake"
    done(tmp_path, " && ".join(commands))


def test_a_new_stage_is_short_and_its_test_passes_beside_a_conftest_of_ones_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text("# mine\n")
    assert "from stages.stir import Stir" in written(tmp_path, "stage stir")
    assert "1 passed" in done(tmp_path, "pytest")
    assert len((tmp_path / "stages/stir.py").read_text().splitlines()) < 25
    assert (tmp_path / "conftest.py").read_text() == "# mine\n"


@pytest.mark.parametrize(
    "what", ["recipe it", "stage it", *(f"adapter it --port {port}" for port in LAST)]
)
def test_it_is_clean(tmp_path: Path, what: str) -> None:
    written(tmp_path, what)
    done(tmp_path, "ruff check --isolated .")
    long = [
        line
        for path in tmp_path.rglob("*.py")
        for line in path.read_text().splitlines()
        if len(line) > 120
    ]
    assert not long


@pytest.mark.slow
def test_its_types_are_strict(tmp_path: Path) -> None:
    whats = [
        "recipe soup",
        "stage stir",
        *(f"adapter {port}_of_mine --port {port}" for port in LAST),
    ]
    for what in whats:
        written(tmp_path, what)
    assert "Success" in done(tmp_path, "mypy --strict --explicit-package-bases .")


def test_nothing_is_overwritten_and_all_files_appear_or_none(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_soup.py").write_text("mine")
    told = refused(tmp_path, "recipe soup")
    assert (
        "tests/test_soup.py is there already, and nothing is overwritten: choose another name"
        in told
    )
    written(tmp_path, "recipe stew")
    assert "stew.py is there already" in refused(tmp_path, "recipe stew")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("recipe my-soup", "'my_soup' could be"),
        ("recipe 2soups", "'soups' could be"),
        ("recipe ../up", "first a letter"),
        ("recipe ''", "first a letter"),
        ("recipe _soup", "'soup' could be"),
        ("stage class", "class is a word of Python"),
        ("stage none", "None is a word of Python's own"),
        ("recipe sl_basic", "recipes.sl_basic is there already, in "),
        ("stage render", "stages.chat.render is there already"),
        ("adapter fake", "adapters.fake is there already"),
        ("recipe recipe", "something else in its file is called Recipe"),
        ("recipe losses", "is called Losses"),
        ("stage batch", "is called Batch"),
        ("adapter cloud --port bolbs", "did you mean 'blobs'?"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, what: str, why: str) -> None:
    assert why in refused(tmp_path, what)


def test_a_closed_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "there/recipes").mkdir(parents=True)
    (tmp_path / "there/recipes/__init__.py").touch()
    assert "makes 'recipes' a closed package" in refused(tmp_path, "recipe soup there")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("a file")
    assert "there/recipes: Not a directory; choose a folder that can be written" in refused(
        tmp_path, "recipe soup there"
    )


@pytest.mark.parametrize(
    "port",
    [
        "training",
        *(pytest.param(port, marks=pytest.mark.slow) for port in LAST if port != "training"),
    ],
)
def test_the_laws_say_what_to_write_of_a_new_adapter(tmp_path: Path, port: str) -> None:
    told = written(tmp_path, f"adapter cloud --port {port}")
    cls = f"Cloud{port.capitalize()}"
    assert f"kitchen run recipes.sl_basic --{port} adapters.cloud:{cls}" in told
    assert f'[project.entry-points."kitchen.{port}"]' in told
    assert f'cloud = "adapters.cloud:{cls}"' in told
    texts = "".join(path.read_text() for path in tmp_path.rglob("*.py"))
    assert sorted(int(n) for n in re.findall(rf"(\d+) of {LAST[port]}, ", texts)) == list(
        range(1, LAST[port] + 1)
    )
    laws = shell(tmp_path, "pytest -q --tb=line -p no:cacheprovider")
    assert laws.returncode == 1
    assert "passed" not in laws.stdout.splitlines()[-1]
    errors = [
        line for line in laws.stdout.splitlines() if re.search(r"\w(Error|Exception)\b", line)
    ]
    assert errors
    step = rf"NotImplementedError: \d+ of {LAST[port]}, \w+\.\w+: "
    assert not [line for line in errors if not re.search(step, line)]
    assert f": 1 of {LAST[port]}, " in errors[0]


def test_every_verb_of_a_port_is_in_the_skeleton(tmp_path: Path) -> None:
    for port, protocol in PORTS.items():
        written(tmp_path, f"adapter my_{port} --port {port}")
        text = (tmp_path / f"adapters/my_{port}.py").read_text()
        verbs = [name for name in vars(protocol) if not name.startswith("_")]
        assert verbs
        assert not [verb for verb in verbs if f"    def {verb}(" not in text]


@pytest.mark.slow
def test_an_adapter_is_written_step_by_step_until_it_keeps_the_laws(tmp_path: Path) -> None:
    written(tmp_path, "adapter cloud --port blobs")
    file = tmp_path / "adapters/cloud.py"
    text = file.read_text().replace(
        "from collections", "from kitchen.ports import blob_name\nfrom collections"
    )
    text = text.replace(
        "    def list",
        "    def __init__(self) -> None:\n        self.memoize: dict[str, bytes] = {}\n\n    def list",
        1,
    )
    for step, (verb, body) in enumerate(BYTES.items(), 1):
        file.write_text(text)
        assert (
            f": {step} of 5, CloudBlobs.{verb}: "
            in shell(tmp_path, "pytest -x -q --tb=line").stdout
        )
        text, count = re.subn(
            rf"(    def {verb}\(.*?\n)        raise .*?\)\n(?=\n|\Z)",
            rf"\1        {body}\n",
            text,
            flags=re.DOTALL,
        )
        assert count == 1
    file.write_text(text)
    assert "failed" not in done(tmp_path, "pytest -q")
    done(
        tmp_path,
        "kitchen new recipe soup && "
        "kitchen run recipes.soup reading.limit=32 --training fake --blobs "
        "adapters.cloud:CloudBlobs",
    )
    assert not (tmp_path / "runs").exists()
