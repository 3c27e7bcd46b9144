"""Recipes by the name that people type."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from kitchen.config.extras import install_command_for
from kitchen.errors import BackendError, ConfigError, KitchenError, did_you_mean
from kitchen.recipe import Recipe
from kitchen.stage import Stage, signature
from kitchen.workflow import ForEach, Parallel, Series, Step, When, walk

CORE = str(Path(__file__).parents[1])  # the folder of the `kitchen` package
OPEN = ("recipes", "stages", "adapters")  # folders that people add to from where they stand


@dataclass(frozen=True)
class RecipeModule:
    """A module of recipes, read without importing it."""

    name: str  # "recipes.sl_basic"
    summary: str  # the first sentence of its docstring, or why it cannot be read


def add_cwd_to_path() -> None:
    """Put the current folder first on the path, so that `recipes/mine.py` in it is found."""
    here = os.getcwd()
    if sys.path[0] != here:
        sys.path.insert(0, here)


def check_not_shadowed() -> None:
    """Raise ConfigError if a regular package hides ours: one `__init__.py` in a folder of that name
    is enough.
    """
    for name in OPEN:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            raise ConfigError(
                f"{spec.origin} makes {name!r} a closed package, which hides the {name} of the "
                "kitchen: "
                "delete or rename that file, or stand in another folder"
            )


def recipe_modules() -> Sequence[RecipeModule]:
    """All modules of recipes on the path, in order of their names."""
    spec = find_spec("recipes")
    places = list(spec.submodule_search_locations or ()) if spec else []
    found: dict[str, RecipeModule] = {}
    for info in pkgutil.iter_modules(places):
        name = f"recipes.{info.name}"
        if (
            not info.name.startswith("_")
            and name not in found
            and (one := _read(name, find_spec(name)))
        ):
            found[name] = one
    return [found[name] for name in sorted(found)]


def find_recipe(name: str) -> type[Recipe]:
    """`recipes.mine` is the one recipe defined there, `recipes.mine:Other` one by name.

    Raises ConfigError for what is not there, BackendError where a package is missing.
    """
    add_cwd_to_path()
    check_not_shadowed()
    path, _, wanted = name.partition(":")
    if path == "__main__" and wanted not in vars(sys.modules[path]):
        raise ConfigError(
            f"{name} was typed into a notebook or script, and is not here: write it into a file "
            "recipes/NAME.py, or go on with its run where it was typed, by kitchen.resume"
        )
    module = _import(path)
    own = {
        key: value
        for key, value in vars(module).items()
        if _is_recipe(value) and value.__module__ == path
    }
    if wanted:
        chosen = vars(module).get(wanted)
        if not _is_recipe(chosen):
            raise ConfigError(f"{path} has no recipe {wanted!r}; {did_you_mean(wanted, own)}")
        return chosen
    if not own:
        raise ConfigError(
            f"{path} ({module.__file__}) defines no recipe; write a subclass of kitchen.Recipe in "
            "it"
        )
    if len(own) > 1:
        raise ConfigError(
            f"{path} defines several recipes; say which: "
            + ", ".join(f"{path}:{key}" for key in own)
        )
    return next(iter(own.values()))


def import_path(recipe: type[Recipe]) -> str:
    """`recipes.sl_basic:SlBasic`, which finds it again."""
    return f"{recipe.__module__}:{recipe.__name__}"


def build_workflow(recipe: Recipe) -> Step:
    """The workflow of a recipe; raises ConfigError that names file and line of what is wrong with
    its code.
    """
    lead = f"the workflow of {recipe.title()} cannot be laid out"
    try:
        step = recipe.workflow()
    except KitchenError:
        raise
    except (Exception, SystemExit) as error:
        raise recipe_code_error(lead, error) from error
    if not isinstance(step, (Stage, Series, ForEach, When, Parallel)):
        shown = "None" if step is None else f"a {type(step).__name__}"
        raise ConfigError(
            f"{import_path(type(recipe))}.workflow returned {shown}, not a step: "
            f"{_place(type(recipe).workflow)}: end it with `return sequence(...)`"
        )
    for stage in walk(step):
        if isinstance(stage, Stage):
            _check_signatures(stage, lead)
    return step


def _check_signatures(stage: Stage, lead: str) -> None:
    cls: Any = type(stage.plain())
    for verb in ["run", *(each for each in ("verify", "preview") if hasattr(cls, each))]:
        try:
            signature(cls, verb)
        except Exception as error:
            place = _place(getattr(cls, verb, cls))
            raise ConfigError(f"{lead}: {place}: {type(error).__name__}: {error}") from error


def _place(written: Any) -> str:
    """The file and line of a class or function, as far as it has them."""
    try:
        return f"{inspect.getsourcefile(written)}:{inspect.getsourcelines(written)[1]}"
    except (OSError, TypeError):  # typed into a console, or not written in Python
        return str(written)


def _is_recipe(value: Any) -> TypeGuard[type[Recipe]]:
    return isinstance(value, type) and issubclass(value, Recipe) and value is not Recipe


def _import(path: str) -> ModuleType:
    if not path or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{path!r} cannot be the name of a recipe; {_near(path)}")
    try:
        return importlib.import_module(path)
    except KitchenError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if path == missing or path.startswith(f"{missing}."):
            raise ConfigError(f"there is no recipe {path!r}; {_near(path)}") from error
        if mend := install_command_for(missing):
            raise BackendError(f"{path} needs {missing}, which is not installed: {mend}") from error
        raise recipe_code_error(f"{path} cannot be imported", error) from error
    except (Exception, SystemExit) as error:
        raise recipe_code_error(f"{path} cannot be imported", error) from error


def _near(path: str) -> str:
    """`recipes.` is in every name, so that it says nothing of how near they are."""
    tails = {one.name.removeprefix("recipes."): one.name for one in recipe_modules()}
    typed = path.removesuffix(".py").replace("/", ".").removeprefix("recipes.")
    near = [tails[tail] for tail in difflib.get_close_matches(typed, tails, n=2)]
    return (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else did_you_mean(path, tails.values())
    )


def recipe_code_error(what: str, error: BaseException) -> ConfigError:
    """The last line of the file that the error came from, as far as it is one of the user's."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
    ]
    frames = [frame for frame in frames if not frame.filename.startswith(CORE + os.sep)] or frames
    place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else ""
    if not place and frames:
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
    why = error.msg if isinstance(error, SyntaxError) else str(error)
    return ConfigError(f"{what}: {place}: {type(error).__name__}: {why}")


def _read(name: str, spec: ModuleSpec | None) -> RecipeModule | None:
    """None for a module that defines no class."""
    if spec is None or spec.origin is None:
        return None
    try:
        with open(spec.origin, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError) as error:
        return RecipeModule(name, f"cannot be read: {error}")
    if not any(isinstance(node, ast.ClassDef) for node in tree.body):
        return None
    lines = (ast.get_docstring(tree) or "").strip().splitlines()
    return RecipeModule(name, lines[0] if lines else "")
