"""Discovery of recipes by the name that people type, such as `recipes.sl_basic`."""

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
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import BackendError, ConfigError, KitchenError, did_you_mean, is_user_file
from kitchen.recipe import Recipe
from kitchen.stage import Stage, contract_of
from kitchen.workflow import ForEach, Parallel, Series, Step, When, walk

KITCHEN_FOLDER = str(Path(__file__).parents[1])
# namespace packages: people add modules to them from their own folder
NAMESPACE_PACKAGES = ("recipes", "stages", "adapters")


class NotAStep(ConfigError):
    """The workflow of a recipe returned something other than a step."""


@dataclass(frozen=True)
class RecipeModule:
    """A module of recipes, read without importing it."""

    name: str  # "recipes.sl_basic"
    summary: str  # the first line of its docstring, or why it cannot be read


def check_not_shadowed() -> None:
    """Raise ConfigError if an `__init__.py` on the path hides one of our namespace packages."""
    for name in NAMESPACE_PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            raise ConfigError(
                f"{spec.origin} makes {name!r} a regular package, which hides the installed "
                f"{name}: delete or rename that file, or work in another folder"
            )


def recipe_modules() -> Sequence[RecipeModule]:
    """Return all modules of recipes on the path, in order of their names."""
    spec = find_spec("recipes")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    modules: dict[str, RecipeModule] = {}
    for info in pkgutil.iter_modules(folders):
        name = f"recipes.{info.name}"
        if info.name.startswith("_") or name in modules:
            continue
        module = _read_module(name, find_spec(name))
        if module is not None:
            modules[name] = module
    return [modules[name] for name in sorted(modules)]


def import_named(name: str) -> tuple[ModuleType, str]:
    """Import the module in `recipes.mine:Other`; return it, and the name of the class or "".

    A file in the current folder, `recipes/mine.py`, stands for its module. Raises ConfigError for
    an unknown module, BackendError where a package is missing.
    """
    add_cwd_to_path()
    check_not_shadowed()
    module_name, class_name = _module_and_class(name)
    if module_name == "__main__" and class_name not in vars(sys.modules[module_name]):
        raise ConfigError(
            f"{name} was defined in a notebook or script, and is not here: write it into a file "
            "recipes/NAME.py, or resume its run where it was defined, with kitchen.resume"
        )
    return _import(module_name), class_name


def find_recipe(name: str) -> type[Recipe]:
    """Import the recipe of a module, `recipes.mine`, or one of several, `recipes.mine:Other`.

    Raises ConfigError for an unknown recipe, and the errors of `import_named`.
    """
    module, class_name = import_named(name)
    module_name = module.__name__
    recipes = {
        key: value
        for key, value in vars(module).items()
        if _is_recipe(value) and value.__module__ == module_name
    }
    if class_name:
        chosen = vars(module).get(class_name)
        if not _is_recipe(chosen):
            near = did_you_mean(class_name, recipes)
            if isinstance(chosen, type):
                near = "it is another class; an experiment is run with `kitchen sweep`"
            raise ConfigError(f"{module_name} has no recipe {class_name!r}; {near}")
        return chosen
    if not recipes:
        raise ConfigError(
            f"{module_name} ({module.__file__}) defines no recipe; write a subclass of "
            "kitchen.Recipe in it"
        )
    if len(recipes) > 1:
        candidates = ", ".join(f"{module_name}:{key}" for key in recipes)
        raise ConfigError(f"{module_name} defines several recipes; say which: {candidates}")
    return next(iter(recipes.values()))


def _module_and_class(name: str) -> tuple[str, str]:
    """Return the module and class in `recipes.mine:Other` or `recipes/mine.py:Other`."""
    if name.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"{name!r} is a YAML file, and not a recipe: `kitchen run`, `check`, `describe`, "
            "`schema` and `sweep` take it, and in Python kitchen.run and submit; elsewhere, give "
            "the recipe that it names, and its settings"
        )
    file, ending, class_name = name.partition(".py:")
    path = Path(f"{file}.py" if ending else name)
    if path.suffix != ".py" or not path.is_file():
        module_name, _, class_name = name.partition(":")
        return module_name, class_name
    if not path.resolve().is_relative_to(Path.cwd()):
        raise ConfigError(
            f"{path} is outside of the current folder, in which recipes are found: work in its "
            "folder, or copy the file"
        )
    parts = path.resolve().relative_to(Path.cwd()).with_suffix("").parts
    module_name = ".".join(parts)
    for part in parts:
        if not part.isidentifier():
            raise ConfigError(
                f"{path} cannot be imported as a module, because {part!r} is not a valid Python "
                "name: rename it"
            )
    spec = module_spec(module_name)
    if spec is not None and spec.origin and not path.samefile(spec.origin):
        raise ConfigError(
            f"{path} is hidden by another module {module_name}, {spec.origin}: rename the file"
        )
    return module_name, class_name


