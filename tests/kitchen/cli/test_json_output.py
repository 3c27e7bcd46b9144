"""With --json, and for answers that are piped, standard output has the answer and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kitchen.cli import app
from tests.support.commands import in_folder, invoke

FAKE = ("--training", "fake", "--hub", "fake")
CHAT = json.dumps(
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "fine"}]}
)
RECIPE = '''"""A recipe whose module and stage print."""
from kitchen import Stage, Step, sequence
from recipes.sl_basic import SlBasic
print("printed by the module")
class Talk(Stage):
    def run(self) -> None:
        print("printed by a stage")
class Chatty(SlBasic):
    """sl_basic that prints."""
    def workflow(self) -> Step:
        return sequence(Talk(), super().workflow())
'''
TRAIN = ("dataset=chats", "reading.held_out_rows=2", "max_steps=2", "batch_size=2")
SCHEMA = ("schema", "recipes/chatty.py")  # prints JSON without an option
# arguments by command; {n} makes the names of new things unique
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("recipes/chatty.py", *TRAIN, *FAKE),
    "check": ("recipes/chatty.py", *TRAIN, *FAKE),
    "list": (),
    "describe": ("recipes/chatty.py",),
    "resume": ("dish",),
    "runs list": (),
    "runs show": ("dish",),
    "runs export": ("dish", "--parquet", "--out", "tables"),
    "sweep start": ("recipes/chatty.py", *TRAIN, *FAKE, "--over", "seed=0,1", "--dry-run"),
    "sweep resume": ("soup",),
    "sweep show": ("soup",),
    "compare": ("dish", "bowl"),
    "report": ("dish", "--out", "reports"),
    "sample": ("dish", "?", "--max-tokens", "4"),
    "eval": ("dish", "--dataset", "chats", "evaluation.metric=text", "evaluation.max_tokens=4"),
    "models list": (),
    "models add": ("broth", "dish"),
    "models show": ("stock",),
    "doctor": (),
    "data": ("chats",),
}


def commands_with(option: str) -> set[str]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        for name, each in getattr(command, "commands", {}).items():
            yield from walk(each, (*path, name))
        if any(option in parameter.opts for parameter in command.params) and not hasattr(
            command, "commands"
        ):
            yield " ".join(path)

    return set(walk(get_command(app), ()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the runs "dish" and "bowl", the sweep "soup" and the model "stock"."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "chats").mkdir()
    (folder / "chats/train.jsonl").write_text(f"{CHAT}\n" * 8)
    (folder / "recipes").mkdir()
    (folder / "recipes/chatty.py").write_text(RECIPE)
    with in_folder(folder):
        for arguments in (
            ("run", "recipes.sl_basic", *TRAIN, *FAKE, "--name", "dish"),
            ("run", "recipes.sl_basic", *TRAIN, *FAKE, "--name", "bowl", "seed=1"),
            ("sweep", "recipes.sl_basic", *TRAIN, *FAKE, "--over", "seed=0,1", "--name", "soup"),
            ("models", "add", "stock", "dish"),
        ):
            result = invoke(*arguments)
            assert result.exit_code == 0, result.output
        yield folder
    sys.modules.pop("recipes.chatty", None)


def test_every_command_with_json_is_here() -> None:
    assert commands_with("--json") == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_is_one_json_document(command: str, folder: Path) -> None:
    result = invoke(
        *command.removesuffix(" start").split(), *COMMANDS[command], "--json", "--debug"
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)
