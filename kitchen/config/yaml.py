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


@dataclass(frozen=True)
class YamlValue:
    """A value that is not a mapping, under the keys that lead to it."""

    keys: tuple[str, ...]
    value: Any
    line: int  # from 1


class _Constructor(SafeConstructor):
    """The core schema of YAML 1.2 has no dates."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def read_yaml(text: str, place: str, keys: tuple[str, ...] = ()) -> Sequence[YamlValue]:
    """Read a document and flatten its mappings; raises ConfigError with the place and line.

    With `keys`, the text is the value of that setting rather than a file.
    """
    try:
        value = _yaml().load(text)
        node = _yaml().compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark and not keys else place
        problem = " ".join((error.problem or str(error)).split())
        hint = "; quote what YAML would read otherwise: key='\"...\"'" if keys else ""
        raise ConfigError(f"{where}: not YAML: {problem}{hint}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not YAML: {' '.join(str(error).split())}") from error
    return tuple(_flatten(value, node, keys, 1))


def yaml_value(value: Any) -> str:
    """Return a value as it would be typed."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and math.isnan(value):
        return ".nan"
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        items = (f"{key}: {yaml_value(inner)}" for key, inner in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(yaml_value, value)) + "]"
    return repr(value)


def _is_plain(text: str) -> bool:
    """Return whether YAML reads the text as itself without quotes."""
    try:
        return bool(_yaml().load(text) == text)
    except YAMLError:
        return False


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
