"""YAML 1.2, where `1e-3` is a number and `no` and dates are strings; each value with its line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from kitchen.errors import ConfigError
from kitchen.safe_text import escape_controls, escape_json_controls

_MAX_VALUES = 100_000  # of a document, with the aliases in it followed
_TEXT_PER_VALUE = 1_000  # characters of a text that count as another value
_MAX_DEPTH = 200  # of lists and mappings in brackets; a parser takes minutes for thousands
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}


@dataclass(frozen=True)
class YamlValue:
    """A value that is not a mapping, under the keys that lead to it."""

    keys: tuple[str, ...]
    value: Any
    line: int  # from 1


class _Constructor(SafeConstructor):
    """The core schema of YAML 1.2 has no dates."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)
for _tag in ("binary", "omap", "pairs", "set"):  # of YAML 1.1
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_tag}", SafeConstructor.construct_undefined)


def read_yaml(text: str, place: str, keys: tuple[str, ...] = ()) -> Sequence[YamlValue]:
    """Read a document and flatten its mappings; raises ConfigError with the place and line.

    With `keys`, the text is the value of that setting rather than a file.
    """
    try:
        value, node = _load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark and not keys else place
        problem = " ".join((error.problem or str(error)).split())
        hint = "; quote what YAML would read otherwise: key='\"...\"'" if keys else ""
        raise ConfigError(f"{where}: not YAML: {problem}{hint}") from error
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{place}: not YAML: {' '.join(str(error).split())}") from error
    return tuple(_flatten(value, node, keys, 1))


def check_aliases(document: Any) -> None:
    """Raise ValueError if the aliases in a document stand for too many values, or for themselves.

    A file of 500 bytes can name 10^9 values by aliases of aliases. `document` is its root node, of
    ruamel.yaml or PyYAML; None if it is empty.
    """
    try:
        size = 0 if document is None else _expanded_size(document, {})
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    if size > _MAX_VALUES:
        raise ValueError(f"its aliases (*name) stand for more than {_MAX_VALUES:,} values")


def check_brackets(text: str) -> None:
    """Raise ValueError for a text with too many open brackets, before it is parsed."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    depth = 0
    for character in text:
        depth = max(0, depth + _BRACKETS.get(character, 0))
        if depth > _MAX_DEPTH:
            raise ValueError("its values are nested too deeply")


def yaml_value(value: Any) -> str:
    """Return a value as it would be typed."""
    if isinstance(value, str):
        return value if _is_plain(value, value, value) else _quoted(value)
    return _flow_value(value)


def _flow_value(value: Any) -> str:
    """Return a value as it would be typed inside a list or mapping."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and math.isnan(value):
        return ".nan"
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, str):
        return value if _is_plain(value, f"[{value}]", [value]) else _quoted(value)
    if isinstance(value, Mapping):
        items = (f"{_flow_value(key)}: {_flow_value(inner)}" for key, inner in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow_value, value)) + "]"
    return repr(value)


def _is_plain(text: str, document: str, expected: Any) -> bool:
    """Return whether a text needs no quotes in a document, which must be read as expected."""
    if escape_controls(text) != text:
        return False
    try:
        return bool(_load(document)[0] == expected)
    except (YAMLError, ValueError):
        return False


def _quoted(text: str) -> str:
    return escape_json_controls(json.dumps(text, ensure_ascii=False))


def _load(text: str) -> tuple[Any, Any]:
    """Return the value and the root node of a document; raises YAMLError or ValueError."""
    try:
        check_brackets(text)
        node = _yaml().compose(text)
        check_aliases(node)
        return _yaml().load(text), node
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def _expanded_size(node: Any, sizes: dict[int, float]) -> float:
    """Return the number of values in a node with its aliases followed; each node is visited once.

    `sizes` has the nodes visited before, and infinity for those that contain this one.
    """
    if id(node) not in sizes:
        sizes[id(node)] = math.inf
        is_text = isinstance(node.value, str)
        children = () if is_text else node.value
        size = 1.0 + (len(node.value) / _TEXT_PER_VALUE if is_text else 0.0)
        for child in children:
            for part in child if isinstance(child, tuple) else (child,):
                size += _expanded_size(part, sizes)
        sizes[id(node)] = size
    return sizes[id(node)]


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    return yaml


def _flatten(value: Any, node: Any, keys: tuple[str, ...], line: int) -> Iterator[YamlValue]:
    """Yield the values inside of nested mappings; lines are those of their keys in `node`."""
    if not isinstance(value, dict) or not value:
        yield YamlValue(keys, value, line)
        return
    key_nodes = {} if node is None else {str(key.value): (key, child) for key, child in node.value}
    for key, inner in value.items():
        # None: the key was merged in from elsewhere by `<<`
        key_node, child = key_nodes.get(str(key), (None, None))
        key_line = line if key_node is None else key_node.start_mark.line + 1
        yield from _flatten(inner, child, (*keys, str(key)), key_line)