def module_spec(module_name: str) -> ModuleSpec | None:
    """Find a module without importing it, but its packages; None if there is none.

    Raises ConfigError if a package cannot be imported, and for the program that is running.
    """
    if module_name == "__main__":
        raise ConfigError("__main__.py cannot be a recipe: rename the file")
    try:
        return find_spec(module_name)
    except ModuleNotFoundError:  # a part of the name is no package
        return None
    except Exception as error:
        problem = f"the package of {module_name} cannot be imported"
        raise recipe_code_error(problem, error) from error


def import_path(recipe: type[Recipe]) -> str:
    """Return the name by which `find_recipe` finds a class again: `recipes.sl_basic:SlBasic`."""
    return f"{recipe.__module__}:{recipe.__name__}"


def build_workflow(recipe: Recipe) -> Step:
    """Return the workflow of a recipe; raises ConfigError with file and line if its code fails."""
    problem = f"the workflow of {recipe.title()} cannot be built"
    try:
        step = recipe.workflow()
    except (KitchenError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise recipe_code_error(problem, error) from error
    if not isinstance(step, (Stage, Series, ForEach, When, Parallel)):
        returned = "None" if step is None else f"a {type(step).__name__}"
        raise NotAStep(
            f"{import_path(type(recipe))}.workflow returned {returned}, not a step: "
            f"{_source_location(type(recipe).workflow)}: end it with `return sequence(...)`"
        )
    for stage in walk(step):
        if isinstance(stage, Stage):
            _check_signatures(stage, problem)
    return step


def _check_signatures(stage: Stage, problem: str) -> None:
    cls: Any = type(stage.without_roles())
    methods = ["run", *(method for method in ("verify", "preview") if hasattr(cls, method))]
    for method in methods:
        try:
            contract_of(cls, method)
        except Exception as error:
            place = _source_location(getattr(cls, method, cls))
            raise ConfigError(f"{problem}: {place}: {type(error).__name__}: {error}") from error


def _source_location(definition: Any) -> str:
    """Return the file and line of a class or function, as far as it has them."""
    try:
        return f"{inspect.getsourcefile(definition)}:{inspect.getsourcelines(definition)[1]}"
    except (OSError, TypeError):  # defined in a console, or not written in Python
        return str(definition)


def _is_recipe(value: Any) -> TypeGuard[type[Recipe]]:
    return isinstance(value, type) and issubclass(value, Recipe) and value is not Recipe


def _import(module_name: str) -> ModuleType:
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(
            f"{module_name!r} cannot be the name of a recipe; {_similar_recipes(module_name)}"
        )
    try:
        return importlib.import_module(module_name)
    except (KitchenError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            near = _similar_recipes(module_name)
            raise ConfigError(f"there is no recipe {module_name!r}; {near}") from error
        if command := install_command_for(missing):
            raise BackendError(
                f"{module_name} needs {missing}, which is not installed: {command}"
            ) from error
        raise recipe_code_error(f"{module_name} cannot be imported", error) from error
    except BaseException as error:
        raise recipe_code_error(f"{module_name} cannot be imported", error) from error


def _similar_recipes(module_name: str) -> str:
    """Return a "did you mean"; names are compared without the `recipes.` that all of them share."""
    by_tail = {module.name.removeprefix("recipes."): module.name for module in recipe_modules()}
    tail = module_name.removesuffix(".py").replace("/", ".").removeprefix("recipes.")
    near = [by_tail[match] for match in difflib.get_close_matches(tail, by_tail, n=2)]
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return did_you_mean(module_name, by_tail.values())


def recipe_code_error(problem: str, error: BaseException) -> ConfigError:
    """Describe an exception in a recipe's code with the place in it."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return ConfigError(f"{problem}: {code_place(error)}: {type(error).__name__}: {text}")


def code_place(error: BaseException) -> str:
    """Return the last file and line of the user's code that an exception went through.

    If no frame is in the user's code, it is the last one outside of `kitchen`.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<")
    ]
    outer_frames = [
        frame for frame in frames if not frame.filename.startswith(KITCHEN_FOLDER + os.sep)
    ]
    if not frames:
        return ""
    own_frames = [frame for frame in frames if is_user_file(frame.filename)]
    last = (own_frames or outer_frames or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _read_module(name: str, spec: ModuleSpec | None) -> RecipeModule | None:
    """Read a module's docstring; None for a module that defines no class."""
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
