"""What can be set on a recipe: types, defaults, and the units that stand in the comments beside the
fields.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from kitchen.config.settings import nested_settings
from kitchen.config.sources import Keys
from kitchen.config.yaml import yaml_value

_NAMES: Mapping[Any, str] = {
    int: "int",
    float: "float",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "any",
}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True)
class SettingDescription:
    """One setting."""

    name: str  # "rendering.max_tokens"
    type: str
    default: str  # as it would be typed; empty where it must be given
    description: str  # unit and meaning


def describe_settings(cls: Any) -> Iterator[SettingDescription]:
    """The settings of a recipe in order; those inside of a setting follow it."""
    yield from _inside(cls, (), None)


def type_text(kind: Any) -> str:
    """`int > 0`, `error or drop or truncate`, `int or null`."""
    if get_origin(kind) is Annotated:
        base, *rest = get_args(kind)
        # those of a Field lie inside
        limits = [limit for each in rest for limit in getattr(each, "metadata", (each,))]
        bounds = [
            f"{sign} {getattr(each, word)}"
            for each in limits
            for word, sign in _BOUNDS.items()
            if getattr(each, word, None) is not None
        ]
        return " ".join([type_text(base), " and ".join(bounds)]).strip()
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(type_text, get_args(kind)))
    if get_origin(kind) is Literal:
        return " or ".join(map(yaml_value, get_args(kind)))
    return _NAMES.get(kind) or (
        kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    )


def _inside(cls: Any, above: Keys, given: Any) -> Iterator[SettingDescription]:
    """`given` is the value that the defaults come from; None: those of the class."""
    notes = _notes(cls)
    for name, kind in nested_settings(cls).items():
        default = _default(cls, name) if given is None else getattr(given, name)
        if (
            nested_settings(kind)
            and default is not MISSING
            and (is_dataclass(default) or isinstance(default, BaseModel))
        ):
            yield from _inside(type(default), (*above, name), default)
        else:
            shown = "" if default is MISSING else yaml_value(default)
            yield SettingDescription(
                ".".join((*above, name)), type_text(kind), shown, notes.get(name, "")
            )


def _default(cls: Any, name: str) -> Any:
    if issubclass(cls, BaseModel):
        info = cls.model_fields[name]
        return MISSING if info.is_required() else info.get_default(call_default_factory=True)
    [one] = [each for each in fields(cls) if each.name == name]
    return one.default if one.default_factory is MISSING else one.default_factory()


def _notes(cls: Any) -> Mapping[str, str]:
    """Field to the comment above it or at the end of its line, else to the docstring below it; those of a base class
    are inherited.
    """
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if "__annotations__" in vars(each) and not each.__module__.startswith("pydantic"):
            found |= _comments(each)
    described = {
        name: info.description
        for name, info in getattr(cls, "model_fields", {}).items()
        if info.description
    }
    return {**described, **found}


def _comments(cls: Any) -> Mapping[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # typed into a console: there is no source
        return {}
    comments, alone = _comment_lines(source)
    [body] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.end_lineno or node.lineno
            first = node.lineno
            while first - 1 in alone:
                first -= 1
            texts = [comments[line] for line in range(first, last + 1) if line in comments]
            if texts:
                found[node.target.id] = " ".join(texts)
    return found


def _comment_lines(source: str) -> tuple[dict[int, str], set[int]]:
    """Comments by line number, and the numbers of the lines that hold nothing else."""
    comments, alone = {}, set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ").strip()
            if not token.line[: token.start[1]].strip():
                alone.add(token.start[0])
    return comments, alone
