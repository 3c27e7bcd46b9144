"""`kitchen new`: a recipe, a stage or an adapter to begin with, and its test."""

from __future__ import annotations

import ast
import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from kitchen.cli.console import console
from kitchen.config.adapters import PORTS
from kitchen.config.discovery import check_not_shadowed
from kitchen.errors import ConfigError, did_you_mean

_CONFTEST = "conftest.py"


def new(kind: str, name: str, folder: Path, port: str = "") -> int:
    """Write a recipe, stage or adapter and its test into a folder, both or none; raises
    ConfigError.
    """
    if port and port not in PORTS:
        raise ConfigError(f"--port {port}: there is no such port; {did_you_mean(port, PORTS)}")
    check_not_shadowed()
    package, stem = f"{kind}s", port or kind
    cls = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + port.capitalize()
    if why := _unfit(package, name, cls):
        raise ConfigError(f"{name!r} cannot be the name of this {kind}: {why}")
    made = {
        f"{package}/{name}.py": _filled(stem, name, cls),
        f"tests/test_{name}.py": _filled(f"{stem}_test", name, cls),
    }
    if any(_bound(text).count(cls) > 1 for text in made.values()):
        raise ConfigError(
            f"{name!r} cannot be the name of this {kind}: something else in its file is called "
            f"{cls}; "
            "choose another"
        )
    if (closed := folder / package / "__init__.py").exists():
        raise ConfigError(
            f"{closed} makes {package!r} a closed package, which hides the {package} of the "
            "kitchen: "
            "delete or rename that file"
        )
    if not (folder / _CONFTEST).exists():
        made[_CONFTEST] = _filled("conftest", name, cls)
    _write({folder / path: text for path, text in made.items()})
    _say(folder, list(made), _next(kind, name, cls, port))
    return 0


def _unfit(package: str, name: str, cls: str) -> str:
    """Why a module or a class in it cannot be called so; empty if they can."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        near = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_0123456789")
        return f"letters, digits and _ can be in it, first a letter{f'; {near!r} could be' if near else ''}"
    if keyword.iskeyword(name) or keyword.iskeyword(cls):
        return (
            f"{name if keyword.iskeyword(name) else cls} is a word of Python's own; choose another"
        )
    if spec := find_spec(f"{package}.{name}"):
        return f"{package}.{name} is there already{f', in {spec.origin}' if spec.origin else ''}; choose another"
    return ""


def _filled(stem: str, name: str, cls: str) -> str:
    text = files("kitchen.cli").joinpath("scaffold", f"{stem}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, Name=cls)


def _bound(text: str) -> Sequence[str]:
    """The names that a module gives to something, at its top."""
    names: list[str] = []
    for node in ast.parse(text).body:
        match node:
            case ast.Import(found) | ast.ImportFrom(names=found):
                names += [alias.name for alias in found]
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.append(name)
            case ast.Assign(targets):
                names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def _write(made: Mapping[Path, str]) -> None:
    """All of the files, or none; nothing is overwritten."""
    written: list[Path] = []
    try:
        for path, text in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink()
        why = f"{error.filename or path} is there already, and nothing is overwritten: choose another name or folder"
        if not isinstance(error, FileExistsError):
            why = f"{error.filename or path}: {error.strerror}; choose a folder that can be written"
        raise ConfigError(why) from error


def _next(kind: str, name: str, cls: str, port: str) -> Sequence[tuple[str, str]]:
    """Commands, and what each is for."""
    module = f"{kind}s.{name}"
    if kind == "recipe":
        return [
            (f"kitchen check {module} --preview --training fake", "what it would do; nothing runs"),
            (f"kitchen run {module} --training fake", "cook it without a model, in seconds"),
            (f"kitchen run {module} dataset=FILE", "train a model on rows of yours"),
            (f"kitchen describe {module}", "what can be set"),
            ("pytest", "its test"),
        ]
    if kind == "stage":
        return [
            ("pytest", "its test"),
            (f"from {module} import {cls}", f"in a recipe, and as a step of it: {cls}()"),
        ]
    return [
        (
            f"pytest -x --tb=line tests/test_{name}.py",
            "the laws: the first that fails says what to write next",
        ),
        (f"kitchen run recipes.sl_basic --{port} {module}:{cls}", "use it"),
        (
            f'[project.entry-points."kitchen.{port}"]',
            "in pyproject.toml of a package of yours, to call it by a name:",
        ),
        (f'{name} = "{module}:{cls}"', f"--{port} {name}"),
    ]


def _say(folder: Path, made: Sequence[str], then: Sequence[tuple[str, str]]) -> None:
    out = console()
    out.print(f"written: {', '.join(str(folder / path) for path in made)}\n", soft_wrap=True)
    if folder.resolve() != Path.cwd():
        then = [(f"cd {shlex.quote(str(folder))}", ""), *then]
    width = max(len(command) for command, _ in then)
    for command, why in then:
        out.print(f"  {command:{width}}  {'# ' * bool(why)}{why}".rstrip(), soft_wrap=True)
