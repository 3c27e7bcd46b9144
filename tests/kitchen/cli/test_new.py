"""`kitchen new` writes files that work as they are, and overwrites nothing."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import Result

from kitchen.config.adapters import PORTS
from kitchen.ports import Sampler, Tokenizer, TrainingSession
from tests.support.commands import invoke, shell, shell_output

# numbered steps of each skeleton
METHODS = {"training": 29, "sampling": 2, "datasets": 9, "hub": 7, "blobs": 5}
PARTS = {TrainingSession: "Session", Tokenizer: "Tokenizer", Sampler: "Sampler"}
TYPED_PARTS = """from kitchen.ports import Sampler, Tokenizer, TrainingSession
from adapters.training_of_mine import (
    TrainingOfMineTrainingSampler,
    TrainingOfMineTrainingSession,
    TrainingOfMineTrainingTokenizer,
)

session: TrainingSession = TrainingOfMineTrainingSession()
tokenizer: Tokenizer = TrainingOfMineTrainingTokenizer()
sampler: Sampler = TrainingOfMineTrainingSampler()
"""
ADAPTERS = [f"adapter it --port {port}" for port in METHODS]
BLOBS = {
    "list": "return sorted(name for name in list(self.data) if name.startswith(prefix))",
    "read": "return self.data.get(blob_name(name))",
    "write": "self.data[blob_name(name)] = bytes(data)",
    "delete": "self.data.pop(blob_name(name), None)",
    "locate": 'return "dict:" + blob_name(name)',
}


def new(folder: Path, line: str) -> Result:
    """Run `kitchen new` in this process, from that folder."""
    with contextlib.chdir(folder):
        return invoke("new", *shlex.split(line))


def written(folder: Path, line: str) -> str:
    result = new(folder, line)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(folder: Path, line: str) -> str:
    """Return the error; no file may have changed."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = new(folder, line)
    assert result.exit_code == 2, result.output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return result.stderr


def test_a_new_recipe_and_stage_pass_their_tests(tmp_path: Path) -> None:
    written(tmp_path, "recipe soup")
    assert {path.name for path in tmp_path.iterdir()} >= {"recipes", "tests", "conftest.py"}
    (tmp_path / "conftest.py").write_text("# mine\n")
    assert "from stages.stir import Stir" in written(tmp_path, "stage stir")
    assert (tmp_path / "conftest.py").read_text() == "# mine\n"
    assert "3 passed" in shell_output(tmp_path, "pytest")
    assert len((tmp_path / "recipes/soup.py").read_text().splitlines()) <= 60
    assert len((tmp_path / "stages/stir.py").read_text().splitlines()) < 25


@pytest.mark.slow
def test_a_new_recipe_runs_and_can_be_checked(tmp_path: Path) -> None:
    written(tmp_path, "recipe soup")
    shown = shell_output(tmp_path, "kitchen check recipes.soup --preview --training fake")
    assert "The first datum" in shown
    assert "no problems" in shown
    assert not (tmp_path / "runs").exists()
    shown = shell_output(tmp_path, "kitchen run recipes.soup --training fake")
    assert "held out loss" in shown
    assert (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_suggested_next_commands_work(tmp_path: Path) -> None:
    shown = shell_output(tmp_path, "kitchen new recipe soup 'a menu'")
    commands = [line.split("#")[0].strip() for line in shown.splitlines() if line.startswith("  ")]
    assert commands[0] == "cd 'a menu'"
    rows = tmp_path / "a menu" / "rows.jsonl"
    rows.write_text('{"prompt": "eggs?", "completion": "two"}\n' * 20)
    [with_data] = [command for command in commands if "dataset=FILE" in command]
    commands[commands.index(with_data)] = (
        with_data.replace("FILE", "rows.jsonl") + " --training fake"
    )
    shell_output(tmp_path, " && ".join(commands))


@pytest.mark.parametrize("name", ["it", "a_rather_long_name"])
def test_new_files_are_linted_and_formatted(tmp_path: Path, name: str) -> None:
    for number, what in enumerate(["recipe it", "stage it", *ADAPTERS]):
        folder = tmp_path / str(number)
        folder.mkdir()
        written(folder, what.replace("it", name, 1))
        options = "--isolated --line-length 100"
        shell_output(folder, f"ruff check {options} --select E4,E7,E9,F,W,I,B,UP,SIM,RUF .")
        shell_output(folder, f"ruff format {options} --check .")


@pytest.mark.slow
def test_new_files_are_typed_strictly(tmp_path: Path) -> None:
    adapters = [f"adapter {port}_of_mine --port {port}" for port in METHODS]
    for what in ["recipe soup", "stage stir", *adapters]:
        written(tmp_path, what)
    (tmp_path / "parts.py").write_text(TYPED_PARTS)
    command = "mypy --strict --explicit-package-bases ."
    assert "Success" in shell_output(tmp_path, command, timeout=600)


def test_all_files_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_soup.py").write_text("mine")
    assert "tests/test_soup.py" in refused(tmp_path, "recipe soup")
    written(tmp_path, "recipe stew")
    assert "stew.py" in refused(tmp_path, "recipe stew")


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("recipe my-soup", "'my_soup'"),
        ("recipe 2soups", "'soups'"),
        ("recipe ../up", "'up'"),
        ("recipe ''", "''"),
        ("recipe _soup", "'soup'"),
        ("stage class", "class"),
        ("stage none", "None"),
        ("recipe sl_basic", "recipes.sl_basic"),
        ("adapter fake", "adapters.fake"),
        ("recipe recipe", "Recipe"),
        ("recipe losses", "Losses"),
        ("stage batch", "Batch"),
        ("adapter cloud --port bolbs", "did you mean 'blobs'?"),
    ],
)
def test_an_impossible_name_is_refused(tmp_path: Path, what: str, names: str) -> None:
    assert names in refused(tmp_path, what)


