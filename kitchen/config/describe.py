"""Descriptions of a recipe's settings: types, defaults, and the comments beside the fields."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from kitchen.config.settings import nested_settings
from kitchen.config.sources import Keys
from kitchen.config.yaml import yaml_value

_TYPE_NAMES: Mapping[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "any",
}
_BOUND_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True)
class SettingDescription:
    """One setting, as `kitchen describe` shows it."""

    name: str  # "rendering.max_tokens"
    type: str
    default: str  # as it would be typed; empty where the setting is required
    about: str  # unit and meaning


def describe_settings(cls: Any) -> Iterator[SettingDescription]:
    """Describe the settings of a recipe in order, nested ones after the setting that holds them."""
    yield from _describe(cls, (), None)


def type_text(annotation: Any) -> str:
    """Return a type as text: `whole number > 0`, `error or drop`, `list of text or null`."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        base, *metadata = arguments
        return f"{type_text(base)} {' and '.join(_bounds(metadata))}".strip()
    if origin in (Union, UnionType):
        return " or ".join(map(type_text, arguments))
    if origin is Literal:
        return " or ".join(map(yaml_value, arguments))
    if origin in (list, Sequence) or arguments[1:] == (...,):  # tuple[X, ...]
        return f"list of {type_text(arguments[0]).replace('number', 'numbers', 1)}"
    if origin in (dict, Mapping):
        return f"mapping of {' to '.join(map(type_text, arguments))}"
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    if isinstance(annotation, type) and not arguments:
        return annotation.__name__
    return str(annotation)


def _bounds(metadata: list[Any]) -> Iterator[str]:
    """Yield `> 0` and the like; the constraints of a pydantic Field are nested in its metadata."""
    for entry in metadata:
        for constraint in getattr(entry, "metadata", (entry,)):
            for attribute, sign in _BOUND_SIGNS.items():
                bound = getattr(constraint, attribute, None)
                if bound is not None:
                    yield f"{sign} {bound}"


def _describe(cls: Any, parents: Keys, instance: Any) -> Iterator[SettingDescription]:
    """Describe the fields of a class; defaults come from `instance`, or from the class if None."""
    comments = _field_comments(cls)
    for name, annotation in nested_settings(cls).items():
        default = _default(cls, name) if instance is None else getattr(instance, name)
        keys = (*parents, name)
        if nested_settings(annotation) and _has_fields(default):
            yield from _describe(type(default), keys, default)
        else:
            shown = "" if default is MISSING else yaml_value(default)
            yield SettingDescription(
                ".".join(keys), type_text(annotation), shown, comments.get(name, "")
            )


def _has_fields(default: Any) -> bool:
    return default is not MISSING and (is_dataclass(default) or isinstance(default, BaseModel))


def _default(cls: Any, name: str) -> Any:
    """Return the default of a field, or MISSING."""
    if issubclass(cls, BaseModel):
        info = cls.model_fields[name]
        return MISSING if info.is_required() else info.get_default(call_default_factory=True)
    [field] = [field for field in fields(cls) if field.name == name]
    return field.default if field.default_factory is MISSING else field.default_factory()


def _field_comments(cls: Any) -> Mapping[str, str]:
    """Return the comment of each field: above it or at its line's end, else its docstring.

    Comments of base classes are inherited.
    """
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__annotations__" in vars(base) and not base.__module__.startswith("pydantic"):
            comments |= _source_comments(base)
    model_fields: Mapping[str, Any] = getattr(cls, "model_fields", {})
    docstrings = {name: info.description for name, info in model_fields.items() if info.description}
    return {**docstrings, **comments}


def _source_comments(cls: Any) -> Mapping[str, str]:
    """Read the comments beside the fields that a class defines itself from its source."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # defined in a console: there is no source
        return {}
    [class_node] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return comments_beside(class_node.body, source)


def comments_beside(statements: Iterable[ast.stmt], source: str) -> Mapping[str, str]:
    """Return name to comment of the assignments among the statements of a source text."""
    comments, columns = _comment_lines(source)
    by_name = {}
    for node in statements:
        name = _assigned_name(node)
        first = node.lineno
        while columns.get(first - 1) == node.col_offset:
            first -= 1
        last = node.end_lineno or node.lineno
        # a line further right continues the comment at the end of the line before
        while columns.get(last + 1, 0) > node.col_offset:
            last += 1
        texts = [comments[line] for line in range(first, last + 1) if line in comments]
        if name and texts:
            by_name[name] = " ".join(texts)
    return by_name


def _assigned_name(node: ast.stmt) -> str:
    """Return the name that a statement assigns to; empty if it is not such a statement."""
    match node:
        case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
            return name
    return ""


def _comment_lines(source: str) -> tuple[dict[int, str], dict[int, int]]:
    """Return the comments by line number, and the column of those that are alone on their line."""
    comments: dict[int, str] = {}
    columns: dict[int, int] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            comments[line] = token.string.lstrip("# ").strip()
            if not token.line[:column].strip():
                columns[line] = column
    return comments, columns
