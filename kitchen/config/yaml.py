"""YAML 1.2: `1e-3` is a number, `no` and a date are strings; and each value knows its line."""

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
    """A value that is no mapping, under the keys that lead to it."""

    keys: tuple[str, ...]
    value: Any
    line: int  # from 1


class _Constructor(SafeConstructor):
    """The core schema of YAML 1.2 has no dates."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def read_yaml(text: str, place: str, keys: tuple[str, ...] = ()) -> Sequence[YamlValue]:
    """The values of a document, mappings taken apart; raises ConfigError that names the place and
    line.
    """
    try:
        value, node = _yaml().load(text), _yaml().compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark and not keys else place
        quote = "; quote what YAML would read otherwise: key='\"...\"'" if keys else ""
        raise ConfigError(
            f"{where}: not YAML: {' '.join((error.problem or str(error)).split())}{quote}"
        ) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not YAML: {' '.join(str(error).split())}") from error
    return tuple(_apart(value, node, keys, 1))


def yaml_value(value: Any) -> str:
    """A value as it would be typed."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, str):
        return value if _plain(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {yaml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(yaml_value, value)) + "]"
    return repr(value)


def _plain(text: str) -> bool:
    try:
        return bool(_yaml().load(text) == text)
    except YAMLError:
        return False


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    return yaml


def _apart(value: Any, node: Any, keys: tuple[str, ...], line: int) -> Iterator[YamlValue]:
    if not isinstance(value, dict) or not value:
        yield YamlValue(keys, value, line)
        return
    inside = {str(key.value): (key, child) for key, child in node.value} if node is not None else {}
    for key, each in value.items():
        at, child = inside.get(str(key), (None, None))  # None: it came from elsewhere by `<<`
        yield from _apart(
            each, child, (*keys, str(key)), line if at is None else at.start_mark.line + 1
        )