def test_a_package_that_shadows_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "there/recipes").mkdir(parents=True)
    (tmp_path / "there/recipes/__init__.py").touch()
    assert "there/recipes/__init__.py" in refused(tmp_path, "recipe soup there")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("a file")
    assert "there/recipes: Not a directory" in refused(tmp_path, "recipe soup there")


@pytest.mark.parametrize(
    "port",
    ["training", *(pytest.param(port, marks=pytest.mark.slow) for port in list(METHODS)[1:])],
)
def test_the_laws_number_what_to_write(tmp_path: Path, port: str) -> None:
    shown = written(tmp_path, f"adapter cloud --port {port}")
    cls, total = f"Cloud{port.capitalize()}", METHODS[port]
    assert f"kitchen run recipes.sl_basic --{port} adapters.cloud:{cls}" in shown
    assert f'[project.entry-points."kitchen.{port}"]' in shown
    assert f'cloud = "adapters.cloud:{cls}"' in shown
    texts = "".join(path.read_text() for path in tmp_path.rglob("*.py"))
    numbers = sorted(int(number) for number in re.findall(rf"(\d+) of {total}, ", texts))
    assert numbers == list(range(1, total + 1))
    laws = shell(tmp_path, "pytest -q --tb=line -p no:cacheprovider")
    assert laws.returncode == 1
    assert "passed" not in laws.stdout.splitlines()[-1]
    lines = laws.stdout.splitlines()
    errors = [line for line in lines if re.search(r"\w(Error|Exception)\b", line)]
    assert f": 1 of {total}, " in errors[0]
    step = rf"NotImplementedError: \d+ of {total}, \w+\.\w+: "
    assert not [line for line in errors if not re.search(step, line)]


def test_a_skeleton_has_every_method_of_its_port(tmp_path: Path) -> None:
    for port, protocol in PORTS.items():
        written(tmp_path, f"adapter my_{port} --port {port}")
        text = (tmp_path / f"adapters/my_{port}.py").read_text()
        assert_defines(text, protocol)


@pytest.mark.parametrize("port", PARTS)
def test_a_training_skeleton_has_every_part(tmp_path: Path, port: type) -> None:
    written(tmp_path, "adapter it --port training")
    text = (tmp_path / "adapters/it.py").read_text()
    part = text.partition(f"class ItTraining{PARTS[port]}:\n")[2].partition("\nclass ")[0]
    assert_defines(part, port)


def assert_defines(text: str, port: type) -> None:
    members = [name for name in dir(port) if not name.startswith("_")]
    assert members
    assert not [name for name in members if f"    def {name}(" not in text]


@pytest.mark.slow
def test_an_adapter_can_be_written_step_by_step(tmp_path: Path) -> None:
    written(tmp_path, "adapter cloud --port blobs")
    file = tmp_path / "adapters/cloud.py"
    text = file.read_text()
    text = text.replace("from collections", "from kitchen.ports import blob_name\nfrom collections")
    init = "    def __init__(self) -> None:\n        self.data: dict[str, bytes] = {}\n\n"
    text = text.replace("    def list", f"{init}    def list", 1)
    for step, (method, body) in enumerate(BLOBS.items(), 1):
        file.write_text(text)
        shown = shell(tmp_path, "pytest -x -q --tb=line").stdout
        assert f": {step} of 5, CloudBlobs.{method}: " in shown
        text, count = re.subn(
            rf"(    def {method}\(.*?\n)        raise .*?\n        \)\n",
            rf"\1        {body}\n",
            text,
            flags=re.DOTALL,
        )
        assert count == 1
    file.write_text(text)
    assert "failed" not in shell_output(tmp_path, "pytest -q")
    written(tmp_path, "recipe soup")
    options = "--training fake --blobs adapters.cloud:CloudBlobs"
    shell_output(tmp_path, f"kitchen run recipes.soup reading.limit=32 {options}")
    assert not (tmp_path / "runs").exists()
