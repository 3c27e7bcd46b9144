"""Commands and settings that our texts suggest: they exist, and the settings take the values."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kitchen.cli import app
from kitchen.config.adapters import PORTS, adapter_class, adapter_settings, available
from kitchen.config.settings import leaf_keys, resolve_settings
from kitchen.config.sources import from_arguments
from tests.support.killed_runs import RECIPES

ROOT = Path(__file__).resolve().parents[2]
# `kitchen push --replace-card`, up to the end of a sentence or quotation
COMMAND = re.compile(r"(?<![\w-])kitchen (?=[a-z])([^`;,()\n]+)")
SETTING = re.compile(r"(?<![\w.{}/<-])([a-z_]+(?:\.[a-zA-Z_]+)*)=([^\s,;:)`&]+)")
# names before "=" that are no settings: of Python, of files and addresses, and of loss_options
OTHERS = {
    *("safe_serialization", "r", "br", "t", "sep", "revision", "floor", "clip_low_threshold"),
    *("cluster", "clip_high_threshold"),
}
CLASSES = list({cls: None for cls, _ in RECIPES.values()})
HELD_BY_TEXTS = "{}"  # a value that is known at run time only


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string in a source file, except docstrings."""
    tree = ast.parse(file.read_text())
    skipped = {id(part) for node in ast.walk(tree) for part in _parts(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [getattr(part, "value", HELD_BY_TEXTS) for part in node.values]
            yield (
                node.lineno,
                "".join(part if isinstance(part, str) else HELD_BY_TEXTS for part in parts),
            )
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            yield node.lineno, node.value if isinstance(node.value, str) else ""


def _parts(node: ast.AST) -> list[ast.expr]:
    """Return the strings that are docstrings, or parts of an f-string."""
    if isinstance(node, ast.Expr):
        return [node.value]
    return node.values if isinstance(node, ast.JoinedStr) else []


def matches(pattern: re.Pattern[str], *packages: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield each match of a pattern in the texts of packages, with its place."""
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            for line, text in texts(file):
                for match in pattern.finditer(text):
                    yield f"{file.relative_to(ROOT)}:{line}: {match[0]}", match


def command_problem(words: list[str]) -> str:
    """Return what is wrong with the words after `kitchen`, or ""."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words:
        default = getattr(command, "default_command", None)
        name = words.pop(0) if words[0] in command.commands or default is None else default
        if name not in command.commands:
            return f"there is no command {name!r}"
        command = command.commands[name]
    options = {option for parameter in command.params for option in parameter.opts}
    typed = {word for word in words if word.startswith("--") and HELD_BY_TEXTS not in word}
    return ", ".join(sorted(typed - options))


def setting_problem(name: str, value: str) -> str:
    """Return what is wrong with a setting in a text, or ""."""
    port, _, rest = name.partition(".")
    if port in PORTS:
        known = {key for each in available(port) for key in _adapter_settings(port, each)}
        return "" if rest in known else f"no {port} adapter has the setting {rest!r}"
    if (
        HELD_BY_TEXTS in value or value.isupper()
    ):  # it quotes a setting, perhaps by its last name alone
        names = {part for cls in CLASSES for keys in leaf_keys(cls) for part in (keys[-1], keys[0])}
        known = [part for part in name.split(".") if not part.isupper()]
        return "" if known[-1] in names else f"no recipe has the setting {known[-1]!r}"
    beside = ["learning_rate=1e-4"] if name == "train" else []  # train=full needs one
    setting = from_arguments([f"{name}={value}", *beside])
    problems = [resolve_settings(cls, setting).problems for cls in CLASSES]
    return "" if not all(problems) else str(problems[0][0])


def _adapter_settings(port: str, name: str) -> list[str]:
    return list(adapter_settings(adapter_class(port, name)))


def test_suggested_commands_exist() -> None:
    problems, count = [], 0
    for place, match in matches(COMMAND, "kitchen", "stages", "adapters", "recipes"):
        count += 1
        if problem := command_problem(shlex.split(match[1])):
            problems.append(f"{place}: {problem}")
    assert problems == []
    assert count > 40


def test_suggested_settings_exist_and_take_the_value() -> None:
    problems, count = [], 0
    for place, match in matches(SETTING, "stages", "adapters/peft", "adapters/local", "recipes"):
        count += 1
        name, value = match[1], match[2].strip("'\".")
        if name not in OTHERS and (problem := setting_problem(name, value)):
            problems.append(f"{place}: {problem}")
    assert problems == []
    assert count > 100


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("smaple RUN", "smaple"),
        ("runs shw RUN", "shw"),
        ("push RUN --replace", "--replace"),
        ("check recipes.sl_basic --previw", "--previw"),
    ],
)
def test_a_wrong_command_is_found(command: str, problem: str) -> None:
    assert problem in command_problem(command.split())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_on", "all_messages"),
        ("evaluation.metric", "txt"),
        ("training.device_name", "cpu"),
        ("batch", "{}"),
    ],
)
def test_a_wrong_setting_is_found(name: str, value: str) -> None:
    assert setting_problem(name, value)
