"""What a user gave: settings from the command line, from YAML files and from Python, each with its
place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchen.config.yaml import YamlValue, read_yaml, yaml_value
from kitchen.errors import ConfigError

COMMAND_LINE = "command line"
# ("rendering", "max_tokens"), or ("rendering.max_tokens",) as it was written
Keys = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One value that was given, and where."""

    keys: Keys
    value: Any
    source: str  # "command line", "config.yaml:3", "settings"

    def __str__(self) -> str:
        return f"{self.source}: {'.'.join(self.keys)}={yaml_value(self.value)}"


def from_arguments(texts: Sequence[str]) -> Sequence[Setting]:
    """`key=value`, the value in YAML or a text as it is; raises ConfigError for anything else."""
    settings = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().partition(".")[0]:
            raise ConfigError(f"{COMMAND_LINE}: {text!r} is no setting; write it as key=value")
        settings += [
            Setting(one.keys, one.value, COMMAND_LINE) for one in _typed(key.strip(), value, text)
        ]
    return settings


def _typed(key: str, value: str, text: str) -> Sequence[YamlValue]:
    """What begins with a quote or a bracket is YAML, and so is a number, a truth value and null;
    others are texts.

    A text may so have colons, number signs and lines, which YAML would read otherwise.
    """
    place = f"{COMMAND_LINE}: {text}"
    if value.lstrip()[:1] in tuple("\"'[{"):
        return read_yaml(value, place, (key,))
    try:
        [found] = read_yaml(value, place, (key,))
    except (ConfigError, ValueError):
        return (YamlValue((key,), value, 1),)
    plain = isinstance(found.value, bool | int | float | None) and found.keys == (key,)
    # YAML's own signs
    return (found if plain and not set(value) & set("#&\n") else YamlValue((key,), value, 1),)


def from_file(path: Path) -> Sequence[Setting]:
    """A YAML file of settings, nested or with dots; raises ConfigError that names file and line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; --config takes a YAML file of settings"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from error
    settings = []
    for one in read_yaml(text, str(path)):
        place = f"{path}:{one.line}"
        if one.keys:
            settings.append(Setting(one.keys, one.value, place))
        elif one.value not in (None, {}):
            raise ConfigError(
                f"{place}: settings stand in lines such as 'learning_rate: 1e-4'; this is "
                f"{one.value!r}"
            )
    return settings


def from_mapping(settings: Mapping[str, Any], source: str, above: Keys = ()) -> Iterator[Setting]:
    """Of Python, nested or with dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from from_mapping(value, source, (*above, str(key)))
        else:
            yield Setting((*above, str(key)), value, source)
