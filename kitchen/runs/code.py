"""Digests of a user's code, so that a resumed run notices changed code."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from kitchen.errors import ConfigError, ResumeError, is_user_file
from kitchen.recipe import field_values
from kitchen.stage import Stage
from kitchen.workflow import Step, walk

_SCRIPT = "__main__"  # a run is often resumed by another script than the one that started it


class OtherCode(ResumeError):
    """Code of the recipe, of a stage or of their functions has changed since the run started."""

    option = "other_code"  # to resume the run nevertheless


def code_digests(recipe: str, step: Step) -> Mapping[str, str]:
    """Return the SHA-256 of each module of the user that a run uses, by name.

    These are the modules of the recipe, of its stages and of the functions in their options, also
    of those named as MODULE:function, and those that they import. Comments and the layout of the
    code do not count.
    """
    modules: dict[str, ModuleType] = {}
    options = list(_values(step))
    waiting = [recipe.partition(":")[0], *_modules_of(options), *_named_in(options)]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        is_known = name in modules or name == _SCRIPT
        if not is_known and module is not None and _is_user_code(module):
            modules[name] = module
            waiting += _modules_of(vars(module).values())
    return {name: _digest(modules[name]) for name in sorted(modules)}


def changed_modules(earlier: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the modules in both that differ; a module in only one changes the plan."""
    return [name for name in earlier if now.get(name, earlier[name]) != earlier[name]]


def _values(step: Step) -> Iterator[Any]:
    """Yield the stages of a workflow and their options."""
    for inner in walk(step):
        if isinstance(inner, Stage):
            stage = inner.without_roles()
            yield stage
            yield from vars(stage).values()


def _modules_of(values: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the modules that define these values, or their classes."""
    for value in values:
        if isinstance(value, ModuleType):
            yield value.__name__
        for owner in (value, type(value)):
            name = getattr(owner, "__module__", None)
            if isinstance(name, str):
                yield name


def _named_in(options: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the modules of functions by name, MODULE:function."""
    for option in options:
        for text in _texts(option):
            if ":" in text:
                yield text.partition(":")[0]


def _texts(option: Any) -> Iterator[str]:
    """Yield the texts in an option of a stage, also in its fields, items and keys."""
    if isinstance(option, str):
        yield option
        return
    values = field_values(option) or {}
    items = option if isinstance(option, list | tuple) else chain(values, values.values())
    for item in items:
        yield from _texts(item)


def _is_user_code(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_user_file(file)


def _digest(module: ModuleType) -> str:
    """Return the digest of a module's syntax tree, as it is on disk now.

    Raises ConfigError if the file cannot be read.
    """
    file = Path(str(module.__file__))
    try:
        return _file_digest(file, file.stat().st_mtime_ns)
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}, the source of module {module.__name__!r}: {error.strerror}; "
            "restore the file: a resumed run compares its code with that of the start"
        ) from error


@lru_cache(maxsize=1024)
def _file_digest(file: Path, modified: int) -> str:
    source = file.read_bytes()
    with suppress(SyntaxError):  # it may have been edited after it was imported
        source = ast.dump(ast.parse(source)).encode()
    return hashlib.sha256(source).hexdigest()
