"""`kitchen copy`: the source of a recipe in the user's folder, to change."""

from __future__ import annotations

import ast
import inspect
import keyword
import re
import tokenize
from importlib import invalidate_caches
from importlib.util import resolve_name
from pathlib import Path

from kitchen.cli.commands.new import check_open_package, print_next_steps, write_all
from kitchen.config.discovery import find_recipe, module_spec
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe

_RELATIVE = re.compile(r"\bfrom\s+\.+[\w.]*")
_ENCODING = re.compile(r"(coding[:=][ \t]*)[-\w.]+")
_RECIPES = "recipes"  # the folder that `kitchen list` searches


def copy(recipe: str, to: Path | None) -> int:
    """Copy the module of a recipe to a file, recipes/my_NAME.py by default.

    Raises ConfigError; no file is overwritten, and no installed module is hidden.
    """
    cls = find_recipe(recipe)
    name = cls.__module__.rpartition(".")[2]
    target = to or Path(_RECIPES, f"my_{name}.py")
    folder, module = _module_of(target)
    text = _with_absolute_imports(_source(cls), cls.__module__)
    path = Path(*module.split(".")).with_suffix(".py")
    if not (folder / path).exists():  # write_all refuses it
        _check_module(folder, target, module)
    write_all({folder / path: text})
    invalidate_caches()  # so that this process finds the new module, too
    typed = f"{module}:{cls.__name__}" if ":" in recipe else module
    steps = [
        (f"kitchen check {typed} --training fake", "show its plan; nothing runs"),
        (f"kitchen run {typed} --training fake", "run it without a model"),
        (f"kitchen describe {typed}", "show its settings"),
    ]
    print_next_steps(folder, [str(path)], steps)
    return 0


def _module_of(target: Path) -> tuple[Path, str]:
    """Return the folder in which a file is run, and the name of its module there.

    The folder is the current one if the file is inside it and all names on its path can be names of
    modules.
    """
    if target.suffix != ".py":
        raise ConfigError(f"--to {target}: a recipe is a file of Python; use a name with .py")
    in_recipes = target.parent.name == _RECIPES
    folder = target.parent.parent if in_recipes else target.parent
    path = Path.cwd() / target
    if path.is_relative_to(Path.cwd()):
        parents = path.relative_to(Path.cwd()).parent.parts
        if all(part.isidentifier() for part in parents):
            return Path(), ".".join((*parents, target.stem))
    return folder, f"{_RECIPES}.{target.stem}" if in_recipes else target.stem


def _check_module(folder: Path, target: Path, module: str) -> None:
    """Raise ConfigError if a module cannot have this name, or would hide another one."""
    stem = target.stem
    if not re.fullmatch(r"[A-Za-z]\w*", stem, re.ASCII) or keyword.iskeyword(stem):
        raise ConfigError(
            f"--to {target}: {stem!r} cannot be the name of a module: a name is a letter followed "
            "by letters, digits and underscores, and is not a Python keyword"
        )
    if module.startswith(f"{_RECIPES}."):
        check_open_package(folder, _RECIPES)
    spec = module_spec(module)
    if spec is None:  # or a folder on the path does not exist yet
        return
    where = f", in {spec.origin}" if spec.origin else ""
    is_here = spec.origin is not None and Path(spec.origin).is_relative_to(Path.cwd())
    if folder.resolve() == Path.cwd() or not is_here:
        raise ConfigError(
            f"--to {target}: the module {module} exists already{where}, and the copy would hide "
            "it; choose another name"
        )


def _source(cls: type[Recipe]) -> str:
    """Return the text of the module that defines a recipe, which declares UTF-8 if anything."""
    file = inspect.getsourcefile(cls)
    if file is None or not Path(file).is_file():
        raise ConfigError(f"{cls.__module__} has no source file that could be copied")
    with tokenize.open(file) as source:
        lines = source.read().split("\n")
    for at, line in enumerate(lines[:2]):  # a copy is written in UTF-8
        if line.lstrip().startswith("#"):
            lines[at] = _ENCODING.sub(r"\1utf-8", line)
    return "\n".join(lines)


def _with_absolute_imports(text: str, module: str) -> str:
    """Return a module's text with `from .x import y` as `from package.x import y`."""
    package = module.rpartition(".")[0]
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            name = resolve_name("." * node.level + (node.module or ""), package)
            at = node.lineno - 1
            lines[at] = _RELATIVE.sub(f"from {name}", lines[at], count=1)
    return "\n".join(lines)
