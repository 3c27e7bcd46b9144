"""`kitchen new`: a recipe, stage or adapter written from a template, with its test."""

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
    """Write a recipe, stage or adapter and its test into a folder: both files, or none.

    `port` is that of an adapter. Raises ConfigError; no file is overwritten.
    """
    if port and port not in PORTS:
        raise ConfigError(f"--port {port}: there is no such port; {did_you_mean(port, PORTS)}")
    check_not_shadowed()
    package = f"{kind}s"
    words = name.split("_")
    cls = "".join(word[:1].upper() + word[1:] for word in words) + port.capitalize()
    _check_name(kind, name, cls)
    check_open_package(folder, package)
    template = port or kind
    texts = {
        f"{package}/{name}.py": _fill_template(template, name, cls),
        f"tests/test_{name}.py": _fill_template(f"{template}_test", name, cls),
    }
    if any(_top_level_names(text).count(cls) > 1 for text in texts.values()):
        raise ConfigError(
            f"{name!r} cannot be the name of this {kind}: another object in its file is called "
            f"{cls}; choose another name"
        )
    if not (folder / _CONFTEST).exists():
        texts[_CONFTEST] = _fill_template("conftest", name, cls)
    write_all({folder / path: text for path, text in texts.items()})
    print_next_steps(folder, list(texts), _next_steps(kind, name, cls, port))
    return 0


def _check_name(kind: str, name: str, cls: str) -> None:
    """Raise ConfigError if `name` cannot name a module, or `cls` a class in it."""
    if reason := _why_unusable(f"{kind}s", name, cls):
        raise ConfigError(f"{name!r} cannot be the name of this {kind}: {reason}")


def _why_unusable(package: str, name: str, cls: str) -> str:
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        suggestion = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_0123456789")
        hint = f"; try {suggestion!r}" if suggestion else ""
        return f"a name is a letter followed by letters, digits and underscores{hint}"
    for word in (name, cls):
        if keyword.iskeyword(word):
            return f"{word} is a keyword of Python; choose another name"
    if spec := find_spec(f"{package}.{name}"):
        where = f", in {spec.origin}" if spec.origin else ""
        return f"{package}.{name} exists already{where}; choose another name"
    return ""


def check_open_package(folder: Path, package: str) -> None:
    """Raise ConfigError if an `__init__.py` in the folder would hide the installed package."""
    init = folder / package / "__init__.py"
    if init.exists():
        raise ConfigError(
            f"{init} makes {package!r} a regular package, which hides the installed {package}: "
            "delete or rename that file"
        )


def _fill_template(template: str, name: str, cls: str) -> str:
    path = files("kitchen.cli").joinpath("scaffold", f"{template}.txt")
    return Template(path.read_text(encoding="utf-8")).substitute(name=name, Name=cls)


def _top_level_names(text: str) -> Sequence[str]:
    """Return the names that a module binds at its top level, with repetitions."""
    names: list[str] = []
    for node in ast.parse(text).body:
        match node:
            case ast.Import(aliases) | ast.ImportFrom(names=aliases):
                names += [alias.name for alias in aliases]
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.append(name)
            case ast.Assign(targets):
                names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def write_all(texts: Mapping[Path, str]) -> None:
    """Write all files or none; raises ConfigError, also for a file that exists already."""
    written: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink()
        where = error.filename or path
        reason = f"{where}: {error.strerror}; choose a folder that can be written"
        if isinstance(error, FileExistsError):
            reason = f"{where} exists already and is not overwritten: choose another name or folder"
        raise ConfigError(reason) from error


def _next_steps(kind: str, name: str, cls: str, port: str) -> Sequence[tuple[str, str]]:
    """Return commands or lines of code to use next, each with its purpose."""
    module = f"{kind}s.{name}"
    if kind == "recipe":
        check = f"kitchen check {module} --preview --training fake"
        return [
            (check, "show its plan; nothing runs"),
            (f"kitchen run {module} --training fake", "run it without a model, in seconds"),
            (f"kitchen run {module} dataset=FILE", "train a model on your rows"),
            (f"kitchen describe {module}", "show its settings"),
            ("pytest", "run its test"),
        ]
    if kind == "stage":
        return [
            ("pytest", "run its test"),
            (f"from {module} import {cls}", f"in a recipe, where {cls}() is a step"),
        ]
    return [
        (
            f"pytest -x --tb=line tests/test_{name}.py",
            "run the laws: the first that fails tells you what to write next",
        ),
        (f"kitchen run recipes.sl_basic --{port} {module}:{cls}", "use it"),
        (
            f'[project.entry-points."kitchen.{port}"]',
            "in the pyproject.toml of your package, to give it a name:",
        ),
        (f'{name} = "{module}:{cls}"', f"--{port} {name}"),
    ]


def print_next_steps(folder: Path, paths: Sequence[str], steps: Sequence[tuple[str, str]]) -> None:
    out = console()
    written = ", ".join(str(folder / path) for path in paths)
    out.print(f"written: {written}\n", soft_wrap=True)
    if folder.resolve() != Path.cwd():
        steps = [(f"cd {shlex.quote(str(folder))}", ""), *steps]
    width = max(len(command) for command, _ in steps)
    lines = [_step_line(command, purpose, width) for command, purpose in steps]
    if max(map(len, lines)) > out.width:
        lines = [_step_line(command, purpose) for command, purpose in steps]
    for line in lines:
        out.print(line, soft_wrap=True)


def _step_line(command: str, purpose: str, width: int | None = None) -> str:
    """Return a command with its purpose in a column beside it, or above it if `width` is None."""
    if not purpose:
        return f"  {command}"
    if width is None:
        return f"  # {purpose}\n  {command}"
    return f"  {command:{width}}  # {purpose}"
