"""Shell completion of the settings of a recipe: their names, and the values that they may have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kitchen.cli.completion import runs

if TYPE_CHECKING:
    from kitchen.config.describe import SettingDescription

EVALUATE = "recipes.evaluate"
_WEIGHTS = frozenset({"model", "reference", "teacher", "judge"})  # settings that name weights
_KINDS = frozenset({"text", "number", "any"})  # words of a type that are no values
_BREAKS = "=:"  # characters at which bash splits a word


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Return the settings that match, or the values of a setting whose name is complete."""
    in_bash = os.environ.get("_KITCHEN_COMPLETE") == "complete_bash"
    typed = _typed_in_bash() if in_bash else incomplete
    recipe = str(context.params.get("recipe") or EVALUATE)
    offered = [text for text in _offers(context, recipe, typed) if text.startswith(typed)]
    if not in_bash:
        return offered
    # bash replaces only the text behind the last break
    start = max(map(typed.rfind, _BREAKS)) + 1
    return list(dict.fromkeys(text[start:] for text in offered))


def _typed_in_bash() -> str:
    """Return the setting that is being typed, of which bash gives `=` and `:` as words.

    Click leaves an `=` at the end out of the incomplete word.
    """
    words = os.environ["COMP_WORDS"].split()
    at = int(os.environ["COMP_CWORD"])
    typed = words[at] if at < len(words) else ""
    words = words[:at]
    while words and (typed[:1] in tuple(_BREAKS) or words[-1] in _BREAKS):
        typed = words.pop() + typed
    return typed


def _offers(context: typer.Context, recipe: str, typed: str) -> Iterator[str]:
    """Yield settings and values; a single setting with its values, so that no space follows it."""
    descriptions = _descriptions(recipe)
    name, equals, _ = typed.partition("=")
    if not equals:
        matching = [each for each in descriptions if each.name.startswith(typed)]
        yield from (f"{each.name}=" for each in matching)
        descriptions, name = (matching, matching[0].name) if len(matching) == 1 else ([], "")
    for description in descriptions:
        if description.name == name:
            yield from (f"{name}={value}" for value in _values(context, description, typed))


def _descriptions(recipe: str) -> list[SettingDescription]:
    """Return the settings of a recipe, or of the recipe of a YAML file; none if it is not found."""
    from kitchen.config.describe import describe_settings
    from kitchen.config.request import recipe_of

    try:
        return list(describe_settings(recipe_of(recipe)))
    except Exception:  # noqa: BLE001 the command itself reports it; a shell would show it as a word
        return []


def _values(context: typer.Context, description: SettingDescription, typed: str) -> Iterator[str]:
    """Yield the values of a setting: those of its type, weights of runs, files, and its default."""
    yield from dict.fromkeys(
        word
        for word in description.type.split(" or ")
        if word not in _KINDS and word.replace("_", "").isalnum()
    )
    value = typed.partition("=")[2]
    if description.name in _WEIGHTS:
        yield from (f"run:{run}" for run in runs(context, ""))
    if description.type.startswith("text") and (value or description.name == "dataset"):
        yield from _paths(value)
    if description.default and description.default not in ("null", "{}", "[]"):
        yield description.default


def _paths(typed: str) -> Iterator[str]:
    """Yield the files and folders that begin with a text; folders end with a slash."""
    folder = Path(typed) if typed.endswith("/") else Path(typed).parent
    for path in sorted(folder.glob("*")):
        if not path.name.startswith("."):
            yield f"{path}/" if path.is_dir() else str(path)
